"""Kernels of soft targets equal the dense formula under Triton's interpreter."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial

import pytest
import torch
from interpreter import SETUP, run

from contrapose.losses import soft_nt_xent
from contrapose.pairs import Pairs, cross, guide_targets, queue, two_views
from contrapose.reduce import chosen_engines, path

SOFT = (
    SETUP
    + """
from contrapose.losses import soft_nt_xent
from contrapose.pairs import guide_targets, other_views
from contrapose.reduce import chosen_engines

KINDS = {
    "two_views": lambda a, b, c: two_views(a, b),
    "ids": lambda a, b, c: two_views(a, b, ids=torch.arange(len(a)) // 2),
    "views": lambda a, b, c: views(torch.stack([a, b, (a + b).tanh()])),
    "cross": lambda a, b, c: cross(a, b),
    "both directions": lambda a, b, c: cross(a, b, symmetric=True),
    "queue": lambda a, b, c: queue(a, b, c),
}
LOSSES = {
    "number": dict(temperature=0.2),
    "steep": dict(temperature=0.005),
    "learned": dict(temperature="learned"),
    "per anchor": dict(temperature="per anchor"),
    "dystress": dict(temperature=cosine(0.07, 0.2, detach=False)),
    "kl": dict(temperature=0.3, form="kl"),
    "kl learned": dict(temperature="learned", form="kl"),
}


def soft(kind, guide, targets, options):
    def loss(pairs, numbers):
        chosen = dict(options)
        if chosen["temperature"] == "learned":
            chosen["temperature"] = numbers[0]
        elif chosen["temperature"] == "per anchor":
            chosen["temperature"] = torch.linspace(0.1, 0.5, pairs.shape[0])
        own = KINDS[kind](*(x.to(pairs.anchor.dtype) for x in guide))
        if targets == "proportional":
            return soft_nt_xent(pairs, targets=guide_targets(own, temperature=None), **chosen)
        return soft_nt_xent(pairs, targets=guide_targets(own, temperature=0.1), **chosen)
    return loss


m, d, e, precision, everything = json.loads(sys.argv[1])
torch.manual_seed(m)
raw, guide = ([torch.randn(m, w), torch.randn(m, w), torch.randn(2 * m + 1, w)] for w in (d, e))
found = {}
for position, (kind, make) in enumerate(KINDS.items()):
    names = list(LOSSES) if everything else list(LOSSES)[position % 3 :: 3]
    for name in names:
        for targets in ("softmax", "proportional"):
            with chosen_engines() as chosen:
                found[f"{kind}, {name}, {targets}"] = errors(make, soft(kind, guide, targets, LOSSES[name]), raw, precision)
            assert chosen[-1].name == "tiled" and "soft targets" in chosen[-1].reason, chosen[-1]
print(json.dumps(found))
"""
)


@pytest.mark.parametrize(
    "options",
    [
        pytest.param([17, 20, 12, "tf32x3", False], marks=pytest.mark.thorough),
        pytest.param([17, 20, 20, "tf32x3", False], marks=pytest.mark.thorough),  # one loop over the coordinates
        pytest.param([33, 40, 56, "tf32x3", True], marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_kernels_equal_the_dense_formula(options: list[object]) -> None:
    found: dict[str, tuple[float, float]] = json.loads(run(SOFT, json.dumps(options)))
    assert len(found) == (6 * 7 * 2 if options[-1] else 28)
    for name, (plain, tiled) in found.items():
        assert tiled <= 2 * plain + 5e-6, f"{name}: {tiled} against the dense path's {plain}"


@pytest.mark.slow
def test_bf16_kernels_are_as_exact_as_bf16_products() -> None:
    for name, (_, tiled) in json.loads(run(SOFT, '[17, 24, 16, "bf16", false]')).items():
        assert tiled <= 0.03, f"{name}: {tiled}"


MAKE: dict[str, Callable[..., Pairs]] = {
    "two_views": two_views,
    "both directions": partial(cross, symmetric=True),
    "cross": cross,
    "queue": queue,
}


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize(("precision", "tolerance"), [("tf32x3", 1e-5), ("tf32", 3e-3), ("bf16", 2e-2)])
@pytest.mark.parametrize("kind", ["two_views", "both directions", "cross", "queue"])
@pytest.mark.parametrize("temperature", [0.1, 0.01, "learned"])
def test_a_gpu_equals_float64(kind: str, precision: str, tolerance: float, temperature: float | str) -> None:
    torch.manual_seed(0)
    sizes = [700, 700, 1100] if kind == "queue" else [700, 700]
    raw, guide = ([torch.randn(m, d, device="cuda") for m in sizes] for d in (200, 200 if kind == "cross" else 72))
    results = []
    for dtype, which in ((torch.float64, "dense"), (torch.float32, "fused")):
        leaves = [x.to(dtype, copy=True).requires_grad_() for x in raw]
        learned = torch.tensor(0.2, dtype=dtype, device="cuda", requires_grad=True)
        targets = guide_targets(MAKE[kind](*(x.to(dtype) for x in guide)), temperature=0.1)
        with path(which, precision=precision if which == "fused" else None), chosen_engines() as chosen:
            loss = soft_nt_xent(
                MAKE[kind](*leaves),
                targets=targets,
                temperature=learned if temperature == "learned" else float(temperature),
                form="kl",
            )
            loss.backward()
        parameters = [*leaves, learned] if temperature == "learned" else leaves
        gradient = torch.cat([x.grad.double().flatten() for x in parameters if x.grad is not None])
        results.append((float(loss.detach()), gradient))
    assert chosen[-1].name == "tiled"
    (value, exact), (found, gradient) = results
    assert abs(found - value) <= tolerance * max(1.0, abs(value))
    assert float((gradient - exact).norm() / exact.norm()) <= tolerance * (10 if temperature == 0.01 else 1)
