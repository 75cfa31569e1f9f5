"""cacr/table7 runs on drawn shapes, and on VOC and COCO where they are given."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from commands import error_message

from contrapose.lab.evaluation.detection import PROTOCOLS, draw_shapes
from contrapose.lab.studies import find
from contrapose.lab.studies.collect import collect
from contrapose.lab.studies.execute import run_tasks
from contrapose.lab.studies.measures import Detection
from contrapose.lab.studies.measures.downstream import MADE
from contrapose.lab.studies.run_directory import RunDirectory
from contrapose.lab.studies.study import SMOKE, Plan
from contrapose.lab.studies.task import Task

TINY = {**SMOKE, "limit": 40, "batch": 8, "epochs": 1, "knn": 3, "knn_every": 1, "metrics": 10}
TABLE7 = find("cacr/table7")


def run(plan: Plan, root: Path) -> RunDirectory:
    """Execute the only run of a plan, with the measures of all of its rows."""
    (single,) = plan.runs(1).values()
    measures = tuple(measure for row in plan.study.rows for measure in plan.measures(plan.sets[0], row))
    assert run_tasks([Task(single, measures, root, downstream=plan.downstream)]) == {}
    return RunDirectory(root / single.name)


def test_downstream_data_of_a_plan() -> None:
    assert TABLE7.plan("smoke").downstream == {"voc": MADE, "coco": MADE}
    assert TABLE7.plan("smoke", ["voc=there"]).downstream == {"voc": "there", "coco": MADE}
    paper = TABLE7.plan("paper", ["imagenet=here", "voc=there"])
    assert paper.downstream == {"voc": "there"}
    assert [study_data.data for study_data in paper.sets] == ["here"]
    moco = next(row for row in TABLE7.rows if row.name == "MoCov2")
    assert paper.measures(paper.sets[0], moco) == tuple(Detection("voc", score) for score in ("AP50", "AP", "AP75"))
    assert Detection("coco", "AP").missing_data(paper.downstream) == "not given; --data coco=PATH"
    small = TABLE7.plan("small")
    assert small.measures(small.sets[0], moco) == ()
    # Data of other evaluations leaves the choice of training data alone.
    assert [s.name for s in TABLE7.plan("small", ["voc=there"]).sets] == ["CIFAR-10 for ImageNet-1K"]
    with pytest.raises(
        ValueError, match=r"where NAME is one of cifar10, coco, imagenet, supervised, voc, got 'vco=there'"
    ):
        TABLE7.plan("paper", ["vco=there"])


@pytest.mark.thorough
def test_a_run_on_drawn_shapes_and_then_on_given_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was measured on other data is neither shown nor kept in place of the data that is given."""
    monkeypatch.setattr("contrapose.lab.studies.study.SMOKE", TINY)
    study = replace(
        TABLE7.select_rows(["MoCov2", "scratch"]),
        quantities=tuple(q for q in TABLE7.quantities if q.name == "VOC AP50"),
    )
    drawn = study.plan("smoke")
    directory = run(drawn, tmp_path)
    measured = directory.evaluations()
    assert measured["detection:voc:AP50:data"] == {"voc": MADE}
    assert 0 <= measured["detection:voc:AP50"] <= 100
    # The same network before its training, in the same run.
    scratch = collect(drawn, 1, tmp_path).cell("scratch", "VOC AP50").values
    assert scratch == (measured["detection:voc:AP50:start"],)
    supervised = next(row for row in TABLE7.rows if row.name == "supervised")
    measure = drawn.measure(study.quantities[0], drawn.sets[0], supervised)
    assert measure.missing_data(drawn.downstream) == "not given; --data supervised=PATH"
    assert collect(drawn, 1, tmp_path).cell("MoCov2", "VOC AP50").values == (measured["detection:voc:AP50"],)

    folder = draw_shapes(tmp_path / "voc", train=4, test=2, size=40)
    given = study.plan("smoke", [f"voc={folder}"])
    assert not collect(given, 1, tmp_path).cell("MoCov2", "VOC AP50").values
    shortened = replace(PROTOCOLS["voc"], iterations=10, batch=2, regions=8, precise_batches=1)
    monkeypatch.setitem(PROTOCOLS, "voc", shortened)
    monkeypatch.setattr("contrapose.lab.studies.measures.detection._SMALL_SIZE", 40)
    assert run(given, tmp_path).evaluations()["detection:voc:AP50:data"] == {"voc": str(folder)}
    assert len(collect(given, 1, tmp_path).cell("MoCov2", "VOC AP50").values) == 1
    assert not collect(drawn, 1, tmp_path).cell("MoCov2", "VOC AP50").values


@pytest.mark.thorough
def test_without_its_data_a_cell_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("contrapose.lab.studies.study.SMOKE", TINY)
    plan = replace(TABLE7.select_rows(["CACR (K=1)"]).plan("smoke"), downstream={})
    run(plan, tmp_path)
    cell = collect(plan, 1, tmp_path).cell("CACR (K=1)", "COCO mask AP")
    assert cell.missing_reasons == ("not given; --data coco=PATH",)
    arguments = ["study", "run", "cacr/table7", "--runs-dir", str(tmp_path), "--data", "voc=nowhere"]
    assert "data: voc=nowhere does not exist; expected a path" in error_message(capsys, *arguments)
