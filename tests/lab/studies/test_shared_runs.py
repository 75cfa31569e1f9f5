"""A run that records or keeps more takes the place of one that needs less, and a study says so before it starts."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from contrapose.lab.cli import main
from contrapose.lab.studies import Plan, find
from contrapose.lab.studies.shared_runs import serves, share_runs
from contrapose.lab.studies.study import SMOKE
from contrapose.lab.training import Run, Trainer
from contrapose.lab.training.checkpoints import checkpoint

TINY: dict[str, Any] = {"limit": 48, "batch": 16, "epochs": 2, "knn": 3, "knn_every": 1, "metrics": 12}
MORE: dict[str, Any] = {"extra_metrics": ("entropy:2@1", "linear:cacr:2@1"), "keep": (1, 2), "metrics": 20}


def names(*plans: Plan) -> set[str]:
    return {name for plan in plans for name in plan.runs(1)}


def store(root: Path, run: Run, *, epochs: int) -> None:
    """Write the files of a run after some of its epochs."""
    folder = root / run.name
    (folder / "checkpoints" / f"step-{epochs}").mkdir(parents=True)
    (folder / "run.json").write_text(json.dumps(run.describe()))
    lines = [json.dumps({"epoch": epoch, "step": epoch, "seconds": 1.0}) for epoch in range(1, epochs + 1)]
    (folder / "records.jsonl").write_text("".join(f"{line}\n" for line in lines))


def test_records_do_not_change_the_weights(tmp_path: Path) -> None:
    weights = []
    for name, more in (("less", {}), ("more", MORE | {"metrics_on": "train", "knn_every": 2})):
        Trainer(Run(**TINY | more), tmp_path / name, log=lambda text: None).train()
        saved = checkpoint.latest(tmp_path / name / "checkpoints")
        assert saved is not None
        weights.append(saved.tensors)
    less, more_weights = weights
    assert less.keys() == more_weights.keys()
    assert all(torch.equal(less[name], more_weights[name]) for name in less)


@pytest.mark.parametrize(
    ("change", "with_records", "without_records"),
    [
        ({}, True, True),
        ({"extra_metrics": ("entropy:2@1", "linear:cacr@10")}, True, True),
        ({"keep": (1, 2)}, True, True),
        ({"extra_metrics": ("linear:cacr@10",)}, False, False),  # without the entropy that is needed
        ({"keep": ()}, False, False),
        ({"metrics": 20}, False, True),
        ({"metrics_on": "train"}, False, True),
        ({"knn_every": 2}, False, True),
        ({"seed": 1}, False, False),
        ({"knn": 4}, False, False),
    ],
    ids=str,
)
def test_which_runs_serve(change: dict[str, Any], with_records: bool, without_records: bool) -> None:
    needed = Run(**TINY, extra_metrics=("entropy:2@1",), keep=(2,))
    run = replace(needed, **change)
    assert serves(run, needed, same_evaluations=True) == with_records
    assert serves(run, needed, same_evaluations=False) == without_records


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("less", "more", "scale"),
    [
        ("cacr/table2", "cacr/figure3", "short"),
        ("cacr/table2", "cacr/figure7", "small"),
        ("cacr/table8", "cacr/figure10", "short"),
        ("balanced/figure5", "balanced/figure6", "small"),
        ("balanced/figure5", "balanced/figure6", "paper"),
    ],
)
def test_within_one_command_the_larger_run_serves(less: str, more: str, scale: str, tmp_path: Path) -> None:
    plans = [find(name).plan(scale) for name in (less, more)]
    for order in (plans, plans[::-1]):
        shared = share_runs(order, 1, tmp_path)
        first, second = shared if order is plans else shared[::-1]
        assert not second.substitutes
        assert first.substitutes
        assert {run.name for run in first.substitutes.values()} <= names(second)
        assert len(names(first, second)) == len(names(*plans)) - len(first.substitutes)


def test_a_trained_run_serves_and_a_trained_run_of_its_own_is_kept(tmp_path: Path) -> None:
    table, figure = find("cacr/table2").plan("short"), find("cacr/figure3").plan("short")
    (more, *_) = figure.runs(1).values()
    less = next(run for run in table.runs(1).values() if serves(more, run, same_evaluations=True))
    assert not share_runs([table], 1, tmp_path)[0].substitutes
    store(tmp_path, more, epochs=3)
    assert share_runs([table], 1, tmp_path)[0].substitutes == {less.name: more}  # unfinished: it resumes
    assert not share_runs([figure], 1, tmp_path)[0].substitutes
    store(tmp_path, less, epochs=less.epochs)
    assert not share_runs([table], 1, tmp_path)[0].substitutes
    other = tmp_path / "other"
    store(other, more, epochs=more.epochs)
    store(other, less, epochs=3)
    assert share_runs([table], 1, other)[0].substitutes == {less.name: more}  # trained, whereas its own is not
    (other / more.name).rename(other / "renamed")  # the name is not that of its settings
    assert not share_runs([table], 1, other)[0].substitutes


@pytest.mark.thorough
def test_a_table_uses_the_runs_of_a_figure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("contrapose.lab.studies.study.SMOKE", {**SMOKE, "limit": 60, "batch": 16, "epochs": 1})
    options = ["--rows", "CL", "--runs-dir", str(tmp_path / "runs"), "-o", str(tmp_path / "out")]
    main(["study", "run", "cacr/figure10", *options])
    (run,) = (path.name for path in (tmp_path / "runs").iterdir() if path.is_dir())
    assert "already trained" not in capsys.readouterr().out
    main(["study", "run", "cacr/table8", *options])
    lines = capsys.readouterr().out.splitlines()
    assert f"1 of 1 run is already trained in {tmp_path / 'runs'}: {run}" in lines
    replaced = f"1 run is replaced by a run with the same weights that records more: {run} for digits-simclr-"
    assert any(line.startswith(replaced) for line in lines)
    assert [path.name for path in (tmp_path / "runs").iterdir() if path.is_dir()] == [run]
    page = next((tmp_path / "out").glob("cacr-table8-*/index.html"))
    assert run in page.read_text()
    page.unlink()
    main(["study", "report", "cacr/table8", *options])
    assert run in page.read_text()
