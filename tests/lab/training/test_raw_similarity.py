"""Runs that compare embeddings without normalising them (Lee, Table 1)."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from contrapose.lab.training import Run, Trainer, load
from contrapose.lab.training.eager import EagerSteps

RUN = Run(limit=96, batch=32, epochs=2, knn_every=2, knn=5, metrics=48, loss="simclr(temperature=0.5)")


def quiet(text: str) -> None:
    pass


@pytest.mark.parametrize("similarity", ["dot", "neg_euclid"])
def test_the_loss_sees_embeddings_that_are_not_normalised(similarity: str, tmp_path: Path) -> None:
    trainer = Trainer(replace(RUN, similarity=similarity), tmp_path, log=quiet)
    index, views = next(EagerSteps(trainer.context).batches(0, 0))
    loss = trainer.context.loss(views, index)
    embeddings = trainer.context.latest
    assert embeddings is not None
    z = embeddings.z.detach().flatten(0, 1).double()
    assert float((z.norm(dim=1) - 1).abs().max()) > 1  # otherwise nothing is told apart
    s = z @ z.T if similarity == "dot" else -(z[:, None] - z).square().sum(-1)
    logits = (s / 0.5).masked_fill(torch.eye(len(z), dtype=torch.bool), -torch.inf)
    target = torch.arange(len(z)).roll(len(z) // 2)
    torch.testing.assert_close(loss.double(), torch.nn.functional.cross_entropy(logits, target), rtol=1e-4, atol=1e-4)


@pytest.mark.thorough
@pytest.mark.parametrize("similarity", ["dot", "neg_euclid"])
def test_a_run_trains_in_bf16_and_is_evaluated(similarity: str, tmp_path: Path) -> None:
    run = replace(RUN, similarity=similarity, precision="bf16")
    scores = Trainer(run, tmp_path, log=quiet).train()
    records = [json.loads(line) for line in (tmp_path / "records.jsonl").read_text().splitlines()]
    assert all(torch.tensor([record["loss"], record["hardest_similarity"]]).isfinite().all() for record in records)
    assert records[-1]["uniformity"] < 0
    assert load(tmp_path).run == run
    assert scores["knn_top1"] > 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"similarity": "euclid"}, "similarity: expected one of cosine, dot, neg_euclid, got 'euclid'"),
        ({"framework": "moco"}, "similarity: it is for simclr; the framework is moco"),
        ({"framework": "memory-bank"}, "similarity: it is for simclr; the framework is memory-bank"),
        ({"loss": "cacr"}, "unit vectors"),
    ],
)
def test_where_it_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Run(**{**vars(RUN), "similarity": "dot", **change})


def test_the_default_is_omitted_from_the_name() -> None:
    assert "similarity" not in RUN.describe()
    assert replace(RUN, similarity="dot").name != RUN.name
