"""The command line as users call it."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
import torchvision
from commands import error_message
from PIL import Image
from pyarrow import parquet
from safetensors.torch import load_file
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from contrapose.lab.cli import exits, main
from contrapose.lab.cli.commands import FORMER
from contrapose.lab.modalities.images.digits import digits
from contrapose.lab.modalities.images.encoders import NETWORKS
from contrapose.lab.modalities.images.load import load
from contrapose.lab.training.locks import lock_directory

SMALL = ["--batch", "16", "--epochs", "1", "--knn", "3", "--metrics", "0"]


@pytest.mark.thorough
def test_train_evaluate_embed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    main(["train", "--limit", "64", *SMALL, "--out", str(run)])
    assert "knn_top1" in capsys.readouterr().out
    main(["evaluate", str(run), "--knn", "5"])
    assert 0 <= json.loads(capsys.readouterr().out)["knn_top1"] <= 100
    main(["evaluate", str(run), "--linear", "cacr", "--few-shot", "--finetune", "1"])
    assert {"linear_top1", "few_shot", "finetune_top1"} <= set(json.loads(capsys.readouterr().out))
    assert "linear: expected one of" in error_message(capsys, "evaluate", str(run), "--linear", "lda")
    assert "choose one with --linear" in error_message(capsys, "evaluate", str(run), "--augment", "crops")
    assert "augment: expected one of crops, flips, colours" in error_message(
        capsys, "evaluate", str(run), "--linear", "cacr", "--augment", "blur"
    )
    main(["embed", str(run), "digits", "-o", str(tmp_path / "out.npz")])
    with np.load(tmp_path / "out.npz") as arrays:
        assert arrays["train_features"].shape == (5000, 64)
        assert arrays["test_labels"].shape == (2000,)
    main(["train", "--limit", "64", *SMALL, "--out", str(run)])  # already finished
    assert "finished at step 4" in capsys.readouterr().out


@pytest.mark.thorough
def test_evaluate_on_other_data(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Horizontal and vertical stripes, which an encoder trained on digits can distinguish."""
    run, other = tmp_path / "run", tmp_path / "stripes.npz"
    main(["train", "--limit", "64", *SMALL, "--out", str(run)])
    horizontal = np.tile(np.array([[0], [255]], dtype=np.uint8).repeat(4, 0).reshape(1, 8, 1, 1), (1, 4, 32, 3))
    vertical = horizontal.swapaxes(1, 2)
    images = np.concatenate([horizontal.repeat(6, 0), vertical.repeat(6, 0)])
    labels = np.arange(2).repeat(6)
    np.savez(other, train_images=images, train_labels=labels, test_images=images[4:8], test_labels=labels[4:8])
    capsys.readouterr()
    main(["evaluate", str(run), "--data", str(other), "--linear", "cacr"])
    scores = json.loads(capsys.readouterr().out)
    assert scores["knn_top1"] == scores["linear_top1"] == 100
    main(["evaluate", str(run), "--data", str(other), "--linear", "cacr", "--augment", "colours", "--best"])
    augmented = json.loads(capsys.readouterr().out)
    added = {"linear_colours_top1", "linear_colours_best_top1"}
    assert augmented.keys() - scores.keys() == {*added, *(f"chance_{name}" for name in added)}
    assert "knn_top5" not in scores  # there are two classes
    assert "--knn: expected at most 12 neighbours" in error_message(
        capsys, "evaluate", str(run), "--data", str(other), "--knn", "20"
    )
    np.savez(other, train_images=images)
    for options in ((), ("--metrics", "--linear", "cacr-crops")):
        message = error_message(capsys, "evaluate", str(run), "--data", str(other), *options)
        assert "stripes.npz has no labelled" in message


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        (np.array([0, -1]), "expected whole numbers of at least 0, one for each image, got int64 such as -1, 0"),
        (np.array([0.0, np.nan]), "got float64 such as 0.0, nan"),
        (np.array(["a", "b"]), "got <U1 (2,)"),
    ],
    ids=["negative", "nan", "strings"],
)
def test_invalid_labels(
    labels: np.ndarray[Any, Any], expected: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "bad.npz"
    np.savez(file, train_images=np.zeros((2, 8, 8, 3), dtype=np.uint8), train_labels=labels)
    for arguments in (["data", "check", str(file)], ["train", "--data", str(file)]):
        message = error_message(capsys, *arguments)
        assert "bad.npz: train_labels: " in message
        assert expected in message


def test_errors_name_the_wrong_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = tmp_path / "weights.pth"
    torch.save({"x": torch.zeros(2)}, other)
    message = error_message(
        capsys, "train", "--init", str(other), "--limit", "64", *SMALL, "--out", str(tmp_path / "run")
    )
    assert f"`contrapose import {other} -o weights.safetensors`" in message
    assert "is a file, but a directory is needed" in error_message(capsys, "train", *SMALL, "--out", str(other))
    assert "nope.pth does not exist" in error_message(
        capsys, "import", str(tmp_path / "nope.pth"), "-o", "x.safetensors"
    )
    assert "ends in .safetensors" in error_message(capsys, "import", str(other), "-o", str(tmp_path / "x.npz"))
    (tmp_path / "fake.npz").write_bytes(b"no archive")
    assert "fake.npz is not an .npz file" in error_message(capsys, "train", "--data", str(tmp_path / "fake.npz"))
    main(["import", str(other), "-o", str(tmp_path / "new" / "x.safetensors")])
    assert load_file(tmp_path / "new" / "x.safetensors")["x"].shape == (2,)


def test_incompatible_settings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = ["--limit", "64", *SMALL, "--out", str(tmp_path / "run")]
    message = error_message(capsys, "train", "--encoder", "alexnet-64", *out)
    assert "alexnet-64 takes images of 64 pixels, but these views have 16; use --size 64" in message
    assert "a step schedule drops at some epochs" in error_message(capsys, "train", "--schedule", "step", *out)
    assert "ratio of at least 1" in error_message(capsys, "train", "--imbalance", "exponential:0", *out)


@pytest.mark.thorough
def test_metrics_of_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    main(["train", "--limit", "64", *SMALL[:-1], "30", "--out", str(run)])
    (record,) = [json.loads(line) for line in (run / "records.jsonl").read_text().splitlines()]
    expected = {
        "uniformity",
        "tolerance",
        "repulsion_gap",
        "penalty_entropy",
        "effective_temperature",
        "hardest_similarity",
    }
    assert expected <= record.keys()
    assert record["effective_temperature"] == pytest.approx(0.2, rel=1e-3)
    capsys.readouterr()
    main(["map", str(run), str(run), "--method", "pca", "--images", "40", "-o", str(tmp_path / "map.png")])
    assert ": projector -U " in capsys.readouterr().out
    main(["export", str(run), "-o", str(tmp_path / "encoder.safetensors")])
    card = (tmp_path / "encoder.safetensors.md").read_text()
    assert f"- uniformity of the projector's output: {record['uniformity']:.6g}" in card
    assert f"- uniformity of the encoder's features: {record['encoder_uniformity']:.6g}" in card
    capsys.readouterr()
    main(["evaluate", str(run), "--metrics"])
    scores = json.loads(capsys.readouterr().out)
    assert scores["uniformity"] != scores["encoder_uniformity"]
    assert (tmp_path / "map.png").read_bytes()[:4] == b"\x89PNG"
    assert "a sphere shows embeddings of 3 dimensions" in error_message(capsys, "map", str(run), "--method", "sphere")


@pytest.mark.thorough
def test_explain(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["explain", "dystress", "--vs", "simple", "nt_xent(temperature=0.1)", "-o", str(tmp_path / "out.png")])
    output = capsys.readouterr().out
    assert "The temperature depends on similarity: it is lowest at s = 0 (0.07) and at most 0.2." in output
    page = (tmp_path / "out.html").read_text()
    assert page.count("<h2>") == 4
    assert (tmp_path / "out.png").stat().st_size > 50_000
    assert "did you mean 'dystress'" in error_message(capsys, "explain", "dystres")
    assert "ends in .png, .svg or .pdf" in error_message(capsys, "explain", "dystress", "-o", "x.gif")
    assert "got -0.1\n" in error_message(capsys, "explain", "nt_xent(temperature=-0.1)")
    assert "got -4.0\n" in error_message(capsys, "explain", "balanced(alpha=-4)")
    assert "got 'foo'" in error_message(capsys, "explain", "dystress", "--data", "foo")


@pytest.mark.thorough
def test_export_and_import_weights(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--limit", "32", "--encoder", "resnet18", *SMALL]
    main(["train", *arguments, "--out", str(tmp_path / "run")])
    main(["export", str(tmp_path / "run"), "-o", str(tmp_path / "out.safetensors")])
    theirs = torchvision.models.resnet18(weights=None)
    exported = load_file(tmp_path / "out.safetensors")
    missing, unexpected = theirs.load_state_dict(exported, strict=False)
    assert missing == ["fc.weight", "fc.bias"]
    assert not unexpected
    torch.save(
        {"state_dict": {f"module.{name}": t for name, t in theirs.state_dict().items()}}, tmp_path / "foreign.pth"
    )
    main(["import", str(tmp_path / "foreign.pth"), "-o", str(tmp_path / "in.safetensors")])
    main(
        [
            "train",
            *arguments,
            "--init",
            str(tmp_path / "in.safetensors"),
            "--lr",
            "1e-30",
            "--out",
            str(tmp_path / "again"),
        ]
    )
    main(["export", str(tmp_path / "again"), "-o", str(tmp_path / "same.safetensors")])
    round_trip = load_file(tmp_path / "same.safetensors")
    assert all(
        torch.equal(round_trip[name], exported[name])
        for name in exported
        if "running" not in name and "num_batches" not in name
    )
    assert "init: missing.safetensors is not a file" in error_message(capsys, "train", "--init", "missing.safetensors")
    wrong = error_message(
        capsys,
        "train",
        "--limit",
        "32",
        *SMALL,
        "--init",
        str(tmp_path / "in.safetensors"),
        "--out",
        str(tmp_path / "w"),
    )
    assert "does not fit the encoder" in wrong
    assert "ends in .safetensors, .onnx or .pkl" in error_message(
        capsys, "export", str(tmp_path / "run"), "-o", "x.pth"
    )


@pytest.mark.thorough
@pytest.mark.filterwarnings("default")
def test_other_formats(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    main(["train", "--limit", "64", *SMALL, "--out", str(run)])
    main(["export", str(run), "-o", str(tmp_path / "encoder.onnx")])
    main(["embed", str(run), "digits16", "-o", str(tmp_path / "out.parquet")])
    table = parquet.read_table(tmp_path / "out.parquet")
    assert table.num_rows == 2797
    assert table["split"][2796].as_py() == "test"
    # The graph must give the features of the table. The digits' recipe normalises to (x - 0.5) / 0.25.
    pixels = digits(3, name="digits16").pixels.float() / 255
    session = onnxruntime.InferenceSession(str(tmp_path / "encoder.onnx"))
    (features,) = session.run(None, {"images": ((pixels - 0.5) / 0.25).numpy()})
    np.testing.assert_allclose(
        features, np.stack([table["features"][i].as_py() for i in range(3)]), rtol=1e-3, atol=1e-4
    )
    curves = EventAccumulator(str(run / "tensorboard"))
    curves.Reload()
    assert "loss" in curves.Tags()["scalars"]


def test_a_preset_with_other_data(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--preset", "behaviour/cifar10", "--data", "digits", "--limit", "64", "--encoder", "tiny", *SMALL]
    main(["train", *arguments, "--out", str(tmp_path / "run")])
    settings = json.loads((tmp_path / "run" / "run.json").read_text())
    assert (settings["framework"], settings["milestones"], settings["epochs"]) == ("memory-bank", [160, 190], 1)


def test_bad_arguments_get_one_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert "did you mean 'digits'" in error_message(capsys, "train", "--data", "digit")
    assert "did you mean 'nt_xent'" in error_message(capsys, "train", "--loss", "nt_xnt")
    assert "batch: expected a whole number" in error_message(capsys, "train", "--batch", "1")
    assert "has no run.json" in error_message(capsys, "evaluate", str(tmp_path))
    error_message(capsys, "train", "--epochs", "many")
    assert "--epochs" in error_message(capsys, "train", "--epoch", "3")
    assert not (tmp_path / "runs").exists()  # a refused command leaves nothing behind


def pictures(folder: Path, count: int = 20) -> None:
    for part in ("train", "test"):
        for label in ("cat", "dog"):
            (folder / part / label).mkdir(parents=True)
            for i in range(count):
                pixels = np.random.default_rng(i).integers(0, 256, (40, 36, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(folder / part / label / f"{i}.png")


def test_a_folder_of_images(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pictures(tmp_path / "mine")
    main(["train", "--data", str(tmp_path / "mine"), *SMALL, "--out", str(tmp_path / "run")])
    output = capsys.readouterr().out
    assert "40 images of mine (train)" in output
    assert "views simclr-cifar" in output
    assert "chosen for 40 images of 36 pixels" in output
    assert json.loads((tmp_path / "run" / "run.json").read_text())["views"] == "simclr-cifar"
    main(["data", "check", str(tmp_path / "mine")])
    output = capsys.readouterr().out
    assert "80 of 80 images can be read" in output
    assert "train: 40 images, 2 classes: cat 20, dog 20" in output
    embedded = tmp_path / "new" / "features.npz"
    main(["embed", str(tmp_path / "run"), f"{tmp_path / 'mine'}/", "-o", str(embedded)])
    with np.load(embedded) as arrays:
        assert arrays["classes"].tolist() == ["cat", "dog"]
        named = [Path(path).parent.name for path in arrays["test_paths"]]
        assert named == [["cat", "dog"][label] for label in arrays["test_labels"]]
    assert "ends in .npz or .parquet" in error_message(capsys, "embed", str(tmp_path / "run"), "digits", "-o", "f.csv")
    main(["train", "--data", f"{tmp_path / 'mine'}/", *SMALL, "--out", str(tmp_path / "run")])
    assert "finished at step 2" in capsys.readouterr().out


@pytest.mark.thorough
@pytest.mark.parametrize("stream", [(), pytest.param(("--stream",), marks=pytest.mark.thorough)])
def test_a_training_resumes_only_with_its_own_images(
    stream: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pictures(tmp_path / "mine")
    arguments = ["train", "--data", str(tmp_path / "mine"), *stream, *SMALL, "--out", str(tmp_path / "run")]
    main(arguments)
    one = next((tmp_path / "mine" / "train" / "cat").iterdir())
    one.rename(one.with_stem("another"))
    message = error_message(capsys, *arguments)
    assert "the 40 images" in message
    assert "are not the 40 that" in message
    main(["evaluate", str(tmp_path / "run")])  # the trained encoder can still be evaluated
    one.with_stem("another").rename(one)
    capsys.readouterr()
    main(arguments)
    assert "finished at step 2" in capsys.readouterr().out


def test_classes_are_matched_by_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pictures(tmp_path / "mine", 4)
    (tmp_path / "mine" / "train" / "ant").mkdir()
    for name in ("0.png", "1.png"):
        shutil.copy(tmp_path / "mine" / "train" / "cat" / name, tmp_path / "mine" / "train" / "ant")
    split = load(str(tmp_path / "mine"))
    assert split.train.classes == ("ant", "cat", "dog")
    assert split.test is not None
    assert split.test.labels is not None
    assert split.test.labels.tolist() == [1] * 4 + [2] * 4
    (tmp_path / "mine" / "test" / "cat").rename(tmp_path / "mine" / "test" / "cow")
    output = error_message(capsys, "data", "check", str(tmp_path / "mine"))
    assert "have a class 'cow' that the training images do not have" in output


def test_a_run_without_weights_is_not_evaluated(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    main(["train", "--limit", "64", *SMALL, "--out", str(run)])
    shutil.rmtree(run / "checkpoints")
    assert "has no checkpoint that can be read" in error_message(capsys, "evaluate", str(run))
    (run / "run.json").write_text("{")
    assert "run.json does not describe a run" in error_message(capsys, "evaluate", str(run))


def test_a_refused_setting_leaves_the_directory_free(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["train", "--limit", "64", *SMALL, "--out", str(tmp_path / "run"), "--loss"]
    assert "temperature: expected" in error_message(capsys, *arguments, "nt_xent(temperature=0)")
    main([*arguments, "nt_xent(temperature=0.1)"])
    output = capsys.readouterr().out
    assert "epoch    1   loss" in output
    recorded = json.loads((tmp_path / "run" / "records.jsonl").read_text())["loss"]
    assert f"loss {recorded:.3f}" in output
    assert "holds another run" in error_message(capsys, *arguments, "simclr")


def test_only_one_process_trains_in_a_directory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["train", "--limit", "64", *SMALL, "--out", str(tmp_path / "run")]
    with lock_directory(tmp_path / "run") as acquired:
        assert acquired
        assert "another process is training in" in error_message(capsys, *arguments)
    main(arguments)


def test_small_folders_and_versions(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = error_message(capsys, "train", "--limit", "60", "--batch", "128", "--out", str(tmp_path / "run"))
    assert "the data set has only 60 (--batch 32 would do)" in output
    assert "data: expected a name or a path, got nothing" in error_message(capsys, "train", "--data", "")
    main(["--version"])
    assert capsys.readouterr().out.startswith("contrapose 0.")
    np.savez(tmp_path / "first.npz", train_images=np.zeros((10, 3, 8, 8), dtype=np.uint8))
    output = error_message(capsys, "train", "--data", str(tmp_path / "first.npz"))
    assert "(N, H, W, 3), channels last, got uint8 (10, 3, 8, 8)" in output


def test_broken_images_are_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pictures(tmp_path / "mine", 4)
    good = tmp_path / "mine" / "train" / "cat" / "0.png"
    broken = {
        "empty.png": b"",
        "cut.png": good.read_bytes()[:-40],
        "text.png": b"not an image",
        "magic.jpg": b"\xff\xd8\xff" + b"\x00" * 30,
    }
    for name, payload in broken.items():
        (tmp_path / "mine" / "train" / "cat" / name).write_bytes(payload)
    for name, mode in (
        ("palette.png", "P"),
        ("grey.png", "L"),
        ("deep.png", "I;16"),
        ("alpha.png", "RGBA"),
        ("cmyk.jpg", "CMYK"),
    ):
        Image.new(mode, (36, 36)).save(tmp_path / "mine" / "train" / "dog" / name)
    with pytest.raises(SystemExit) as exit_info:
        main(["data", "check", str(tmp_path / "mine")])
    assert exit_info.value.code == 1
    output = capsys.readouterr().out
    assert all(name in output for name in broken)
    assert "21 of 25 images can be read" in output  # unusual modes are not broken
    assert "cannot be read" in error_message(
        capsys, "train", "--data", str(tmp_path / "mine"), *SMALL, "--out", str(tmp_path / "r")
    )


@pytest.mark.thorough
def test_broken_images_are_left_out_on_request(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "mine"
    pictures(folder)
    whole = (folder / "train" / "cat" / "0.png").read_bytes()
    (folder / "train" / "cat" / "cut.png").write_bytes(whole[:-40])
    (folder / "test" / "dog" / "empty.png").touch()
    for stream in ((), ("--stream", "--workers", "0")):
        arguments = ["train", "--data", str(folder), *stream, *SMALL, "--out", str(tmp_path / f"run{len(stream)}")]
        message = error_message(capsys, *arguments)
        assert "cut.png, cannot be read: " in message
        assert "(--skip-broken leaves such files out, `contrapose data check` lists them)" in message
        main([*arguments, "--skip-broken"])
        output = capsys.readouterr().out
        assert "data: 2 broken files are left out, after all files were decoded once: " in output
        assert "empty.png: the file is empty" in output
        assert "40 images of mine (train)" in output
    run = str(tmp_path / "run0")
    main(["evaluate", run])  # as it was trained
    captured = capsys.readouterr()
    assert "knn_top1" in json.loads(captured.out)
    assert "2 broken files are left out" in captured.err
    strict = tmp_path / "strict"
    pictures(tmp_path / "good")
    main(["train", "--data", str(tmp_path / "good"), *SMALL, "--out", str(strict)])
    for command in (["evaluate", str(strict), "--data", str(folder)],
                    ["embed", str(strict), str(folder), "-o", str(tmp_path / "f.npz")]):  # fmt: skip
        assert "--skip-broken leaves such files out" in error_message(capsys, *command)
        main([*command, "--skip-broken"])
        captured = capsys.readouterr()
        assert "2 broken files are left out" in captured.err
        assert "left out" not in captured.out
    with np.load(tmp_path / "f.npz") as arrays:
        assert len(arrays["train_features"]) == len(arrays["test_features"]) == 40
        assert not [path for path in arrays["train_paths"] if "cut" in path]


def test_features_of_an_image_do_not_depend_on_other_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, run = tmp_path / "mine", tmp_path / "run"
    for label in ("cat", "dog"):
        (folder / label).mkdir(parents=True)
        for i in range(20):
            pixels = np.random.default_rng(i).integers(0, 256, (40 + i, 60 - i, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / label / f"{i}.png")
    main(["train", "--data", str(folder), *SMALL, "--out", str(run)])
    output = capsys.readouterr().out
    assert "20 % of each class, 8 images, are held out for evaluation; --hold-out changes the share" in output
    assert "32 images of mine" in output
    assert "knn_top1" in output
    for name in ("before", "after"):
        main(["embed", str(run), str(folder), "-o", str(tmp_path / f"{name}.npz")])
        Image.new("RGB", (12, 12)).save(folder / "cat" / "-first.png")
    with np.load(tmp_path / "before.npz") as before, np.load(tmp_path / "after.npz") as after:
        assert before["train_features"].shape == (40, 128)  # nothing is held out
        np.testing.assert_allclose(after["train_features"][1:], before["train_features"], rtol=0, atol=1e-5)
    assert "contrapose: --hold-out: expected a share below 1" in error_message(capsys, "train", "--hold-out", "1")
    assert "contrapose: --hold-out: expected a number of at least 0" in error_message(
        capsys, "train", "--hold-out", "-0.1"
    )


def test_a_limit_keeps_all_classes(tmp_path: Path) -> None:
    pictures(tmp_path / "mine")
    split = load(str(tmp_path / "mine"), limit=10)
    assert split.train.counts() == [5, 5]
    assert split.probe is split.train
    assert split.test is not None
    assert len(split.test) == 40


def test_an_npz_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rng = np.random.default_rng(0)
    arrays = {
        "train_images": rng.integers(0, 256, (40, 32, 32, 3), dtype=np.uint8),
        "train_labels": rng.integers(0, 3, (40, 1)),
        "test_images": rng.integers(0, 256, (10, 32, 32), dtype=np.uint8),
        "test_labels": rng.integers(0, 3, (10, 1)),
    }
    np.savez(tmp_path / "mine.npz", **arrays)  # type: ignore[arg-type]
    main(["train", "--data", str(tmp_path / "mine.npz"), *SMALL, "--out", str(tmp_path / "run")])
    assert "knn_top1" in capsys.readouterr().out
    np.savez(tmp_path / "wrong.npz", x=np.zeros(3))
    output = error_message(capsys, "train", "--data", str(tmp_path / "wrong.npz"), *SMALL, "--out", str(tmp_path / "r"))
    assert "expected the array train_images, found x" in output


def test_data_list(capsys: pytest.CaptureFixture[str]) -> None:
    main(["data", "list"])
    assert "cifar100" in capsys.readouterr().out


def run_with_closed_stream(stream: str, *arguments: str, closed: bool = False) -> tuple[int, str]:
    """Run a command whose `stream` has no reader or, if `closed`, does not exist; return the exit code and the other stream."""
    command = [sys.executable, "-m", "contrapose", *arguments]
    # Unbuffered output would fail at the first write instead of at the last flush.
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    if closed:
        command_line = shlex.join(command) + (" >&-" if stream == "stdout" else " 2>&-")
        completed = subprocess.run(
            ["sh", "-c", command_line], capture_output=True, text=True, env=buffered, check=False
        )
        return completed.returncode, completed.stderr if stream == "stdout" else completed.stdout
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=buffered) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        unread_stream, other_stream = (process.stdout, process.stderr)[:: 1 if stream == "stdout" else -1]
        unread_stream.close()
        text = other_stream.read()
    return process.returncode, text


@pytest.mark.thorough
@pytest.mark.parametrize(
    "arguments", ["train --help", pytest.param("study show dystress/table3", marks=pytest.mark.slow)]
)
def test_a_reader_that_closes_the_pipe(arguments: str) -> None:
    assert run_with_closed_stream("stdout", *arguments.split()) == (exits.OUTPUT_CLOSED, "")


@pytest.mark.thorough
def test_an_error_without_a_reader() -> None:
    assert run_with_closed_stream("stderr", "study", "show", "nonsense") == (exits.BAD_SETTINGS, "")
    assert run_with_closed_stream("stdout", "data", "list", closed=True) == (0, "")


@pytest.mark.thorough
def test_training_continues_without_a_reader(tmp_path: Path) -> None:
    code, output = run_with_closed_stream(
        "stdout", "train", "--limit", "64", *SMALL, "--epochs", "3", "--out", str(tmp_path / "run")
    )
    assert output == ""
    assert code == exits.OUTPUT_CLOSED
    assert len((tmp_path / "run" / "records.jsonl").read_text().splitlines()) == 3


@pytest.mark.thorough
def test_help() -> None:
    output = subprocess.check_output([sys.executable, "-m", "contrapose", "train", "--help-all"], text=True)
    assert "Peak learning rate" in output
    words = set(re.findall(r"[\w:-]+", output))
    assert words >= {*NETWORKS, "timm:NAME", "auto"}  # every encoder can be found


@pytest.mark.parametrize(("command", "script"), FORMER.items())
def test_a_former_command_names_what_to_run(command: str, script: str, capsys: pytest.CaptureFixture[str]) -> None:
    message = error_message(capsys, *command.split())
    assert script in message
    assert (Path(__file__).parents[2] / script.removeprefix("python ")).is_file()
