"""SupCon: identities with NT-Xent, labels in all their forms, training with them, and what is refused."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from kinds import KINDS
from torch import Tensor

from contrapose.embeddings import Embeddings, with_bank, with_queue, within_batch
from contrapose.lab.training import Run, Trainer
from contrapose.losses import Loss, nt_xent, supcon
from contrapose.pairs import Pairs, bank, from_similarities, queue, two_views, views
from contrapose.pairs.negatives import hardest, other_views
from contrapose.reduce import LogSumExp, Scale, memory
from contrapose.temperature import cosine

Z1, Z2, ROWS = (torch.randn(n, 4, dtype=torch.float64) for n in (6, 6, 9))
LABELS = torch.tensor([0, 0, 1, 1, 2, -1])
TEMPERATURES = [0.3, cosine(0.1, 0.3)]


def khosla(z1: Tensor, z2: Tensor, labels: Tensor, temperature: float) -> Tensor:
    """Return L_out as in the authors' code: one matrix, one mask."""
    z = torch.nn.functional.normalize(torch.cat([z1, z2]))
    logits = z @ z.T / temperature
    others = ~torch.eye(len(z), dtype=torch.bool)
    same = (labels.repeat(2)[:, None] == labels.repeat(2)) & others
    log_probability = logits - logits.masked_fill(~others, -torch.inf).logsumexp(1, keepdim=True)
    return -((log_probability * same).sum(1) / same.sum(1)).mean()


def test_two_views_are_the_authors_loss() -> None:
    labels = torch.tensor([0, 0, 1, 1, 2, 0])
    ours = supcon(two_views(Z1, Z2), labels=labels, temperature=0.2)
    torch.testing.assert_close(ours, khosla(Z1, Z2, labels, 0.2), rtol=1e-13, atol=0)


@pytest.mark.parametrize("temperature", TEMPERATURES)
@pytest.mark.parametrize("form", ["out", "in"])
@pytest.mark.parametrize("kind", ["two_views", "two_views_ids", "cross", "queue", "bank"])
def test_without_shared_labels_it_is_nt_xent(kind: str, form: str, temperature: Any) -> None:
    pairs = KINDS[kind].make(KINDS[kind].draw(m=5))
    assert pairs.anchor_id is not None
    stored = torch.arange(11) if kind == "bank" else None  # a label per sample: its index
    for labels in (pairs.anchor_id, torch.full_like(pairs.anchor_id, -1)) if kind != "bank" else (pairs.anchor_id,):
        ours = supcon(pairs, labels=labels, stored_labels=stored, form=form, temperature=temperature, reduction="none")
        wanted = nt_xent(pairs, temperature=temperature, reduction="none")
        torch.testing.assert_close(ours, wanted, rtol=1e-12, atol=1e-12)


def test_the_mean_inside_the_logarithm_is_smaller() -> None:
    pairs = views(torch.randn(3, 6, 4, dtype=torch.float64))
    inside, outside = (supcon(pairs, labels=LABELS, form=form, reduction="none") for form in ("in", "out"))
    assert bool((inside <= outside + 1e-12).all())
    assert float((outside - inside).max()) > 0.1


def test_one_label_per_sample_or_per_anchor() -> None:
    pairs = two_views(Z1, Z2)
    assert torch.equal(supcon(pairs, labels=LABELS), supcon(pairs, labels=LABELS.repeat(2).int()))
    assert torch.equal(Loss(supcon, temperature=0.1)(Z1, Z2, labels=LABELS), supcon(pairs, labels=LABELS))


def test_labels_come_with_embeddings() -> None:
    z, ids, all_labels = torch.stack([Z1, Z2]), torch.tensor([8, 2, 4, 0, 1, 3]), torch.arange(9) % 3
    for compare, target, pairs, stored in (
        (within_batch, None, views(z, ids=ids), None),
        (with_queue(ROWS), z + 0.1, queue(z, z + 0.1, ROWS, ids=ids), None),
        (with_bank(ROWS), None, bank(z, ids, ROWS), all_labels),
    ):
        embeddings = Embeddings(z=z, target=target, ids=ids, compare=compare, sample_labels=all_labels)
        wanted = supcon(pairs, labels=all_labels[ids], stored_labels=stored)
        assert torch.equal(Loss(supcon)(embeddings), wanted)
    unlabelled = Embeddings(z=z, ids=ids, compare=within_batch)
    with pytest.raises(ValueError, match="labels: this loss needs the samples' labels"):
        Loss(supcon)(unlabelled)
    given = Loss(supcon)(unlabelled, labels=LABELS, stored_labels=None)
    assert torch.equal(given, supcon(views(z, ids=ids), labels=LABELS))


def test_sums_over_labels_need_no_similarities(monkeypatch: pytest.MonkeyPatch) -> None:
    """At a constant temperature, same-label rows enter by sums of embeddings: only the denominator is reduced."""
    reduced, reduce = list[object](), Pairs.reduce

    def watched(self: Pairs, *statistics: Any, **settings: Any) -> tuple[Tensor, ...]:
        reduced.extend(statistics)
        return reduce(self, *statistics, **settings)

    monkeypatch.setattr(Pairs, "reduce", watched)
    supcon(two_views(Z1, Z2), labels=LABELS)
    assert reduced == [LogSumExp(Scale(1 / 0.1))]


@pytest.mark.parametrize("form", ["out", "in"])
def test_a_learned_temperature_gets_its_gradient(form: str) -> None:
    gradients = []
    for limit in (8, 10**9):
        temperature = torch.full((12,), 0.3, dtype=torch.float64, requires_grad=True)
        with memory(block=limit, kept=0):
            supcon(two_views(Z1, Z2), labels=LABELS, form=form, temperature=temperature).backward()
        gradients.append(temperature.grad)
    temperature = torch.full((12,), 0.3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(
        lambda tau: supcon(two_views(Z1, Z2), labels=LABELS, form=form, temperature=tau), temperature
    )
    torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("limits", [None, 16])
def test_anchors_whose_candidates_all_share_their_label(limits: int | None) -> None:
    """There is nothing to choose negatives from, and the loss is that of the positives alone."""
    z1, z2 = Z1.clone().requires_grad_(), Z2.clone().requires_grad_()
    for form in ("out", "in"):
        with memory(block=limits, kept=0) if limits else nullcontext():
            pairs = two_views(z1, z2)
            everything = supcon(pairs, labels=torch.zeros(6).long(), form=form)
            chosen = supcon(pairs, labels=torch.zeros(6).long(), form=form, negatives=other_views())
            torch.testing.assert_close(chosen, everything, rtol=1e-12, atol=1e-12)
            gradients = torch.autograd.grad(chosen, (z1, z2))
        assert all(bool(g.isfinite().all()) for g in gradients)


MEASURE = """
import resource, sys, torch
from contrapose import supcon, two_views
def step(m):
    z = torch.randn(m, 64, requires_grad=True)
    y = torch.arange(m) % 100
    supcon(two_views(z, z.detach() + 0.1), labels=y).backward()
    supcon(two_views(z, z.detach() + 0.1), labels=y, form="in").backward()
step(64)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
step(int(sys.argv[1]))
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""


@pytest.mark.thorough
def test_memory_does_not_grow_with_the_square() -> None:
    """6,144 anchors: the matrix alone is 144 MiB in float32, and SupCon in plain PyTorch needs it several times."""
    assert int(subprocess.check_output([sys.executable, "-c", MEASURE, "3072"], text=True)) < 100


P = two_views(Z1, Z2)
Q, B = queue(Z1, Z2, ROWS), bank(Z1, torch.arange(6), ROWS)
WRONG: dict[str, tuple[Callable[[], object], str]] = {
    "length": (lambda: supcon(P, labels=LABELS[:4]), "labels: expected one integer per sample, shape (6,) or (12,), got (4,)"),
    "dtype": (lambda: supcon(P, labels=LABELS.float()), "labels: expected integers, got torch.float32"),
    "bool": (lambda: supcon(P, labels=LABELS > 0), "labels: expected integers, got torch.bool"),
    "list": (lambda: supcon(P, labels=[0] * 6), "labels: expected one integer per sample, shape (6,) or (12,), got list; write torch.tensor(labels)"),  # type: ignore[arg-type]
    "views differ": (lambda: supcon(P, labels=torch.arange(12)), "labels: expected one label per sample, got two different labels"),
    "form": (lambda: supcon(P, labels=LABELS, form="both"), "form: expected one of 'out', 'in', got 'both'"),
    "similarities": (lambda: supcon(from_similarities(torch.rand(3), torch.rand(3, 5)), labels=LABELS[:3]), "pairs: labels belong to samples"),
    "nothing stored": (lambda: supcon(P, labels=LABELS, stored_labels=LABELS), "stored_labels: expected None"),
    "stored length": (lambda: supcon(Q, labels=LABELS, stored_labels=LABELS), "stored_labels: expected one integer per sample, shape (9,), got (6,)"),
    "bank": (lambda: supcon(B, labels=LABELS), "stored_labels: expected the labels of the bank's 9 rows, got None"),
    "bank differs": (lambda: supcon(B, labels=LABELS, stored_labels=torch.arange(9)), "got two different labels for the same sample id"),
    "hardest": (lambda: supcon(P, labels=LABELS, negatives=hardest(9, strict=True)), "hardest(9, strict=True) needs 9 negatives for every anchor, but an anchor has 8"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_bad_arguments_are_named(name: str) -> None:
    make, message = WRONG[name]
    with pytest.raises(ValueError, match=re.escape(message)):
        make()


@pytest.mark.parametrize("framework", ["simclr", "moco", "memory-bank"])
def test_training_with_labels(framework: str, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"limit": 96, "batch": 32, "epochs": 1, "knn": 5, "metrics": 0, "queue": 32}
    run = Run(framework=framework, loss="supcon(temperature=0.2)", **settings)
    trainer = Trainer(run, tmp_path, log=lambda text: None)
    trainer.train()
    latest, labels = trainer.context.latest, trainer.split.train.labels
    assert latest is not None
    assert latest.ids is not None
    assert labels is not None
    provided = latest.provide("labels")
    assert provided is not None
    assert torch.equal(provided.cpu(), labels[latest.ids.cpu()])
    (record,) = (json.loads(line) for line in (tmp_path / "records.jsonl").read_text().splitlines())
    assert np.isfinite(record["loss"])


def test_an_unlabelled_data_set_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    np.savez(tmp_path / "mine.npz", train_images=np.zeros((40, 8, 8, 3), dtype=np.uint8))
    run = Run(data=str(tmp_path / "mine.npz"), loss="supcon", batch=8, epochs=1, knn=5)
    with pytest.raises(
        ValueError, match=r"loss: supcon needs labels, but the training images in .*mine\.npz have none"
    ):
        Trainer(run, tmp_path / "run", log=lambda text: None)
    assert not (tmp_path / "run").exists()
