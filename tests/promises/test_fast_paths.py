"""Reductions in blocks and kernels under Triton's interpreter are as exact as the dense formula, gradients included.

A test of kernels starts a process: Triton reads TRITON_INTERPRET when a kernel is defined, that is, on import.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
import torch
from cases import Case, combinations, named
from conftest import Promise
from kinds import Kind
from tiers import every

from contrapose.reduce import memory

SCRIPT = """
import json, sys
import torch
from contrapose.losses import align_uniform, balanced, cacr, dcl, hard_negative, macl, nt_xent, sogclr
from contrapose.pairs.negatives import hardest, other_views, same_view
from contrapose.pairs import bank, cross, queue, two_views, views
from contrapose.reduce import chosen_engines, path
from contrapose.reduce.fused import launch
from contrapose.temperature import arctanh, cosine, exponential, exponential_legacy, linear, monotonic_cosine

torch.set_num_threads(1)


def half(p):  # without ties, which kernels keep all of, at a lower weight
    return nt_xent(p, temperature=0.2, negatives=hardest(0.5))


def learned(p, per_anchor):
    shape = (p.shape[0],) if per_anchor else ()
    temperature = torch.full(shape, 0.3, dtype=p.anchor.dtype, requires_grad=True)
    value = nt_xent(p, temperature=temperature)
    (gradient,) = torch.autograd.grad(value, temperature, retain_graph=True)
    return value + 3 * gradient.sum().detach()  # so that the temperature's gradient is compared too


LOSSES = {
    "learned": lambda p: learned(p, False),
    "learned per anchor": lambda p: learned(p, True),
    "nt_xent": lambda p: nt_xent(p, temperature=0.2),
    "steep": lambda p: nt_xent(p, temperature=0.005),
    "per anchor": lambda p: nt_xent(p, temperature=torch.linspace(0.1, 0.5, p.shape[0])),
    "dystress": lambda p: nt_xent(p, temperature=cosine(0.07, 0.2)),
    "dystress not detached": lambda p: nt_xent(p, temperature=cosine(0.1, 0.2, detach=False)),
    "dystress steep": lambda p: nt_xent(p, temperature=cosine(0.004, 0.006)),
    "shifted": lambda p: dcl(p, temperature=cosine(0.1, 0.2, shift=-0.4)),
    "shifted not detached": lambda p: dcl(p, temperature=cosine(0.1, 0.2, shift=0.3, detach=False)),
    "linear not detached": lambda p: dcl(p, temperature=linear(0.07, 0.2, detach=False)),
    "exponential": lambda p: dcl(p, temperature=exponential(0.1, 0.2)),
    "exponential not detached": lambda p: dcl(p, temperature=exponential_legacy(0.1, 0.2, detach=False)),
    "monotonic not detached": lambda p: dcl(p, temperature=monotonic_cosine(0.1, 0.2, detach=False)),
    "arctanh": lambda p: nt_xent(p, temperature=arctanh()),
    "arctanh detached": lambda p: dcl(p, temperature=arctanh(detach=True)),
    "balanced": lambda p: balanced(p, alpha=4.0, weight=2.0),
    "macl": macl,
    "hard_negative": lambda p: hard_negative(p, temperature=0.5, beta=1.5),
    "hard_negative steep": lambda p: hard_negative(p, temperature=0.01),
    "hard_negative dystress": lambda p: hard_negative(p, temperature=cosine(0.1, 0.2)),
    "cacr": cacr,
    "cacr reversed": lambda p: cacr(p, repulsion="reversed"),
    "sogclr": lambda p: sogclr(p, temperature=0.1),
    "align_uniform": align_uniform,
    "hardest": half,
    "hardest steep": lambda p: nt_xent(p, temperature=0.01, negatives=hardest(1)),
    "hardest hard": lambda p: hard_negative(p, negatives=hardest(0.3)),
}
KINDS = {
    "two_views": lambda a, b, c: two_views(a, b),
    "ids": lambda a, b, c: two_views(a, b, ids=torch.arange(len(a)) // 2 if len(a) > 2 else None),
    "views": lambda a, b, c: views(torch.stack([a, b, (a + b).tanh()])),
    "global keys": lambda a, b, c: views(torch.stack([a, b, (a + b).tanh()]), keys=c[1:].unflatten(0, (2, -1))),
    "cross": lambda a, b, c: cross(a, b),
    "cross symmetric": lambda a, b, c: cross(a, b, symmetric=True, negatives=c),
    "queue": lambda a, b, c: queue(a, b, c),
    "queue batch": lambda a, b, c: queue(a, b, c, batch=True),
    "bank": lambda a, b, c: bank(a, torch.arange(len(a)), c),
}
VIEWS = {
    "other views": lambda p: nt_xent(p, temperature=0.2, negatives=other_views()),
    "same view": lambda p: cacr(p, negatives=same_view()),
    "hardest of other views": lambda p: nt_xent(p, negatives=(other_views(), hardest(1))),
}
launch.MIN_TILES = 1  # so that programs divide even a few columns between them
precision = sys.argv[2]
if precision == "bf16":
    ROUGH = ("nt_xent", "per anchor", "dystress", "dystress not detached", "balanced", "hard_negative", "cacr", "sogclr", "align_uniform")
    LOSSES, VIEWS = {name: LOSSES[name] for name in ROUGH}, {}
worst = {}
for m, d in json.loads(sys.argv[1]):
    torch.manual_seed(m)
    raw = [torch.randn(m, d), torch.randn(m, d), torch.randn(2 * m + 1, d)]
    for kind, make in KINDS.items():
        if m == 1 and kind not in ("queue", "bank"):
            continue
        chosen = LOSSES | (VIEWS if kind in ("two_views", "ids") else {})
        if sys.argv[3:] == ["each once"]:  # the losses in turns, so that each loss and each kind is tried
            position = list(KINDS).index(kind)
            chosen = {name: loss for i, (name, loss) in enumerate(chosen.items()) if i % len(KINDS) == position}
        for name, loss in chosen.items():
            results = []
            for dtype, which in ((torch.float64, "dense"), (torch.float32, "dense"), (torch.float32, "fused")):
                leaves = [x.to(dtype, copy=True).requires_grad_() for x in raw]
                with path(which, precision=precision if which == "fused" else None), chosen_engines() as chosen:
                    value = loss(make(*leaves))
                    value.backward()
                grads = [x.grad.double() for x in leaves if x.grad is not None]
                results.append((float(value.detach()), torch.cat([g.flatten() for g in grads])))
            (true, gradient), plain, ours = results
            scale = float(gradient.norm()) + 1e-9
            errors = [abs(v - true) / max(1.0, abs(true)) + float((g - gradient).norm()) / scale for v, g in (plain, ours)]
            worst[f"{m} {d} {kind} {name}"] = [*errors, any(choice.name in ("fused", "tiled") for choice in chosen)]
print(json.dumps(worst))
"""


# Kernels do not support view choices in a pool of stored rows and queries: blocks are used.
IN_BLOCKS = ("queue batch cacr", "queue batch cacr reversed", "queue batch align_uniform")


@pytest.mark.parametrize("pair", every(7, combinations()), ids=named)
def test_blocks_equal_the_whole_matrix(pair: tuple[Case, Kind], promise: Promise) -> None:
    case, kind = pair
    raw = kind.draw(m=5, d=3)

    def run(block: int, kept: int) -> list[torch.Tensor]:
        leaves = {name: value.clone().requires_grad_() for name, value in raw.items()}
        with memory(block=block, kept=kept):
            loss = case.loss(kind.make(leaves), reduction="mean")
            loss.backward()
        return [loss.detach(), *(leaf.grad for leaf in leaves.values() if leaf.grad is not None)]

    expected = run(10**9, 10**9)
    for limits in ((20, 0), (20, 10**9)):
        for ours, whole in zip(run(*limits), expected, strict=True):
            promise.case(float((ours - whole).abs().max() / whole.abs().max().clamp(min=1)))
            torch.testing.assert_close(ours, whole, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize(
    "sizes",
    [
        pytest.param([(1, 3), (7, 17)], marks=pytest.mark.slow),
        pytest.param([(33, 128)], marks=pytest.mark.slow),
        pytest.param([(63, 200)], marks=pytest.mark.slow),
        pytest.param([(65, 17)], marks=pytest.mark.slow),
        pytest.param([(257, 3)], marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_kernels_equal_the_dense_formula(sizes: list[tuple[int, int]], promise: Promise) -> None:
    worst = errors_of_kernels(json.dumps(sizes), "tf32x3")
    assert len(worst) == sum(2 * 28 if m == 1 else 9 * 28 + 6 for m, _ in sizes)
    check_kernels(worst, promise)


def test_each_kernel_equals_the_dense_formula(promise: Promise) -> None:
    """Each loss on one kind of pairs, each kind with some losses; all combinations are in the test above."""
    worst = errors_of_kernels("[[7, 17]]", "tf32x3", "each once")
    assert len(worst) == 28 + 1  # and a choice of views
    assert all(any(f" {kind} " in name for name in worst) for kind in ("two_views", "views", "cross", "queue", "bank"))
    check_kernels(worst, promise)


def errors_of_kernels(*arguments: str) -> dict[str, tuple[float, float, bool]]:
    """Return the error of the dense path and of kernels for each case, and whether kernels computed it."""
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONWARNINGS": "ignore"}
    out = subprocess.check_output([sys.executable, "-c", SCRIPT, *arguments], text=True, env=environment)
    worst: dict[str, tuple[float, float, bool]] = json.loads(out)
    return worst


def check_kernels(worst: dict[str, tuple[float, float, bool]], promise: Promise) -> None:
    for name, (plain, fused, by_kernels) in worst.items():
        # Kernels divide the weight between negatives that tie within 1e-6, which changes the gradient a little.
        tolerance = 5e-3 if "hardest" in name else 5e-6
        promise.case(fused)
        assert fused <= 2 * plain + tolerance, f"{name}: {fused} against the dense path's {plain}"
        assert by_kernels != name.endswith(IN_BLOCKS), name


@pytest.mark.thorough
@pytest.mark.parametrize(
    "sizes", [[(7, 17)], pytest.param([(33, 128), (65, 200), (257, 16)], marks=pytest.mark.slow)], ids=str
)
def test_bf16_kernels_are_as_exact_as_bf16_products(sizes: list[tuple[int, int]], promise: Promise) -> None:
    worst = errors_of_kernels(json.dumps(sizes), "bf16")
    assert len(worst) == 9 * 9 * len(sizes)
    for name, (_, fused, by_kernels) in worst.items():
        promise.case()  # of another scale: not among the errors of the kernels in float32
        assert fused <= 0.02, f"{name}: {fused}"
        assert by_kernels != name.endswith(IN_BLOCKS), name
