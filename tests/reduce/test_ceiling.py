"""Kernels leave out what exceeds a ceiling, as the dense formula does, under Triton's interpreter."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial

import pytest
import torch
from interpreter import SETUP, run

from contrapose.losses import nt_xent
from contrapose.pairs import Pairs, cross, guided, self_guided, two_views
from contrapose.reduce import chosen_engines, path

CEILING = (
    SETUP
    + """
from contrapose.pairs import guided, other_views, self_guided
from contrapose.reduce import Expectation, LogSumExp, Scale, chosen_engines

KINDS = {
    "two_views": lambda a, b, c: two_views(a, b),
    "views": lambda a, b, c: views(torch.stack([a, b, (a + b).tanh()])),
    "cross": lambda a, b, c: cross(a, b),
    "both directions": lambda a, b, c: cross(a, b, symmetric=True),
    "queue": lambda a, b, c: queue(a, b, c),
}
LOSSES = {
    "number": lambda p, t, n: nt_xent(p, temperature=0.2, negatives=n),
    "each anchor": lambda p, t, n: nt_xent(p, temperature=0.2, negatives=n, reduction="none").mean(),
    "learned": lambda p, t, n: nt_xent(p, temperature=t[0], negatives=n),
    "dystress": lambda p, t, n: nt_xent(p, temperature=cosine(0.07, 0.2, detach=False), negatives=n),
    "steep": lambda p, t, n: nt_xent(p, temperature=0.005, negatives=n),
    "expectation": lambda p, t, n: total_and_mean(p, n, False),
    "fixed weights": lambda p, t, n: total_and_mean(p, n, True),
    "two totals": lambda p, t, n: sum(p.reduce(LogSumExp(Scale(2.0)), LogSumExp(Scale(6.0)), negatives=n)).mean(),
}


def total_and_mean(pairs, negatives, detach):
    logit = Scale(3.0)
    total, mean = pairs.reduce(LogSumExp(logit), Expectation(logit, detach), negatives=negatives)
    return (total.square() + mean).mean()


m, d, e, widest, everything = json.loads(sys.argv[1])
choose.MAX_FUSED_WIDTH = widest
torch.manual_seed(m)
raw, rows = ([torch.randn(m, w), torch.randn(m, w), torch.randn(2 * m + 1, w)] for w in (d, e))
raw[1], rows[1] = raw[0] + 0.3 * raw[1], rows[0] + 0.3 * rows[1]  # positives are more similar than most candidates


def choice(name, kind, pairs):
    if name == "guided":
        return guided(KINDS[kind](*(x.to(pairs.anchor.dtype) for x in rows)), margin=0.3)
    # The second leaves many anchors without negatives.
    return self_guided(margin=-0.3) if name == "self_guided" else self_guided(margin=-1.3)


found, empty = {}, 0
for position, (kind, make) in enumerate(KINDS.items()):
    for name in ("guided", "self_guided", "few"):
        names = [k for k in LOSSES if name != "few" or k not in ("expectation", "fixed weights", "two totals")]
        for loss in names if everything else names[position % 3 :: 3]:
            compute = lambda p, t: LOSSES[loss](p, t, choice(name, kind, p))
            with chosen_engines() as chosen:
                found[f"{kind}, {name}, {loss}"] = errors(make, compute, raw, "tf32x3")
            expected = "tiled" if name == "guided" or widest == 0 or kind == "both directions" else "fused"
            assert chosen[-1].name == expected, chosen[-1]
pairs = two_views(*raw[:2])
with path("fused"):
    empty = (nt_xent(pairs, negatives=self_guided(margin=-1.3), reduction="none") == 0).sum().item()
    try:
        dcl(pairs, negatives=self_guided(margin=-1.3))
        message = ""
    except ValueError as error:
        message = str(error)
print(json.dumps([found, empty, message]))
"""
)


@pytest.mark.parametrize(
    "options",
    [
        pytest.param([17, 20, 12, 256, False], marks=pytest.mark.thorough),
        pytest.param([17, 20, 12, 0, False], marks=pytest.mark.thorough),
        pytest.param([33, 40, 56, 256, True], marks=pytest.mark.slow),
        pytest.param([33, 40, 56, 0, True], marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_kernels_equal_the_dense_formula(options: list[object]) -> None:
    found, empty, message = json.loads(run(CEILING, json.dumps(options)))
    for name, (plain, kernels) in found.items():
        assert kernels <= 2 * plain + 5e-6, f"{name}: {kernels} against the dense path's {plain}"
    assert 0 < empty < 2 * int(str(options[0]))
    assert message == (
        "negatives: self_guided(margin=-1.3) leaves an anchor without negatives: expected at least one for every anchor"
    )


MAKE: dict[str, Callable[..., Pairs]] = {
    "two_views": two_views,
    "both directions": partial(cross, symmetric=True),
    "cross": cross,
}


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("width", [72, 300])
@pytest.mark.parametrize("kind", ["two_views", "both directions", "cross"])
@pytest.mark.parametrize("temperature", [0.1, 0.01, "learned"])
@pytest.mark.parametrize("by", ["self", "guide"])
def test_a_gpu_equals_float64(kind: str, width: int, temperature: float | str, by: str) -> None:
    make = MAKE[kind]
    torch.manual_seed(0)
    raw, guide = (torch.randn(2, 900, d, device="cuda") for d in (width, width if kind == "cross" else 40))
    raw[1] += raw[0]
    guide[1] += guide[0]
    results = []
    for dtype, which in ((torch.float64, "dense"), (torch.float32, "fused")):
        leaves = raw.to(dtype, copy=True).requires_grad_()
        learned = torch.tensor(0.2, dtype=dtype, device="cuda", requires_grad=True)
        choice = self_guided(margin=-0.6) if by == "self" else guided(make(*guide.to(dtype)), margin=0.5)
        with path(which, precision="tf32x3" if which == "fused" else None), chosen_engines() as chosen:
            chosen_temperature = learned if temperature == "learned" else float(temperature)
            loss = nt_xent(make(*leaves), temperature=chosen_temperature, negatives=choice)
            loss.backward()
        gradient = torch.cat([x.grad.double().flatten() for x in (leaves, learned) if x.grad is not None])
        results.append((float(loss.detach()), gradient))
    assert chosen[-1].name in ("tiled", "fused")
    (value, exact), (found, gradient) = results
    assert abs(found - value) <= 1e-5 * max(1.0, abs(value))
    # Steep exponents leave gradients of 1e-26, with fewer digits.
    assert float((gradient - exact).norm() / exact.norm()) <= (1e-3 if temperature == 0.01 else 1e-4)
