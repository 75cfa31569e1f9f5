"""Property 1 and Lemmas 4.1 to 4.3 of the CACR paper, checked on random embeddings without training.

The losses are computed by the library's own objectives. An image's negatives are the other images' same views, as printed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from functools import cache
from itertools import product
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import normalize

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
from contrapose.losses import cacr, dcl
from contrapose.metrics import conditional_entropy
from contrapose.pairs import same_view, two_views, views

# Property 1 and Lemma 4.1: attraction. `z` (V, m, d) are V views of m images, so that each view has K = V - 1 positives.

_T_POS = (0.0, 0.5, 1.0, 3.0)


def _draw_views(seed: int, *, count: int, width: int, noise: float, images: int = 8) -> Tensor:
    """Return views of random images; the views of an image differ by noise of the given length."""
    generator = seeded(seed)
    centre = draw_unit_vectors(generator, images, width)
    return normalize(centre + noise * draw_unit_vectors(generator, count, images, width), dim=-1)


def _attraction(z: Tensor, t_pos: float, *, cost: str = "euclidean", weights: str = "contrast") -> Tensor:
    """Return CA of each view of each image."""
    return cacr(views(z), t_pos=t_pos, cost=cost, attraction=weights, repel_weight=0.0, reduction="none")


def _positive_costs(z: Tensor) -> Tensor:
    """Return ‖x - x⁺‖² of each view and its K positives, (V·m, K), in the order of `_attraction`."""
    count = len(z)
    costs = (z[:, None] - z[None]).square().sum(-1)  # (V, V, m)
    others = [[w for w in range(count) if w != v] for v in range(count)]
    return torch.stack([costs[v, others[v]] for v in range(count)]).movedim(1, 2).flatten(0, 1)


def _view_trials(noises: tuple[float, ...]) -> Iterator[tuple[Tensor, float]]:
    """Yield views and t⁺."""
    settings = product((2, 3, 5), (2, 32), noises, _T_POS)
    for seed, (count, width, noise, t_pos) in enumerate(settings):
        yield _draw_views(seed, count=count, width=width, noise=noise), t_pos


def _smallest_attraction() -> Tensor:
    return torch.cat([_attraction(z, t_pos) for z, t_pos in _view_trials((0.0, 0.01, 0.3, 1.0, 3.0))])


def _attraction_of_coinciding_views() -> Tensor:
    return torch.cat([_attraction(z, t_pos) for z, t_pos in _view_trials((0.0,))])


def _attraction_above_largest_cost() -> Tensor:
    """Return CA minus 1/K of the largest cost of a positive."""
    slack = []
    for z, t_pos in _view_trials((0.01, 0.3, 1.0, 3.0)):
        slack.append(_attraction(z, t_pos) - _positive_costs(z).amax(1) / (len(z) - 1))
    return torch.cat(slack)


def _show_turned_view(study: Study, results: Results) -> list[Block]:
    """Return a chart of a query's CA over the angle by which one of its four positives is turned away."""
    degrees = torch.linspace(0, 180, 61, dtype=torch.float64)
    angle = degrees.deg2rad()
    # One image per angle, in two dimensions: the query and three positives coincide, the fourth is turned.
    z = torch.tensor([1.0, 0.0], dtype=torch.float64).expand(5, len(angle), 2).clone()
    z[4] = torch.stack([angle.cos(), angle.sin()], dim=1)
    curves = {f"t⁺ = {t:g}": _attraction(z, t)[: len(angle)] for t in (0.0, 0.5, 1.0, 3.0)}
    curves["t⁺ = 1, π⁺ reversed"] = _attraction(z, 1.0, weights="reversed")[: len(angle)]
    series = tuple(Series(name, tuple(degrees.tolist()), tuple(curve.tolist())) for name, curve in curves.items())
    title = "One of four positives is turned away from the query"
    return [Chart(title=title, x="angle, degrees", y="contrastive attraction CA", series=series)]


def _importance_difference() -> Tensor:
    """Return CA with the cost -s minus E_p[-s π⁺/p], where p gives each positive the same probability."""
    differences = []
    for z, t_pos in _view_trials((0.01, 0.3, 1.0, 3.0)):
        cost = _positive_costs(z)
        p = 1 / cost.shape[1]
        importance = torch.softmax(t_pos * cost, dim=1) / p
        expected = ((cost / 2 - 1) * importance).mean(1)  # -s = c/2 - 1 for unit vectors
        differences.append(_attraction(z, t_pos, cost="inner") - expected)
    return torch.cat(differences)


def _above_alignment(z: Tensor, t_pos: float) -> Tensor:
    """Return CA minus the alignment loss, both with the cost -s."""
    return _attraction(z, t_pos, cost="inner") - _attraction(z, t_pos, cost="inner", weights="uniform")


def _reduces_to_alignment(results: Results) -> tuple[bool, str]:
    # With one positive, π⁺ = p = 1 at any t⁺, so the trials have two or four positives.
    trials = [(t_pos, _above_alignment(z, t_pos)) for z, t_pos in _view_trials((0.3, 1.0, 3.0)) if len(z) > 2]
    equal = torch.cat([difference.abs() for t_pos, difference in trials if t_pos == 0])
    unequal = torch.stack([difference.mean() for t_pos, difference in trials if t_pos > 0])
    evidence = (
        f"{len(equal)} trials with t⁺ = 0, largest difference {float(equal.max()):.1e}; {len(unequal)} batches with "
        f"t⁺ > 0, smallest difference {float(unequal.min()):.1e}"
    )
    return bool((equal < ROUNDING).all() and (unequal > ROUNDING).all()), evidence


def _show_above_alignment(study: Study, results: Results) -> list[Block]:
    """Return a chart of CA minus the alignment loss over t⁺, for views that differ a little or a lot."""
    t_values = tuple(0.2 * k for k in range(21))
    series = []
    for noise in (0.3, 0.5, 1.0, 3.0):
        z = _draw_views(0, count=5, width=16, noise=noise, images=32)
        cosine = 1 - float(_positive_costs(z).mean()) / 2
        gap = tuple(float(_above_alignment(z, t).mean()) for t in t_values)
        series.append(Series(f"mean similarity of positives {cosine:.2f}", t_values, gap))
    title = "Contrastive attraction of four positives above the alignment loss, cost -s"
    return [Chart(title=title, x="t⁺", y="CA - alignment loss", series=tuple(series))]


# Lemmas 4.2 and 4.3: repulsion. `z` (m, d) are embeddings that are each other's negatives, with equal probability p.


def _log_mean_exp(z: Tensor, tau: float) -> float:
    """Return the mean over i of log mean_j e^{s_ij/τ}, which is L_uniform."""
    # DCL is -s⁺/τ + log Σ_j e^{s_ij/τ}, and the positive of z is z itself.
    loss = dcl(two_views(z, z), temperature=tau, negatives=same_view())
    return float(loss) + 1 / tau - math.log(len(z) - 1)


def _repulsion(z: Tensor, t_neg: float, *, cost: str) -> float:
    return float(cacr(two_views(z, z), t_neg=t_neg, cost=cost, attract_weight=0.0, negatives=same_view()))


def _draw_embeddings() -> Iterator[Tensor]:
    """Yield embeddings: uniform on the sphere, gathered on one side, and centred, so that most similarities are < 0."""
    for seed, (width, count) in enumerate(product((2, 8, 128), (8, 64))):
        for concentration in (0.0, 0.5, 2.0):
            yield draw_unit_vectors(seeded(seed), count, width, concentration=concentration)
        z = draw_unit_vectors(seeded(seed), count, width)
        yield normalize(z - z.mean(0), dim=1)


class _Entropy(NamedTuple):
    """The terms of Lemma 4.2, with t⁻ = 1, so that the distance d of π⁻ is the cost c."""

    repulsion: float  # L_CR
    entropy: float  # H(X⁻|X)
    log_p: float  # E_π ln p(x⁻)
    log_z: float  # E ln Z(x), Z = E_p e^{-c}

    @property
    def corrected(self) -> float:
        return -self.entropy - self.log_p + self.log_z

    @property
    def printed(self) -> float:
        return -self.entropy + self.log_p - self.log_z


def _entropy_terms(z: Tensor) -> _Entropy:
    # e^{-c} = e^{2s - 2}: the temperature is 1/2.
    return _Entropy(
        repulsion=_repulsion(z, 1.0, cost="euclidean"),
        entropy=conditional_entropy(z, t_neg=1.0),
        log_p=-math.log(len(z) - 1),
        log_z=_log_mean_exp(z, 0.5) - 2,
    )


@cache
def _entropy_trials() -> tuple[_Entropy, ...]:
    return tuple(_entropy_terms(z) for z in _draw_embeddings())


def _show_entropy_terms(study: Study, results: Results) -> list[Block]:
    """Return both sides of Lemma 4.2, and the entropy, for embeddings from uniform to collapsed."""
    concentrations = tuple(0.1 * k for k in range(41))
    z = [draw_unit_vectors(seeded(0), 128, 8, concentration=c) for c in concentrations]
    # Mean similarity of two embeddings: 0 if they are uniform on the sphere, 1 if all coincide.
    similarity = tuple(float((x @ x.T).sum() - len(x)) / (len(x) * (len(x) - 1)) for x in z)
    terms = [_entropy_terms(x) for x in z]
    sides = Chart(
        title="Lemma 4.2, from uniform to collapsed embeddings (128 in 8 dimensions)",
        x="mean similarity of two embeddings",
        y="nats",
        series=(
            Series("L_CR", similarity, tuple(t.repulsion for t in terms)),
            Series("corrected: -H - E ln p + E ln Z", similarity, tuple(t.corrected for t in terms), points=True),
            Series("printed: -H + E ln p - E ln Z", similarity, tuple(t.printed for t in terms)),
        ),
    )
    entropy = Chart(
        title="Collapsed embeddings have the largest entropy, and the largest L_CR too",
        x="L_CR",
        y="H(X⁻|X), nats",
        series=(
            points("from uniform (left) to collapsed (right)", [(t.repulsion, t.entropy) for t in terms]),
            points("ln(M - 1)", [(t.repulsion, -t.log_p) for t in (terms[0], terms[-1])], printed=True),
        ),
    )
    return [sides, entropy]


class _Bound(NamedTuple):
    """A trial of Lemma 4.3."""

    ratio: float  # t⁻ / (1/(2τ))
    slack: float  # L_uniform + I - L_CR/τ
    printed: float  # L_uniform + I - L_CR


def _bounds(z: Tensor, tau: float, t_values: Iterable[float]) -> list[_Bound]:
    """Return both sides of Lemma 4.3 at each t⁻."""
    uniform, bounds = _log_mean_exp(z, tau), []
    for t_neg in t_values:
        # I is the Kullback-Leibler divergence of π⁻ from equal weights.
        left = uniform + math.log(len(z) - 1) - conditional_entropy(z, t_neg=t_neg)
        repulsion = _repulsion(z, t_neg, cost="inner")
        bounds.append(_Bound(ratio=2 * tau * t_neg, slack=left - repulsion / tau, printed=left - repulsion))
    return bounds


@cache
def _bound_trials() -> tuple[_Bound, ...]:
    trials = []
    for z, tau in product(_draw_embeddings(), (0.05, 0.2, 1.0, 2.0)):
        trials += _bounds(z, tau, [ratio / (2 * tau) for ratio in (0.0, 0.9, 1.0, 1.1, 3.0)])
    return tuple(trials)


def _is_equal_at_one_value_only(results: Results) -> tuple[bool, str]:
    equal = [abs(trial.slack) for trial in _bound_trials() if math.isclose(trial.ratio, 1)]
    below, above = (
        [trial.slack for trial in _bound_trials() if math.isclose(trial.ratio, near)] for near in (0.9, 1.1)
    )
    evidence = (
        f"{len(equal)} trials, largest slack {max(equal):.1e}; with t⁻ 10 % lower at least {min(below):.1e}, 10 % "
        f"higher at least {min(above):.1e}"
    )
    return max(equal) < ROUNDING and min(*below, *above) > ROUNDING, evidence


_SHOWN_TAUS = (0.1, 0.2, 0.5, 1.0)


def _show_slack(study: Study, results: Results) -> list[Block]:
    """Return the slack of Lemma 4.3 against t⁻, corrected and as printed."""
    t_values = tuple(0.1 * k for k in range(66))
    spread = draw_unit_vectors(seeded(0), 8, 64)
    z = normalize(spread - spread.mean(0), dim=1)  # centred, like the output of an encoder that has learned to repel
    curves = {tau: _bounds(z, tau, t_values) for tau in _SHOWN_TAUS}
    zeros = points("0, at t⁻ = 1/(2τ)", [(1 / (2 * tau), 0.0) for tau in _SHOWN_TAUS], printed=True)
    corrected = [Series(f"τ = {tau:g}", t_values, tuple(b.slack for b in bounds)) for tau, bounds in curves.items()]
    printed = [Series(f"τ = {tau:g}", t_values, tuple(b.printed for b in bounds)) for tau, bounds in curves.items()]
    zero = points("0", [(t_values[0], 0.0), (t_values[-1], 0.0)], printed=True)
    return [
        Chart(title="Slack of Lemma 4.3", x="t⁻", y="L_uniform + I - L_CR/τ", series=(*corrected, zeros)),
        Chart(title="Slack as printed, without 1/τ", x="t⁻", y="L_uniform + I - L_CR", series=(*printed, zero)),
    ]


THEOREMS = (
    Study(
        name="cacr/property1",
        title="Contrastive attraction is 0 only for coinciding views",
        claim="CA is at least 0, and 0 if and only if all views of an image have the same embedding.",
        differences=(NO_PROOF,),
        show=_show_turned_view,
        claims=(
            is_never_negative("CA ≥ 0", _smallest_attraction),
            is_always_zero("CA = 0 if all views coincide", _attraction_of_coinciding_views),
            is_never_negative(
                "CA is at least a K-th of the largest cost of a positive, so it is 0 only if all views coincide",
                _attraction_above_largest_cost,
            ),
        ),
    ),
    Study(
        name="cacr/lemma4.1",
        title="Contrastive attraction as importance sampling",
        claim="With the cost -s, CA is E_p[-s π⁺/p]; it is the alignment loss if and only if π⁺ = p.",
        differences=(NO_PROOF,),
        show=_show_above_alignment,
        claims=(
            is_always_zero("CA = E_p[-s π⁺/p]", _importance_difference),
            computed_claim("CA is the alignment loss at t⁺ = 0, and above it at t⁺ > 0", _reduces_to_alignment),
        ),
        note="p gives each of a query's K positives the same probability. π⁺ also equals p if all positives are at the same "
        "distance, for instance if there is only one positive.",
    ),
    Study(
        name="cacr/lemma4.2",
        title="Contrastive repulsion and the conditional entropy",
        claim="L_CR = C₁ + C₂ - H(X⁻|X), where C₁ and C₂ do not depend on the encoder if the prior is uniform.",
        differences=(NO_PROOF,),
        show=_show_entropy_terms,
        claims=(
            is_always_zero(
                "L_CR = -H(X⁻|X) - E ln p + E ln Z, with corrected signs",
                lambda: torch.tensor([t.repulsion - t.corrected for t in _entropy_trials()], dtype=torch.float64),
            ),
            is_always_zero(
                "L_CR = -H(X⁻|X) + E ln p - E ln Z, as printed",
                lambda: torch.tensor([t.repulsion - t.printed for t in _entropy_trials()], dtype=torch.float64),
            ),
        ),
        note="C₁ and C₂ are printed with the opposite signs. Z depends on the encoder unless its embeddings are "
        "uniform: when they all coincide, H(X⁻|X) is largest although L_CR is largest too. t⁻ is 1, as in the lemma.",
    ),
    Study(
        name="cacr/lemma4.3",
        title="The uniformity loss bounds contrastive repulsion",
        claim="L_uniform + I(X; X⁻) is an upper bound of L_CR.",
        differences=(NO_PROOF,),
        show=_show_slack,
        claims=(
            is_never_negative(
                "L_uniform + I ≥ L_CR/τ",
                lambda: torch.tensor([trial.slack for trial in _bound_trials()], dtype=torch.float64),
            ),
            computed_claim("both sides are equal at t⁻ = 1/(2τ), and only there", _is_equal_at_one_value_only),
            is_never_negative(
                "L_uniform + I ≥ L_CR, as printed",
                lambda: torch.tensor([trial.printed for trial in _bound_trials()], dtype=torch.float64),
            ),
        ),
        note="The last line of the paper's proof drops 1/τ from L_CR, whose cost is -s there. I is the mean "
        "Kullback-Leibler divergence of π⁻ from the prior: a mutual information only if π⁻ has the prior as its "
        "marginal.",
    ),
)
