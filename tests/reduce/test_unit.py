"""Unit vectors of embeddings of any length, and their gradients, on the CPU and in kernels under Triton's interpreter."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch
from torch import Tensor

from contrapose import losses
from contrapose.losses import nt_xent
from contrapose.pairs import cross, two_views, unit, views

# Lengths of rows: up to 2^128 in float32 and bf16, 65504 in float16, 2^1024 in float64
MAGNITUDES = {
    torch.float32: (1e-11, 1e-6, 1.0, 1e15, 1e18, 3e19, 1e25, 1e30, 1e37, 5e37),
    torch.bfloat16: (1e-11, 1.0, 3e19, 1e30, 5e37),
    torch.float16: (1e-3, 1.0, 1e3, 1.5e4),
    torch.float64: (1e-11, 1.0, 1e150, 1e155, 1e200, 1e300, 3e307),
}
CASES = [(dtype, length) for dtype, lengths in MAGNITUDES.items() for length in lengths]


def directions(dtype: torch.dtype) -> Tensor:
    """Return rows (3, 6, 16) with coordinates of very different size."""
    z = torch.randn(3, 6, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    z[0, 0, 1:] *= 1e-6
    return z.to(dtype).double()


@pytest.mark.parametrize(("dtype", "length"), CASES, ids=str)
def test_the_unit_vector_does_not_depend_on_the_length(dtype: torch.dtype, length: float) -> None:
    # A power of two, so that the scaled rows have the same directions bit for bit.
    power = 2.0 ** round(torch.tensor(length, dtype=torch.float64).log2().item())
    z = (directions(dtype) * power).to(dtype).requires_grad_()
    ours, upstream = unit(z), torch.randn(3, 6, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    expected = z.detach().double() / power
    expected = expected / expected.norm(dim=-1, keepdim=True)
    precise = 1e-14 if dtype == torch.float64 else 2e-6
    torch.testing.assert_close(ours.double(), expected, rtol=precise, atol=precise)
    (ours * upstream.to(ours)).sum().backward()
    assert z.grad is not None
    # The gradient is proportional to 1 / length, which at the end of the range is below what the type can represent.
    tangent = upstream - (upstream * expected).sum(-1, keepdim=True) * expected
    gradient = tangent / (directions(dtype).norm(dim=-1, keepdim=True) * power)
    smallest = torch.finfo(dtype).tiny * torch.finfo(dtype).eps
    rough = {torch.bfloat16: 1e-2, torch.float16: 2e-3}.get(dtype, 4 * precise)
    largest = float(gradient.abs().max())
    torch.testing.assert_close(z.grad.double(), gradient, rtol=rough, atol=rough * largest + 2 * smallest)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("length", [2.0**65, 2.0**90, 2.0**120])
def test_a_loss_does_not_depend_on_the_length(dtype: torch.dtype, length: float) -> None:
    """The squares of these overflow in float32; the loss is that of the same directions at length 1."""
    for make in (lambda z: two_views(z[0], z[1]), views, lambda z: cross(z[0], z[1])):
        values, gradients = [], []
        for power in (1.0, length):
            z = (directions(dtype) * power).to(dtype).requires_grad_()
            loss = nt_xent(make(z), temperature=0.2)
            loss.backward()
            assert z.grad is not None
            values.append(loss.detach())
            gradients.append(z.grad.double() * power)
        torch.testing.assert_close(values[1], values[0], rtol=1e-6, atol=1e-6)
        scale = float(gradients[0].abs().max())
        torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-2, atol=1e-2 * scale)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("length", [0.0, 1e-13, 1e-20, 1e-30, 1e-38])
def test_a_vector_below_the_threshold_has_no_direction_and_no_gradient(dtype: torch.dtype, length: float) -> None:
    z = directions(torch.float32)[0].clone()
    z[2] = length * z[2] / z[2].norm()
    z = z.to(dtype).requires_grad_()
    unit(z).sum().backward()
    assert z.grad is not None
    assert unit(z)[2].abs().max() == 0
    assert z.grad[2].abs().max() == 0
    assert z.grad[1].abs().max() > 0


def test_infinite_and_nan_coordinates_stay_visible() -> None:
    z = torch.randn(4, 5)
    z[1, 2], z[2, 0] = torch.inf, torch.nan
    for pairs in (two_views(z, z + 1), cross(z, z + 1), views(torch.stack([z, z + 1, z + 2]))):
        assert losses.nt_xent(pairs).isnan()
    assert unit(z)[[1, 2]].isnan().any(1).all()
    torch.testing.assert_close(unit(z)[[0, 3]].norm(dim=1), torch.ones(2))


def test_ordinary_rows_do_not_change_beside_long_ones() -> None:
    z = torch.randn(5, 7)
    beside = torch.cat([z, torch.full((1, 7), 3e38)])
    assert torch.equal(unit(beside)[:5], unit(z))
    torch.testing.assert_close(unit(beside)[5], torch.full((7,), 7**-0.5))


KERNELS = """
import torch
from contrapose.reduce import unit_kernels

torch.manual_seed(0)
for dtype in (torch.float32, torch.bfloat16):
    z = torch.randn(2, 5, 24).to(dtype)
    rows = torch.tensor([1.0, 2.0**65, 2.0**90, 2.0**120, 2.0**-30])[:, None].to(dtype)
    plain, inverse, products, _ = unit_kernels.forward(*z)
    long, inverse_long, products_long, _ = unit_kernels.forward(*(z * rows))
    assert torch.equal(long[::5], plain[::5])  # a row of ordinary length keeps its bits
    torch.testing.assert_close(long, plain, rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(products_long, products, rtol=1e-5, atol=1e-6)
    ratio = inverse.double().view(2, 5) / inverse_long.double().view(2, 5)
    torch.testing.assert_close(ratio, rows.double().T.expand(2, 5), rtol=1e-5, atol=0.0)
    upstream = torch.randn(10, 24)
    gradient = unit_kernels.backward(upstream, None, plain, inverse, dtype=torch.float32)
    ours = unit_kernels.backward(upstream, None, long, inverse_long, dtype=torch.float32)
    torch.testing.assert_close(ours.double() * rows.double(), gradient.double(), rtol=1e-3, atol=1e-5)
z = torch.randn(2, 3, 16)
z[0, 0], z[0, 1, 3], z[1, 2, 2] = 0.0, torch.inf, torch.nan
out, inverse, *_ = unit_kernels.forward(*z)
assert out[0].abs().max() == 0 and inverse[0] == 0
assert out[1].isnan().any() and out[5].isnan().any() and out[3:5].isfinite().all()
print("equal")
"""


@pytest.mark.thorough
def test_kernels_normalise_rows_of_any_length() -> None:
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONWARNINGS": "ignore"}
    assert "equal" in subprocess.check_output([sys.executable, "-c", KERNELS], text=True, env=environment)
