"""Kernels under Triton's interpreter equal the dense formula, gradients included.

Each test starts a process: Triton reads TRITON_INTERPRET when a kernel is defined, that is, on import.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

from contrapose.losses import nt_xent
from contrapose.pairs import two_views
from contrapose.reduce import path


def test_paths_agree_and_unknown_ones_raise() -> None:
    z1, z2 = torch.randn(2, 40, 8, dtype=torch.float64)
    values = []
    for name in ("dense", "blocks"):
        with path(name):
            values.append(float(nt_xent(two_views(z1, z2), temperature=0.1)))
    assert values[0] == pytest.approx(values[1], rel=1e-14)
    with path("fused"):  # kernels do not support float64: blocks are used
        assert float(nt_xent(two_views(z1, z2), temperature=0.1)) == pytest.approx(values[0], rel=1e-14)
    with pytest.raises(ValueError, match="path: expected one of 'dense'"), path("sparse"):
        pass
    with pytest.raises(ValueError, match="precision: expected one of 'ieee'"), path("fused", precision="fp8"):
        pass


NANS = """
import torch
from contrapose.losses import hard_negative, nt_xent, sogclr
from contrapose.pairs import queue
from contrapose.reduce import path
from contrapose.reduce.fused import launch
q, k, rows = torch.randn(3, 8), torch.randn(3, 8), torch.randn(400, 8)
rows[170] = torch.nan
for launch.MIN_TILES in (1, 4, 100):
    launch._split_columns.cache_clear()
    for loss in (nt_xent, hard_negative, sogclr):
        with path("fused", precision="tf32x3"):
            assert bool(loss(queue(q, k, rows)).isnan()), (launch.MIN_TILES, loss)
print("NaN everywhere")
"""


@pytest.mark.thorough
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
    upstream = torch.randn_like(unit_vectors), torch.randn_like(products)
    ours, inverse, ours_products, rounded = unit_kernels.forward(*z)
    assert (rounded is None) == (dtype == torch.float32)
    if rounded is not None:
        torch.testing.assert_close(rounded, ours.bfloat16(), rtol=1e-2, atol=0)  # the interpreter truncates
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


@pytest.mark.thorough
def test_kernels_for_unit_vectors_equal_the_plain_form() -> None:
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONWARNINGS": "ignore"}
    assert "equal" in subprocess.check_output([sys.executable, "-c", UNITS], text=True, env=environment)
