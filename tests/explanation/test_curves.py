"""The analytic figures of the papers as numbers, and the sentences about every method."""

from __future__ import annotations

import math
from functools import partial

import pytest
import torch
from cases import NOT_OF_PAIRS

from contrapose.explanation import (
    Subject,
    false_negative_push,
    ode_curves,
    positive_pull,
    relative_penalty,
    sweep,
    typical_negatives,
    words,
)
from contrapose.losses import CATALOGUE
from contrapose.temperature import cosine

S = torch.linspace(-1, 1, 2001, dtype=torch.float64)
close = partial(torch.testing.assert_close, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("tau", [0.07, 0.1, 0.2, 0.5, 1.0])
def test_wang_and_liu_figure_3(tau: float) -> None:
    """r(s) is a Boltzmann distribution: exponential in s, and steeper at lower temperatures."""
    r = relative_penalty(Subject.of(f"nt_xent(temperature={tau})"), S)
    close(r, (S / tau).softmax(0))
    assert float(r.sum()) == pytest.approx(1)
    slope = r.log().diff() / S.diff()
    torch.testing.assert_close(slope, torch.full_like(slope, 1 / tau), rtol=1e-9, atol=1e-9)


def test_the_penalties_of_clip_and_siglip() -> None:
    """CLIP's is that of NT-Xent; SigLIP's is a sigmoid."""
    close(relative_penalty(Subject.of("clip"), S), (S / 0.07).softmax(0))
    for loss, bias in (("siglip", -10.0), ("siglip(bias=learned_number(3.5))", 3.5)):
        sigmoid = torch.sigmoid(S / 0.1 + bias)
        close(relative_penalty(Subject.of(loss), S), sigmoid / sigmoid.sum())


def test_wang_and_liu_figure_3_at_its_ends() -> None:
    """At lower temperatures the hardest negative gets more, the easiest gets less, and the entropy falls."""
    curves = [relative_penalty(Subject.of(f"simclr(temperature={tau})"), S) for tau in (0.07, 0.1, 0.2, 0.5, 1.0)]
    hardest, easiest = [float(r[-1]) for r in curves], [float(r[0]) for r in curves]
    assert hardest == sorted(hardest, reverse=True)
    assert easiest == sorted(easiest)
    entropies = [float(torch.special.entr(r).sum()) for r in curves]
    assert entropies == sorted(entropies)
    assert hardest[0] / easiest[0] == pytest.approx(math.exp(2 / 0.07))


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_dystress_figure_2(share: float) -> None:
    """Solutions have τ(±1) = τ_max, fall on the left half, rise on the right half and approach 0 in the middle."""
    (_, left, falling), (_, right, rising) = ode_curves(0.2, (share,))
    delta_k = share * math.exp(-5) / 0.2
    for s, tau, end in ((left, falling, -1), (right, rising, 1)):
        assert float(s[-1]) == end
        assert float(tau[-1]) == pytest.approx(0.2)
        assert bool((tau > 0).all())
        assert bool((tau.diff() > 0).all())  # both are listed from the middle outwards
        assert float(tau[0]) < 0.02
        # dτ/ds = (τ/s)(1 - τ δK e^{-s/τ}), by central differences
        slope = (tau[2:] - tau[:-2]) / (s[2:] - s[:-2])
        expected_slope = (tau / s * (1 - tau * delta_k * torch.exp(-s / tau)))[1:-1]
        torch.testing.assert_close(slope, expected_slope, rtol=5e-3, atol=1e-4)


def test_proposition_1_fails_beyond_its_limit() -> None:
    """For δK > e^{-1/τ}/τ the slope at s = -1 has the wrong sign, which the paper does not say."""
    (_, _, falling), (_, _, rising) = ode_curves(0.2, (1.5,))
    assert float(falling[-1] - falling[-2]) < 0
    assert bool((rising.diff() > 0).all())


@pytest.mark.parametrize(("low", "high"), [(0.07, 0.1), (0.07, 0.5), (0.07, 0.2), (0.1, 0.2), (0.2, 0.5), (0.2, 0.2)])
def test_dystress_figure_3(low: float, high: float) -> None:
    tau = Subject.of(f"nt_xent(temperature=cosine({low}, {high}))").nominal_temperature(S)
    assert tau is not None
    assert float(tau[0]) == pytest.approx(high)
    assert float(tau[-1]) == pytest.approx(high)
    assert float(tau[1000]) == pytest.approx(low)
    close(tau, tau.flip(0))
    if low < high:
        assert bool((tau[:1001].diff() < 0).all())
        assert int(tau.argmin()) == 1000


@pytest.mark.parametrize(
    ("shift", "minimum", "flat"),
    [(0.0, -0.5, (0.0, 1.0)), (-0.2, -0.4, (0.2, 1.0)), (-0.4, -0.3, (0.4, 1.0)), (-0.6, -0.2, (0.6, 1.0)),
     (0.2, 0.4, (-1.0, -0.2)), (0.4, 0.3, (-1.0, -0.4))],
)  # fmt: skip
def test_dystress_figure_4(shift: float, minimum: float, flat: tuple[float, float]) -> None:
    tau = Subject.of(f"nt_xent(temperature=cosine(0.07, 0.2, shift={shift}))").nominal_temperature(S)
    assert tau is not None
    assert float(S[tau.argmin()]) == pytest.approx(minimum, abs=1e-3)
    assert float(tau.min()) == pytest.approx(0.07, abs=1e-6)
    close(tau[[0, -1]], torch.full((2,), 0.2, dtype=torch.float64))
    inside = (flat[0] + 1e-9 <= S) & (flat[1] - 1e-9 >= S)
    close(tau[inside], torch.full_like(tau[inside], 0.2))
    assert float(tau.diff().abs().max()) < 1e-3  # continuous


def test_dystress_spares_very_similar_negatives() -> None:
    """Sharp at s = 0, soft at s = 1: a similar negative is pushed less than by NT-Xent at the low temperature."""
    at = torch.tensor([0.9], dtype=torch.float64)
    cold = false_negative_push(Subject.of("nt_xent(temperature=0.07)"), at)
    assert float(false_negative_push(Subject.of("dystress"), at)) < 0.1 * float(cold)
    # τ(s) is detached, so the gradient is p(s)/τ(s).
    tau = cosine(0.07, 0.2)(S)
    push = (S / tau).softmax(0) / tau
    close(relative_penalty(Subject.of("dystress"), S), push / push.sum())


def test_push_on_a_false_negative_equals_a_softmax() -> None:
    others = typical_negatives()
    assert float(others.std()) == pytest.approx(1 / math.sqrt(128), rel=1e-2)
    s = torch.cat([others, torch.tensor([0.5], dtype=torch.float64)])
    expected = float((s / 0.2).softmax(0)[-1] * len(s))
    push = false_negative_push(Subject.of("nt_xent(temperature=0.2)"), torch.tensor([0.5], dtype=torch.float64))
    assert float(push) == pytest.approx(expected)


def test_sweep_reaches_the_triplet_and_the_simple_loss() -> None:
    ends = sweep(Subject.of("nt_xent(temperature=0.2)"), torch.tensor([1e-4, 1.0, 1e4], dtype=torch.float64))
    assert ends.temperature[1] == pytest.approx(0.2)
    assert float(ends.hardest[0]) == pytest.approx(1)  # triplet
    assert float(ends.hardest[2]) == pytest.approx(21 / 2001, rel=1e-3)  # simple
    assert float(ends.entropy[0]) < 0.2
    assert float(ends.entropy[2]) == pytest.approx(1)
    unchanged = sweep(Subject.of("simple"), torch.tensor([0.1, 10.0]))
    assert torch.equal(unchanged.entropy[:1], unchanged.entropy[1:])


def test_pull_on_the_positive() -> None:
    at = torch.tensor([0.0, 0.99], dtype=torch.float64)
    relaxing, _ = positive_pull(Subject.of("nt_xent(temperature=0.07)"), at)
    assert float(relaxing[1]) < 0.05 * float(relaxing[0])
    steady, push = positive_pull(Subject.of("dcl(temperature=0.07)"), at)
    close(steady, torch.full_like(steady, 1 / 0.07))
    close(push, steady)


def test_subjects_fill_in_missing_settings() -> None:
    assert Subject.of("temperature_schedule", epoch=200).settings["temperature"] == pytest.approx(0.1)
    at = torch.zeros(1, dtype=torch.float64)
    nominal = {
        name: Subject.of(name).nominal_temperature(at) for name in ("macl", "balanced", "cacr", "tau", "simple", "uaur")
    }
    numbers = {name: None if tau is None else round(float(tau), 6) for name, tau in nominal.items()}
    assert numbers == {"macl": 0.135, "balanced": 0.25, "cacr": 0.25, "tau": 0.2, "simple": None, "uaur": None}
    assert Subject.of("hard_contrastive", "cifar10").least_negatives == 4095


@pytest.mark.parametrize("name", sorted(set(CATALOGUE) - NOT_OF_PAIRS))
def test_words_for_every_method(name: str) -> None:
    sentences = words(Subject.of(name))
    assert len(sentences) == 7
    assert all(sentence.endswith(".") and "nan" not in sentence and "inf " not in sentence for sentence in sentences)


def text_of(loss: str, data: str | None = None) -> str:
    return " ".join(words(Subject.of(loss, data)))


def test_words_describe_the_curves() -> None:
    cacr = text_of("cacr")
    assert "Negatives between s = -1.00 and 0.50 are pulled instead of pushed." in cacr
    assert "The pull on the positive grows" in text_of("hard_negative")
    assert "Among 49,140 negatives in random directions" in text_of("hard_contrastive", "cifar10")
    assert "little tolerance for similar images" in text_of("simclr(temperature=0.05)")
    assert "uniform at any temperature" in text_of("hard_contrastive")
    triplet = text_of("triplet")
    assert "single hardest negative. " in triplet
    assert "Expect poor features" in triplet
    assert "It has no temperature." in words(Subject.of("cacr(t_neg=0.0)"))
    reversed_cacr = text_of("cacr(repulsion='reversed')")
    assert "with the sign reversed" in reversed_cacr
    assert "close to the triplet loss" not in reversed_cacr
    assert "close to the triplet loss" in cacr
    without_push = words(Subject.of("balanced(weight=0.0)"))
    assert "No negative is pushed." in without_push
    assert "Expect a collapse" in without_push[-1]
    assert "not monotone" in text_of("nt_xent(temperature=cosine(0.07, 0.5))")
    assert "not monotone" not in text_of("nt_xent(temperature=cosine(0.07, 0.2))")
