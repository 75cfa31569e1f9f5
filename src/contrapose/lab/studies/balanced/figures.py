"""Studies of the figures of the balanced-loss paper."""

from __future__ import annotations

import math
from collections.abc import Collection
from statistics import correlation

from contrapose.lab.report.document import Block, Chart, points
from contrapose.lab.studies.balanced.methods import (
    BALANCED,
    CIFAR_PRESET,
    IMAGENET,
    IMAGENET_PRESET,
    LARS_PROBE,
    SGD_PROBE,
    SHORT_SCALE,
    SIMCLR,
    SMALL_SCALE,
)
from contrapose.lab.studies.claims import (
    FAILS,
    HOLDS,
    UNDECIDED,
    Claim,
    Verdict,
    compare,
    computed_claim,
    describe_cell,
    is_best,
    with_error,
)
from contrapose.lab.studies.measures import Metric, RecordedMetric
from contrapose.lab.studies.report_blocks import grid, over_epochs, table
from contrapose.lab.studies.results import Cell, Results
from contrapose.lab.studies.study import CIFAR10, Quantity, Row, Study

# Figure 3: SimCLR's augmentation, with one augmentation added or removed.

_AUGMENTATIONS = {
    "base": "moco-v2",
    "-gaussian_blur": "moco-v2-no-blur",
    "-color_distortion": "moco-v2-no-colour",
    "+random_cutout": "moco-v2-cutout",
    "+random_rotation": "moco-v2-rotation",
    "+gaussian_noise": "moco-v2-noise",
}


def _show_scatter(study: Study, results: Results) -> list[Block]:
    """Return accuracy against bias, one point per set of augmentations, and the table."""
    series = []
    for data_set in results.sets:
        for row in study.rows:
            bias, accuracy = (results.cell(row.name, name, data_set) for name in ("bias", "accuracy"))
            if bias.values and accuracy.values:
                name = row.name if len(results.sets) == 1 else f"{row.name}, {data_set}"
                series.append(points(name, [(bias.mean, accuracy.mean)], points=True))
    chart = Chart(title=study.title, x="prototype representation bias", y="linear accuracy, %", series=tuple(series))
    return [chart, *table(study, results)]


def _base_has_least_bias(results: Results) -> tuple[bool | None, str]:
    cells = {name: results.cell(name, "bias") for name in _AUGMENTATIONS if name == "base" or name in results.rows}
    base = cells.pop("base")
    # A difference must exceed the margin and two standard errors of the means over images.
    outcomes = {compare(cell, base, max(0.01, 2 * math.hypot(cell.error, base.error))) for cell in cells.values()}
    evidence = ", ".join(
        f"{name} {with_error(cell.mean, cell.error)}" for name, cell in {"base": base, **cells}.items() if cell.values
    )
    return (False if FAILS in outcomes else True if outcomes == {HOLDS} else None), f"{evidence} (margin 0.01)"


def _bias_lowers_accuracy(results: Results) -> tuple[bool | None, str]:
    pairs = [(results.cell(name, "bias"), results.cell(name, "accuracy")) for name in _AUGMENTATIONS]
    measured = [(bias.mean, accuracy.mean) for bias, accuracy in pairs if bias.values and accuracy.values]
    x, y = [bias for bias, _ in measured], [accuracy for _, accuracy in measured]
    if len(set(x)) < 3 or len(set(y)) < 3:  # the correlation of a constant is undefined
        return None, "fewer than three different points"
    r = correlation(x, y)
    return (True if r < -0.5 else False if r > 0 else None), f"correlation {r:.2f} over {len(x)} points"


# Figures 4 and 5: a grid over α and λ.

_GRID_VALUES = (1, 2, 4, 8)  # the values of α, and of λ
_GRID_LOSSES = {"balanced": BALANCED, "generalized": "generalized_nt_xent(alpha={}, weight={})"}
_GRID_ROWS = {
    (kind, a, w): Row(name=f"{kind} α = {a}, λ = {w}", changes={"loss": loss.format(a, w)}, x=(a, w), series=kind)
    for kind, loss in _GRID_LOSSES.items()
    for a in _GRID_VALUES
    for w in _GRID_VALUES
}


def _row_names(*kinds: str) -> list[str]:
    return [row.name for (kind, _, _), row in _GRID_ROWS.items() if kind in kinds]


def _best_setting(
    results: Results, kind: str, alphas: Collection[int] = _GRID_VALUES, weights: Collection[int] = _GRID_VALUES
) -> tuple[tuple[int, int], Cell]:
    """Return the (α, λ) at which a loss scores best, and the score."""
    cells = [
        ((a, w), results.cell(row.name, ""))
        for (row_kind, a, w), row in _GRID_ROWS.items()
        if row_kind == kind and a in alphas and w in weights
    ]
    return max(cells, key=lambda pair: pair[1].mean if pair[1].values else -math.inf)


def _describe_setting(setting: tuple[int, int], cell: Cell) -> str:
    return f"{describe_cell(cell)} at α = {setting[0]}, λ = {setting[1]}" if cell.values else "no result"


def _when_complete(results: Results, outcome: str, *kinds: str) -> str:
    """Return the outcome; it is undecided until every row of these losses that can run has a value."""
    complete = all(results.complete(_row_names(*kinds), "", data_set) for data_set in results.sets)
    return outcome if complete else UNDECIDED


def _balanced_is_higher(results: Results) -> Verdict:
    """Compare the balanced loss with the generalized NT-Xent, each at its best setting."""
    balanced, generalized = _best_setting(results, "balanced"), _best_setting(results, "generalized")
    evidence = f"balanced {_describe_setting(*balanced)}; generalized {_describe_setting(*generalized)} (margin 0.3)"
    outcome = _when_complete(results, compare(balanced[1], generalized[1], 0.3), *_GRID_LOSSES)
    return Verdict("the balanced loss's best is above the generalized NT-Xent's best", outcome, evidence)


def _not_best_at_one(kind: str) -> Claim:
    """Claim that the best weight λ is not 1."""

    def claim(results: Results) -> Verdict:
        other = _best_setting(results, kind, weights=_GRID_VALUES[1:])
        one = _best_setting(results, kind, weights=(1,))
        evidence = f"{_describe_setting(*other)}; with λ = 1 {_describe_setting(*one)} (margin 0.3)"
        outcome = _when_complete(results, compare(other[1], one[1], 0.3), kind)
        return Verdict(f"the {kind} loss is not best at λ = 1", outcome, evidence)

    return claim


def _generalized_has_smaller_alpha(results: Results) -> Verdict:
    """Compare the best α of the two losses; undecided unless each loss is clearly worse at the other loss's best α."""
    balanced, generalized = _best_setting(results, "balanced"), _best_setting(results, "generalized")
    alpha_balanced, alpha_generalized = balanced[0][0], generalized[0][0]
    exchanged = [
        compare(balanced[1], _best_setting(results, "balanced", alphas=(alpha_generalized,))[1], 0.3),
        compare(generalized[1], _best_setting(results, "generalized", alphas=(alpha_balanced,))[1], 0.3),
    ]
    outcome = UNDECIDED if UNDECIDED in exchanged else HOLDS if alpha_generalized < alpha_balanced else FAILS
    evidence = f"balanced {_describe_setting(*balanced)}; generalized {_describe_setting(*generalized)} (margin 0.3)"
    statement = "the generalized NT-Xent is best at a smaller α than the balanced loss"
    return Verdict(statement, _when_complete(results, outcome, *_GRID_LOSSES), evidence)


# Figure 6: the gaps of the two bounds.

_FIGURE6_ROW = "balanced, α = 2, λ = 4"
_GAPS = {"attraction_gap": "attracting bound, mean gap", "repulsion_gap": "repelling bound, mean gap"}


# The bank holds all CIFAR-10 training images. The short scale reuses a run from figure 5, measured on test images.
_FIGURE6_ROWS = (
    Row(
        name=_FIGURE6_ROW,
        changes={"loss": BALANCED.format(2, 4), "metrics": 50_000, "metrics_on": "train"},
        short_settings={"metrics": 2000, "metrics_on": "test"},
    ),
)


def _show_gaps(study: Study, results: Results) -> list[Block]:
    """Return a chart for each bound, and the table."""
    charts = [over_epochs(RecordedMetric(gap), label)(study, results)[0] for gap, label in _GAPS.items()]
    return [*charts, *table(study, results)]


def _gap_curve(results: Results, name: str) -> list[float]:
    curve = results.curve(_FIGURE6_ROW, RecordedMetric(name), results.sets[0]) if results.sets else []
    return [gap for _, gap in curve]


def _gap_errors(results: Results, name: str) -> list[float]:
    """Return the standard error of each gap; 0 for runs that did not record the error."""
    return _gap_curve(results, f"{name}_error") or [0.0] * len(_gap_curve(results, name))


def _falls_and_stays(name: str) -> Claim:
    """Claim that the gap falls, and hardly changes in the last fifth of training."""

    def decide(results: Results) -> tuple[bool | None, str]:
        gap = _gap_curve(results, name)
        if len(gap) < 5:
            return None, f"{len(gap)} points are too few"
        fall, late = gap[0] - gap[-1], abs(gap[-1] - gap[-1 - len(gap) // 5])
        first, *_, last = _gap_errors(results, name)
        evidence = f"from {with_error(gap[0], first)} to {with_error(gap[-1], last)}, {late:.3f} in the last fifth"
        # If the sampling error of the decrease exceeds its margin of 5 %, there were too few anchors to decide.
        decidable = 2 * math.hypot(first, last) < 0.05 * gap[0]
        yes, no = fall > 0.05 * gap[0] and late < 0.25 * fall, fall < 0
        return (None if not decidable else False if no else True if yes else None), evidence

    return computed_claim(f"the {_GAPS[name].split(',')[0]}'s gap falls and then stays", decide)


def _repelling_is_larger(results: Results) -> tuple[bool | None, str]:
    pairs = list(zip(*(_gap_curve(results, name) for name in _GAPS), strict=True))
    errors = zip(*(_gap_errors(results, name) for name in _GAPS), strict=True)
    largest_error = max((2 * math.hypot(*pair) for pair in errors), default=0.0)
    larger = sum(repelling > attracting for attracting, repelling in pairs)
    evidence = f"at {larger} of {len(pairs)} epochs"
    if largest_error:
        least = min(repelling - attracting for attracting, repelling in pairs)
        evidence += f", least difference {with_error(least, largest_error / 2)}"
    return (larger == len(pairs) if pairs else None), evidence


FIGURES = (
    Study(name="balanced/figure1", title="Supervised learning as an optimisation", claim="A drawing.", diagram=True),
    Study(
        name="balanced/figure2",
        title="Self-supervised learning as an approximation of supervised learning",
        claim="A drawing.",
        diagram=True,
    ),
    Study(
        name="balanced/figure3",
        title="Accuracy against prototype representation bias",
        claim="Views with less prototype bias give more accuracy; SimCLR's own have the least bias and the highest "
        "accuracy.",
        preset=IMAGENET_PRESET,
        rows=tuple(Row(name=name, changes={"views": views, "loss": SIMCLR}) for name, views in _AUGMENTATIONS.items()),
        quantities=(
            Quantity(name="accuracy", measure=LARS_PROBE.measure),
            Quantity(name="bias", measure=Metric("prototype_bias_single", "projector", "train"), unit=""),
        ),
        sets=(IMAGENET,),
        show=_show_scatter,
        claims=(
            is_best("base", list(_AUGMENTATIONS), "accuracy", margin=0.3),
            computed_claim("base has the least bias", _base_has_least_bias),
            computed_claim("the less bias, the more accuracy", _bias_lowers_accuracy),
        ),
        small_settings={**SMALL_SCALE, "encoder": "resnet18", "epochs": 20},  # 224 px
        note="The bias is that of Eq. 51, in expectation an upper bound of Eq. 16's. The paper does not say how strong its "
        "augmentations are. Here cutout removes a square of a quarter of the side, rotation is up to 30° and noise has a "
        "standard deviation of 0.05, each with probability one half. All six recipes output 224 px; at the small and short "
        "scales, CIFAR-10's images are enlarged to that size. -color_distortion has neither colour jitter nor grayscale. At the "
        "smoke scale, all six rows share one run with the digits' own views.",
    ),
    Study(
        name="balanced/figure4",
        title="Accuracy over α and λ on ImageNet",
        claim="The balanced loss is best at (4, 2) and generalized NT-Xent at (2, 2); the balanced loss's best is "
        "higher.",
        preset=IMAGENET_PRESET,
        rows=tuple(_GRID_ROWS.values()),
        quantities=(Quantity(name="", measure=LARS_PROBE.measure),),
        sets=(IMAGENET,),
        show=grid("α", "λ"),
        claims=(
            _balanced_is_higher,
            _not_best_at_one("balanced"),
            _not_best_at_one("generalized"),
            _generalized_has_smaller_alpha,
            is_best("balanced α = 4, λ = 2", _row_names("balanced"), of=" of the balanced losses"),
            is_best("generalized α = 2, λ = 2", _row_names("generalized"), of=" of the generalized losses"),
        ),
        small_settings=SMALL_SCALE,
        short_settings=SHORT_SCALE,
        note="The paper gives no numbers. At the small and short scales these are the runs of figure 5, with ImageNet's "
        "probe.",
    ),
    Study(
        name="balanced/figure5",
        title="Accuracy over α and λ on CIFAR-10",
        claim="Balance matters: the balanced loss is best at (2, 4).",
        preset=CIFAR_PRESET,
        rows=tuple(_GRID_ROWS.values()),
        quantities=(Quantity(name="", measure=SGD_PROBE.measure),),
        sets=(CIFAR10,),
        show=grid("α", "λ"),
        claims=(is_best("balanced α = 2, λ = 4", _row_names("balanced")), _not_best_at_one("balanced")),
        small_settings=SMALL_SCALE,
        short_settings=SHORT_SCALE,
        note="The paper gives no numbers; (2, 4) is the setting used in its Table 4.",
    ),
    Study(
        name="balanced/figure6",
        title="How tight the two bounds are, over training",
        claim="Both gaps fall and then stay small; the repelling bound's is larger throughout.",
        preset=CIFAR_PRESET,
        rows=_FIGURE6_ROWS,
        quantities=(
            Quantity(name="attracting", measure=RecordedMetric("attraction_gap"), unit=""),
            Quantity(name="repelling", measure=RecordedMetric("repulsion_gap"), unit="", extra=True),
            Quantity(name="repelling as printed", measure=RecordedMetric("repulsion_gap_printed"), unit=""),
        ),
        sets=(CIFAR10,),
        show=_show_gaps,
        claims=(
            _falls_and_stays("attraction_gap"),
            _falls_and_stays("repulsion_gap"),
            computed_claim("the repelling bound's gap is larger at every epoch", _repelling_is_larger),
        ),
        base={"knn_every": 10},
        small_settings=SMALL_SCALE,
        short_settings=SHORT_SCALE,
        note="As printed, the repelling bound does not hold if an anchor's similarity to all other class means is negative; "
        "this study measures the gap of the corrected bound. The paper states neither the loss nor α; ours are Table 4's loss "
        "and α = 2.",
        differences=(
            "Gaps are means over 5,000 random anchors, with a standard error; the paper averages over all 50,000 training "
            "images. As in the paper, the memory bank holds all of these images.",
        ),
    ),
)
