"""Queries with their positives and negatives: their weights, their pictures, and the studies that show them."""

from __future__ import annotations

import base64
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from contrapose.lab.modalities.images.images import Images
from contrapose.lab.report.document import Chart, Document, Section, Thumbnails
from contrapose.lab.report.render import write
from contrapose.lab.studies import find
from contrapose.lab.studies.cacr.queries import falls_during_training, own_class_weighs_more
from contrapose.lab.studies.measures import Context, LinearProbe, Map, QueryMap, QueryWeights
from contrapose.lab.studies.measures.queries import POSITIVES, QueryBatches, _own_class
from contrapose.lab.studies.results import Results
from contrapose.lab.studies.task import Task
from contrapose.lab.training import Run, Trainer
from contrapose.pairs import unit

RUN = Run(
    limit=96, batch=24, epochs=2, knn_every=2, knn=5, metrics=0, view_count=3, loss="cacr(t_neg=0.9)", keep=(1, 2)
)  # fmt: skip


@pytest.fixture(scope="module")
def trainer(tmp_path_factory: pytest.TempPathFactory) -> Trainer:
    trained = Trainer(RUN, tmp_path_factory.mktemp("runs") / "run", log=lambda text: None)
    trained.train()
    return trained


def softmax(values: list[float]) -> list[float]:
    total = sum(math.exp(value) for value in values)
    return [math.exp(value) / total for value in values]


def squared(a: torch.Tensor, b: torch.Tensor) -> float:
    return math.dist(a.tolist(), b.tolist()) ** 2


def test_weights_are_those_of_the_loss(trainer: Trainer) -> None:
    found = QueryWeights("query_weights").evaluate(Context(trainer.model, trainer.split))
    shown = found["query_weights"]
    batches = QueryBatches.of(trainer.model, trainer.split)
    query = batches.z[0, 0]
    positive = softmax([squared(query, batches.z[k, 0]) for k in range(1, 1 + POSITIVES)])
    negative = softmax([-0.9 * squared(query, batches.z[0, j]) for j in range(1, 24)])
    assert [entry["weight"] for entry in shown["positives"]] == pytest.approx(positive, rel=1e-4)
    assert shown["weights"] == pytest.approx(sorted(negative, reverse=True), abs=1e-5)
    assert [entry["weight"] for entry in shown["nearest"]] == pytest.approx(sorted(negative)[:-5:-1], rel=1e-4)
    assert [entry["weight"] for entry in shown["farthest"]] == pytest.approx(sorted(negative)[3::-1], rel=1e-4)
    png = base64.b64decode(shown["query"]["view"])
    assert png.startswith(b"\x89PNG")
    assert shown["query"]["view"] != shown["query"]["image"]
    assert found["own_class_weight_error"] > 0


def of_classes(z: torch.Tensor, labels: torch.Tensor) -> QueryBatches:
    images = torch.zeros(len(labels), 3, 8, 8, dtype=torch.uint8)
    sample = Images(name="made", pixels=images, labels=labels)
    return QueryBatches(sample=sample, raw=images, z=unit(z)[None].expand(1 + POSITIVES, -1, -1), size=len(labels) // 4)


def judge(found: dict[str, float]) -> str:
    results = Results(sets=("digits",), evaluations={("row", "digits"): (found,)})
    return own_class_weighs_more("row")(results).outcome


def test_the_claim_about_the_own_class_can_fail() -> None:
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(0, 4, (400,), generator=generator)
    noise = torch.randn(400, 4, generator=generator)
    together = of_classes(torch.eye(4)[labels] + 0.1 * noise, labels)
    apart = of_classes(torch.eye(400), labels)  # every other query is equally far
    outcomes = []
    for batches in (together, apart):
        weights = (-2 * batches.negative_costs()).softmax(1)
        outcomes.append(judge(_own_class(batches, weights)))
    assert outcomes == ["holds", "undecided"]
    reversed_weights = (2 * together.negative_costs()).softmax(1)
    assert judge(_own_class(together, reversed_weights)) == "does not hold"
    assert judge({}) == "undecided"


@pytest.mark.thorough
def test_maps_come_from_kept_weights(trainer: Trainer) -> None:
    found = QueryMap("query_map").evaluate(Context(trainer.model, trainer.split))
    first, last = found["query_map"]
    assert [first["epoch"], last["epoch"]] == [1, 2]
    assert first["points"][0] == [0.0, 0.0]
    assert len(first["points"]) == POSITIVES + 24
    assert first["positive_ratio"] != last["positive_ratio"]
    batches = QueryBatches.of(trainer.model, trainer.split)  # the newest weights are those of the last epoch
    distances = [math.sqrt(squared(batches.z[0, 0], batches.z[0, j])) for j in range(1, 24)]
    measured = batches.negative_costs().sqrt()
    assert measured[0].tolist() == pytest.approx(distances, rel=1e-3)
    variation = float((measured.std(1) / measured.mean(1)).mean())
    assert found["negative_variation"] == last["negative_variation"] == pytest.approx(variation)


def test_maps_need_kept_weights(trainer: Trainer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trainer.model, "run", replace(RUN, keep=()))
    with pytest.raises(ValueError, match="the run kept no weights"):
        QueryMap("query_map").evaluate(Context(trainer.model, trainer.split))


def epochs(first: float, last: float) -> dict[str, Any]:
    return {"query_map": [{"epoch": e, "positive_ratio": value} for e, value in ((1, first), (20, 0.5), (200, last))]}


def test_a_fall_is_from_the_first_epoch_to_the_last() -> None:
    claim = falls_during_training("row", "positive_ratio")
    outcomes = [
        claim(Results(sets=("digits",), evaluations={("row", "digits"): (epochs(*ends),)})).outcome
        for ends in ((0.9, 0.4), (0.4, 0.9))
    ]
    assert outcomes == ["holds", "does not hold"]


@pytest.mark.thorough
def test_the_studies_show_images_and_maps(trainer: Trainer, tmp_path: Path) -> None:
    found: dict[str, Any] = {}
    for measure in (QueryWeights("query_weights"), QueryMap("query_map")):
        found |= measure.evaluate(Context(trainer.model, trainer.split))
    blocks = []
    for name in ("cacr/figure6", "cacr/figure7"):
        study = find(name)
        assert study.show is not None
        rows = {(row.name, "digits"): (found,) for row in study.rows}
        blocks += study.show(study, Results(sets=("digits",), evaluations=rows))
    thumbnails = [block for block in blocks if isinstance(block, Thumbnails)]
    assert [len(images) for _, images in thumbnails[0].groups] == [2, 4, 4, 4, 4, 4]
    assert len([block for block in blocks if isinstance(block, Chart) and "epoch" in block.title]) == 4
    page = write(Document("A page", "", (Section("Part", blocks=tuple(blocks), name="part"),)), tmp_path).read_text()
    assert page.count('<img src="data:image/png;base64,') == 22
    assert 'alt="positive of weight 0.' in page
    assert "π⁺ = 0." in page
    assert "![Weights of the positives and negatives of one query](part-1.png)" in (tmp_path / "index.md").read_text()
    assert (tmp_path / "part-1.png").stat().st_size > 10_000


def test_runs_of_the_figures() -> None:
    def runs(name: str, scale: str, **changes: Any) -> list[Run]:
        return [run for _, _, run in find(name).plan(scale, **changes).cells(1)]

    assert [runs("cacr/figure7", scale)[0].keep for scale in ("smoke", "short", "small", "paper")] == [
        (1, 2), (1, 5, 50), (1, 20, 200), (1, 20, 200),
    ]  # fmt: skip
    entropy = {run.data: run.extra_metrics for name in ("cacr/figure3", "cacr/figure4") for run in runs(name, "paper")}
    assert entropy == {"cifar10": ("entropy:2.0@1",), "cifar100": ("entropy:3.0@1",)}
    assert {run.batch for run in runs("cacr/figure3", "paper")} == {768, 128}  # M, where the item has none of its own
    assert {run.extra_metrics for run in runs("cacr/figure10", "paper")} == {("linear:cacr-crops@10",)}
    assert not any(
        run.extra_metrics or run.keep for run in runs("cacr/table8", "short")
    )  # recorded runs keep their names


def test_a_measure_of_the_last_record_is_not_taken_again(tmp_path: Path) -> None:
    task = Task(run=RUN, measures=(LinearProbe("cacr"), Map()), root=tmp_path)
    task.folder.mkdir()
    line = '{"epoch": %d, "step": 1, "seconds": 1.0%s}\n'
    (task.folder / "records.jsonl").write_text(line % (1, ', "linear:cacr": 50.0') + line % (2, ""))
    assert task.open_measures() == [LinearProbe("cacr"), Map()]  # that of an earlier epoch does not count
    (task.folder / "records.jsonl").write_text(line % (2, ', "linear:cacr": 50.0'))
    assert task.open_measures() == [Map()]
