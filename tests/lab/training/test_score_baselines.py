"""Baselines beside a run's scores, in `train`, in `evaluate` and in Python."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from commands import error_message

from contrapose.lab.cli import main
from contrapose.lab.modalities import Split, modality
from contrapose.lab.modalities.images.images import Images
from contrapose.lab.studies.measures import References
from contrapose.lab.studies.measures.measure import Context
from contrapose.lab.training import Model, Run, Trainer, load, prepare, score_baselines

RUN = Run(limit=64, batch=16, epochs=1, knn=3, metrics=0)
SMALL = ["--limit", "64", "--batch", "16", "--epochs", "1", "--knn", "3", "--metrics", "0"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Model, Split]:
    folder = tmp_path_factory.mktemp("run")
    Trainer(RUN, folder, log=lambda text: None).train()
    return load(folder, device="cpu"), prepare(RUN)


def measure(model: Model, split: Split, **options: object) -> score_baselines.Baselines:
    return score_baselines.score_baselines(model, split, ["knn_top1"], log=lambda text: None, **options)  # type: ignore[arg-type]


def test_baselines_are_those_of_compare(trained: tuple[Model, Split]) -> None:
    model, split = trained
    baselines = measure(model, split)
    references = References().evaluate(Context(model, split))["references"]
    assert list(baselines) == ["raw pixels", "untrained encoder", "chance"]
    assert baselines["raw pixels"]["knn_top1"] == references["pixels"]
    assert baselines["untrained encoder"]["knn_top1"] == references["untrained"]
    labels, test_labels = split.train.labels, split.held_out.labels
    assert labels is not None
    assert test_labels is not None
    most = int(labels.mode().values)
    assert baselines["chance"] == {"knn_top1": pytest.approx(100 * float((test_labels == most).float().mean()))}


def test_many_samples_get_only_chance_unless_all_are_requested(
    trained: tuple[Model, Split], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, split = trained
    monkeypatch.setattr(score_baselines, "_MOST_SAMPLES", 100)
    lines: list[str] = []
    few = score_baselines.score_baselines(model, split, ["knn_top1"], log=lines.append)
    assert list(few) == ["chance"]
    assert "images to encode; --baselines all measures the others too" in lines[0]
    assert "raw pixels" in measure(model, split, choice="all")
    assert measure(model, split, choice="none") == {}


def test_baselines_are_read_from_the_run_for_the_same_data_and_neighbours(trained: tuple[Model, Split]) -> None:
    model, split = trained
    assert model.folder is not None
    file = model.folder / "baselines.json"
    measured = measure(model, split)
    assert not file.exists()  # only `train` writes it
    assert measure(model, split, save=True) == measured
    content = json.loads(file.read_text())
    content["baselines"]["raw pixels"]["knn_top1"] = 77.0
    file.write_text(json.dumps(content))
    assert measure(model, split) == measured  # its checksum differs
    del content["checksum"]
    content["checksum"] = score_baselines._checksum(content)
    file.write_text(json.dumps(content))
    assert measure(model, split)["raw pixels"]["knn_top1"] == 77
    assert measure(model, split, neighbours=5)["raw pixels"]["knn_top1"] != 77
    assert isinstance(split.test, Images)
    relabelled = replace(split, test=replace(split.test, labels=torch.zeros(len(split.test), dtype=torch.long)))
    assert measure(model, relabelled)["raw pixels"]["knn_top1"] != 77
    for damaged in ("{", "[" * 100_000, json.dumps({**content, "baselines": 5})):
        file.write_text(damaged)
        assert measure(model, split) == measured


def test_pretrained_encoders_are_not_called_untrained(
    trained: tuple[Model, Split], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, split = trained
    monkeypatch.setattr(type(model.kind), "is_pretrained", lambda self, encoder: True)
    assert list(measure(model, split, neighbours=4)) == ["raw pixels", "encoder before training", "chance"]
    monkeypatch.undo()
    assert modality("text").is_pretrained("minilm")
    assert modality("text").is_pretrained("hf:models/bert+mean")
    assert not modality("text").is_pretrained("tiny")
    assert modality("images").is_pretrained("efficientnet-lite0")
    assert not modality("images").is_pretrained("tiny")


def test_train_and_evaluate_show_baselines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = str(tmp_path / "run")
    main(["train", *SMALL, "--out", run])
    lines = capsys.readouterr().out.splitlines()
    (line,) = [line for line in lines if line.startswith("knn_top1")]
    saved = json.loads((tmp_path / "run" / "baselines.json").read_text())["baselines"]
    assert f" % · raw pixels {saved['raw pixels']['knn_top1']:.2f} · untrained encoder " in line
    assert line.endswith(" · chance 9.50   (last epoch, 3 neighbours)")  # 19 of the 200 test images
    assert lines[-1].startswith("training has gained nothing measurable over ")
    assert lines[-1].endswith("points can be chance); use more --epochs, or other --views")
    main(["evaluate", run, "--linear", "cacr"])
    captured = capsys.readouterr()
    scores = json.loads(captured.out)
    assert scores["raw_pixels_knn_top1"] == pytest.approx(saved["raw pixels"]["knn_top1"], rel=1e-5)
    assert scores["untrained_encoder_knn_top1"] == pytest.approx(saved["untrained encoder"]["knn_top1"], rel=1e-5)
    assert scores["chance_knn_top1"] == scores["chance_linear_top1"] == pytest.approx(9.5)
    assert "training has gained nothing measurable" in captured.err
    main(["evaluate", run, "--baselines", "none"])
    captured = capsys.readouterr()
    assert set(json.loads(captured.out)) == {"step", "knn_top1", "knn_top5"}
    assert "gained" not in captured.err
    for command in (["train", *SMALL, "--out", run], ["evaluate", run]):
        assert "baselines: expected one of auto, all, none" in error_message(capsys, *command, "--baselines", "some")


@pytest.mark.thorough
def test_the_initial_weights_are_found_from_another_directory(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("first", "elsewhere"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "first")
    main(["train", *SMALL, "--out", "start"])
    main(["export", "start", "-o", "start.safetensors"])
    main(["train", *SMALL, "--init", "start.safetensors", "--out", "run"])
    assert " · encoder before training " in capsys.readouterr().out
    saved = json.loads(Path("run/baselines.json").read_text())["baselines"]["encoder before training"]
    Path("run/baselines.json").unlink()
    monkeypatch.chdir(tmp_path / "elsewhere")
    main(["evaluate", "../first/run"])
    scores = json.loads(capsys.readouterr().out)  # rounded
    assert scores["encoder_before_training_knn_top1"] == pytest.approx(saved["knn_top1"], rel=1e-5)
    Path("../first/start.safetensors").unlink()  # the run's own scores do not need it
    main(["evaluate", "../first/run"])
    captured = capsys.readouterr()
    assert "raw_pixels_knn_top1" in json.loads(captured.out)
    assert "baselines: encoder before training is not measured: " in captured.err


@pytest.mark.thorough
def test_recall_of_captions_is_printed_beside_chance(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small = ["--limit", "32", "--batch", "16", "--epochs", "1", "--metrics", "0", "--encoder", "tiny"]
    main(["train", "--data", "shapes", *small, "--text-encoder", "tiny", "--out", str(tmp_path / "run")])
    (line,) = [row for row in capsys.readouterr().out.splitlines() if row.startswith("text_to_image_recall_1 ")]
    assert " % · chance " in line
    main(["evaluate", str(tmp_path / "run")])
    captured = capsys.readouterr()
    assert "chance_text_to_image_recall_1" in json.loads(captured.out)
    assert "training has gained nothing measurable over chance: image_to_text_recall_1 is " in captured.err
