"""A single view with labels, the usual case of metric learning: values and gradients by plain loops, and what is refused."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from functools import partial
from inspect import signature
from typing import Any

import pytest
import torch
from torch import Tensor

from contrapose import CATALOGUE, Loss, cosine, hardest, losses, penalties, views
from contrapose.losses.objective import traits_of
from contrapose.reduce import memory

Z = torch.randn(9, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
LABELS = torch.tensor([0, 0, 1, 1, 2, -1, 0, -1, 3])  # 2 and 3 occur once; -1 means unknown
OBJECTIVES = {name: function for name, function in vars(losses).items() if hasattr(function, "traits")}
FUNCTIONS = {**OBJECTIVES, **{name: method.objective for name, method in CATALOGUE.items()}}
WITH_LABELS = sorted(name for name, function in FUNCTIONS.items() if "labels" in signature(function).parameters)


def supcon_of_anchor(s: list[Tensor], same: list[bool], form: str) -> Tensor:
    """SupCon's Eq. 2 or 3 for one anchor: exponents of all other samples, and whether each has the anchor's label."""
    attracted = [value for value, is_same in zip(s, same, strict=True) if is_same]
    total = sum((torch.exp(value) for value in s), torch.zeros((), dtype=torch.float64))
    if form == "out":
        return -sum((torch.log(torch.exp(value) / total) for value in attracted), torch.zeros(())) / len(attracted)
    return -torch.log(sum((torch.exp(value) / total for value in attracted), torch.zeros(())) / len(attracted))


# Every objective that takes labels needs an oracle here: one anchor's loss.
ORACLES: dict[str, Callable[..., Tensor]] = {"supcon": supcon_of_anchor}


def by_loops(name: str, z: Tensor, labels: Tensor, form: str, temperature: Callable[[Tensor], Tensor]) -> list[Tensor]:
    values = []
    for i in range(len(z)):
        others = [j for j in range(len(z)) if j != i]
        s = [torch.dot(z[i], z[j]) / (z[i].norm() * z[j].norm()) for j in others]
        same = [int(labels[i]) >= 0 and int(labels[i]) == int(labels[j]) for j in others]
        exponents = [value / temperature(value) for value in s]
        values.append(ORACLES[name](exponents, same, form) if any(same) else torch.zeros(()))
    return values


def cosine_temperature(s: Tensor) -> Tensor:
    return (0.1 + 0.5 * 0.2 * (1 + torch.cos(math.pi * (1 + s)))).detach()


TEMPERATURES: dict[str, tuple[Any, Callable[[Tensor], Tensor]]] = {
    "number": (0.3, lambda s: torch.tensor(0.3, dtype=torch.float64)),
    "profile": (cosine(0.1, 0.3), cosine_temperature),
}


@pytest.mark.parametrize("blocks", [None, 12])
@pytest.mark.parametrize("temperature", TEMPERATURES)
@pytest.mark.parametrize("form", ["out", "in"])
@pytest.mark.parametrize("name", WITH_LABELS)
def test_one_view_with_labels(name: str, form: str, temperature: str, blocks: int | None) -> None:
    """The mean covers the anchors that share their label with another sample; all other anchors have a loss of 0."""
    ours, theirs = TEMPERATURES[temperature]
    z, plain = Z.clone().requires_grad_(), Z.clone().requires_grad_()
    expected = torch.stack(by_loops(name, plain, LABELS, form, theirs))
    loss = partial(FUNCTIONS[name], labels=LABELS, form=form, temperature=ours)
    with memory(block=blocks or 10**9, kept=0 if blocks else 10**9):
        torch.testing.assert_close(loss(views(z[None]), reduction="none"), expected, rtol=1e-12, atol=1e-12)
        value, wanted = loss(views([z])), expected.sum() / 5
        torch.testing.assert_close(value, wanted, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(loss(views([z]), reduction="sum"), expected.sum(), rtol=1e-12, atol=1e-12)
        gradients = [torch.autograd.grad(value, z)[0], torch.autograd.grad(wanted, plain)[0]]
    torch.testing.assert_close(*gradients, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("name", WITH_LABELS)
def test_module_choices_of_negatives_and_records(name: str) -> None:
    function = FUNCTIONS[name]
    plain = function(views([Z]), labels=LABELS, temperature=0.2)
    torch.testing.assert_close(Loss(function, temperature=0.2)(Z, labels=LABELS), plain)
    # The 6 hardest of each anchor's negatives are all that the anchors of label 0 have, and fewer than the others have.
    few = function(views([Z]), labels=LABELS, temperature=0.2, negatives=hardest(6), reduction="none")
    every = function(views([Z]), labels=LABELS, temperature=0.2, reduction="none")
    at_zero = LABELS == 0
    torch.testing.assert_close(few[at_zero], every[at_zero])
    assert bool((few[LABELS == 1] < every[LABELS == 1]).all())
    push = penalties(partial(function, labels=LABELS, temperature=0.2), views([Z.float()]))
    assert push.repulsion.isfinite().all()


@pytest.mark.parametrize("form", ["out", "in"])
@pytest.mark.parametrize("name", WITH_LABELS)
def test_a_batch_without_two_samples_of_a_label_says_so(name: str, form: str) -> None:
    z = Z.clone().requires_grad_()
    with pytest.warns(UserWarning, match="no two samples in this batch have the same label"):
        value = FUNCTIONS[name](views([z]), labels=torch.arange(9), form=form)
    assert value.item() == 0
    assert not torch.autograd.grad(value, z)[0].any()


def test_without_labels_one_view_is_refused() -> None:
    message = re.escape(
        "one view of each sample has no positives: expected at least two views, such as views([z1, z2])"
    )
    for name in sorted(OBJECTIVES.keys() - set(WITH_LABELS)):
        if traits_of(OBJECTIVES[name]).takes == "pairs":
            with pytest.raises(ValueError, match=message):
                OBJECTIVES[name](views([Z]))
    with pytest.raises(ValueError, match=message):
        views([Z]).positives()
    with pytest.raises(ValueError, match=message):
        Loss("nt_xent")(Z)
    with pytest.raises(ValueError, match="z: expected at least two views"):
        views([Z], keys=[Z])
