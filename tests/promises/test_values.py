"""Every loss equals a plain loop in float64, on every kind of pairs that it accepts."""

from __future__ import annotations

import oracles
import pytest
import torch
from cases import Case, combinations, named
from conftest import Promise
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kinds import KINDS, Kind
from tiers import every
from torch import Tensor

from contrapose import losses
from contrapose.temperature import cosine

TOLERANCE = 1e-12


def error(ours: Tensor, plain: list[float]) -> float:
    """Return the largest difference, relative for values above 1."""
    expected = torch.tensor(plain, dtype=torch.float64)
    assert ours.shape == expected.shape
    return float(((ours - expected).abs() / expected.abs().clamp(min=1)).max())


@pytest.mark.parametrize("pair", every(5, combinations()), ids=named)
def test_a_loss_equals_its_formula(pair: tuple[Case, Kind], promise: Promise) -> None:
    case, kind = pair
    for seed in range(3):
        raw = kind.draw(m=4, d=3, seed=seed)
        batch = kind.spell(raw)
        pairs = kind.make(raw)
        values = case.loss(pairs)
        promise.case(error(values, case.oracle(batch, batch)))
        assert promise.worst <= TOLERANCE
        torch.testing.assert_close(case.loss(pairs, reduction="mean"), values.mean(), rtol=1e-14, atol=1e-14)
        torch.testing.assert_close(case.loss(pairs, reduction="sum"), values.sum(), rtol=1e-14, atol=1e-13)


SHAPES = {"kind": st.sampled_from(sorted(KINDS)), "m": st.integers(3, 7), "d": st.integers(1, 9)}
TEMPERATURES = st.floats(-3, 1).map(lambda power: 10**power)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])  # one line counts the cases of all examples
@given(**SHAPES, temperature=TEMPERATURES, wide=st.floats(1, 5), seed=st.integers(0, 2**31))
def test_any_shape_and_temperature(
    promise: Promise, kind: str, m: int, d: int, temperature: float, wide: float, seed: int
) -> None:
    raw = KINDS[kind].draw(m, d, seed)
    pairs, batch = KINDS[kind].make(raw), KINDS[kind].spell(raw)
    constant, profile = oracles.constant(temperature), oracles.cosine_profile(temperature, wide * temperature)
    for ours, oracle in (
        (losses.nt_xent(pairs, temperature=temperature, reduction="none"), oracles.nt_xent(constant)),
        (losses.dcl(pairs, temperature=temperature, reduction="none"), oracles.dcl(constant)),
        (losses.dclw(pairs, temperature=temperature, reduction="none"), oracles.dclw(temperature, 0.5)),
        (losses.cmc(pairs, temperature=temperature, reduction="none"), oracles.cmc(constant)),
        (
            losses.nt_xent(pairs, temperature=cosine(temperature, wide * temperature), reduction="none"),
            oracles.nt_xent(profile),
        ),
        (
            losses.macl(pairs, temperature=temperature, alpha=0.5, reduction="none"),
            oracles.macl(temperature, 0.5, 0.0),
        ),
        (
            losses.balanced(pairs, alpha=1 / temperature, weight=wide, reduction="none"),
            oracles.balanced(1 / temperature, wide),
        ),
        (
            losses.generalized_nt_xent(pairs, alpha=1 / temperature, weight=wide, reduction="none"),
            oracles.balanced(1 / temperature, wide, generalized=True),
        ),
        (
            losses.hard_negative(pairs, temperature=temperature, beta=wide, tau_plus=0.0, reduction="none"),
            oracles.hard_negative(temperature, wide, 0.0),
        ),
        (
            losses.cacr(pairs, t_pos=wide, t_neg=1 / temperature, reduction="none"),
            oracles.cacr(wide, 1 / temperature),
        ),
        (
            losses.sogclr(pairs, temperature=temperature, reduction="none"),
            oracles.sogclr(temperature, 1.0, None),
        ),
    ):
        # A logit is s/τ, so that its rounding error is that of the similarity divided by τ.
        promise.case(error(ours, oracle(batch, batch)) / max(1.0, 0.01 / temperature))
        assert promise.worst <= TOLERANCE
