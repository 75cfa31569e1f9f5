"""Which probes and neighbours the studies use, under which names, and how older runs are read."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import pytest

from contrapose.lab.evaluation import PROBES
from contrapose.lab.studies import STUDIES, find
from contrapose.lab.studies.collect import collect, section
from contrapose.lab.studies.measures import Evaluation, LinearProbe, Measure, RecordedKNN
from contrapose.lab.studies.results import Cell, Results
from contrapose.lab.studies.run_directory import RunDirectory
from contrapose.lab.studies.study import Plan, Row
from contrapose.lab.studies.task import Task, run_task


def first_row(plan: Plan) -> Row:
    """Return the first row that can run."""
    return plan.study.rows[0]


def measured(name: str, scale: str = "paper") -> dict[str, tuple[str, ...]]:
    """Return what a study measures on each data set."""
    plan = find(name).plan(scale)
    return {study_data.name: keys(plan.measures(study_data, first_row(plan))) for study_data in plan.sets}


def keys(measures: Iterable[Measure]) -> tuple[str, ...]:
    return tuple(measure.key for measure in measures)


@pytest.mark.parametrize("name", [name for name, study in STUDIES.items() if study.rows])
def test_linear_probes_see_augmented_images(name: str) -> None:
    plan = find(name).plan("paper")
    for study_data in plan.sets:
        for measure in plan.measures(study_data, first_row(plan)):
            assert not isinstance(measure, LinearProbe) or PROBES[measure.probe].augment


def test_the_augmentation_of_wang_and_liu_depends_on_the_data() -> None:
    assert measured("behaviour/figure9") == {
        "CIFAR-10": ("linear:wang-liu-flips",),
        "CIFAR-100": ("linear:wang-liu-flips",),
        "SVHN": ("linear:wang-liu-colours",),
        "ImageNet-100": ("linear:wang-liu-jittered",),
    }


def test_a_vision_transformer_has_its_own_probe() -> None:
    probes = [measures[1].removeprefix("linear:") for measures in measured("cacr/table18").values()]
    assert [PROBES[name].lr for name in probes] == pytest.approx([0.1 * 1024 / 256, 3 * 1024 / 256])


def test_neighbours_vote_as_in_the_papers() -> None:
    for number in (6, 7):
        assert {"knn:1:distance", "knn:10:distance"} == set(*measured(f"dystress/table{number}").values())
    table4 = measured("balanced/table4")
    assert table4["CIFAR-10"] == ("knn:1:uniform", "linear:balanced-cifar-crops")
    assert table4["ImageNet"] == ("knn:200:uniform", "linear:balanced-imagenet-crops")


@pytest.mark.parametrize("name", ["balanced/table2", "balanced/table5"])
def test_a_long_tail_is_probed_by_its_own_images(name: str) -> None:
    plan = find(name).plan("paper")
    assert {run.probe for run in plan.runs(1).values()} == {"train"}
    # The same number of labels on both sides: if the tail wins, the claim fails.
    claim, row = plan.study.claims[0], plan.study.rows[0].name
    cells = {"uniform CIFAR-10": 60.0, "long-tailed CIFAR-10": 70.0}
    assert claim(made_results(row, "linear probe", cells)).outcome == "does not hold"


def made_results(row: str, quantity: str, values: dict[str, float]) -> Results:
    cells = {(row, quantity, data_set): Cell(values=(value,), runs=("run",)) for data_set, value in values.items()}
    return Results(scale="paper", sets=tuple(values), rows=frozenset({row}), cells=cells)


@pytest.mark.thorough
def test_an_evaluation_has_the_name_of_its_probe(tmp_path: Path) -> None:
    plan = find("cacr/table8").plan("smoke")
    measures = plan.measures(plan.sets[0], first_row(plan))
    best, last = keys(measures)
    assert (best, last) == ("linear_best:cacr-crops:5", "linear:cacr-crops:5")
    run = next(iter(plan.runs(1).values()))
    assert run_task(Task(run, (*measures, LinearProbe("cacr", epochs=2)), tmp_path)) == ""
    directory = RunDirectory(tmp_path / run.name)
    evaluations = directory.evaluations()
    assert {best, last, "linear:cacr:2", "linear_top5:cacr-crops:5", "linear_best_top5:cacr:2"} <= evaluations.keys()
    assert evaluations[best] >= evaluations[last]
    notes = section(plan, collect(plan, 1, tmp_path)).notes
    assert "Linear probes have 5 epochs at the smoke scale." in notes


def test_older_runs_show_the_probe_that_they_have(tmp_path: Path) -> None:
    plan = find("cacr/table8").plan("short")
    row, study_data, run = next(plan.cells(1))
    folder = tmp_path / run.name
    folder.mkdir()
    (folder / "records.jsonl").write_text(json.dumps({"epoch": run.epochs, "step": 1, "seconds": 1.0}) + "\n")
    (folder / "evaluations.json").write_text(json.dumps({"linear:cacr": 77.0, "linear_top5:cacr": 98.0}))
    results = collect(plan, 1, tmp_path)
    assert results.cell(row.name, "", study_data.name).values == (77.0,)
    assert results.cell(row.name, "last epoch", study_data.name).values == (77.0,)
    older = results.cell(row.name, "", study_data.name).older_forms
    assert older == ("a probe of images without augmentation, last epoch",)
    (folder / "evaluations.json").write_text(json.dumps({"linear:cacr": 77.0, "linear_best:cacr-crops": 81.0}))
    results = collect(plan, 1, tmp_path)
    assert results.cell(row.name, "", study_data.name).values == (81.0,)


def test_the_best_epoch_is_that_of_the_records(tmp_path: Path) -> None:
    scores = [50.0, None, 70.0, 60.0]
    lines = [
        json.dumps({"epoch": epoch, "step": epoch, "seconds": 1.0, "knn_top1": score})
        for epoch, score in enumerate(scores, 1)
    ]
    (tmp_path / "records.jsonl").write_text("\n".join(lines) + "\n")
    directory = RunDirectory(tmp_path)
    assert RecordedKNN(best=True).read(directory).value == 70.0
    assert RecordedKNN().read(directory).value == 60.0
    assert RecordedKNN(best=True).read(RunDirectory(tmp_path / "nowhere")).value is None
    assert not isinstance(RecordedKNN(best=True), Evaluation)
    assert measured("dystress/table3")["CIFAR-10"] == ("best:knn_top1", "knn_top1")
    assert {run.knn_every for run in find("dystress/table3").plan("paper").runs(1).values()} == {1}
