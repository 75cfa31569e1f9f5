"""Zero vectors, duplicates, low precision, low temperature: value and gradient are finite, or an error explains why not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from cases import CASES, NOT_OF_PAIRS, OF_VIEWS, WITHOUT_NEGATIVES, Case
from conftest import Promise
from kinds import KINDS
from torch import Tensor

from contrapose.embeddings import Assignments
from contrapose.losses import CATALOGUE, Loss, nt_xent
from contrapose.losses.objective import traits_of
from contrapose.pairs import AnyPairs, Pairs, queue, two_views, views
from contrapose.temperature import cosine

METHODS = sorted(set(CATALOGUE) - {"isogclr", "tau", "temperature_schedule"} - NOT_OF_PAIRS)
OF_FEATURES = sorted(name for name in NOT_OF_PAIRS if traits_of(CATALOGUE[name].objective).takes == "embeddings")
OF_ASSIGNMENTS = sorted(NOT_OF_PAIRS - {*OF_FEATURES})
SCALES = tuple(10.0**power for power in range(-30, 31, 5))
PROVIDED: dict[str, Any] = {"supcon": {"labels": torch.arange(8) // 2}}  # of 8 images


def finite(loss: Tensor, *leaves: Tensor) -> bool:
    loss.backward()
    return bool(torch.isfinite(loss)) and all(bool(torch.isfinite(z.grad).all()) for z in leaves if z.grad is not None)


def inputs(kind: str, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    z1, z2 = torch.randn(8, 5), torch.randn(8, 5)
    if kind == "zero vectors":
        z1[0], z2[3] = 0, 0
    elif kind == "all zero":
        z1, z2 = torch.zeros(8, 5), torch.zeros(8, 5)
    elif kind == "duplicates":
        z1[1:4], z2[1:4] = z1[0], z1[0]
    elif kind == "all the same":
        z1, z2 = torch.ones(8, 5), torch.ones(8, 5)
    elif kind == "opposite":
        z2 = -z1
    elif kind == "tiny":
        # The gradient is proportional to 1 / length, and float16 overflows above 65504.
        scale = 1e-3 if dtype == torch.float16 else 1e-9
        z1, z2 = z1 * scale, z2 * scale
    elif kind == "huge":  # the squares overflow in float32
        scale = 1e4 if dtype == torch.float16 else 1e25
        z1, z2 = z1 * scale, z2 * scale
    elif kind == "not contiguous":
        z1, z2 = torch.randn(5, 8).T, torch.randn(8, 10)[:, ::2]
    return tuple(z.to(dtype).requires_grad_() for z in (z1, z2))  # type: ignore[return-value]


INPUTS = ("zero vectors", "all zero", "duplicates", "all the same", "opposite", "tiny", "huge", "not contiguous")


def pairs_for(name: str, z1: Tensor, z2: Tensor) -> Pairs:
    """Return two views, which predict each other's values without gradient if the method only pulls."""
    if traits_of(CATALOGUE[name].objective).needs_target:
        return views([z1, z2], keys=[z1, z2])
    return two_views(z1, z2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("kind", INPUTS)
def test_every_method_stays_finite(kind: str, dtype: torch.dtype, promise: Promise) -> None:
    for name in METHODS:
        z1, z2 = inputs(kind, dtype)
        assert finite(CATALOGUE[name](**PROVIDED.get(name, {}))(pairs_for(name, z1, z2)), z1, z2), (name, kind, dtype)
        promise.case()


@pytest.mark.parametrize("name", METHODS)
def test_the_length_of_embeddings_does_not_matter(name: str, promise: Promise) -> None:
    z1, z2 = torch.randn(8, 5), torch.randn(8, 5)
    expected = CATALOGUE[name](**PROVIDED.get(name, {}))(pairs_for(name, z1, z2))
    for power in (-30, 40, 65, 100):  # of two, which changes no bit of a direction
        value = CATALOGUE[name](**PROVIDED.get(name, {}))(pairs_for(name, z1 * 2.0**power, z2 * 2.0**power))
        torch.testing.assert_close(value, expected, rtol=1e-5, atol=1e-6)
        promise.case()


@pytest.mark.parametrize(
    "name", ["simclr", "dcl", "dclw", "macl", "hard_negative", "cmc", "clip", "siglip", "hard_contrastive"]
)
@pytest.mark.parametrize("kind", INPUTS)
def test_a_temperature_of_one_thousandth_stays_finite(name: str, kind: str, promise: Promise) -> None:
    z1, z2 = inputs(kind, torch.float32)
    assert finite(CATALOGUE[name](temperature=1e-3)(two_views(z1, z2)), z1, z2)
    z1, z2 = inputs(kind, torch.float32)
    assert finite(nt_xent(two_views(z1, z2), temperature=cosine(1e-3, 2e-3)), z1, z2)
    promise.case()


@pytest.mark.parametrize("name", ["balanced", "generalized_nt_xent"])
def test_an_alpha_of_one_thousand_stays_finite(name: str, promise: Promise) -> None:
    z1, z2 = inputs("duplicates", torch.float32)
    assert finite(CATALOGUE[name](alpha=1e3)(two_views(z1, z2)), z1, z2)
    promise.case()


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_low_precision_input_adds_no_error_of_its_own(case: Case, promise: Promise) -> None:
    """The loss of bf16 embeddings equals the float64 loss of the same rounded embeddings, up to float32 rounding."""
    kind = KINDS[sorted(case.kinds)[-1]]
    rounded = {name: z.bfloat16() for name, z in kind.draw(m=8, d=16).items()}

    def value(dtype: torch.dtype) -> Tensor:
        return case.loss(kind.make({name: z.to(dtype) for name, z in rounded.items()}))

    exact, ours = value(torch.float64), value(torch.bfloat16)
    promise.case(float(((ours - exact).abs() / exact.abs().clamp(min=1)).max()))
    assert promise.worst < 1e-5


def test_autocast_does_not_reach_the_log_sum_exp(promise: Promise) -> None:
    z1, z2 = torch.randn(32, 64), torch.randn(32, 64)
    plain = nt_xent(two_views(z1, z2), temperature=0.01)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = nt_xent(two_views(z1, z2), temperature=0.01)
    assert torch.equal(plain, inside)
    promise.case()


def test_a_zero_vector_gets_no_gradient() -> None:
    z1, z2 = inputs("zero vectors", torch.float32)
    nt_xent(two_views(z1, z2)).backward()
    assert z1.grad is not None
    assert z1.grad[0].abs().max() == 0
    assert z1.grad[1].abs().max() > 0


def test_one_image_twice_is_not_its_own_negative(promise: Promise) -> None:
    z1, z2 = torch.randn(4, 5), torch.randn(4, 5)
    twice = two_views(z1[[0, 1, 2, 3, 0]], z2[[0, 1, 2, 3, 0]], ids=torch.tensor([5, 6, 7, 8, 5]))

    def loss(pairs: AnyPairs) -> Tensor:
        return nt_xent(pairs, temperature=0.1, reduction="none")

    # Anchors 0 and 4 are the same image: equal negatives, equal loss, and neither is a negative of the other.
    assert torch.equal(loss(twice)[0], loss(twice)[4])
    torch.testing.assert_close(loss(twice)[0], loss(two_views(z1, z2))[0])
    promise.case()


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        (name, kind)
        for name in METHODS
        for kind in ("two_views", "queue")
        if kind == "two_views" or name not in OF_VIEWS | WITHOUT_NEGATIVES
    ],
)
def test_nan_is_propagated(name: str, kind: str, promise: Promise) -> None:
    z1, z2, rows = torch.randn(8, 5), torch.randn(8, 5), torch.randn(20, 5)
    (z1 if kind == "two_views" else rows)[3, 2] = torch.nan
    pairs = pairs_for(name, z1, z2) if kind == "two_views" else queue(z1, z2, rows)
    if (name, kind) == ("macl", "two_views"):  # its temperature is computed from the positives
        with pytest.raises(ValueError, match="the adapted temperature is nan"):
            CATALOGUE[name]()(pairs)
    else:
        assert bool(CATALOGUE[name](**PROVIDED.get(name, {}))(pairs).isnan())
    promise.case()


def test_every_method_is_of_pairs_features_or_assignments() -> None:
    assert {*OF_FEATURES, *OF_ASSIGNMENTS} == NOT_OF_PAIRS
    assert len(OF_FEATURES) == 7
    assert len(OF_ASSIGNMENTS) == 2


def value_and_gradient(loss: Callable[[Tensor], Tensor], z: Tensor) -> tuple[Tensor, Tensor]:
    leaf = z.detach().clone().requires_grad_()
    value = loss(leaf)
    return value.detach(), torch.autograd.grad(value, leaf)[0]


def assert_like_float64(loss: Callable[[Tensor], Tensor], z: Tensor, promise: Promise, least: float = 0.0) -> None:
    """Value and gradient are those of float64, up to rounding; a gradient is compared as a whole, if its norm is `least` or more."""
    (value, gradient), (exact, slope) = (value_and_gradient(loss, rows) for rows in (z, z.double()))
    assert float(value) == pytest.approx(float(exact), rel=1e-3)
    error = (gradient.double() - slope).norm() / slope.norm().clamp(min=least)
    promise.case(float(error))
    assert float(error) < 1e-2


def exceeds_float32(name: str, scale: float) -> bool:
    """Whether the value does: only VICReg depends on the scale, by the fourth power of it."""
    return name == "vicreg" and scale > 1e9


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", [*OF_FEATURES, "w_mse(shrinkage=0.1)", "arb(group_size=2)"])
def test_losses_of_features_at_any_scale_equal_float64(name: str, dtype: torch.dtype, promise: Promise) -> None:
    sample = torch.randn(40, 5)
    z = torch.stack([sample + 0.3 * torch.randn(40, 5), sample + 0.3 * torch.randn(40, 5)])
    for scale in SCALES:
        scaled = (z * scale).to(dtype)
        if exceeds_float32(name, scale):
            with pytest.raises(ValueError, match=r"z: vicreg exceeds float32 .* grows with the fourth power"):
                Loss(name)(scaled)
        elif name == "w_mse(shrinkage=0.1)" and scale < 1e-10:  # too short for a direction, as in losses of pairs
            assert float(Loss(name)(scaled)) == 2
        else:
            assert_like_float64(Loss(name).eval(), scaled, promise)


def test_vicreg_has_a_value_where_only_its_sums_exceed_float32(promise: Promise) -> None:
    """The sums of 64 samples of 256 features do from about 1e8 on."""
    assert_like_float64(Loss("vicreg"), torch.randn(2, 64, 256) * 1e9, promise)


@pytest.mark.parametrize("kind", INPUTS)
@pytest.mark.parametrize("name", OF_FEATURES)
def test_losses_of_features_at_any_scale_stay_finite(name: str, kind: str, promise: Promise) -> None:
    for scale in SCALES:
        z1, z2 = ((z.detach().float() * scale).requires_grad_() for z in inputs(kind, torch.float16))
        try:
            value = Loss(name)(z1, z2)
        except ValueError as error:
            assert exceeds_float32(name, float(z1.detach().abs().max())), error  # noqa: PT017
        else:
            assert finite(value, z1, z2), (name, kind, scale)
        promise.case()


@pytest.mark.parametrize("name", OF_FEATURES)
def test_features_of_different_scales_count_alike(name: str, promise: Promise) -> None:
    """Of a width of 4, the features differ by a factor of 1e45."""
    z = torch.randn(2, 40, 4) * torch.tensor([1e-15, 1.0, 1e15, 1e30])
    value = Loss(name)(z) if name != "vicreg" else z.new_zeros(())
    assert bool(value.isfinite())
    if name in ("barlow_twins", "zero_fcl", "arb"):
        assert_like_float64(Loss(name), z, promise)
    promise.case()


@pytest.mark.parametrize("name", OF_ASSIGNMENTS)
def test_losses_of_assignments_at_any_scale_equal_float64(name: str, promise: Promise) -> None:
    scores, target = torch.randn(3, 16, 7), torch.randn(2, 16, 7)
    for scale in SCALES:

        def loss(scores: Tensor, scale: float = scale) -> Tensor:
            more = {"target": target.to(scores.dtype) * scale} if name == "dino" else {}
            value: Tensor = Loss(name)(Assignments(scores=scores, global_views=2, **more))
            return value

        # A gradient is a difference of probabilities, which have a rounding error even if they are equal.
        assert_like_float64(loss, scores * scale, promise, least=1e-3)
