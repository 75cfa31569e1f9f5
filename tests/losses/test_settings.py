"""Bad hyper-parameters get a message that names them."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import torch

from contrapose.losses import (
    align_uniform,
    balanced,
    cacr,
    cmc,
    dcl,
    hard_negative,
    macl,
    nt_xent,
    sogclr,
    tau,
    triplet,
)
from contrapose.pairs import cross, two_views, views
from contrapose.temperature import CosineSchedule, PerSample, cosine, linear, ode_constant, ode_solution, uncertainty

P = two_views(torch.randn(4, 3), torch.randn(4, 3))
NAN = float("nan")

WRONG: dict[str, tuple[Callable[[], object], str]] = {
    "zero": (lambda: nt_xent(P, temperature=0.0), "temperature: expected a number above 0, got 0.0"),
    "negative": (lambda: dcl(P, temperature=-1), "temperature: expected a number above 0, got -1"),
    "nan": (lambda: nt_xent(P, temperature=NAN), "temperature: expected a finite number, got nan"),
    "string": (lambda: nt_xent(P, temperature="0.5"), "temperature: expected a finite number, got '0.5'"),  # type: ignore[arg-type]
    "tensor": (lambda: nt_xent(P, temperature=torch.zeros(8)), "temperature: expected temperatures above 0, got 0"),
    "length": (lambda: nt_xent(P, temperature=torch.ones(4)), "one per anchor (8,) or a function of similarity, got shape (4,)"),
    "ints": (lambda: nt_xent(P, temperature=torch.ones(8).long()), "temperature: expected floating point"),
    "schedule": (lambda: nt_xent(P, temperature=CosineSchedule()), "pass temperature=schedule.at(epoch)"),  # type: ignore[arg-type]
    "order": (lambda: cosine(0.2, 0.1), "low, high: expected low ≤ high, got low=0.2 and high=0.1"),
    "low": (lambda: linear(0.0, 0.1), "low: expected a number above 0"),
    "shift": (lambda: cosine(0.1, 0.2, shift=1.5), "shift: expected a number of at most 1, got 1.5"),
    "period": (lambda: CosineSchedule(period=0), "period: expected a number above 0"),
    "reduction": (lambda: nt_xent(P, reduction="sum"), "reduction: expected one of 'mean', 'none', got 'sum'"),
    "alpha": (lambda: balanced(P, alpha=0), "alpha: expected a number above 0"),
    "weight": (lambda: balanced(P, weight=-1), "weight: expected a number of at least 0"),
    "macl": (lambda: macl(P, temperature=0.1, alpha=5.0, center=3.0), "the adapted temperature is"),
    "tau_plus": (lambda: hard_negative(P, tau_plus=1.0), "tau_plus: expected a share below 1"),
    "cost": (lambda: cacr(P, cost="cosine"), "cost: expected one of 'euclidean', 'inner', 'rbf', got 'cosine'"),
    "attraction": (lambda: cacr(P, attraction="none"), "attraction: expected one of 'contrast'"),
    "t": (lambda: align_uniform(P, t=0), "t: expected a number above 0"),
    "margin": (lambda: triplet(P, margin=NAN), "margin: expected a finite number"),
    "cmc": (lambda: cmc(P, temperature=torch.ones(8)), "temperature: cmc takes a number or a function"),
    "split": (lambda: dcl(cross(torch.randn(4, 3), torch.randn(4, 3)), split_views=True), "split_views: these pairs hold one view"),
    "gamma": (lambda: sogclr(P, gamma=0.0), "gamma: expected a number above 0"),
    "average": (lambda: sogclr(P, log_average=torch.zeros(3)), "log_average: expected one number per anchor (8,), got (3,)"),
    "score": (lambda: tau(P, score=torch.zeros(8, 1)), "score: expected one floating point number per anchor"),
    "uncertainty": (lambda: uncertainty(torch.zeros(8), base=0.0), "base: expected a number above 0"),
    "state size": (lambda: PerSample(3)(P), "expected image ids from 0 to 2 (give ids= when making the pairs), got values from 0 to 3"),
    "state range": (lambda: PerSample(3, temperature=2.0), "expected low ≤ temperature ≤ high"),
    "ode": (lambda: ode_solution(torch.zeros(1), delta_k=1.0, constant=2.0), "the solution needs"),
    "ode side": (lambda: ode_constant(delta_k=1.0, high=0.2, at=0), "at: expected +1 or -1"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_bad_settings_are_named(name: str) -> None:
    make, message = WRONG[name]
    with pytest.raises(ValueError, match=re.escape(message)):
        make()


def test_three_views_too() -> None:
    assert torch.isfinite(cacr(views(torch.randn(3, 4, 5))))
