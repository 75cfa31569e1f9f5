"""Lemma A.1 and Theorems 4.4 and 4.6 of the balanced-loss paper, checked on random embeddings without training."""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import cache
from itertools import product
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity, normalize

from contrapose.lab.report.document import Block, Chart, Series, points
from contrapose.lab.studies.claims import computed_claim
from contrapose.lab.studies.random_trials import (
    NO_PROOF,
    ROUNDING,
    draw_unit_vectors,
    is_always_zero,
    is_never_negative,
    seeded,
)
from contrapose.lab.studies.results import Results
from contrapose.lab.studies.study import Study
from contrapose.losses import balanced
from contrapose.metrics import attraction_gap, repulsion_gap
from contrapose.pairs import from_similarities

# Lemma A.1: the repulsion of the balanced loss is nearly the largest similarity.

_ALPHAS = (0.1, 0.5, 1.0, 2.0, 8.0, 32.0, 128.0, 1000.0)


def _soft_maximum(negatives: Tensor, alpha: float) -> Tensor:
    """Return (1/α) log Σ e^{αs} of each row: the balanced loss if the positive's similarity is 0."""
    pairs = from_similarities(negatives.new_zeros(len(negatives), 1), negatives)
    return balanced(pairs, alpha=alpha, weight=1.0, reduction="none")


@cache
def _soft_maximum_trials() -> tuple[tuple[float, Tensor, Tensor], ...]:
    """Return α, the excess of the soft maximum over the maximum, and its bound (log n)/α, for 50 rows of n similarities."""
    trials = []
    for seed, (width, count, alpha) in enumerate(product((2, 16, 128), (2, 10, 500), _ALPHAS)):
        generator = seeded(seed // len(_ALPHAS))  # the same similarities at every α
        anchors, rows = draw_unit_vectors(generator, 50, width), draw_unit_vectors(generator, count, width)
        similarities = anchors @ rows.T
        excess = _soft_maximum(similarities, alpha) - similarities.amax(1)
        trials.append((alpha, excess, torch.full_like(excess, math.log(count) / alpha)))
    return tuple(trials)


def _excess_falls(results: Results) -> tuple[bool, str]:
    excess = torch.stack([excess for _, excess, _ in _soft_maximum_trials()]).view(-1, len(_ALPHAS), 50)
    last = float(excess[:, -1].max())
    evidence = f"{len(excess) * 50} trials; at most {last:.4f} above the maximum at α = {_ALPHAS[-1]:g}"
    return bool((excess.diff(dim=1) < ROUNDING).all()) and last < 0.01, evidence


def _show_soft_maximum(study: Study, results: Results) -> list[Block]:
    """Return the soft maximum between its limits, against α."""
    generator = seeded(0)
    similarities = draw_unit_vectors(generator, 1, 16) @ draw_unit_vectors(generator, 10, 16).T
    alphas = tuple(10 ** (k / 10) for k in range(31))
    largest = float(similarities.max())
    soft = tuple(float(_soft_maximum(similarities, alpha)) for alpha in alphas)
    series = (
        Series("max + (log n)/α", alphas, tuple(largest + math.log(10) / alpha for alpha in alphas)),
        Series("(1/α) log Σ exp(αs)", alphas, soft),
        Series("max", alphas, tuple(largest for _ in alphas)),
    )
    title = "The largest of ten random similarities, and its smooth approximation"
    return [Chart(title=title, x="α", y="similarity", series=series, log_x=True)]


# Theorem 4.4: the attracting bound.


class _Attraction(NamedTuple):
    """A trial of Theorem 4.4."""

    slack: float  # slack of the bound, as contrapose computes it
    expected: float  # the same slack from the formula: -E_T cos(f, f_T) + cos(f, E_T f_T)
    cosine: float  # fᵀμ: Assumption 4.3 is fᵀμ ≥ 0
    length: float  # ‖μ‖ of the mean of the draws


@cache
def _attraction_trials() -> tuple[_Attraction, ...]:
    trials = []
    settings = product((2, 8, 128), (2, 10), (0.0, 0.2, 0.5, 1.0, 3.0), (0.0, 1.0), range(15))
    for seed, (width, count, concentration, nearness, _) in enumerate(settings):
        generator = seeded(seed)
        draws = draw_unit_vectors(generator, count, 1, width, concentration=concentration)
        f = draw_unit_vectors(generator, 1, width, concentration=nearness * concentration)
        mean = draws.mean(0)
        expected = cosine_similarity(f, mean) - cosine_similarity(f, draws, dim=-1).mean(0)
        trials.append(
            _Attraction(
                slack=attraction_gap(f, draws).gap,
                expected=float(expected),
                cosine=float((f * mean).sum()),
                length=float(mean.norm()),
            )
        )
    return tuple(trials)


def _attraction_slack(*, assumed: bool) -> Tensor:
    """Return the slack in the trials that satisfy Assumption 4.3, or in those that violate it."""
    slack = [trial.slack for trial in _attraction_trials() if (trial.cosine >= 0) == assumed]
    return torch.tensor(slack, dtype=torch.float64)


def _needs_the_assumption(results: Results) -> tuple[bool, str]:
    slack = _attraction_slack(assumed=False)
    return bool((slack < ROUNDING).all()), f"{len(slack)} trials with fᵀμ < 0, largest slack {float(slack.max()):.1e}"


def _show_attraction(study: Study, results: Results) -> list[Block]:
    """Return the gap against the length of the mean, with and without Assumption 4.3."""
    trials = _attraction_trials()
    series = (
        points("fᵀμ ≥ 0", [(t.length, t.slack) for t in trials if t.cosine >= 0], points=True),
        points("fᵀμ < 0", [(t.length, t.slack) for t in trials if t.cosine < 0], points=True),
        points("largest possible: 1 - ‖μ‖", [(0.0, 1.0), (1.0, 0.0)], printed=True),
    )
    title = "Gap of the attracting bound: fᵀμ(1/‖μ‖ - 1)"
    return [Chart(title=title, x="‖μ‖, length of the mean of the draws", y="bound - left side", series=series)]


# Theorem 4.6: the repelling bound.


class _Repulsion(NamedTuple):
    """A trial of Theorem 4.6."""

    alpha: float
    nearest: float  # max fᵀμ over the means of the other classes; the proof needs it to be at least 0
    corrected: float  # slack of the corrected bound
    printed: float  # slack of the printed bound


def _repulsion(f: Tensor, rows: Tensor, labels: Tensor, alpha: float) -> _Repulsion:
    """Return the trial of an anchor f (1, d) of class 0."""
    gap = repulsion_gap(f, labels.new_zeros(1), rows, labels, alpha=alpha)
    means = [rows[labels == label].mean(0) for label in labels.unique().tolist() if label != 0]
    nearest = max(float(f[0] @ mean) for mean in means)
    return _Repulsion(alpha=alpha, nearest=nearest, corrected=gap.gap, printed=gap.printed)


def counter_example() -> tuple[Tensor, Tensor, Tensor, float]:
    """Return an anchor, embeddings, classes and α for which Theorem 4.6 as printed is false.

    The means of both other classes point away from the anchor, and the second mean is short: ν = 0.05.
    """
    f = torch.tensor([[1.0, 0.0, 0.0]], dtype=torch.float64)
    own = [-0.2 / math.sqrt(1.04), 0.0, 1 / math.sqrt(1.04)]
    side = math.sqrt(1 - 0.05**2)
    rows = [own, [-0.1, math.sqrt(0.99), 0.0], [-0.05, side, 0.0], [-0.05, -side, 0.0]]
    return f, torch.tensor(rows, dtype=torch.float64), torch.tensor([0, 1, 2, 2]), 20.0


_REPULSION_ALPHAS = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0)


def _draw_classes(generator: torch.Generator, *, width: int, classes: int, highest: float) -> tuple[Tensor, Tensor]:
    """Return an anchor (1, d) and six embeddings per class, whose similarity to the anchor is between -0.5 and `highest`.

    Some classes are narrow, so that their mean has almost length 1, and some are wide, so that their mean is short.
    """
    similarity = -0.5 + (highest + 0.5) * torch.rand(classes, 1, 1, generator=generator, dtype=torch.float64)
    noise = 4 * torch.rand(classes, 1, 1, generator=generator, dtype=torch.float64)
    centres = draw_unit_vectors(generator, classes, 1, width - 1)
    across = normalize(centres + noise * draw_unit_vectors(generator, classes, 6, width - 1), dim=-1)
    similarity = similarity.expand(classes, 6, 1)
    rows = torch.cat([similarity, (1 - similarity**2).sqrt() * across], dim=-1).flatten(0, 1)
    return torch.eye(width, dtype=torch.float64)[:1], rows


@cache
def _repulsion_trials() -> tuple[_Repulsion, ...]:
    """Return random trials; in half of the trials, all classes point away from the anchor."""
    trials = []
    settings = product((3, 16), (3, 10), (0.0, 0.5), range(15), _REPULSION_ALPHAS)
    for index, (width, classes, highest, _, alpha) in enumerate(settings):
        generator = seeded(index // len(_REPULSION_ALPHAS))  # the same embeddings at every α
        f, rows = _draw_classes(generator, width=width, classes=classes, highest=highest)
        trials.append(_repulsion(f, rows, torch.arange(classes).repeat_interleave(6), alpha))
    return tuple(trials)


def _violations(trials: Iterable[_Repulsion]) -> str:
    """Return how many trials violate the bound as printed, such as "3 of 20"."""
    broken = [trial.printed < -ROUNDING for trial in trials]
    return f"{sum(broken)} of {len(broken)}"


def _printed_bound_holds(results: Results) -> tuple[bool, str]:
    trials, example = _repulsion_trials(), _repulsion(*counter_example())
    evidence = (
        f"violated in {_violations(t for t in trials if t.nearest < 0)} trials with max fᵀμ < 0 and in "
        f"{_violations(t for t in trials if t.nearest >= 0)} others; slack of the counter-example {example.printed:.3f}"
    )
    return all(trial.printed >= -ROUNDING for trial in (*trials, example)), evidence


def _printed_slack_where_assumed() -> Tensor:
    slack = [trial.printed for trial in _repulsion_trials() if trial.nearest >= 0]
    return torch.tensor(slack, dtype=torch.float64)


def _corrected_slack() -> Tensor:
    slack = [trial.corrected for trial in (*_repulsion_trials(), _repulsion(*counter_example()))]
    return torch.tensor(slack, dtype=torch.float64)


def _show_repulsion(study: Study, results: Results) -> list[Block]:
    """Return the slack of both bounds against max fᵀμ, and the share of violations against α."""
    # At small α or ν the slack is up to 100; violations would not be visible at that scale.
    trials = [trial for trial in _repulsion_trials() if trial.corrected < 0.5]
    example = _repulsion(*counter_example())
    scatter = Chart(
        title="Slack of the repelling bound, where it is below 0.5",
        x="max fᵀμ over the other classes",
        y="bound - left side",
        series=(
            points("corrected, max(B, B/ν)", [(t.nearest, t.corrected) for t in trials], points=True),
            points("as printed, B/ν", [(t.nearest, t.printed) for t in trials], points=True),
            points("counter-example, as printed", [(example.nearest, example.printed)]),
            points("0", [(-0.5, 0.0), (0.5, 0.0)], printed=True),
        ),
    )
    shares = []
    for name, assumed in (("max fᵀμ < 0", False), ("max fᵀμ ≥ 0", True)):
        curve = []
        for alpha in _REPULSION_ALPHAS:
            slack = [t.printed for t in _repulsion_trials() if t.alpha == alpha and (t.nearest >= 0) == assumed]
            curve.append((alpha, 100 * sum(s < -ROUNDING for s in slack) / len(slack)))
        shares.append(points(name, curve))
    title = "How often the printed bound is violated"
    return [scatter, Chart(title=title, x="α", y="trials, %", series=tuple(shares), log_x=True)]


THEOREMS = (
    Study(
        name="balanced/lemmaA.1",
        title="The smooth maximum of the repelling component",
        claim="max x ≤ (1/α) log Σ exp(αx) ≤ max x + (log n)/α, and both sides meet as α → ∞.",
        differences=(NO_PROOF,),
        show=_show_soft_maximum,
        claims=(
            is_never_negative(
                "max s ≤ (1/α) log Σ exp(αs)",
                lambda: torch.cat([excess for _, excess, _ in _soft_maximum_trials()]),
            ),
            is_never_negative(
                "(1/α) log Σ exp(αs) ≤ max s + (log n)/α",
                lambda: torch.cat([limit - excess for _, excess, limit in _soft_maximum_trials()]),
            ),
            computed_claim("(1/α) log Σ exp(αs) falls to max s as α grows", _excess_falls),
        ),
        note="The similarities are those of random unit vectors. The paper's equalities at α → ∞ are limits.",
    ),
    Study(
        name="balanced/theorem4.4",
        title="The bound of the attracting component",
        claim="-cos(f, E_T f_T) ≤ -E_T cos(f, f_T) if fᵀE_T f_T ≥ 0.",
        differences=(NO_PROOF,),
        show=_show_attraction,
        claims=(
            is_never_negative("the bound holds where fᵀμ ≥ 0", lambda: _attraction_slack(assumed=True)),
            computed_claim("the inequality is reversed where fᵀμ < 0: Assumption 4.3 is needed", _needs_the_assumption),
            is_always_zero(
                "the gap is fᵀμ(1/‖μ‖ - 1)",
                lambda: torch.tensor([t.slack - t.expected for t in _attraction_trials()], dtype=torch.float64),
            ),
        ),
    ),
    Study(
        name="balanced/theorem4.6",
        title="The bound of the repelling component",
        claim="max cos(f, μ_y') over the other classes is at most B/ν, where B = (1/α) log E exp(α cos(f, f')) + (log n)/α.",
        differences=(NO_PROOF,),
        show=_show_repulsion,
        claims=(
            computed_claim("the bound B/ν holds for any embeddings, as printed", _printed_bound_holds),
            is_never_negative("the bound B/ν holds where max fᵀμ ≥ 0", _printed_slack_where_assumed),
            is_never_negative("the corrected bound max(B, B/ν) holds for any embeddings", _corrected_slack),
        ),
        note="Step (38) of the proof multiplies a number by 1/ν ≥ 1, which lowers it if it is negative: the printed bound "
        "needs max fᵀμ ≥ 0, which the paper does not assume. ν is the length of the shortest mean of another class.",
    ),
)
