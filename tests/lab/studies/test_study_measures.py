"""Measures have the keys of recorded results, and a study can bring a measure that nothing else knows."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from pathlib import Path

import pytest

from contrapose.lab.studies.collect import collect, section
from contrapose.lab.studies.execute import run_tasks
from contrapose.lab.studies.measures import (
    BeforeTraining,
    Context,
    Detection,
    Evaluation,
    LinearProbe,
    Measure,
    Metric,
    NearestNeighbours,
    RecordedKNN,
    SentenceScore,
    Transfer,
    Words,
    ZeroShot,
    caption_recall,
)
from contrapose.lab.studies.protocol import describe_study
from contrapose.lab.studies.study import Plan, Quantity, Row, Study, StudyData
from contrapose.lab.studies.task import Task
from contrapose.lab.training import Run

KEYS: dict[str, Measure] = {
    "linear:cacr": LinearProbe("cacr"),
    "linear_best_top5:cacr:5": LinearProbe("cacr", best=True, top=5, epochs=5),
    "start:linear:cacr:5": BeforeTraining(LinearProbe("cacr")).at_smoke_scale(),
    "knn:20:softmax": NearestNeighbours(20, "softmax"),
    "knn_top5:20:softmax": NearestNeighbours(20, "softmax", top=5),
    "best:knn_top1": RecordedKNN(best=True),
    "metric:uniformity:encoder:test": Metric("uniformity", "encoder"),
    "transfer:mura:dystress:start": Transfer("mura", "dystress", "start"),
    "detection:coco:mask_AP": Detection("coco", "mask_AP"),
    "sentences:sts:sts_mean:start": SentenceScore("sts", "sts_mean", "start"),
    "zero_shot:imagenet:class_names": ZeroShot("imagenet", class_names=True),
    "text_to_image_recall_10": caption_recall("text_to_image", 10),
}


@pytest.mark.parametrize("key", KEYS)
def test_keys_are_those_of_recorded_results(key: str) -> None:
    assert KEYS[key].key == key
    # Tasks travel to other processes, and equal measures are taken once.
    assert pickle.loads(pickle.dumps(KEYS[key])) == KEYS[key]
    assert len({KEYS[key], pickle.loads(pickle.dumps(KEYS[key]))}) == 1


@dataclass(frozen=True)
class LargestFeature(Evaluation):
    """The largest feature of a test image; `context.model` is a trained one."""

    kind = "largest_feature"
    summary = Words("largest feature", " (encoder's output, all test images)")

    def evaluate(self, context: Context) -> dict[str, float]:
        return {self.key: float(context.model.features(context.split.held_out).max())}


@pytest.mark.thorough
def test_a_study_brings_its_own_measure(tmp_path: Path) -> None:
    base = Run(limit=48, batch=16, epochs=1, knn=3, metrics=0)
    study = Study(
        name="own",
        title="A study",
        claim="",
        base={key: value for key, value in vars(base).items() if key not in ("data", "seed")},
        rows=(Row(name="base"), Row(name="cold", changes={"loss": "nt_xent(temperature=0.07)"})),
        quantities=(Quantity(name="largest", measure=LargestFeature(), unit="", negated=True),),
        sets=(StudyData(name="digits", data="digits16"),),
    )
    plan = Plan(study=study, scale="own", sets=study.sets)
    tasks = [Task(run, plan.measures(study_data, row), tmp_path) for row, study_data, run in plan.cells(1)]
    assert run_tasks(tasks) == {}
    assert all(task.done() for task in tasks)
    results = collect(plan, 1, tmp_path)
    base_cell, cold_cell = (results.cell(row.name, "largest") for row in study.rows)
    assert base_cell.mean < 0
    assert base_cell.mean != cold_cell.mean
    (block,) = section(plan, results).blocks
    assert f"ours={base_cell.mean}" in str(block)
    assert describe_study(study)[0] == "largest feature (encoder's output, all test images)"
