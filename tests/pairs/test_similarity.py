"""Products and distances of embeddings that are not normalised, in every loss that is defined for them."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from cases import CASES, NOT_OF_PAIRS, Case
from kinds import Compare, Kind, Rows, spell_cross, spell_views
from oracles import dot
from tiers import every_row
from torch import Tensor

from contrapose.losses import (
    CATALOGUE,
    align_uniform,
    balanced,
    byol,
    cacr,
    fnc,
    hard_negative,
    nt_xent,
    simsiam,
    supcon,
)
from contrapose.metrics import penalties
from contrapose.pairs import Pairs, cross, two_views, views
from contrapose.reduce import memory
from contrapose.temperature import arctanh, cosine, linear

STEP = 1e-6


def neg_euclid(a: list[float], b: list[float]) -> float:
    return -sum((x - y) ** 2 for x, y in zip(a, b, strict=True))


COMPARE: dict[str, Compare] = {"dot": dot, "neg_euclid": neg_euclid}


def rows(z: Tensor) -> Rows:
    plain: Rows = z.tolist()
    return plain


def kinds(similarity: str) -> list[Kind]:
    compare = COMPARE[similarity]
    two, three = {"in_batch": True, "views": 2}, {"in_batch": True, "views": 3}
    return [
        Kind(
            "two_views",
            lambda m, d: {"z1": (m, d), "z2": (m, d)},
            lambda raw: two_views(raw["z1"], raw["z2"], similarity=similarity),
            lambda raw: spell_views([rows(raw["z1"]), rows(raw["z2"])], compare=compare),
            ("z1", "z2"),
            **two,  # type: ignore[arg-type]
        ),
        Kind(
            "views",
            lambda m, d: {"z": (3, m, d)},
            lambda raw: views(raw["z"], similarity=similarity),
            lambda raw: spell_views([rows(z) for z in raw["z"]], compare=compare),
            ("z",),
            **three,  # type: ignore[arg-type]
        ),
        Kind(
            "views_keys",
            lambda m, d: {"z": (2, m, d), "keys": (2, m, d)},
            lambda raw: views(raw["z"], keys=raw["keys"], similarity=similarity),
            lambda raw: spell_views([rows(z) for z in raw["z"]], [rows(z) for z in raw["keys"]], compare=compare),
            ("z",),
            **two,  # type: ignore[arg-type]
        ),
        Kind(
            "cross",
            lambda m, d: {"a": (m, d), "b": (m, d)},
            lambda raw: cross(raw["a"], raw["b"], similarity=similarity),
            lambda raw: spell_cross(rows(raw["a"]), rows(raw["b"]), compare=compare),
            ("a", "b"),
        ),
    ]


REFUSED = (
    "arctanh",
    "dystress",
    "align_uniform",
    "byol",
    "simsiam",
    "cacr",
    "uaur",
    "hard_negative",
    "supcon profile",
    "nt_xent hardness profile",
    "siglip dystress",
    "fnc",
)
# MACL's temperature follows the mean positive similarity, which may leave no positive temperature here.
DEFINED = [case for name, case in CASES.items() if not name.startswith((*REFUSED, "macl"))]
PAIRS = [
    (case, kind, similarity)
    for similarity in COMPARE
    for kind in kinds(similarity)
    for case in DEFINED
    if kind.name in case.kinds
]


@pytest.mark.parametrize(
    ("case", "kind", "similarity"), every_row(3, PAIRS), ids=lambda value: getattr(value, "name", value)
)
def test_values_and_gradients_are_those_of_the_formula(case: Case, kind: Kind, similarity: str) -> None:
    raw = kind.draw(m=4, d=3, seed=1)
    held = kind.spell(raw)
    results = []
    for block in (10**9, 9):
        leaves = {name: value.clone().requires_grad_() for name, value in raw.items()}
        with memory(block=block, kept=0):
            values = case.loss(kind.make(leaves))
            values.mean().backward()
        results.append((values.detach(), [leaves[name].grad for name in kind.live]))
    expected = torch.tensor(case.oracle(held, held), dtype=torch.float64)
    torch.testing.assert_close(results[0][0], expected, rtol=1e-11, atol=1e-11)
    torch.testing.assert_close(results[0], results[1], rtol=1e-10, atol=1e-12)
    for name, gradient in zip(kind.live, results[0][1], strict=True):
        wanted = torch.zeros_like(raw[name])
        for i in range(raw[name].numel()):
            ends = []
            for step in (STEP, -STEP):
                moved = {**raw, name: raw[name].clone()}
                moved[name].view(-1)[i] += step
                ends.append(sum(case.oracle(kind.spell(moved), held)) / len(held.anchors))
            wanted.view(-1)[i] = (ends[0] - ends[1]) / (2 * STEP)
        torch.testing.assert_close(gradient, wanted, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("similarity", COMPARE)
def test_losses_of_unit_vectors_refuse(similarity: str) -> None:
    pairs = two_views(torch.randn(6, 4), torch.randn(6, 4), similarity=similarity)
    for objective in (align_uniform, byol, cacr, fnc, hard_negative, simsiam):
        with pytest.raises(
            ValueError, match=rf"since {objective.__name__} is a loss of unit vectors, got '{similarity}'"
        ):
            objective(pairs)
        with pytest.raises(ValueError, match="is a loss of unit vectors"):
            objective(pairs.similarities())
    for temperature in (cosine(0.1, 0.2), linear(0.1, 0.2), arctanh()):
        with pytest.raises(ValueError, match=r"since temperature=.* is defined on \[-1, 1\]"):
            nt_xent(pairs, temperature=temperature)
    assert torch.isfinite(
        nt_xent(pairs, temperature=lambda s: 1 + s.abs())
    )  # one's own function may be defined anywhere


def test_every_method_is_refused_or_finite() -> None:
    z = torch.randn(2, 6, 4) * 30
    outcomes = dict[str, bool]()
    for name in sorted(set(CATALOGUE) - {"isogclr", "tau", "temperature_schedule", "supcon", "macl"} - NOT_OF_PAIRS):
        for similarity in COMPARE:
            try:
                loss = CATALOGUE[name]()(two_views(*z, similarity=similarity))
            except ValueError as error:
                assert "similarity='cosine'" in str(error), name  # noqa: PT017
                outcomes[name] = False
            else:
                assert bool(loss.isfinite()), name
                outcomes[name] = True
    assert outcomes["simclr"]
    assert outcomes["balanced"]
    assert not outcomes["dystress"]


def test_distances_near_each_other_and_far_from_the_origin() -> None:
    """In float32, with 1e-3 between points 100 away from the origin: ‖a‖² + ‖b‖² - 2ab alone would be noise."""
    offset = 100.0
    z = torch.randn(2, 6, 4, dtype=torch.float64) * 1e-3
    exact = two_views(*z, similarity="neg_euclid")
    far = two_views(*(z + offset).float(), similarity="neg_euclid")
    rounded = (z + offset).float().double() - offset  # what float32 can hold of the points themselves
    same_points = two_views(*rounded, similarity="neg_euclid")
    torch.testing.assert_close(far.positives().double(), same_points.positives(), rtol=1e-4, atol=1e-10)
    assert float(exact.positives().abs().max()) < 1e-3


@pytest.mark.parametrize("similarity", COMPARE)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_computed_in_float32(dtype: torch.dtype, similarity: str) -> None:
    z = (torch.randn(2, 6, 4) * 3).to(dtype)
    for make in (two_views, cross):
        pairs = make(*z, similarity=similarity)
        assert pairs.anchor.dtype == torch.float32
        assert not pairs.kernel_inputs.half_precision
        exact = nt_xent(make(*z.double(), similarity=similarity))
        torch.testing.assert_close(nt_xent(pairs).double(), exact, rtol=1e-5, atol=1e-5)


def test_kernels_never_see_unbounded_similarities() -> None:
    z = torch.randn(2, 6, 4)
    from contrapose.pairs.pairs import _Rows

    for similarity, offered in (("cosine", True), ("dot", False), ("neg_euclid", False)):
        source = _Rows(two_views(*z, similarity=similarity), (), False)
        assert (source.selection is not None) == offered


def test_large_values_do_not_overflow() -> None:
    z = torch.randn(2, 6, 4) * 1e3
    for similarity in COMPARE:
        leaf = z.clone().requires_grad_()
        loss = nt_xent(two_views(*leaf, similarity=similarity), temperature=0.1)
        loss.backward()
        assert leaf.grad is not None
        assert bool(loss.isfinite())
        assert bool(leaf.grad.isfinite().all())


def test_unit_vectors_by_hand_give_the_cosine() -> None:
    """On unit vectors dot is the cosine, and neg_euclid is 2s - 2: the same softmax at half the temperature."""
    z = torch.nn.functional.normalize(torch.randn(2, 6, 4, dtype=torch.float64), dim=-1)
    plain = nt_xent(two_views(*z), temperature=0.4)
    torch.testing.assert_close(nt_xent(two_views(*z, similarity="dot"), temperature=0.4), plain)
    torch.testing.assert_close(nt_xent(two_views(*z, similarity="neg_euclid"), temperature=0.8), plain)
    labels = torch.tensor([0, 0, 1, 1, 2, 2])
    torch.testing.assert_close(
        supcon(two_views(*z, similarity="neg_euclid"), labels=labels, temperature=0.8),
        supcon(two_views(*z), labels=labels, temperature=0.4),
    )


def test_penalties_take_them() -> None:
    pairs = two_views(*torch.randn(2, 6, 4, dtype=torch.float64), similarity="neg_euclid")
    assert isinstance(pairs, Pairs)
    result = penalties(partial(balanced, alpha=2.0, weight=1.0), pairs)
    assert result.at.similarity == "neg_euclid"
    torch.testing.assert_close(result.repulsion, torch.ones(12, dtype=torch.float64))


@pytest.mark.parametrize(
    "settings", [{"symmetric": True, "negatives": torch.ones(2, 3)}, {"directions": ("a_to_b", "a_to_a")}]
)
def test_several_directions_take_unit_vectors_only(settings: dict[str, Any]) -> None:
    """One pool holds embeddings of both sides, whose lengths need not be comparable."""
    with pytest.raises(
        ValueError, match="similarity: expected 'cosine' with several directions or with explicit negatives"
    ):
        cross(torch.randn(4, 3), torch.randn(4, 3), similarity="dot", **settings)


def test_an_unknown_similarity_is_named() -> None:
    z = torch.randn(2, 6, 4)
    for make in (two_views, cross):
        with pytest.raises(ValueError, match="similarity: expected one of 'cosine', 'dot', 'neg_euclid', got 'l2'"):
            make(*z, similarity="l2")
    with pytest.raises(ValueError, match="similarity: expected one of"):
        views(z, keys=z, similarity="euclid")
