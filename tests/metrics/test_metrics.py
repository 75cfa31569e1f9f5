"""Each metric equals a plain loop in float64, takes known values, and rejects input for which it is undefined."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from math import exp, lgamma, log, sqrt

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import ive
from torch import Tensor

from contrapose import metrics

Rows = list[list[float]]


def vectors(n: int = 9, d: int = 4, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    z = torch.randn(n, d, generator=generator, dtype=torch.float64)
    return torch.nn.functional.normalize(z, dim=1)


def dot(a: list[float], b: list[float]) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True))


def distance2(a: list[float], b: list[float]) -> float:
    """The squared Euclidean distance."""
    return sum((x - y) ** 2 for x, y in zip(a, b, strict=True))


def mean(xs: list[float]) -> float:
    return sum(xs) / len(xs)


def mean_row(rows: Rows) -> list[float]:
    return [mean([row[k] for row in rows]) for k in range(len(rows[0]))]


def distinct_pairs(n: int) -> list[tuple[int, int]]:
    return [(i, j) for i in range(n) for j in range(n) if i != j]


Z, OTHER = vectors(), vectors(seed=1)
LABELS = torch.tensor([3, 3, 7, 7, 7, 3, 5, 5, 3])
z, other, labels = Z.tolist(), OTHER.tolist(), LABELS.tolist()
SAME = [(i, j) for i, j in distinct_pairs(9) if labels[i] == labels[j]]


def mean_row_entropy(rows: Rows, t: float) -> float:
    entropies = []
    for i in range(len(rows)):
        e = [exp(-t * distance2(rows[i], rows[j])) for j in range(len(rows)) if j != i]
        entropies.append(-sum(x / sum(e) * log(x / sum(e)) for x in e))
    return mean(entropies)


def class_means() -> list[list[float]]:
    return [mean_row([z[i] for i in range(9) if labels[i] == c]) for c in sorted(set(labels))]


@pytest.mark.parametrize(
    ("computed", "expected"),
    [
        (lambda: metrics.uniformity(Z), lambda: log(mean([exp(-2 * distance2(z[i], z[j])) for i, j in distinct_pairs(9)]))),
        (lambda: metrics.uniformity(Z, t=3.5, include_self=True),
         lambda: log(mean([exp(-3.5 * distance2(a, b)) for a in z for b in z]))),
        (lambda: metrics.tolerance(Z, LABELS), lambda: mean([dot(z[i], z[j]) for i, j in SAME])),
        (lambda: metrics.tolerance(Z, LABELS, include_self=True),
         lambda: mean([dot(z[i], z[j]) for i, j in SAME] + [1.0] * 9)),
        (lambda: metrics.alignment(Z, OTHER), lambda: mean([distance2(a, b) for a, b in zip(z, other, strict=True)])),
        (lambda: metrics.alignment(Z, labels=LABELS, kind="class"), lambda: mean([distance2(z[i], z[j]) for i, j in SAME])),
        (lambda: metrics.alignment(Z, kind="all"), lambda: mean([distance2(z[i], z[j]) for i, j in distinct_pairs(9)])),
        (lambda: metrics.interclass_uniformity(Z, LABELS, t=1.5),
         lambda: log(mean([exp(-1.5 * distance2(class_means()[a], class_means()[b])) for a, b in distinct_pairs(3)]))),
        (lambda: metrics.conditional_entropy(Z, t_neg=0.9), lambda: mean_row_entropy(z, 0.9)),
        (lambda: metrics.conditional_entropy(Z, t_neg=2.0, batch=4), lambda: mean([mean_row_entropy(z[:4], 2.0), mean_row_entropy(z[4:8], 2.0)])),
        (lambda: metrics.feature_std(Z), lambda: 2 * mean(
            [sqrt(mean([(row[k] - mean_row(z)[k]) ** 2 for row in z])) for k in range(4)])),
        (lambda: metrics.prototype_bias_single(Z, OTHER),
         lambda: mean([sqrt(distance2(a, b)) for a, b in zip(z, other, strict=True)])),
    ],
)  # fmt: skip
def test_metric_equals_a_plain_loop(computed: Callable[[], float], expected: Callable[[], float]) -> None:
    assert computed() == pytest.approx(expected(), rel=1e-12, abs=1e-13)


def test_local_separation_equals_a_plain_loop() -> None:
    index = torch.tensor([4, 0, 8])
    separation = metrics.local_separation(OTHER[:3], Z, index, nearest=5)
    ranked = [
        sorted((dot(other[i], z[j]) for j in range(9) if j != own), reverse=True) for i, own in enumerate([4, 0, 8])
    ]
    positive = mean([dot(other[i], z[own]) for i, own in enumerate([4, 0, 8])])
    assert separation.positive == pytest.approx(positive, rel=1e-12)
    assert separation.nearest == pytest.approx([mean([row[k] for row in ranked]) for k in range(5)], rel=1e-12)
    assert separation.gap == separation.positive - separation.nearest[0]


def test_histograms_equal_plain_loops() -> None:
    histograms = metrics.similarity_histograms(Z, OTHER, LABELS, bins=8)
    groups: dict[str, list[float]] = {"tp": [], "fn": [], "tn": []}
    for i in range(9):
        for j in range(9):
            kind = "tp" if i == j else "fn" if labels[i] == labels[j] else "tn"
            groups[kind].append(dot(z[i], other[j]))
    densities = (histograms.true_positive, histograms.false_negative, histograms.true_negative)
    for density, values, average in zip(densities, groups.values(), histograms.means, strict=True):
        counts = [sum(-1 + k / 4 <= s < -1 + (k + 1) / 4 for s in values) for k in range(8)]
        assert density.tolist() == pytest.approx([c / len(values) * 4 for c in counts])
        assert float(density.sum()) * 2 / 8 == pytest.approx(1)
        assert average == pytest.approx(mean(values), rel=1e-12)


def test_prototype_bias_equals_a_plain_loop() -> None:
    draws = torch.stack([Z, OTHER, vectors(seed=2)])
    rows = draws.tolist()
    image = [mean_row([draw[i] for draw in rows]) for i in range(9)]
    prototype = {c: mean_row([image[i] for i in range(9) if labels[i] == c]) for c in set(labels)}
    expected = mean([sqrt(distance2(prototype[labels[i]], image[i])) for i in range(9)])
    assert metrics.prototype_bias_means(draws, LABELS) == pytest.approx(expected, rel=1e-12)
    from_rows = {c: mean_row([z[i] for i in range(9) if labels[i] == c]) for c in set(labels)}
    expected = mean([sqrt(distance2(from_rows[labels[i]], image[i])) for i in range(4)])
    bias = metrics.prototype_bias_means(draws[:, :4], LABELS[:4], rows=Z, row_labels=LABELS)
    assert bias == pytest.approx(expected, rel=1e-12)


def test_single_sample_estimate_of_the_bias_is_larger() -> None:
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(400) % 2
    centre = torch.nn.functional.normalize(torch.randn(2, 8, generator=generator, dtype=torch.float64), dim=1)
    draws = torch.nn.functional.normalize(
        centre[y] + 0.4 * torch.randn(20, 400, 8, generator=generator, dtype=torch.float64), dim=-1
    )
    single = metrics.prototype_bias_single(draws[0], draws[0].roll(2, 0))
    assert single > metrics.prototype_bias_means(draws, y)


def test_attraction_gap_equals_a_plain_loop() -> None:
    draws = torch.stack([OTHER, vectors(seed=2)])
    rows = draws.tolist()
    gaps, outside = [], []
    for i in range(9):
        mu = mean_row([draw[i] for draw in rows])
        mean_cosine = mean([dot(z[i], draw[i]) for draw in rows])
        gaps.append(-mean_cosine + dot(z[i], mu) / sqrt(dot(mu, mu)))
        outside.append(dot(z[i], mu) < 0)
    attraction = metrics.attraction_gap(Z, draws)
    assert attraction.gap == pytest.approx(mean(gaps), rel=1e-12)
    assert attraction.outside == pytest.approx(sum(outside) / 9)


def test_repulsion_gap_equals_a_plain_loop() -> None:
    printed, corrected = [], []
    classes = sorted(set(labels))
    for i in range(9):
        members = {c: [other[j] for j in range(9) if labels[j] == c] for c in classes}
        mu = {c: mean_row(members[c]) for c in classes if c != labels[i]}
        largest_cosine = max(dot(z[i], m) / sqrt(dot(m, m)) for m in mu.values())
        nu = min(sqrt(dot(m, m)) for m in mu.values())
        b = (log(mean([mean([exp(2.5 * dot(z[i], x)) for x in members[c]]) for c in classes])) + log(3)) / 2.5
        printed.append(b / nu - largest_cosine)
        corrected.append(max(b, b / nu) - largest_cosine)
    repulsion = metrics.repulsion_gap(Z, LABELS, OTHER, LABELS, alpha=2.5)
    assert repulsion.printed == pytest.approx(mean(printed), rel=1e-12)
    assert repulsion.gap == pytest.approx(mean(corrected), rel=1e-12)


def test_known_values() -> None:
    antipodal = torch.tensor([[1.0, 0.0], [-1.0, 0.0]], dtype=torch.float64)
    assert metrics.uniformity(antipodal, t=2.0) == pytest.approx(-8)
    assert metrics.effective_rank(torch.eye(6)) == pytest.approx(6)
    assert metrics.effective_rank(torch.ones(5, 4) / 2) == pytest.approx(1)
    assert metrics.conditional_entropy(torch.eye(7), t_neg=5.0) == pytest.approx(log(6))
    simplex = torch.eye(4, dtype=torch.float64) - 0.25
    simplex = simplex / simplex.norm(dim=1, keepdim=True)
    assert metrics.uniformity(simplex) == pytest.approx(-2 * (2 + 2 / 3))  # all pairs have s = -1/3
    assert metrics.interclass_uniformity(
        torch.cat([simplex, simplex]), torch.tensor([0] * 4 + [1] * 4)
    ) == pytest.approx(0)
    one_point = torch.ones(5, 3) / sqrt(3)
    assert metrics.uniformity(one_point) == pytest.approx(0, abs=1e-6)
    assert metrics.feature_std(one_point) == pytest.approx(0, abs=1e-7)


@pytest.mark.parametrize("noise", [0.0, 1e-8])
def test_values_of_a_collapsed_embedding(noise: float) -> None:
    torch.manual_seed(0)
    y = torch.arange(30) % 3
    z, other = torch.nn.functional.normalize(torch.ones(2, 30, 8) + noise * torch.randn(2, 30, 8), dim=2)
    assert metrics.feature_std(z) == pytest.approx(0, abs=1e-6)
    assert metrics.effective_rank(z) == pytest.approx(1, abs=1e-4)
    for zero in (metrics.uniformity(z), metrics.interclass_uniformity(z, y), metrics.alignment(z, other)):
        assert zero == pytest.approx(0, abs=1e-5)
    assert metrics.tolerance(z, y) == pytest.approx(1, abs=1e-5)
    assert metrics.conditional_entropy(z) == pytest.approx(log(29), abs=1e-5)
    assert metrics.local_separation(z, other).gap == pytest.approx(0, abs=1e-5)
    assert metrics.similarity_histograms(z, other, y).means == pytest.approx((1, 1, 1))
    assert metrics.repulsion_gap(z, y, other, y).gap == pytest.approx(log(3) / 2, abs=1e-5)
    assert metrics.attraction_gap(z, other[None]).gap == pytest.approx(0, abs=1e-5)


@pytest.mark.parametrize("distance", [1e-1, 1e-2, 1e-3, 1e-4, 1e-5])
def test_alignment_of_nearly_coincident_embeddings_is_exact(distance: float) -> None:
    centres = vectors(3, 8).repeat_interleave(4, 0)
    rows = (centres + distance * vectors(12, 8, seed=1)).float()
    y = torch.arange(12) // 4
    exact = torch.nn.functional.normalize(rows.double(), dim=1)
    pairs = [(i, j) for i, j in distinct_pairs(12) if y[i] == y[j]]
    within = mean([distance2(exact[i].tolist(), exact[j].tolist()) for i, j in pairs])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the rows are not quite unit vectors
        tolerance = max(1e-6, 1e-7 / distance)
        assert metrics.alignment(rows, labels=y, kind="class") == pytest.approx(within, rel=tolerance)
        assert metrics.alignment(rows[:4], kind="all") == pytest.approx(
            mean([distance2(exact[i].tolist(), exact[j].tolist()) for i, j in distinct_pairs(4)]), rel=tolerance
        )
        assert metrics.alignment(rows[:4], rows[[1, 2, 3, 0]]) == pytest.approx(
            mean([distance2(exact[i].tolist(), exact[(i + 1) % 4].tolist()) for i in range(4)]), rel=tolerance
        )


def test_values_on_a_uniform_sphere() -> None:
    for d in (2, 3, 16, 128):
        # Wang & Isola's closed form with a Bessel function; ive returns I · e^{-2t}, hence + 2t.
        t = 2.0
        bessel = lgamma(d / 2) - (d / 2 - 1) * log(t) + log(ive(d / 2 - 1, 2 * t)) + 2 * t
        assert metrics.uniformity_limit(d, t=t) == pytest.approx(bessel - 2 * t, rel=1e-10)
    sphere = vectors(4000, 16, seed=5)
    assert metrics.uniformity(sphere) == pytest.approx(metrics.uniformity_limit(16), abs=5e-3)
    assert metrics.feature_std(sphere) == pytest.approx(1, abs=0.01)
    assert metrics.uniformity_limit(128) == pytest.approx(-3.9375, abs=5e-5)


@given(st.integers(0, 10**6), st.integers(4, 30), st.integers(2, 6), st.integers(2, 5))
def test_identities_and_inequalities(seed: int, n: int, d: int, classes: int) -> None:
    rows = vectors(n, d, seed)
    y = torch.arange(n) % classes
    if n > classes:
        assert metrics.tolerance(rows, y) == pytest.approx(
            1 - metrics.alignment(rows, labels=y, kind="class") / 2, abs=1e-12
        )
        assert -1 <= metrics.tolerance(rows, y) <= 1
    assert metrics.uniformity(rows) >= -2 * metrics.alignment(rows, kind="all") - 1e-12  # Jensen
    assert metrics.conditional_entropy(rows) <= log(n - 1) + 1e-12
    assert 1 - 1e-9 <= metrics.effective_rank(rows) <= min(n, d) + 1e-9


def test_bounds_hold_on_random_encoders() -> None:
    printed_violations = 0
    for seed in range(200):
        f, rows = vectors(20, 5, seed), vectors(60, 5, seed + 1000)
        y, row_y = torch.arange(20) % 4, torch.arange(60) % 4
        repulsion = metrics.repulsion_gap(f, y, rows, row_y, alpha=1.0 + seed % 20)
        assert repulsion.broken == 0
        printed_violations += repulsion.printed_broken > 0
        if repulsion.outside == 0:
            assert repulsion.printed_broken == 0
        noisy = f + 0.5 * vectors(20, 5, seed + 1)
        draws = torch.nn.functional.normalize(torch.stack([noisy, f]), dim=-1)
        attraction = metrics.attraction_gap(f, draws)
        assert attraction.outside > 0 or attraction.gap >= 0
    assert printed_violations < 200


def counter_example() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """An encoder for which Lee's Theorem 4.6 as printed is false: every class mean points away from f."""
    f = torch.tensor([[1.0, 0, 0]], dtype=torch.float64)
    rows = [
        [-0.1, sqrt(0.99), 0],
        [-0.05, sqrt(0.9975), 0],
        [-0.05, -sqrt(0.9975), 0],
        [-0.2 / sqrt(1.04), 0, 1 / sqrt(1.04)],
    ]
    return f, torch.tensor([2]), torch.tensor(rows, dtype=torch.float64), torch.tensor([0, 1, 1, 2])


def test_counter_example_to_the_printed_bound() -> None:
    repulsion = metrics.repulsion_gap(*counter_example(), alpha=20.0)
    assert repulsion.printed_broken == 1
    assert repulsion.printed == pytest.approx(-0.648 + 0.100, abs=1e-3)
    assert repulsion.broken == 0
    assert repulsion.gap > 0
    assert repulsion.outside == 1


ONE_ZERO = torch.tensor([[1.0, 0.0], [0.0, 0.0]])
GOOD, TWO_CLASSES = torch.eye(4), torch.tensor([0, 0, 1, 1])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: metrics.uniformity(GOOD[:1]), "z: expected at least 2 embeddings, got 1"),
        (lambda: metrics.uniformity(ONE_ZERO), "z: embedding 1 is zero and has no direction"),
        (lambda: metrics.uniformity(GOOD * float("nan")), "z: embedding 0 is not finite"),
        (lambda: metrics.uniformity([[1.0, 0.0]]), "z: expected a tensor of embeddings, got list"),  # type: ignore[arg-type]
        (lambda: metrics.uniformity(GOOD, t=0.0), "t: expected a number above 0"),
        (lambda: metrics.tolerance(GOOD, None), "labels: tolerance needs a label for each embedding, got None"),
        (lambda: metrics.tolerance(GOOD, torch.zeros(4, dtype=torch.long)), "needs at least 2 classes, but all labels are 0"),
        (lambda: metrics.tolerance(GOOD, torch.arange(4)), "needs a class with at least two embeddings"),
        (lambda: metrics.tolerance(GOOD, TWO_CLASSES[:3]), "labels: expected one integer per image"),
        (lambda: metrics.interclass_uniformity(GOOD, torch.ones(4, dtype=torch.long)), "needs at least 2 classes"),
        (lambda: metrics.alignment(GOOD), "positive: expected the second view of each image"),
        (lambda: metrics.alignment(GOOD, GOOD[:2]), "positive: expected the shape of z"),
        (lambda: metrics.alignment(GOOD, kind="close"), "kind: expected one of"),
        (lambda: metrics.local_separation(GOOD, GOOD), "nearest: expected at most 3, the number of other rows, got 10"),
        (lambda: metrics.similarity_histograms(GOOD, GOOD, None), "telling false negatives from true negatives needs a label"),
        (lambda: metrics.similarity_histograms(GOOD, GOOD, torch.arange(4)), "labels: expected a class with at least two images"),
        (lambda: metrics.conditional_entropy(GOOD, batch=5), "batch: expected at most 4, the number of embeddings, got 5"),
        (lambda: metrics.repulsion_gap(3 * GOOD, TWO_CLASSES, GOOD, TWO_CLASSES), "anchor: expected unit vectors, got lengths from 3 to 3"),
        (lambda: metrics.repulsion_gap(GOOD, TWO_CLASSES + 5, GOOD, TWO_CLASSES), "labels: expected only classes that occur in row_labels"),
        (lambda: metrics.attraction_gap(GOOD, GOOD[None, :2]), r"draws: expected \(R, n, d\)"),
        (lambda: metrics.prototype_bias_means(GOOD[None], None), "labels: prototype bias needs a label"),
    ],
)  # fmt: skip
def test_undefined_input_is_rejected(call: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


def test_other_lengths_are_normalised_with_a_warning() -> None:
    with pytest.warns(
        UserWarning, match=r"z: expected unit vectors, got lengths from 3 to 3; the metric normalises them"
    ):
        normalised = metrics.uniformity(3 * Z)
    assert normalised == pytest.approx(metrics.uniformity(Z))
    with pytest.warns(UserWarning, match="lengths from 3e"):  # whose squares overflow in float32
        normalised = metrics.uniformity(3e25 * Z.float())
    assert normalised == pytest.approx(metrics.uniformity(Z), rel=1e-5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        metrics.uniformity(Z.bfloat16())  # lengths within the rounding of bf16


def test_block_size_does_not_change_the_result() -> None:
    from contrapose.reduce import memory

    rows, y = vectors(301, 7, 3), torch.arange(301) % 3
    whole = metrics.uniformity(rows), metrics.local_separation(rows, rows), metrics.conditional_entropy(rows)
    with memory(block=1000, kept=0):
        parts = metrics.uniformity(rows), metrics.local_separation(rows, rows), metrics.conditional_entropy(rows)
    assert parts[0] == pytest.approx(whole[0], rel=1e-13)
    assert parts[1].nearest == pytest.approx(whole[1].nearest, rel=1e-13)
    assert parts[2] == pytest.approx(whole[2], rel=1e-13)
    assert metrics.tolerance(rows, y) == pytest.approx(1 - metrics.alignment(rows, labels=y, kind="class") / 2)
