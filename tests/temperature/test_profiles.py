"""A temperature profile's kernel computes the formula of its own class, and of no subclass that changes it."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from contrapose.reduce import TemperatureLogit
from contrapose.reduce.exponent import exponent
from contrapose.temperature import Profile, cosine, exponential, exponential_legacy, linear, monotonic_cosine
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
