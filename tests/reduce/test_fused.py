"""Kernels under Triton's interpreter equal the dense formula, gradients included.

Each test starts a process: Triton reads TRITON_INTERPRET when a kernel is defined, that is, on import.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
import torch

from contrapose.losses import nt_xent
from contrapose.pairs import two_views
from contrapose.reduce import path

SCRIPT = """
import json, sys
import torch
from contrapose.losses import align_uniform, balanced, cacr, dcl, hard_negative, macl, nt_xent, sogclr
from contrapose.pairs.negatives import hardest, other_views, same_view
from contrapose.pairs import bank, cross, queue, two_views, views
from contrapose.reduce import fused, launch, path
from contrapose.temperature import cosine, exponential, exponential_legacy, linear, monotonic_cosine

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
by_kernels = []
reduce = fused.reduce
fused.reduce = lambda *args, **settings: by_kernels.append(reduce(*args, **settings)) or by_kernels[-1]
worst = {}
for m, d in json.loads(sys.argv[1]):
    torch.manual_seed(m)
    raw = [torch.randn(m, d), torch.randn(m, d), torch.randn(2 * m + 1, d)]
    for kind, make in KINDS.items():
        if m == 1 and kind not in ("queue", "bank"):
            continue
        for name, loss in (LOSSES | (VIEWS if kind in ("two_views", "ids") else {})).items():
            results = []
            by_kernels.clear()
            for dtype, which in ((torch.float64, "dense"), (torch.float32, "dense"), (torch.float32, "fused")):
                leaves = [x.to(dtype, copy=True).requires_grad_() for x in raw]
                with path(which, precision=precision if which == "fused" else None):
                    value = loss(make(*leaves))
                    value.backward()
                grads = [x.grad.double() for x in leaves if x.grad is not None]
                results.append((float(value.detach()), torch.cat([g.flatten() for g in grads])))
            (true, gradient), plain, ours = results
            scale = float(gradient.norm()) + 1e-9
            errors = [abs(v - true) / max(1.0, abs(true)) + float((g - gradient).norm()) / scale for v, g in (plain, ours)]
            worst[f"{m} {d} {kind} {name}"] = [*errors, any(x is not None for x in by_kernels)]
print(json.dumps(worst))
"""
# Kernels do not support view choices in a pool of stored rows and queries: blocks are used.
IN_BLOCKS = ("queue batch cacr", "queue batch cacr reversed", "queue batch align_uniform")


@pytest.mark.parametrize(
    "sizes",
    [
        [(1, 3), (7, 17)],
        pytest.param([(33, 128)], marks=pytest.mark.slow),
        pytest.param([(63, 200)], marks=pytest.mark.slow),
        pytest.param([(65, 17)], marks=pytest.mark.slow),
        pytest.param([(257, 3)], marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_kernels_equal_the_dense_formula(sizes: list[tuple[int, int]]) -> None:
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONWARNINGS": "ignore"}
    out = subprocess.check_output(
        [sys.executable, "-c", SCRIPT, json.dumps(sizes), "tf32x3"], text=True, env=environment
    )
    worst: dict[str, tuple[float, float, bool]] = json.loads(out)
    assert len(worst) == sum(2 * 26 if m == 1 else 9 * 26 + 6 for m, _ in sizes)
    for name, (plain, fused, by_kernels) in worst.items():
        # Kernels divide the weight between negatives that tie within 1e-6, which changes the gradient a little.
        tolerance = 5e-3 if "hardest" in name else 5e-6
        assert fused <= 2 * plain + tolerance, f"{name}: {fused} against the dense path's {plain}"
        assert by_kernels != name.endswith(IN_BLOCKS), name


def test_paths_agree_and_unknown_ones_raise() -> None:
    z1, z2 = torch.randn(2, 40, 8, dtype=torch.float64)
    values = []
    for name in ("dense", "chunked"):
        with path(name):
            values.append(float(nt_xent(two_views(z1, z2), temperature=0.1)))
    assert values[0] == pytest.approx(values[1], rel=1e-14)
    with path("fused"):  # kernels do not support float64: blocks are used
        assert float(nt_xent(two_views(z1, z2), temperature=0.1)) == pytest.approx(values[0], rel=1e-14)
    with pytest.raises(ValueError, match="path: expected one of 'dense'"), path("sparse"):
        pass
    with pytest.raises(ValueError, match="precision: expected one of 'ieee'"), path("fused", precision="fp8"):
        pass


@pytest.mark.parametrize(
    "sizes", [[(7, 17), (33, 128)], pytest.param([(65, 200), (257, 16)], marks=pytest.mark.slow)], ids=str
)
def test_bf16_kernels_are_as_exact_as_bf16_products(sizes: list[tuple[int, int]]) -> None:
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONWARNINGS": "ignore"}
    out = subprocess.check_output([sys.executable, "-c", SCRIPT, json.dumps(sizes), "bf16"], text=True, env=environment)
    worst: dict[str, tuple[float, float, bool]] = json.loads(out)
    assert len(worst) == 9 * 9 * len(sizes)
    for name, (_, fused, by_kernels) in worst.items():
        assert fused <= 0.02, f"{name}: {fused}"
        assert by_kernels != name.endswith(IN_BLOCKS), name


NANS = """
import torch
from contrapose.losses import hard_negative, nt_xent, sogclr
from contrapose.pairs import queue
from contrapose.reduce import launch, path
q, k, rows = torch.randn(3, 8), torch.randn(3, 8), torch.randn(400, 8)
rows[170] = torch.nan
for launch.MIN_TILES in (1, 4, 100):
    launch._split_columns.cache_clear()
    for loss in (nt_xent, hard_negative, sogclr):
        with path("fused", precision="tf32x3"):
            assert bool(loss(queue(q, k, rows)).isnan()), (launch.MIN_TILES, loss)
print("NaN everywhere")
"""


def test_kernels_propagate_nan() -> None:
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONWARNINGS": "ignore"}
    assert "NaN everywhere" in subprocess.check_output([sys.executable, "-c", NANS], text=True, env=environment)


UNITS = """
import torch
from contrapose.reduce import unit_kernels
from contrapose.reduce.unit import unit_views
for m, d, dtype in ((1, 3, torch.float32), (7, 17, torch.float32), (65, 128, torch.bfloat16), (5, 200, torch.float16)):
    z = torch.randn(2, m, d, generator=torch.Generator().manual_seed(m)).to(dtype)
    z[1, 0] = 0  # without a direction
    leaf = z.clone().requires_grad_()
    unit_vectors, products, *_ = unit_views(leaf)
    upstream = torch.randn_like(leaf, dtype=torch.float32), torch.randn_like(products)
    ours, inverse, ours_products, rounded = unit_kernels.forward(*z)
    assert (rounded is None) == (dtype == torch.float32)
    if rounded is not None:
        torch.testing.assert_close(rounded, ours.bfloat16(), rtol=1e-2, atol=0)  # the interpreter truncates
    unit_vectors = unit_vectors.view(z.shape)
    torch.testing.assert_close(ours, unit_vectors.detach(), rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(ours_products, products.detach(), rtol=1e-6, atol=1e-7)
    for gradients in (upstream, (upstream[0], None), (None, upstream[1])):
        outs = [(out, g) for out, g in zip((unit_vectors, products), gradients) if g is not None]
        (expected,) = torch.autograd.grad([o for o, _ in outs], leaf, [g for _, g in outs], retain_graph=True)
        gradient = unit_kernels.backward(*gradients, ours, inverse, dtype=dtype)
        assert gradient.dtype == dtype and gradient[1, 0].abs().max() == 0
        tolerance = 1e-2 if dtype != torch.float32 else 2e-6
        torch.testing.assert_close(gradient, expected, rtol=tolerance, atol=tolerance)
print("equal")
"""


def test_kernels_for_unit_vectors_equal_the_plain_form() -> None:
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONWARNINGS": "ignore"}
    assert "equal" in subprocess.check_output([sys.executable, "-c", UNITS], text=True, env=environment)
