"""`contrapose study show` says what a scale changes and how long it took; `study run` starts with it."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from tiers import first

from contrapose.lab.cli import main
from contrapose.lab.cli.study import announce_plans, make_plans
from contrapose.lab.studies import find
from contrapose.lab.training import Run

ROOT = Path(__file__).parents[3]
# Analytic, a drawing, sentences, captions, a grid of 32 rows, many printed numbers, ImageNet alone, and rows with many settings.
KINDS = (
    "behaviour/figure1", "cacr/figure1", "dystress/table12", "cacr/table19", "balanced/figure5", "behaviour/table1",
    "cacr/table15", "dystress/table8",
)  # fmt: skip


def show(capsys: pytest.CaptureFixture[str], name: str, root: Path) -> str:
    main(["study", "show", name, "--runs-dir", str(root)])
    return capsys.readouterr().out


def record(root: Path, run: Run, *, seconds: float, epochs: int | None = None, beside: int = 0) -> None:
    """Write the files of a run that was trained on an imaginary device."""
    folder = root / run.name
    folder.mkdir(parents=True)
    (folder / "run.json").write_text(json.dumps(run.describe()))
    (folder / "environment.json").write_text(json.dumps({"device": "NVIDIA Abacus"}))
    epochs = run.epochs if epochs is None else epochs
    mark = {"beside": beside} if beside else {}
    lines = [json.dumps({"epoch": k + 1, "step": k + 1, "seconds": seconds, **mark}) for k in range(epochs)]
    (folder / "records.jsonl").write_text("\n".join(lines) + "\n")


@pytest.mark.thorough
def test_the_recorded_runs_of_a_clone_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    text = show(capsys, "dystress/table3", tmp_path)
    assert re.search(r"^  DySTreSS +85.68 +56.57$", text, re.M)
    assert "    8 runs on CIFAR-10, without CIFAR-100; precision fp32 → bf16\n" in text
    assert "    4 of 8 runs: 73 min of training on one NVIDIA H200, all beside another run (recorded)\n" in text
    # The others were recorded with joint batch norm statistics.
    assert "    with --set norm_views=together: 6 of 8 runs, 314 to 546 s each on one NVIDIA H200 (recorded)\n" in text
    assert "    4 of 16 runs: " in text
    assert "10 runs: 19 min of training" in show(capsys, "behaviour/table1", tmp_path)


@pytest.mark.thorough
def test_a_scale_is_compared_with_the_paper(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)  # not a clone
    text = show(capsys, "cacr/table3", tmp_path)
    unwrapped = " ".join(text.split())
    assert "epochs 400 → 100, 200 → 50, precision fp32 → bf16 not run yet" in unwrapped
    assert "batch 768 → 32, 128 → 8, views of an image 5 → 3 in some runs" in unwrapped  # smoke
    assert "on CIFAR-10 for ImageNet-100; epochs 200 → 50, encoder resnet50 → resnet18-cifar" in show(
        capsys, "dystress/table1", tmp_path
    )
    assert "the runs of --scale short" in show(capsys, "cacr/table16", tmp_path)


@pytest.mark.thorough
def test_a_row_with_a_framework_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Settings of MoCo, the preset, are not listed as changes of other frameworks; those of a data set are."""
    monkeypatch.chdir(tmp_path)
    text = " ".join(show(capsys, "cacr/table16", tmp_path).split())
    swav, moco = (re.search(rf" {name} ((?: ?[\w-]+=\S+)+)", text) for name in ("SwAV", "MoCov2"))
    assert swav is not None
    assert moco is not None
    assert "framework=swav prototypes=3000" in swav[1]
    assert not re.search(r"symmetric|batch_negatives|norm_splits|momentum|queue", swav[1])
    assert moco[1] == "loss=simclr(temperature=0.2) symmetric=False batch_negatives=False"
    assert "; 200 epochs: lr=4.8 weight_decay=1e-06 momentum=0.99; 400 epochs: lr=3.2" in text
    assert "cacr_moco_v3(temperature=1) local_crops=8" in " ".join(show(capsys, "cacr/table18", tmp_path).split())


def test_times_come_from_the_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    runs = list(find("behaviour/equation6").plan("short").runs(1).values())
    assert "not run yet\n" in show(capsys, "behaviour/equation6", tmp_path)
    record(tmp_path, runs[0], seconds=3.0, epochs=49)  # interrupted
    assert "beside" not in show(capsys, "behaviour/equation6", tmp_path)
    record(tmp_path, runs[1], seconds=6.0, beside=1)
    text = show(capsys, "behaviour/equation6", tmp_path)
    assert "    1 of 2 runs: 5 min of training on one NVIDIA Abacus, all beside another run (recorded)\n" in text
    # Four times the epochs of a run of the same kind.
    estimate = (
        "not run yet; a run takes up to 20 min on one NVIDIA Abacus beside another run, like recorded runs of its kind"
    )
    assert estimate in " ".join(text.split())


@pytest.mark.thorough
def test_runs_with_the_former_batch_norm_have_a_line_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    table = (ROOT / "results/README.md").read_text().split("(`cacr/table2`)")[1].split("\n## ")[0]
    seconds = [int(row.rpartition("|")[2]) for row in re.findall(r"^(\| [^\n]*-[0-9a-f]{8} \|.*\d) \|$", table, re.M)]
    text = show(capsys, "cacr/table2", tmp_path)
    short = " ".join(text.split("--scale short\n")[1].split("contrapose study run")[0].split())
    assert "not run yet" in short
    times = f"{len(seconds)} of 18 runs, {min(seconds)} to {max(seconds)} s each on one NVIDIA H200, all beside another run (recorded)"
    assert f"with --set norm_views=together: {times}" in short
    monkeypatch.chdir(tmp_path)
    assert "norm_views" not in show(capsys, "cacr/table2", tmp_path)
    # The other way round: a study of a preset with joint statistics.
    run = next(iter(find("behaviour/equation6").plan("short").runs(1).values()))
    record(tmp_path, replace(run, norm_views="each"), seconds=3.0)
    text = show(capsys, "behaviour/equation6", tmp_path)
    assert "    with --set norm_views=each: 1 of 2 runs, 150 s each on one NVIDIA Abacus (recorded)\n" in text


@pytest.mark.parametrize("name", first(1, KINDS))
def test_every_kind_of_study_fits_into_a_hundred_columns(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    text = show(capsys, name, Path("runs"))
    assert max(len(line) for line in text.splitlines()) <= 100
    assert len(text.splitlines()) <= 100


def test_a_long_plan_is_estimated_from_recorded_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    plans = make_plans(["behaviour/equation6"], "short", ["cifar10=cifar10.npz"])
    first, second = plans[0].runs(1).values()
    record(tmp_path, replace(first, seed=7), seconds=6.0)
    announce_plans(plans, 1, tmp_path)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("behaviour/equation6 at the short scale: on CIFAR-10; epochs 200 → 50, precision")
    assert lines[1:] == ["2 runs: about 10 min of training on one NVIDIA Abacus, like recorded runs of their kind"]
    record(tmp_path, first, seconds=6.0)
    record(tmp_path, second, seconds=6.0)
    announce_plans(plans, 1, tmp_path)  # all done: nothing is left to estimate
    lines = capsys.readouterr().out.splitlines()
    assert lines[1:] == [f"2 of 2 runs are already trained in {tmp_path}: {first.name}, {second.name}"]


@pytest.mark.thorough
def test_the_data_to_give_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "data that you give with --data NAME=PATH: voc, coco, supervised." in " ".join(
        show(capsys, "cacr/table7", tmp_path).split()
    )
    assert "--data NAME=PATH" not in show(capsys, "cacr/table3", tmp_path)
