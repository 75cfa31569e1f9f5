"""A temperature profile's kernel computes the formula of its own class, and of no subclass that changes it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from contrapose.losses import Loss, nt_xent
from contrapose.pairs import from_similarities, two_views
from contrapose.reduce import TemperatureLogit
from contrapose.reduce.exponent import exponent
from contrapose.temperature import Profile, arctanh, cosine, exponential, exponential_legacy, linear, monotonic_cosine
from contrapose.temperature.profile import Cosine

Z = torch.eye(4)


@dataclass(frozen=True)
class Linear(Profile):
    """A user's class with the name of a built-in profile, and another formula."""

    def shape(self, s: Tensor) -> Tensor:
        return s.square()


@dataclass(frozen=True)
class Flattened(Cosine):
    """A subclass of a built-in profile with another formula."""

    def shape(self, s: Tensor) -> Tensor:
        return 0.5 * super().shape(s)


@dataclass(frozen=True)
class Renamed(Cosine):
    """A subclass of a built-in profile with the same formula."""


@pytest.mark.parametrize("profile", [Linear(0.1, 0.2), Flattened(0.1, 0.2)], ids=repr)
def test_a_users_formula_is_computed_as_written(profile: Profile) -> None:
    assert exponent(TemperatureLogit(profile), 4, Z) is None  # no kernel: computed block by block, by `shape`
    s = torch.linspace(-1, 1, 11)
    torch.testing.assert_close(TemperatureLogit(profile)(s), s / (0.1 + 0.1 * profile.shape(s)))


@pytest.mark.parametrize(
    "profile",
    [
        cosine(0.1, 0.2),
        cosine(0.1, 0.2, shift=-0.4),
        linear(0.1, 0.2),
        exponential(0.1, 0.2),
        exponential_legacy(0.1, 0.2),
        monotonic_cosine(0.1, 0.2),
        arctanh(),
        Renamed(0.1, 0.2),
    ],
    ids=repr,
)
def test_built_in_profiles_have_kernels_with_a_valid_bound(profile: Profile) -> None:
    phi = exponent(TemperatureLogit(profile), 4, Z)
    assert phi is not None
    assert phi.profile is not None
    s = torch.linspace(-1, 1, 12_345, dtype=torch.float64)
    assert float((s / profile(s)).abs().max()) <= phi.upper_bound <= 1.02 / profile.low


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_arctanh_is_exact_and_finite_up_to_one_and_beyond(dtype: torch.dtype) -> None:
    end = 1 - 2**-20
    tolerance = 100 * torch.finfo(dtype).eps
    inside = torch.cat([torch.linspace(-end, end, 10_001), torch.tensor([0.0, 1e-4, -1e-4, 1e-7, 1e-30])]).to(dtype)
    s = inside[inside.abs() < end].requires_grad_()
    exponent = TemperatureLogit(arctanh())(s)
    (slope,) = torch.autograd.grad(exponent.sum(), s)
    exact = s.detach().double()
    torch.testing.assert_close(exponent.detach().double(), 2 * torch.atanh(exact), rtol=tolerance, atol=1e-300)
    torch.testing.assert_close(slope.double(), 2 / ((1 + exact) * (1 - exact)), rtol=tolerance, atol=0)
    # Rounding carries the similarity of equal vectors beyond 1; there the exponent is constant, and so is its sign.
    beyond = torch.tensor([end, 1.0, 1 + 3e-7, -1.0, -1 - 3e-7], dtype=dtype, requires_grad=True)
    exponent = TemperatureLogit(arctanh())(beyond)
    (slope,) = torch.autograd.grad(exponent.sum(), beyond)
    expected = math.log(2**21 - 1)
    torch.testing.assert_close(exponent.detach().double().abs(), torch.full((5,), expected).double(), rtol=1e-6, atol=0)
    torch.testing.assert_close(exponent.sign(), beyond.sign())
    assert float(slope[1:].abs().max()) < 1e-4


def test_without_a_temperature_the_exponent_is_a_log_odds_ratio() -> None:
    # e^{2 artanh s} = (1 + s) / (1 - s): the softmax of a positive and one negative, by hand.
    at = from_similarities(torch.tensor([[0.5]], dtype=torch.float64), torch.tensor([[-0.5]], dtype=torch.float64))
    torch.testing.assert_close(nt_xent(at, temperature=arctanh()).item(), math.log(1 + (1 / 3) / 3))


def test_equal_embeddings_have_a_finite_loss_and_gradient_without_a_temperature() -> None:
    z = torch.ones(2, 4, 3, requires_grad=True)
    loss = nt_xent(two_views(*z), temperature=arctanh())
    (gradient,) = torch.autograd.grad(loss, z)
    torch.testing.assert_close(loss.item(), math.log(7), rtol=1e-5, atol=0)  # all of 7 candidates look the same
    assert torch.isfinite(gradient).all()


@pytest.mark.parametrize(
    "text",
    [
        "cosine(low=0.1, high=0.2)", "cosine(low=0.1, high=0.2, detach=False)", "cosine(low=0.1, high=0.2, shift=-0.4)",
        "linear(low=0.1, high=0.2)", "exponential(low=0.1, high=0.2)", "exponential(low=0.1, high=0.2, rate=2.0)",
        "exponential_legacy(low=0.1, high=0.2)", "monotonic_cosine(low=0.1, high=0.2)", "arctanh()", "arctanh(detach=True)",
    ],
)  # fmt: skip
def test_a_profile_prints_the_call_that_makes_it(text: str) -> None:
    made = Loss(f"nt_xent(temperature={text})").settings["temperature"]
    assert repr(made) == text
    assert Loss(f"nt_xent(temperature={made!r})").settings["temperature"] == made
