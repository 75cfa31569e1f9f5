"""Gradients agree with gradcheck, and with finite differences of the oracle in which stop-gradient parts are held fixed."""

from __future__ import annotations

import pytest
import torch
from cases import Case, combinations, named
from conftest import FULL, Promise
from kinds import Kind, Raw
from tiers import every
from torch import Tensor

STEP = 1e-6


def gradients(case: Case, kind: Kind, raw: Raw) -> dict[str, Tensor | None]:
    leaves = {name: value.clone().requires_grad_() for name, value in raw.items()}
    case.loss(kind.make(leaves), reduction="mean").backward()
    return {name: leaf.grad for name, leaf in leaves.items()}


def differences(case: Case, kind: Kind, raw: Raw, name: str, directions: Tensor) -> Tensor:
    """Return central differences (n,) of the oracle's mean along n directions of one input."""
    held, results = kind.spell(raw), []
    for direction in directions:
        ends = []
        for step in (STEP, -STEP):
            values = case.oracle(kind.spell({**raw, name: raw[name] + step * direction}), held)
            ends.append(sum(values) / len(values))
        results.append((ends[0] - ends[1]) / (2 * STEP))
    return torch.tensor(results, dtype=torch.float64)


def directions_of(value: Tensor) -> Tensor:
    """Return directions (n, …) to differentiate along: every coordinate, or a random one, which a wrong gradient fails too."""
    if FULL:
        return torch.eye(value.numel(), dtype=value.dtype).view(-1, *value.shape)
    return torch.randn(1, *value.shape, dtype=value.dtype)


@pytest.mark.parametrize("pair", every(7, combinations()), ids=named)
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
        directions = directions_of(gradient)
        expected, slopes = differences(case, kind, raw, name, directions), directions.flatten(1) @ gradient.flatten()
        promise.case(float((slopes - expected).abs().max() / expected.abs().max().clamp(min=1e-3)))
        torch.testing.assert_close(slopes, expected, rtol=1e-5, atol=1e-8)


# The gradient of every pair is compared with differences above; this also checks those of all inputs together.
@pytest.mark.parametrize("pair", every(11, combinations(smooth=True)), ids=named)
def test_gradcheck(pair: tuple[Case, Kind], promise: Promise) -> None:
    case, kind = pair
    raw = kind.draw(m=3, d=3, seed=2)
    names = list(kind.live)
    leaves = tuple(raw[name].clone().requires_grad_() for name in names)
    assert torch.autograd.gradcheck(
        lambda *z: case.loss(kind.make({**raw, **dict(zip(names, z, strict=True))})), leaves, fast_mode=not FULL
    )
    promise.case()
