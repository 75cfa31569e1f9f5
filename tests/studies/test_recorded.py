"""What results/README.md says of a run is what the run left."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from contrapose.studies import find
from contrapose.studies.results import Left
from contrapose.training import Run

RESULTS = Path(__file__).parents[2] / "results"
ROWS = re.findall(r"^\| (.+?) \| (\S+-[0-9a-f]{8}) \| (.+) \|$", (RESULTS / "README.md").read_text(), re.MULTILINE)


def test_every_run_has_its_row() -> None:
    assert sorted(name for _, name, _ in ROWS) == sorted(path.name for path in (RESULTS / "runs").iterdir())


@pytest.mark.parametrize(("name", "numbers"), [(name, numbers) for _, name, numbers in ROWS])
def test_a_row_is_what_its_run_left(name: str, numbers: str) -> None:
    left = Left(RESULTS / "runs" / name)
    settings: dict[str, Any] = json.loads((left.folder / "run.json").read_text())
    run = Run(**settings | {"milestones": tuple(settings["milestones"])})
    assert run.name == name
    assert left.trained(run.epochs)
    last, evaluations = left.records()[-1], left.evaluations()
    seconds = sum(record["seconds"] for record in left.records())
    found = [-last["uniformity"], last["tolerance"], evaluations["linear:wang-liu"], last["knn_top1"]]
    assert numbers.split(" | ") == [*(f"{value:.2f}" for value in found), f"{seconds:.0f}"]


def test_they_are_runs_of_the_study() -> None:
    wanted = find("behaviour/figure9").at("small", ["cifar10=data/cifar10.npz"]).wanted(1)
    assert {name for _, name, _ in ROWS} <= set(wanted)
