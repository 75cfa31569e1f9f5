"""The methods that CACR is compared with on ImageNet run: with their own settings, on CIFAR-10, and on digits."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from contrapose.lab.cli import main
from contrapose.lab.studies import STUDIES, find
from contrapose.lab.studies.cacr import printed
from contrapose.lab.studies.cacr.baselines import BASELINES
from contrapose.lab.studies.claims import FAILS, HOLDS, UNDECIDED, is_above_most, is_near_best
from contrapose.lab.studies.collect import collect
from contrapose.lab.studies.execute import run_tasks
from contrapose.lab.studies.results import Cell, Results
from contrapose.lab.studies.run_directory import RunDirectory
from contrapose.lab.studies.study import SMOKE
from contrapose.lab.studies.task import Task
from contrapose.lab.training import Run, preset

TABLES = ("cacr/table4", "cacr/table7", "cacr/table16", "cacr/table18")
# (framework, head, loss, views, batch, lr) on ImageNet
PAPER = {
    "BYOL": ("byol", "byol", "byol", "byol", 4096, 7.2),
    "Barlow Twins": ("simclr", "barlow-twins", "barlow_twins", "byol", 1024, 0.8),
    "SimSiam": ("simsiam", "simsiam", "simsiam", "moco-v2", 256, 0.05),
    "SwAV": ("swav", "swav", "swav", "simclr", 4096, 4.8),
    "SwAV (multi-crop)": ("swav", "swav", "swav", "swav+local6", 4096, 4.8),
    "FNC (multi-crop)": ("fnc", "simclr-v2", "fnc", "simclr", 4096, 6.4),
    "SimCLRv2": ("simclr", "simclr-v2", "simclr(temperature=0.1)", "simclr", 4096, 6.4),
}
# Settings that a table replaces: by length of training, and for detection.
REPLACED = {
    ("cacr/table4", "BYOL"): {"lr": 3.2, "weight_decay": 1.5e-6, "momentum": 0.996},
    ("cacr/table7", "BYOL"): {"lr": 4.8, "weight_decay": 1e-6, "momentum": 0.99},
    ("cacr/table7", "SimSiam"): {"lr": 0.5, "weight_decay": 1e-5},
}


def runs(name: str, scale: str) -> dict[tuple[str, str], Run]:
    """Return the runs of a table's baselines by row and data set."""
    cells = find(name).plan(scale).cells(1)
    return {(row.name, study_data.name): run for row, study_data, run in cells if row.name in BASELINES}


def test_every_row_of_cacr_on_imagenet_runs() -> None:
    assert {row.name for name in TABLES for row in STUDIES[name].rows} >= BASELINES.keys() == PAPER.keys()


@pytest.mark.parametrize("name", ["cacr/table4", "cacr/table7"])
def test_settings_on_imagenet(name: str) -> None:
    for (row, _), run in runs(name, "paper").items():
        keys = ("framework", "head", "loss", "views", "batch", "lr")
        expected = {**dict(zip(keys, PAPER[row], strict=True)), **REPLACED.get((name, row), {})}
        assert {key: getattr(run, key) for key in expected} == pytest.approx(expected), row
        assert (run.encoder, run.norm_splits, run.symmetric, run.batch_negatives) == (
            "resnet50-zero" if row == "SimSiam" else "resnet50",
            1,
            False,
            False,
        )


def test_epochs() -> None:
    """Table 4 has the epochs of its printed numbers, by Table 16; Table 7 has 200."""
    for (row, _), run in runs("cacr/table4", "paper").items():
        longest = {"Barlow Twins": 1000, "FNC (multi-crop)": 1000}.get(row, 800)
        assert run.epochs == longest, row
        if row in printed.TABLE16:
            at = printed.TABLE16_EPOCHS.index(longest)
            assert printed.TABLE16[row][at] == printed.TABLE4[row][0]
    assert {run.epochs for run in runs("cacr/table7", "paper").values()} == {200}
    assert {run.epochs for run in runs("cacr/table16", "paper").values()} == {*printed.TABLE16_EPOCHS}


def test_byol_has_its_settings_by_length() -> None:
    table = {where: run for (row, where), run in runs("cacr/table16", "paper").items() if row == "BYOL"}
    assert {where: (round(run.lr, 2), run.weight_decay, run.momentum) for where, run in table.items()} == {
        "100 epochs": (7.2, 1e-6, 0.99),
        "200 epochs": (4.8, 1e-6, 0.99),
        "400 epochs": (3.2, 1.5e-6, 0.996),
        "800 epochs": (3.2, 1.5e-6, 0.996),
        "1000 epochs": (3.2, 1.5e-6, 0.996),
    }
    assert table["100 epochs"] == replace(
        preset("byol/imagenet"), lr=table["100 epochs"].lr, batch=4096, epochs=100, stream=True
    )


def test_resnet_and_vit() -> None:
    table = runs("cacr/table18", "paper")
    assert table["SimCLRv2", "ResNet-50"] == replace(preset("simclr-v2/imagenet"), stream=True)
    moco = find("cacr/table18").plan("paper")
    vit = {row.name: moco.run(row, moco.sets[1]) for row in moco.study.rows}["MoCov3"]
    for row in ("SimCLRv2", "SwAV (multi-crop)"):
        ours, resnet = table[row, "ViT-B/16"], table[row, "ResNet-50"]
        for key in ("encoder", "optimiser", "lr", "weight_decay", "warmup", "batch", "epochs"):
            assert getattr(ours, key) == getattr(vit, key)
        for key in ("framework", "head", "loss", "views"):
            assert getattr(ours, key) == getattr(resnet, key)
        assert ours.momentum_schedule == "constant"


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize("scale", ["short", "small"])
def test_settings_on_cifar(name: str, scale: str) -> None:
    """The preset of the method for CIFAR-10, with the epochs of the study, and multi-crop where the row has it."""
    for (row, _), run in runs(name, scale).items():
        baseline = BASELINES[row]
        known = preset(f"{baseline.method}/cifar10")
        crops = f"+local{baseline.local_crops}" if baseline.local_crops else ""
        # What the scale says, not the method.
        changes = {key: getattr(run, key) for key in ("epochs", "precision", "metrics", "knn_every")}
        anchors = 0 if row.startswith("FNC") else known.anchor_views
        assert run == replace(known, views=known.views + crops, anchor_views=anchors, **changes), row
        assert run.epochs == 50


def test_settings_on_digits() -> None:
    for name in TABLES:
        for (row, _), run in runs(name, "smoke").items():
            assert run.framework == PAPER[row][0]
            assert run.loss == PAPER[row][2]
            assert (run.prototypes <= 64, run.queue, run.batch <= 64) == (True, 64, True)
            assert run.views == ("digits+local6" if row == "SwAV (multi-crop)" else "digits")


@pytest.mark.thorough
def test_every_method_trains_on_digits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("contrapose.lab.studies.study.SMOKE", {**SMOKE, "limit": 70, "metrics": 10, "epochs": 1})
    planned = {row: run for name in ("cacr/table4", "cacr/table18") for (row, _), run in runs(name, "smoke").items()}
    assert planned.keys() == BASELINES.keys()
    shortened = [replace(run, epochs=1, knn_every=1) for run in planned.values()]
    assert run_tasks([Task(run, (), tmp_path) for run in shortened]) == {}
    assert all(math.isfinite(RunDirectory(tmp_path / run.name).records()[-1]["loss"]) for run in shortened)


@pytest.mark.slow
@pytest.mark.parametrize("name", TABLES)
def test_smoke_scale(name: str, tmp_path: Path) -> None:
    rows = [row.name for row in find(name).rows if row.name in BASELINES]
    main(["study", "run", name, "--rows", *rows, "--runs-dir", str(tmp_path / "runs"), "-o", str(tmp_path / "out")])
    plan = find(name).select_rows(rows).plan("smoke")
    results = collect(plan, 1, tmp_path / "runs")
    for row in rows:
        for quantity in plan.study.quantities:
            (value,) = results.cell(row, quantity.name).values
            assert 0 <= value <= 100


def measured(values: dict[str, float], rows: tuple[str, ...] = ()) -> Results:
    cells = {(name, "", "digits"): Cell((value,)) for name, value in values.items()}
    return Results(sets=("digits",), rows=frozenset((*values, *rows)), cells=cells)


def test_above_most() -> None:
    claim = is_above_most("a", ("b", "c", "d", "e"), margin=0.1)
    assert claim(measured({"a": 3.0, "b": 1.0, "c": 2.0, "d": 4.0})).outcome == HOLDS  # e cannot run
    assert claim(measured({"a": 3.0, "b": 4.0, "c": 5.0, "d": 1.0})).outcome == FAILS
    assert claim(measured({"a": 3.0, "b": 1.0, "c": 2.0, "d": 3.05, "e": 4.0})).outcome == UNDECIDED  # two of four
    unfinished = claim(measured({"a": 3.0, "b": 1.0, "c": 2.0}, ("d", "e")))
    assert (unfinished.outcome, "is above 2 of 2; no result of d, e" in unfinished.evidence) == (UNDECIDED, True)
    assert claim(measured({"b": 1.0, "c": 2.0})).outcome == UNDECIDED


def test_near_the_best() -> None:
    claim = is_near_best("a", ("b", "c"), within=1.0, of="the others")
    assert claim(measured({"a": 3.0, "b": 1.0, "c": 3.9})).outcome == HOLDS
    assert claim(measured({"a": 3.0, "b": 1.0, "c": 4.1})).outcome == FAILS
    assert claim(measured({"a": 3.0, "b": 1.0}, ("c",))).outcome == UNDECIDED
    assert claim(measured({"a": 3.0, "b": 4.1}, ("c",))).outcome == FAILS
    assert claim(measured({"b": 1.0, "c": 2.0})).outcome == UNDECIDED


@pytest.mark.parametrize("epochs", printed.TABLE16_EPOCHS)
def test_cacr_is_above_most_methods_at_each_printed_length(epochs: int) -> None:
    at = printed.TABLE16_EPOCHS.index(epochs)
    values = {name: number for name, numbers in printed.TABLE16.items() if (number := numbers[at]) is not None}
    (verdict,) = (
        verdict for claim in find("cacr/table16").claims if "most" in (verdict := claim(measured(values))).statement
    )
    assert verdict.outcome == HOLDS
