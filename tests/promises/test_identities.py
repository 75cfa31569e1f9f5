"""Identities that the papers' arguments rely on, some corrected, in float64 on random unit vectors."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from conftest import Promise
from torch import Tensor
from torch.nn.functional import normalize

from contrapose.losses import (
    align_uniform,
    balanced,
    cacr,
    cmc,
    dcl,
    dclw,
    generalized_nt_xent,
    hard_negative,
    macl,
    nt_xent,
    simple,
    sogclr,
    triplet,
)
from contrapose.pairs import Pairs, bank, cross, from_similarities, queue, two_views, views
from contrapose.pairs.negatives import hardest, other_views, same_view
from contrapose.reduce import Count
from contrapose.temperature import (
    CosineSchedule,
    PerSample,
    Profile,
    adaptive,
    cosine,
    exponential,
    exponential_legacy,
    linear,
    monotonic_cosine,
    ode_constant,
    ode_solution,
)

f64 = torch.float64


def randn(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=f64)


def similarities(n: int = 5, m: int = 9, k: int = 1) -> tuple[Tensor, Tensor]:
    return (torch.rand(n, k, dtype=f64) * 2 - 1).requires_grad_(), (
        torch.rand(n, m, dtype=f64) * 2 - 1
    ).requires_grad_()


def penalties(loss: Tensor, *of: Tensor) -> list[Tensor]:
    """Return ∂(Σ_i L_i)/∂s, which is ∂L_i/∂s_i for each anchor, since anchors do not share similarities."""
    return list(torch.autograd.grad(loss.sum(), of))


def close(promise: Promise, ours: Tensor | float, expected: Tensor | float, tolerance: float = 1e-12) -> None:
    a, b = (torch.as_tensor(x, dtype=f64).detach() for x in (ours, expected))
    promise.case(float(((a - b).abs() / b.abs().clamp(min=1)).max()))
    torch.testing.assert_close(a, b.expand_as(a), rtol=tolerance, atol=tolerance)


# --- NT-Xent and its limits (Wang & Liu) ---------------------------------------------------------------------------


@pytest.mark.parametrize("tau", [0.05, 0.2, 1.0])
def test_nt_xent_pulls_as_much_as_it_pushes(tau: float, promise: Promise) -> None:
    pos, neg = similarities()
    pull, push = penalties(nt_xent(from_similarities(pos, neg), temperature=tau, reduction="none"), pos, neg)
    p = torch.softmax(torch.cat([pos, neg], 1) / tau, 1)
    close(promise, push.sum(1), -pull[:, 0])
    close(promise, pull[:, 0], -(1 - p[:, 0]) / tau)
    close(promise, push, p[:, 1:] / tau)


def test_the_entropy_of_the_relative_penalty_rises_with_temperature(promise: Promise) -> None:
    """dH/d(1/τ) = -(1/τ) Var_r(s)."""
    pos, neg = similarities()

    def entropy(beta: float) -> Tensor:
        push = penalties(nt_xent(from_similarities(pos, neg), temperature=1 / beta, reduction="none"), neg)[0]
        r = push / push.sum(1, keepdim=True)
        return -(r * r.log()).sum(1)

    for beta in (0.5, 2.0, 7.0):
        r = torch.softmax(neg * beta, 1)
        variance = (r * neg**2).sum(1) - (r * neg).sum(1) ** 2
        slope = (entropy(beta + 1e-5) - entropy(beta - 1e-5)) / 2e-5
        close(promise, slope, -beta * variance, 1e-7)


def test_low_temperature_is_the_triplet_loss(promise: Promise) -> None:
    pos, neg = similarities(m=9)
    pairs = from_similarities(pos, neg)
    hard = triplet(pairs, reduction="none")
    for tau in (0.1, 1e-2, 1e-3):
        gap = tau * nt_xent(pairs, temperature=tau, reduction="none") - hard
        assert (gap >= -1e-15).all()
        assert (gap <= tau * math.log(10) + 1e-15).all()
        promise.case()
    one = nt_xent(pairs, temperature=1e-4, negatives=hardest(1), reduction="none")
    close(promise, 1e-4 * one, hard, 1e-4)


def test_high_temperature_is_the_simple_loss(promise: Promise) -> None:
    pos, neg = similarities(m=9)
    pairs, n, tau = from_similarities(pos, neg), 10, 1e4
    limit = -(n - 1) / n * pos[:, 0] + neg.sum(1) / n
    close(promise, tau * (nt_xent(pairs, temperature=tau, reduction="none") - math.log(n)), limit, 1e-3)
    close(promise, simple(pairs, reduction="none") * (n - 1) / n, limit)


def test_swapping_images_or_views_changes_nothing(promise: Promise) -> None:
    """Wang & Liu, Figure 1: the loss does not depend on the order of the images."""
    z = randn(3, 6, 4)
    losses: dict[str, Callable[[Pairs], Tensor]] = {
        "nt_xent": lambda p: nt_xent(p, temperature=0.2),
        "dystress": lambda p: nt_xent(p, temperature=cosine(0.1, 0.2)),
        "dcl": lambda p: dcl(p, temperature=0.2, split_views=True),
        "dclw": dclw,
        "macl": macl,
        "balanced": balanced,
        "generalized": generalized_nt_xent,
        "hard_negative": hard_negative,
        "simple": simple,
        "hard": lambda p: nt_xent(p, temperature=0.2, negatives=hardest(3)),
        "align_uniform": align_uniform,
        "cmc": cmc,
        "cacr printed": lambda p: cacr(p, negatives=same_view()),
        "cacr": cacr,
        "sogclr": sogclr,
    }
    for name, loss in losses.items():
        close(promise, loss(views(z[:, torch.randperm(6)])), loss(views(z)))
        if name != "cacr":  # it uses only the ordered pairs of views v < w
            close(promise, loss(views(z[[2, 0, 1]])), loss(views(z)))


# --- hard losses --------------------------------------------------------------------------------------------------


def test_all_negatives_are_the_hardest_of_all(promise: Promise) -> None:
    pos, neg = similarities(m=9)
    pairs = from_similarities(pos, neg)
    close(promise, nt_xent(pairs, negatives=hardest(9)), nt_xent(pairs))
    close(promise, nt_xent(pairs, negatives=hardest(fraction=1.0)), nt_xent(pairs))
    close(promise, simple(pairs, negatives=hardest(9)), simple(pairs))


def test_hardest_keeps_the_negatives_above_the_quantile(promise: Promise) -> None:
    pos, neg = similarities(m=50)
    for fraction in (0.05, 0.1, 0.5, 0.82):
        pairs = from_similarities(pos, neg)
        push = penalties(nt_xent(pairs, negatives=hardest(fraction), reduction="none"), neg)[0]
        k = math.ceil(fraction * 50 - 1e-9)
        threshold = neg.sort(1, descending=True).values[:, k - 1 : k]
        assert torch.equal(push > 0, neg >= threshold)
        inside = torch.where(neg >= threshold, neg, -torch.inf)
        close(promise, push / push.sum(1, keepdim=True), torch.softmax(inside / 0.5, 1))


def test_ties_at_the_threshold_are_cut_to_the_count() -> None:
    neg = torch.tensor([[0.5, 0.5, 0.5, 0.1]], dtype=f64, requires_grad=True)
    pairs = from_similarities(torch.tensor([0.9], dtype=f64), neg)
    push = penalties(simple(pairs, negatives=hardest(2), reduction="none"), neg)[0]
    assert sorted(push[0].tolist()) == [0, 0, 0.5, 0.5]


# --- DySTreSS -----------------------------------------------------------------------------------------------------

S = torch.linspace(-1, 1, 2001, dtype=f64)


@pytest.mark.parametrize("profile", [cosine, linear, exponential, monotonic_cosine])
def test_a_constant_profile_is_nt_xent(profile: Callable[[float, float], Profile], promise: Promise) -> None:
    pairs = two_views(randn(6, 4), randn(6, 4))
    close(promise, nt_xent(pairs, temperature=profile(0.3, 0.3)), nt_xent(pairs, temperature=0.3))


@pytest.mark.parametrize("shift", [-1.0, -0.6, -0.4, -0.2, 0.0, 0.2, 0.4, 0.6, 1.0])
def test_shifted_profiles(shift: float, promise: Promise) -> None:
    tau = cosine(0.1, 0.3, shift=shift)(S)
    ends = torch.tensor([-1.0, 1.0], dtype=f64)
    close(promise, cosine(0.1, 0.3, shift=shift)(ends), 0.3)
    assert (tau[1:] - tau[:-1]).abs().max() < 0.001  # continuous
    assert tau.min() >= 0.1 - 1e-15
    assert tau.max() <= 0.3 + 1e-15
    lowest = math.copysign((1 - abs(shift)) / 2, shift if shift else -1.0)
    close(promise, cosine(0.1, 0.3, shift=shift)(torch.tensor(lowest, dtype=f64)), 0.1)
    if abs(shift) == 1:
        close(promise, tau, cosine(0.1, 0.3)(S))


def test_profiles_have_their_end_points(promise: Promise) -> None:
    ends = torch.tensor([-1.0, 0.0, 1.0], dtype=f64)
    for profile in (cosine, linear, exponential):
        close(promise, profile(0.1, 0.2)(ends), torch.tensor([0.2, 0.1, 0.2], dtype=f64))
    close(promise, monotonic_cosine(0.1, 0.2)(ends), torch.tensor([0.1, 0.15, 0.2], dtype=f64))
    legacy = 0.2 - 0.1 * math.exp(-3.5)  # the authors' (a, b, c) = (0.2, 0.1, 3.5)
    close(promise, exponential_legacy(0.1, 0.2)(ends), torch.tensor([legacy, 0.1, legacy], dtype=f64))


def test_a_detached_temperature_has_no_gradient_of_its_own(promise: Promise) -> None:
    pos, neg = similarities()
    profile = cosine(0.1, 0.3)
    pull, push = penalties(nt_xent(from_similarities(pos, neg), temperature=profile, reduction="none"), pos, neg)
    s = torch.cat([pos, neg], 1).detach()
    p = torch.softmax(s / profile(s), 1)
    close(promise, pull[:, 0], (p[:, 0] - 1) / profile(pos)[:, 0])
    close(promise, push, p[:, 1:] / profile(neg))


def test_an_attached_temperature_gives_equations_6_and_7(promise: Promise) -> None:
    pos, neg = similarities()
    profile, delta = cosine(0.1, 0.3, detach=False), 0.2
    pairs = from_similarities(pos, neg)
    pull, push = penalties(nt_xent(pairs, temperature=profile, reduction="none"), pos, neg)
    s = torch.cat([pos, neg], 1).detach()
    tau, slope = profile(s), math.pi * delta / 2 * torch.sin(math.pi * s)
    factor, p = (tau - s * slope) / tau**2, torch.softmax(s / tau, 1)
    close(promise, pull[:, 0], (p[:, 0] - 1) * factor[:, 0])
    close(promise, push, p[:, 1:] * factor[:, 1:])


@pytest.mark.parametrize(("low", "high", "monotone"), [(0.07, 0.2, True), (0.1, 0.2, True), (0.07, 0.5, False)])
def test_logits_are_monotone_above_the_threshold(low: float, high: float, monotone: bool, promise: Promise) -> None:
    """s/τ(s) rises everywhere iff τ_min/Δτ > π/4 - 1/2."""
    assert (low / (high - low) > math.pi / 4 - 0.5) == monotone
    logits = S / cosine(low, high)(S)
    assert bool((logits[1:] > logits[:-1]).all()) == monotone
    slope = cosine(low, high)(S) - S * math.pi * (high - low) / 2 * torch.sin(math.pi * S)
    close(promise, slope.min(), low - (math.pi / 4 - 0.5) * (high - low), 1e-6)


@pytest.mark.parametrize("delta_k", [0.5, 3.0])
@pytest.mark.parametrize("at", [1, -1])
def test_the_ode_and_its_boundary(delta_k: float, at: int, promise: Promise) -> None:
    constant = ode_constant(delta_k=delta_k, high=0.2, at=at)
    close(promise, ode_solution(torch.tensor(float(at), dtype=f64), delta_k=delta_k, constant=constant), 0.2)
    s = torch.linspace(0.3, 1, 50, dtype=f64) * at
    s = s[(delta_k * s + constant > 0) & ((delta_k * s + constant - 1).abs() > 0.05)].requires_grad_()
    tau = ode_solution(s, delta_k=delta_k, constant=constant)
    (slope,) = torch.autograd.grad(tau.sum(), s)
    expected = tau / s * (1 - tau * delta_k * torch.exp(-s / tau))
    close(promise, slope, expected, 1e-8)


# --- decoupled losses, MACL, hard negatives, SogCLR ----------------------------------------------------------------


def test_nt_xent_is_softplus_of_dcl(promise: Promise) -> None:
    pairs = two_views(randn(6, 4), randn(6, 4))
    each = dcl(pairs, temperature=0.2, reduction="none")
    close(promise, nt_xent(pairs, temperature=0.2, reduction="none"), torch.log1p(each.exp()))


def test_split_views_push_twice(promise: Promise) -> None:
    pairs, tau = two_views(randn(6, 4), randn(6, 4)), 0.5
    same = dcl(pairs, temperature=tau, negatives=same_view(), reduction="none")
    other = dcl(pairs, temperature=tau, negatives=other_views(), reduction="none")
    attraction = pairs.positives()[:, 0] / tau
    split = dcl(pairs, temperature=tau, split_views=True, reduction="none")
    close(promise, split, same + other + attraction)
    # Each of the two log-sum-exps pushes with 1/τ in total, so that both push with 2/τ.
    pos, neg = similarities()
    push = penalties(dcl(from_similarities(pos, neg), temperature=tau, reduction="none"), neg)[0]
    close(promise, push.sum(1), 1 / tau)


def test_dclw_weights_average_to_one(promise: Promise) -> None:
    """The mean weight is 1: if all positives are equally similar DCLW is DCL, and its pull averages to 1/τ."""
    pos, neg = similarities()
    (pull,) = penalties(dclw(from_similarities(pos, neg), temperature=0.2, reduction="none"), pos)
    close(promise, pull.mean(), -1 / 0.2)
    same = from_similarities(torch.full((5, 1), 0.3, dtype=f64), neg)
    close(promise, dclw(same), dcl(same))


def test_macl_pulls_with_one_over_its_temperature(promise: Promise) -> None:
    pos, neg = similarities()
    pairs = from_similarities(pos, neg)
    for alpha, center in ((0.0, 0.0), (0.5, 0.0), (2.0, 0.8)):
        tau = 0.4 * (1 + alpha * (pos.detach().mean() - center))
        if tau <= 0:
            continue
        close(promise, adaptive(pos, base=0.4, alpha=alpha, center=center), tau)
        loss = macl(pairs, temperature=0.4, alpha=alpha, center=center, reduction="none")
        pull, push = penalties(loss, pos, neg)
        close(promise, pull[:, 0], -1 / tau)
        close(promise, push.sum(1), 1 / tau)


def test_hard_negative_without_hardness_and_debiasing_is_nt_xent(promise: Promise) -> None:
    pairs = two_views(randn(6, 4), randn(6, 4))
    plain = hard_negative(pairs, temperature=0.3, beta=0.0, tau_plus=0.0, reduction="none")
    close(promise, plain, nt_xent(pairs, temperature=0.3, reduction="none"))


def test_hard_negative_never_falls_below_its_floor(promise: Promise) -> None:
    pos = torch.full((1, 1), 0.99, dtype=f64)
    neg = torch.full((1, 8), -0.9, dtype=f64)
    floor = math.log1p(8 * math.exp(-1 / 0.5) / math.exp(0.99 / 0.5))
    close(promise, hard_negative(from_similarities(pos, neg), temperature=0.5, tau_plus=0.9), floor)


def test_sogclr_without_averaging_is_dcl_times_temperature(promise: Promise) -> None:
    pos, neg = similarities()
    pairs = from_similarities(pos, neg)
    ours = penalties(sogclr(pairs, temperature=0.3, reduction="none"), pos, neg)
    theirs = penalties(dcl(pairs, temperature=0.3, reduction="none"), pos, neg)
    for a, b in zip(ours, theirs, strict=True):
        close(promise, a, 0.3 * b)


def test_per_sample_temperatures_stay_in_range(promise: Promise) -> None:
    state = PerSample(8, temperature=0.1, low=0.05, high=0.7, rate=0.5)
    for _ in range(30):
        pairs = two_views(randn(6, 4), randn(6, 4), ids=torch.randperm(8)[:6])
        assert torch.isfinite(sogclr(pairs, **state.settings(pairs)))
        state.update(pairs)
        assert ((state.temperature >= 0.05 - 1e-7) & (state.temperature <= 0.7 + 1e-7)).all()
        promise.case()


def test_the_schedule_is_periodic(promise: Promise) -> None:
    schedule = CosineSchedule(0.1, 1.0, 400)
    for epoch, expected in ((0, 1.0), (100, 0.55), (200, 0.1), (400, 1.0), (600, 0.1)):
        close(promise, schedule.at(epoch), expected)


# --- alignment, uniformity, CACR ----------------------------------------------------------------------------------


def test_uniformity_of_an_antipodal_pair(promise: Promise) -> None:
    z = torch.tensor([[1.0, 0.0], [-1.0, 0.0]], dtype=f64)
    close(promise, align_uniform(two_views(z, z), t=2.0, align_weight=0.0), -8.0)


def test_uniformity_of_the_whole_sphere(promise: Promise) -> None:
    """E e^{-t‖x-y‖²} for uniform x, y on S² is (1 - e^{-4t})/(4t); and Jensen: U ≥ -t E d²."""
    z = normalize(randn(3000, 3), dim=1)
    uniformity = align_uniform(two_views(z, z), t=2.0, align_weight=0.0)
    close(promise, uniformity, math.log((1 - math.exp(-8)) / 8), 2e-2)
    distance = (torch.cdist(z, z) ** 2).sum() / (3000 * 2999)
    assert uniformity >= -2 * distance


def test_cacr_with_one_positive_attracts_by_alignment(promise: Promise) -> None:
    z1, z2 = randn(6, 4), randn(6, 4)
    ours = cacr(two_views(z1, z2), repel_weight=0.0)
    close(promise, ours, align_uniform(two_views(z1, z2), uniform_weight=0.0))
    attraction = cacr(views(randn(4, 6, 3)), repel_weight=0.0, reduction="none")
    assert (attraction >= 0).all()
    same = randn(6, 3).expand(4, 6, 3)
    close(promise, cacr(views(same), repel_weight=0.0), 0.0)


def test_cacr_without_sharpness_is_cacr_without_weights(promise: Promise) -> None:
    pairs = views(randn(4, 6, 3))
    close(promise, cacr(pairs, t_pos=0.0, t_neg=2.0), cacr(pairs, attraction="uniform", t_neg=2.0))
    close(promise, cacr(pairs, t_pos=1.0, t_neg=0.0), cacr(pairs, t_pos=1.0, repulsion="uniform"))


def test_sharp_cacr_is_the_hard_triplet(promise: Promise) -> None:
    pos, neg = similarities(k=3)
    loss = cacr(from_similarities(pos, neg), t_pos=1e4, t_neg=1e4, margin=0.2, reduction="none")
    hard = torch.relu((2 - 2 * pos).amax(1) - (2 - 2 * neg).amin(1) + 0.2)
    close(promise, loss, hard, 1e-3)


def test_uaur_is_twice_the_simple_loss(promise: Promise) -> None:
    pairs = views(randn(3, 6, 4))
    uaur = cacr(pairs, attraction="uniform", repulsion="uniform", negatives=same_view(), reduction="none")
    close(promise, uaur, 2 * simple(pairs, negatives=same_view(), reduction="none"))


def test_inner_product_cost_is_half_the_euclidean(promise: Promise) -> None:
    pairs = views(randn(3, 6, 4))
    close(promise, cacr(pairs, cost="inner"), cacr(pairs) / 2)


def test_unweighted_rbf_repulsion_is_uniformity(promise: Promise) -> None:
    pairs = two_views(randn(6, 4), randn(6, 4))
    rbf = cacr(pairs, cost="rbf", repulsion="uniform", attract_weight=0.0, negatives=same_view())
    close(promise, rbf, align_uniform(pairs, align_weight=0.0, t=2.0))


def test_lemma_4_1_importance_form(promise: Promise) -> None:
    """E_p[-s⁺ π⁺/p] with uniform p is CA with the inner-product cost."""
    pos, neg = similarities(k=4)
    weight = torch.softmax(1.0 * (2 - 2 * pos), 1)
    expected = (-pos * weight / 0.25).mean(1)
    ours = cacr(from_similarities(pos, neg), cost="inner", repel_weight=0.0, reduction="none")
    close(promise, ours, expected)


def test_lemma_4_3_uniformity_bounds_repulsion(promise: Promise) -> None:
    """log E_p e^{s/τ} + KL(π⁻‖p) ≥ E_π[s]/τ, with equality iff t⁻ = 1/(2τ)."""
    tau, m = 0.25, 9
    pos, neg = similarities(m=m)
    uniform = torch.logsumexp(neg / tau, 1) - math.log(m)
    for t_neg in (0.5, 1 / (2 * tau), 5.0):
        weight = torch.softmax(2 * t_neg * neg, 1)
        kl = (weight * (weight * m).log()).sum(1)
        repulsion = cacr(from_similarities(pos, neg), t_neg=t_neg, cost="inner", attract_weight=0.0, reduction="none")
        gap = uniform - repulsion / tau + kl
        assert (gap >= -1e-14).all()
        assert bool((gap < 1e-12).all()) == (t_neg == 1 / (2 * tau))
        promise.case()


def test_lemma_4_2_corrected(promise: Promise) -> None:
    """With d = c and t⁻ = 1: L_CR = -H(X⁻|X) - E_π ln p + E ln Z, p uniform over the m - 1 negatives."""
    pos, neg = similarities(m=9)
    weight = torch.softmax(2 * neg, 1)
    entropy = -(weight * weight.log()).sum(1)
    log_z = torch.logsumexp(-(2 - 2 * neg) - math.log(9), 1)
    ours = cacr(from_similarities(pos, neg), t_neg=1.0, attract_weight=0.0, reduction="none")
    close(promise, ours, -entropy + math.log(9) + log_z)
    assert (entropy <= math.log(9)).all()


def test_the_moco_form_stops_gradients_to_keys_and_weights(promise: Promise) -> None:
    q, k, rows = randn(4, 3).requires_grad_(), randn(3, 4, 3).requires_grad_(), randn(7, 3).requires_grad_()
    cacr(queue(q, k, rows, batch=True)).backward()
    assert q.grad is not None
    assert k.grad is None
    assert rows.grad is None
    # π⁺ stopped: the pull on each positive is exactly its weight times ∂c/∂s.
    pos, neg = similarities(k=3)
    pairs = from_similarities(pos, neg)
    (pull,) = penalties(cacr(pairs, t_pos=1.0, stop_positive_weights=True, reduction="none"), pos)
    close(promise, pull, -2 * torch.softmax(2 - 2 * pos, 1))


# --- balanced -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("alpha", [1.0, 2.0, 8.0])
def test_balanced_with_weight_one(alpha: float, promise: Promise) -> None:
    pairs = two_views(randn(6, 4), randn(6, 4))
    plain, decoupled = nt_xent(pairs, temperature=1 / alpha), dcl(pairs, temperature=1 / alpha)
    close(promise, generalized_nt_xent(pairs, alpha=alpha, weight=1.0), plain / alpha)
    close(promise, balanced(pairs, alpha=alpha, weight=1.0), decoupled / alpha)
    close(promise, generalized_nt_xent(pairs, alpha=alpha, weight=1.0, scale_by_alpha=True), plain)


def test_balanced_gradients(promise: Promise) -> None:
    pos, neg = similarities()
    pairs = from_similarities(pos, neg)
    pull, push = penalties(balanced(pairs, alpha=3.0, weight=2.0, reduction="none"), pos, neg)
    close(promise, pull, torch.full_like(pull, -1.0))
    close(promise, push, 2 * torch.softmax(3 * neg, 1))
    pull, push = penalties(generalized_nt_xent(pairs, alpha=3.0, weight=2.0, reduction="none"), pos, neg)
    p = torch.softmax(3 * torch.cat([pos, neg], 1), 1)
    close(promise, pull, -1 + 2 * p[:, :1])
    close(promise, push.sum(1), 2 * (1 - p[:, 0]))


def test_lemma_a_1_log_sum_exp_is_nearly_the_maximum(promise: Promise) -> None:
    pos, neg = similarities(m=9)
    repulsion = triplet(from_similarities(pos - 5, neg), reduction="none") + pos[:, 0] - 5  # max_k s_k
    for alpha in (1.0, 10.0, 1000.0):
        soft = balanced(from_similarities(pos, neg), alpha=alpha, weight=1.0, reduction="none") + pos[:, 0]
        assert (soft >= repulsion - 1e-12).all()
        assert (soft <= repulsion + math.log(9) / alpha + 1e-12).all()
        promise.case()


def attracting_gap(f: Tensor, views_of_f: Tensor) -> Tensor:
    mean = views_of_f.mean(0)
    gap: Tensor = f @ mean / mean.norm() - (views_of_f @ f).mean()
    return gap


def test_theorem_4_4(promise: Promise) -> None:
    """-cos(f, E f_T) ≤ -E cos(f, f_T) where f·E f_T ≥ 0; the gap is f·μ(1/‖μ‖ - 1)."""
    for _ in range(200):
        f, samples = normalize(randn(4), dim=0), normalize(randn(7, 4), dim=1)
        mean, gap = samples.mean(0), attracting_gap(f, samples)
        close(promise, gap, f @ mean * (1 / mean.norm() - 1))
        assert gap >= -1e-15 or f @ mean < 0


def repelling_sides(f: Tensor, classes: list[Tensor], own: Tensor, alpha: float) -> tuple[float, float, float, float]:
    """Return left side, printed right side, corrected right side and max f·μ of Theorem 4.6 (one draw of T')."""
    means = [c.mean(0) for c in classes]
    left = max(float(f @ mu / mu.norm()) for mu in means)
    nu = min(float(mu.norm()) for mu in means)
    # The expectation over images with equally likely classes, as in the theorem's proof.
    inside = torch.stack([torch.exp(alpha * (c @ f)).mean() for c in [*classes, own]]).mean()
    bound = float(inside.log()) / alpha + math.log(len(classes) + 1) / alpha
    return left, bound / nu, max(bound, bound / nu), max(float(f @ mu) for mu in means)


def test_theorem_4_6_holds_corrected(promise: Promise) -> None:
    for _ in range(500):
        f = normalize(randn(3), dim=0)
        classes = [normalize(randn(3) + 0.5 * randn(4, 3), dim=1) for _ in range(3)]
        left, printed, corrected, closest = repelling_sides(f, classes[:2], classes[2], alpha=5.0)
        assert left <= corrected + 1e-12
        assert closest < 0 or left <= printed + 1e-12
        promise.case()


def test_the_counter_example_to_theorem_4_6_as_printed(promise: Promise) -> None:
    f = torch.tensor([1.0, 0, 0], dtype=f64)
    a = torch.tensor([[-0.1, math.sqrt(0.99), 0]], dtype=f64)
    side = math.sqrt(1 - 0.0025)
    b = torch.tensor([[-0.05, side, 0], [-0.05, -side, 0]], dtype=f64)
    own = normalize(torch.tensor([[-0.2, 0, 1.0]], dtype=f64), dim=1)
    left, printed, corrected, _ = repelling_sides(f, [a, b], own, alpha=20.0)
    assert left == pytest.approx(-0.100, abs=1e-3)
    assert printed == pytest.approx(-0.648, abs=1e-3)
    assert left > printed  # the theorem as printed is false
    assert left <= corrected
    promise.case()


# --- the four negative sets of the papers --------------------------------------------------------------------------


def test_the_four_negative_sets(promise: Promise) -> None:
    m, rows = 6, randn(20, 4)
    z1, z2 = randn(m, 4), randn(m, 4)

    def count(pairs: Pairs, **choice: object) -> set[float]:
        return set(pairs.reduce(Count(), **choice)[0].tolist())  # type: ignore[arg-type]

    assert count(two_views(z1, z2)) == {2 * m - 2}
    assert count(cross(z1, z2)) == {m - 1}
    assert count(two_views(z1, z2), negatives=other_views()) == {m - 1}
    assert count(queue(z1, z2, rows)) == {20}
    assert count(queue(z1, z2, rows, batch=True)) == {20 + m - 1}
    assert count(bank(z1, torch.arange(m), rows)) == {19}
    both = (nt_xent(cross(z1, z2)) + nt_xent(cross(z2, z1))) / 2
    close(promise, nt_xent(two_views(z1, z2), negatives=other_views()), both)
    close(promise, cmc(two_views(z1, z2), temperature=0.5), both)
