"""Gradients agree with gradcheck, and with finite differences of the oracle in which stop-gradient parts are held fixed."""

from __future__ import annotations

import pytest
import torch
from cases import Case, combinations, named
from conftest import Promise
from kinds import Kind, Raw
from torch import Tensor

STEP = 1e-6


def gradients(case: Case, kind: Kind, raw: Raw) -> dict[str, Tensor | None]:
    leaves = {name: value.clone().requires_grad_() for name, value in raw.items()}
    case.loss(kind.make(leaves), reduction="mean").backward()
    return {name: leaf.grad for name, leaf in leaves.items()}


def differences(case: Case, kind: Kind, raw: Raw, name: str) -> Tensor:
    """Return central differences of the oracle's mean in every coordinate of one input."""
    held, result = kind.spell(raw), torch.zeros_like(raw[name])
    for i in range(raw[name].numel()):
        ends = []
        for step in (STEP, -STEP):
            perturbed = {**raw, name: raw[name].clone()}
            perturbed[name].view(-1)[i] += step
            values = case.oracle(kind.spell(perturbed), held)
            ends.append(sum(values) / len(values))
        result.view(-1)[i] = (ends[0] - ends[1]) / (2 * STEP)
    return result


@pytest.mark.parametrize("pair", combinations(), ids=named)
def test_the_gradient_is_that_of_the_formula(pair: tuple[Case, Kind], promise: Promise) -> None:
    case, kind = pair
    raw = kind.draw(m=4, d=3, seed=1)
    computed = gradients(case, kind, raw)
    for name in raw:
        gradient = computed[name]
        if name not in kind.live:
            assert gradient is None, f"{name} must not carry gradient"
            continue
        # A loss without negatives does not reach them, and the differences must say so too.
        gradient = torch.zeros_like(raw[name]) if gradient is None else gradient
        expected = differences(case, kind, raw, name)
        promise.case(float((gradient - expected).abs().max() / expected.abs().max().clamp(min=1e-3)))
        torch.testing.assert_close(gradient, expected, rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("pair", combinations(smooth=True), ids=named)
def test_gradcheck(pair: tuple[Case, Kind], promise: Promise) -> None:
    case, kind = pair
    raw = kind.draw(m=3, d=3, seed=2)
    names = list(kind.live)
    leaves = tuple(raw[name].clone().requires_grad_() for name in names)
    assert torch.autograd.gradcheck(
        lambda *z: case.loss(kind.make({**raw, **dict(zip(names, z, strict=True))})), leaves
    )
    promise.case()
