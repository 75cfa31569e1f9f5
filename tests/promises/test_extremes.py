"""Zero vectors, duplicates, low precision, low temperature: value and gradient are finite, or an error explains why not."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from cases import CASES, NOT_OF_PAIRS, OF_VIEWS, WITHOUT_NEGATIVES, Case
from conftest import Promise
from kinds import KINDS
from torch import Tensor

from contrapose.losses import CATALOGUE, nt_xent
from contrapose.losses.objective import traits_of
from contrapose.pairs import AnyPairs, Pairs, queue, two_views, views
from contrapose.temperature import cosine

METHODS = sorted(set(CATALOGUE) - {"isogclr", "tau", "temperature_schedule"} - NOT_OF_PAIRS)
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
