"""Rows of DySTreSS's Tables 1, 2, 8 and 9 that are methods without negatives have the settings of their presets, and run."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from contrapose.lab.cli import main
from contrapose.lab.studies import find
from contrapose.lab.studies.study import SMOKE
from contrapose.lab.training import Run, preset

# Rows of Tables 1 and 2, of Table 8 and of Table 9: preset, framework, projector, width of the embedding and loss on ImageNet
# (Table 9: CIFAR). The width is 0 where the projector's own is the printed one.
LIGHTLY = {
    "BYOL": ("byol", "byol", "byol", 0, "byol"),
    "Barlow Twins": ("barlow-twins", "simclr", "barlow-twins", 0, "barlow_twins"),
    "VICReg": ("vicreg", "simclr", "vicreg-lightly", 0, "vicreg"),
}
TABLE8 = {
    "Barlow Twins (2048)": ("barlow-twins", "simclr", "zero-cl", 0, "barlow_twins"),
    "VICReg (2048)": ("vicreg", "simclr", "zero-cl", 0, "vicreg"),
    "ZeroICL (256)": ("zero-icl", "simclr", "zero-cl", 256, "zero_icl"),
    "ZeroFCL (2048)": ("zero-fcl", "simclr", "zero-cl", 0, "zero_fcl"),
    "ZeroCL (2048)": ("zero-cl", "simclr", "zero-cl", 0, "zero_cl"),
    "W-MSE (256)": ("w-mse", "simclr", "w-mse", 0, "w_mse(size=128)"),
    "ARB (2048)": ("arb", "simclr", "zero-cl", 0, "arb"),
    "DINO (256)": ("dino", "dino", "dino", 0, "dino(teacher_temperature=0.04)"),
    "BYOL (4096)": ("byol", "byol", "byol", 0, "byol"),
}
TABLE9 = {
    "DINO": ("dino", "dino", "dino-cifar", 0, "dino(teacher_temperature=0.04)"),
    "W-MSE": ("w-mse", "simclr", "w-mse", 0, "w_mse(size=128)"),
}
ROWS = {"table1": LIGHTLY, "table2": LIGHTLY, "table8": TABLE8, "table9": TABLE9}
CASES = [(table, row) for table, rows in ROWS.items() for row in rows]


def runs(table: str, scale: str, row: str) -> list[Run]:
    """Return the runs of a row, one for each data set."""
    return [run for own, _, run in find(f"dystress/{table}").plan(scale).cells(1) if own.name == row]


@pytest.mark.parametrize("table", ROWS)
def test_every_row_can_run(table: str) -> None:
    study = find(f"dystress/{table}")
    assert {row.name for row in study.rows} > ROWS[table].keys()


@pytest.mark.parametrize(("table", "row"), CASES)
def test_a_row_has_its_method(table: str, row: str) -> None:
    method, *expected = ROWS[table][row]
    printed = runs(table, "paper", row)
    for run in printed:
        assert [run.framework, run.head, run.width, run.loss] == expected
    # What a table decides for all of its rows; everything else is the preset's.
    imagenet: dict[str, Any] = {"stream": True, "precision": "fp16", "knn": 20}
    imagenet100 = {**imagenet, "data": "imagenet100", "classes": "imagenet100"}
    expected_runs = {
        "table1": [replace(preset(f"{method}/imagenet"), **imagenet100, epochs=200)],
        "table2": [replace(preset(f"{method}/imagenet"), **imagenet)],
        "table8": [replace(preset(f"{method}/imagenet100"), **imagenet100)],
        "table9": [replace(preset(f"{method}/{data}"), knn_every=1) for data in ("cifar10", "cifar100")],
    }
    assert printed == expected_runs[table]


@pytest.mark.parametrize(("table", "row"), CASES)
def test_cifar_replaces_imagenet_with_the_settings_for_cifar(table: str, row: str) -> None:
    """The same method is the same run in all tables."""
    method = ROWS[table][row][0]
    cifar = replace(preset(f"{method}/cifar10"), precision="bf16", metrics=2000)
    assert runs(table, "small", row)[0] == replace(cifar, knn_every=20)
    if table != "table9":  # which has the printed epochs at the short scale too
        milestones = (38, 44) if method == "w-mse" else ()
        assert runs(table, "short", row) == [replace(cifar, epochs=50, knn_every=5, milestones=milestones)]


@pytest.mark.thorough
@pytest.mark.parametrize("table", ["table9", *(pytest.param(f"table{k}", marks=pytest.mark.slow) for k in (1, 2, 8))])
def test_a_row_runs_on_the_cpu(table: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("contrapose.lab.studies.study.SMOKE", {**SMOKE, "limit": 64, "metrics": 10})
    rows = ROWS[table]
    main(
        [
            "study",
            "run",
            f"dystress/{table}",
            "--rows",
            *rows,
            "--runs-dir",
            str(tmp_path / "runs"),
            "-o",
            str(tmp_path),
        ]
    )
    folders = list((tmp_path / "runs").glob("*/"))
    losses = {json.loads((folder / "run.json").read_text())["loss"] for folder in folders}
    assert losses == {loss for *_, loss in rows.values()}
    for folder in folders:
        records = [json.loads(line) for line in (folder / "records.jsonl").read_text().splitlines()]
        assert len(records) == 2
        assert all(math.isfinite(record["loss"]) for record in records)
        assert not (folder / "failure.json").exists()
