"""Bad hyper-parameters get a message that names them."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch

from contrapose.losses import (
    Loss,
    align_uniform,
    balanced,
    cacr,
    cmc,
    dcl,
    hard_negative,
    isogclr,
    macl,
    nt_xent,
    siglip,
    simple,
    sogclr,
    tau,
    triplet,
)
from contrapose.losses.parse import parse
from contrapose.losses.trial import try_loss
from contrapose.pairs import cross, from_similarities, queue, two_views, views
from contrapose.pairs.negatives import batch_rows, hardest, other_views, stored_rows
from contrapose.temperature import (
    CosineSchedule,
    PerSample,
    cosine,
    learned,
    learned_number,
    linear,
    ode_constant,
    ode_solution,
    uncertainty,
)

Q = torch.rand(4, 3) + 0.1  # all similar: a hardest negative is one of the same view
P = two_views(Q, torch.randn(4, 3))
NAN = float("nan")

WRONG: dict[str, tuple[Callable[[], object], str]] = {
    "zero": (lambda: nt_xent(P, temperature=0.0), "temperature: expected a number above 0, got 0.0"),
    "negative": (lambda: dcl(P, temperature=-1), "temperature: expected a number above 0, got -1"),
    "nan": (lambda: nt_xent(P, temperature=NAN), "temperature: expected a finite number, got nan"),
    "string": (lambda: nt_xent(P, temperature="0.5"), "temperature: expected a finite number, got '0.5'"),  # type: ignore[arg-type]
    "tensor": (lambda: nt_xent(P, temperature=torch.zeros(8)), "temperature: expected temperatures of at least 1e-06, got 0"),
    "length": (lambda: nt_xent(P, temperature=torch.ones(4)), "one per anchor (8,) or a function of similarity, got shape (4,)"),
    "ints": (lambda: nt_xent(P, temperature=torch.ones(8).long()), "temperature: expected floating point"),
    "tiny": (lambda: nt_xent(P, temperature=1e-9), "temperature: expected a number of at least 1e-06, got 1e-09"),
    "function of zero": (lambda: nt_xent(P, temperature=lambda s: 0 * s), "the function returned 0"),
    "function shape": (lambda: nt_xent(P, temperature=lambda s: s[:1] * 0 + 0.2), "one temperature per similarity, shape (8, 8), but it returned shape"),
    "function number": (lambda: nt_xent(P, temperature=lambda s: 0.2), "one temperature per similarity, shape (8, 8), but it returned 0.2"),  # type: ignore[arg-type,return-value]
    "macl zero": (lambda: macl(P, temperature=0.0), "temperature: expected a number above 0, got 0.0"),
    "score length": (lambda: tau(P, score=torch.zeros(3)), "score: expected one number per anchor (8,), got (3,)"),
    "no pairs": (lambda: nt_xent(torch.randn(4, 3)), "pairs: expected the result of two_views, views"),  # type: ignore[arg-type]
    "weights": (lambda: cacr(P, attract_weight=NAN), "attract_weight: expected a finite number"),
    "uniform weight": (lambda: align_uniform(P, uniform_weight=NAN), "uniform_weight: expected a finite number"),
    "rbf switch": (lambda: cacr(P, cost="rbf", detach_queue_weights=True), "detach_queue_weights: expected cost='euclidean'"),
    "isogclr": (lambda: isogclr(P), "Loss(isogclr, state=PerSample(number_of_images))"),
    "state": (lambda: PerSample(4, beta=NAN), "beta: expected a finite number"),
    "state float": (lambda: PerSample(3.5), "size: expected the number of images, got 3.5"),  # type: ignore[arg-type]
    "ode sharp": (lambda: ode_constant(delta_k=1.0, high=1e-3, at=1), "high: expected a temperature above"),
    "schedule": (lambda: nt_xent(P, temperature=CosineSchedule()), "pass temperature=schedule.at(epoch)"),  # type: ignore[arg-type]
    "order": (lambda: cosine(0.2, 0.1), "low, high: expected low ≤ high, got low=0.2 and high=0.1"),
    "low": (lambda: linear(0.0, 0.1), "low: expected a number above 0"),
    "shift": (lambda: cosine(0.1, 0.2, shift=1.5), "shift: expected a number of at most 1, got 1.5"),
    "period": (lambda: CosineSchedule(period=0), "period: expected a number above 0"),
    "reduction": (lambda: nt_xent(P, reduction="avg"), "reduction: expected one of 'mean', 'sum', 'none', got 'avg'"),
    "reduction of a criterion": (lambda: Loss(nt_xent, reduction="avg"), "reduction: expected one of 'mean', 'sum', 'none', got 'avg'"),
    "alpha": (lambda: balanced(P, alpha=0), "alpha: expected a number above 0"),
    "weight": (lambda: balanced(P, weight=-1), "weight: expected a number of at least 0"),
    "macl": (lambda: macl(P, temperature=0.1, alpha=5.0, center=3.0), "the adapted temperature is"),
    "tau_plus": (lambda: hard_negative(P, tau_plus=1.0), "tau_plus: expected a probability below 1"),
    "cost": (lambda: cacr(P, cost="cosine"), "cost: expected one of 'euclidean', 'inner', 'rbf', got 'cosine'"),
    "attraction": (lambda: cacr(P, attraction="none"), "attraction: expected one of 'contrast'"),
    "t": (lambda: align_uniform(P, t=0), "t: expected a number above 0"),
    "margin": (lambda: triplet(P, margin=NAN), "margin: expected a finite number"),
    "cmc": (lambda: cmc(P, temperature=torch.ones(8)), "temperature: cmc takes a number or a function"),
    "split": (lambda: dcl(cross(torch.randn(4, 3), torch.randn(4, 3)), split_views=True), "split_views: expected the batch itself in several views"),
    "gamma": (lambda: sogclr(P, gamma=0.0), "gamma: expected a number above 0"),
    "gamma above": (lambda: sogclr(P, gamma=1.5), "gamma: expected a number of at most 1, got 1.5"),
    "average": (lambda: sogclr(P, log_average=torch.zeros(3)), "log_average: expected one number per anchor (8,), got (3,)"),
    "score": (lambda: tau(P, score=torch.zeros(8, 1)), "score: expected one floating point number per anchor"),
    "uncertainty": (lambda: uncertainty(torch.zeros(8), base=0.0), "base: expected a number above 0"),
    "state size": (lambda: PerSample(3).settings(P), "expected image ids from 0 to 2 (pass ids= when making the pairs), got values from 0 to 3"),
    "state range": (lambda: PerSample(3, temperature=2.0), "expected low ≤ temperature ≤ high"),
    "ode": (lambda: ode_solution(torch.zeros(1), delta_k=1.0, constant=2.0), "the solution needs"),
    "bias": (lambda: siglip(P, bias=NAN), "bias: expected a finite number, got nan"),
    "bias shape": (lambda: siglip(P, bias=torch.zeros(8)), "bias: expected a number or a floating point tensor without dimensions, got shape (8,)"),
    "bias ints": (lambda: siglip(P, bias=torch.tensor(1)), "got shape () of torch.int64"),
    "learned zero": (lambda: learned(0.0), "start: expected a number above 0, got 0.0"),
    "learned below": (lambda: learned(0.005, low=0.01), "expected low ≤ start ≤ high, got start=0.005, low=0.01 and high=None"),
    "learned bound": (lambda: learned(0.1, high=0.0), "high: expected a number above 0, got 0.0"),
    "learned number": (lambda: learned_number(NAN), "start: expected a finite number, got nan"),
    "learned macl": (lambda: macl(P, temperature=learned(0.1)), "temperature: expected a finite number, got LearnedTemperature(0.1)"),  # type: ignore[arg-type]
    "ode side": (lambda: ode_constant(delta_k=1.0, high=0.2, at=0), "at: expected +1 or -1"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_bad_settings_are_named(name: str) -> None:
    make, message = WRONG[name]
    with pytest.raises(ValueError, match=re.escape(message)):
        make()


# Of each setting, numbers that are allowed and such that are not, on both sides of a bound.
BOUNDS: dict[str, tuple[tuple[float, ...], tuple[float, ...]]] = {
    "cacr(t_pos=%s)": ((0.0,), (-0.1,)),
    "cacr(t_neg=%s)": ((0.0,), (-0.1,)),
    "cacr(t=%s, cost='rbf')": ((0.1,), (0.0, -1.0)),
    "cacr_moco_v3(temperature=%s)": ((0.1,), (0.0, -1.0)),
    "moco_v3(temperature=%s)": ((0.1,), (0.0, -1.0)),
    "sogclr(gamma=%s)": ((0.1, 1.0), (0.0, 1.5)),
    "dclw(sigma=%s)": ((0.1,), (0.0, -1.0)),
    "generalized_nt_xent(alpha=%s)": ((0.1,), (0.0,)),
    "generalized_nt_xent(weight=%s)": ((0.0, 0.5), (-0.1,)),
    "hard_negative(beta=%s)": ((0.0, 0.5), (-0.1,)),
    "hard_negative(tau_plus=%s)": ((0.0, 0.5), (-0.1, 1.0)),
    "simple(weight=%s)": ((0.0, 0.5), (-0.1,)),
    "align_uniform(t=%s)": ((0.1,), (0.0,)),
    "barlow_twins(weight=%s)": ((0.0, 0.5), (-0.1,)),
    "vicreg(variance_weight=%s)": ((0.0, 0.5), (-0.1,)),
    "w_mse(shrinkage=%s)": ((0.0, 1.0), (-0.1, 1.5)),
    "zero_cl(ridge=%s)": ((1e-3,), (0.0,)),
    "arb(ridge=%s)": ((1e-3,), (0.0,)),
    "swav(epsilon=%s)": ((0.01,), (0.0,)),
}


@pytest.mark.parametrize("text", BOUNDS)
def test_bounds_of_settings(text: str) -> None:
    allowed, refused = BOUNDS[text]
    for value in allowed:
        try_loss(parse(text % value))
    name = re.findall(r"(\w+)=%s", text)[0]
    for value in refused:
        with pytest.raises(ValueError, match=rf"{name}: expected a .*, got {value}"):
            try_loss(parse(text % value))


EMPTY: dict[str, tuple[Any, Any]] = {
    "stored rows": (P, stored_rows()),
    "batch rows": (queue(Q, Q, torch.randn(7, 3)), batch_rows()),
    "hardest, stored": (queue(Q, Q, -Q.mean(0, keepdim=True).repeat(2, 1), batch=True), (hardest(1), stored_rows())),
    "hardest, other views": (two_views(Q, -Q), (hardest(1), other_views())),
}


@pytest.mark.parametrize("name", EMPTY)
def test_a_choice_that_leaves_nothing_is_refused(name: str) -> None:
    pairs, choice = EMPTY[name]
    for objective in (nt_xent, dcl, balanced, cacr, macl, sogclr, triplet, simple):
        with pytest.raises(ValueError, match="leaves an anchor without negatives"):
            objective(pairs, negatives=choice)


def test_a_queue_batch_without_batch_negatives_is_finite() -> None:
    """With a single query, the pool has no rows of the batch that are negatives: only stored rows are."""
    for objective in (partial(cacr, detach_queue_weights=True), align_uniform, cacr):
        q = torch.randn(1, 3, requires_grad=True)
        loss = objective(queue(q, torch.randn(1, 3), torch.randn(7, 3), batch=True))
        loss.backward()
        assert torch.isfinite(loss)
        assert q.grad is not None
        assert torch.isfinite(q.grad).all()


def test_numpy_numbers_are_accepted() -> None:
    import numpy as np

    half: Any = np.float32(0.5)
    assert torch.equal(nt_xent(P, temperature=half), nt_xent(P, temperature=0.5))
    assert hardest(np.int64(3)) == hardest(3)  # type: ignore[arg-type]


def test_three_views_too() -> None:
    assert torch.isfinite(cacr(views(torch.randn(3, 4, 5))))


def test_wrong_types_and_names_get_a_hint() -> None:
    z = torch.randn(4, 3)
    with pytest.raises(ValueError, match=r"got Tensor and Tensor; for two views write nt_xent\(two_views\(z1, z2\)\)"):
        nt_xent(z, z)  # type: ignore[call-arg,arg-type]
    with pytest.raises(ValueError, match=r"got Tensor; for two views write triplet"):
        triplet(z)  # type: ignore[arg-type]
    with pytest.raises(
        ValueError, match=r"tempreature: nt_xent has the settings temperature, .*did you mean 'temperature'"
    ):
        Loss(nt_xent, tempreature=0.5)
    with pytest.raises(ValueError, match=r"temp: nt_xent has the settings .*; did you mean 'temperature'\?"):
        Loss(nt_xent, temp=0.5)
    with pytest.raises(ValueError, match=r"loss: expected one of .*; did you mean 'dystress'\?"):
        Loss("dystres")
    with pytest.raises(ValueError, match=r"loss: nt_xent has the settings .*, got 'tau'; did you mean 'temperature'\?"):
        Loss("nt_xent(tau=0.2)")
    with pytest.raises(ValueError, match="state: expected a PerSample"):
        Loss(isogclr, state=100)  # type: ignore[arg-type]


def test_alignment_pulls_with_the_same_force_to_the_end() -> None:
    s = torch.tensor([0.9, 1.0], dtype=torch.float64, requires_grad=True)
    align_uniform(from_similarities(s, torch.zeros(2, 1, dtype=torch.float64))).backward()
    assert s.grad is not None
    assert torch.equal(s.grad, torch.full_like(s, -1.0))  # the derivative of 2 - 2s, divided by two anchors
