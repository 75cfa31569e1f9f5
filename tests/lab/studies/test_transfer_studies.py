"""Studies that transfer to other data: what is given is measured, and what is not says how to give it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from commands import error_message
from mixed_folder import make_mixed_folder
from PIL import Image

from contrapose.lab.cli import main
from contrapose.lab.cli.study import check_data_available
from contrapose.lab.evaluation import TRANSFER_SETS, TransferSet
from contrapose.lab.modalities.images.encoders import encoder
from contrapose.lab.studies import find
from contrapose.lab.studies.collect import collect
from contrapose.lab.studies.measures import RecordedKNN, Transfer
from contrapose.lab.studies.run_directory import RunDirectory
from contrapose.lab.studies.study import SMOKE
from contrapose.lab.studies.task import Task, run_task
from contrapose.lab.training import Run
from contrapose.lab.training.weights import export

SUPERVISED = Transfer("mura", "dystress", "supervised")
TINY = {"limit": 48, "batch": 16, "epochs": 1, "knn": 3, "knn_every": 1, "metrics": 0}


@pytest.fixture
def tiny_smoke(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("contrapose.lab.studies.study.SMOKE", {**SMOKE, **TINY})


def test_measures_name_the_data_that_they_need() -> None:
    mura, start = Transfer("mura", "dystress"), Transfer("mura", "dystress", "start")
    needed = [m.needs_data for m in (RecordedKNN(), mura, SUPERVISED, start.on_built_in_data())]
    assert needed == [(), ("mura",), ("mura", "supervised"), ()]
    assert RecordedKNN().missing_data({}) == ""
    assert mura.missing_data({"mura": "somewhere"}) == ""
    assert SUPERVISED.missing_data({}) == "not given; --data mura=PATH supervised=PATH"
    assert start.on_built_in_data().key == "transfer:digits:dystress:start"


@pytest.mark.parametrize("name", ["dystress/table11", "cacr/table6"])
def test_every_quantity_has_a_data_set(name: str) -> None:
    study = find(name)
    needed = study.downstream_names
    assert set(needed) - {"supervised"} <= TRANSFER_SETS.keys()
    assert (
        len(set(needed) - {"supervised"}) == len(study.quantities) == {"dystress/table11": 7, "cacr/table6": 20}[name]
    )


def test_only_given_data_is_measured() -> None:
    study = find("dystress/table11")
    plan = study.plan("paper", ["imagenet=there", "mhist=here"])
    simclr, supervised = (next(row for row in study.rows if row.name == name) for name in ("SimCLR", "supervised"))
    assert plan.measures(plan.sets[0], simclr) == (Transfer("mhist", "dystress"),)
    assert plan.measures(plan.sets[0], supervised) == ()
    assert [study_data.data for study_data in plan.sets] == ["there"]
    smoke = study.plan("smoke")
    assert smoke.measures(smoke.sets[0], simclr) == (Transfer("digits", "dystress"),)
    with pytest.raises(ValueError, match=r"expected PATH or NAME=PATH, where NAME is one of .*mhist"):
        study.plan("paper", ["mhits=here"])


@pytest.mark.thorough
@pytest.mark.usefixtures("tiny_smoke")
@pytest.mark.parametrize(
    ("name", "rows"), [("dystress/table11", ["SimCLR", "scratch", "supervised"]), ("cacr/table6", [])]
)
def test_smoke_scale(name: str, rows: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--rows", *rows] if rows else []
    main(["study", "run", name, *options, "--runs-dir", str(tmp_path / "runs"), "-o", str(tmp_path / "out")])
    (folder,) = (tmp_path / "out").glob("*-smoke*")
    page = (folder / "index.md").read_text()
    assert "digits for " in page
    if rows:
        assert "| supervised | not given; --data supervised=PATH |" in page
    plan = find(name).select_rows(rows).plan("smoke")
    results = collect(plan, 1, tmp_path / "runs")
    quantity = plan.study.quantities[0].name
    for row in plan.study.rows:
        assert bool(results.cell(row.name, quantity).values) == (row.name != "supervised")
    assert "not run" not in capsys.readouterr().out


def test_a_folder_is_measured_with_supervised_weights_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TRANSFER_SETS, "caltech101", TransferSet("patterns", "mean_per_class", trial=True))
    folder, weights = make_mixed_folder(tmp_path / "few", each=5), tmp_path / "weights.safetensors"
    export(encoder("tiny"), weights, {})
    task = Task(
        Run(**TINY),  # type: ignore[arg-type]
        (Transfer("caltech101", "elevater-linear"), Transfer("caltech101", "elevater-fine-tune", "supervised")),
        tmp_path / "runs",
        downstream={"caltech101": str(folder), "supervised": str(weights)},
    )
    # A fifth of each class is held out for the score, which leaves four.
    assert run_task(task) == "shots: class 'checks' has 4 training images, fewer than the 5 to draw"
    given = {**task.downstream, "caltech101": str(make_mixed_folder(tmp_path / "more", each=8))}
    assert run_task(replace(task, downstream=given)) == ""
    values = RunDirectory(task.folder).evaluations()
    assert all(0 <= values[measure.key] <= 100 for measure in task.measures)


def test_other_data_or_weights_are_measured_again(tmp_path: Path) -> None:
    """Each value remembers the data and the weights that it was computed on, whatever was measured after it."""
    directory, mura = RunDirectory(tmp_path), Transfer("mura", "dystress")
    first, other = {"mura": "first", "supervised": "weights"}, {"mura": "other", "supervised": "weights"}
    values = {"transfer:mura:dystress": 50.0, "transfer:mura:dystress:data": {"mura": "other"}}
    values |= {"transfer:mura:dystress:supervised": 60.0, "transfer:mura:dystress:supervised:data": first}
    (tmp_path / "evaluations.json").write_text(json.dumps(values))
    assert mura.is_taken(directory, other)
    assert not mura.is_taken(directory, first)
    assert SUPERVISED.is_taken(directory, first)
    assert not SUPERVISED.is_taken(directory, other)
    assert not SUPERVISED.is_taken(directory, {**first, "supervised": "others"})


def test_voc_is_scored_by_its_own_average_precision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Red and green squares, each with its class, and some with both."""
    monkeypatch.setitem(TRANSFER_SETS, "voc2007", replace(TRANSFER_SETS["voc2007"], trial=True))
    colours = {"red": (200, 0, 0), "green": (0, 200, 0), "both": (200, 200, 0)}
    for part in ("trainval", "test"):
        names = [f"{part}-{kind}-{i}" for i in range(6) for kind in colours]
        for name in names:
            path = tmp_path / "JPEGImages" / f"{name}.jpg"
            path.parent.mkdir(exist_ok=True)
            Image.new("RGB", (32, 32), colours[name.split("-")[1]]).save(path)
        lists = tmp_path / "ImageSets" / "Main"
        lists.mkdir(parents=True, exist_ok=True)
        for c in ("green", "red"):
            lines = [f"{name} {1 if name.split('-')[1] in (c, 'both') else -1}" for name in names]
            (lists / f"{c}_{part}.txt").write_text("\n".join(lines))
    measure = Transfer("voc2007", "elevater-linear")
    task = Task(Run(**TINY), (measure,), tmp_path / "runs", downstream={"voc2007": str(tmp_path)})  # type: ignore[arg-type]
    assert run_task(task) == ""
    assert RunDirectory(task.folder).evaluations()[measure.key] > 60


def test_the_built_in_digits_are_data_too(tmp_path: Path) -> None:
    check_data_available([find("dystress/table11").plan("smoke", ["flowers102=digits"])], tmp_path)


def test_data_that_does_not_exist_is_refused_before_training(capsys: pytest.CaptureFixture[str]) -> None:
    message = error_message(capsys, "study", "run", "dystress/table11", "--data", "mura=nowhere")
    assert "data: mura=nowhere does not exist; expected a path or a name from `contrapose data list`" in message
    message = error_message(capsys, "study", "run", "cacr/table6", "--scale", "short")
    assert "data: cacr/table6 evaluates encoders on other data sets, and none is given; add them with" in message


@pytest.mark.thorough
def test_the_start_of_a_run_is_not_its_end(tmp_path: Path) -> None:
    """The two encoders differ, and the start is the same whatever the training was."""
    measures = (Transfer("digits", "elevater-linear", "start"),)
    values = []
    for epochs in (1, 2):
        task = Task(Run(**{**TINY, "epochs": epochs}), measures, tmp_path)  # type: ignore[arg-type]
        assert run_task(task) == ""
        values.append(RunDirectory(task.folder).evaluations()[measures[0].key])
    assert values[0] == values[1]
    assert not torch.isnan(torch.tensor(values)).any()
