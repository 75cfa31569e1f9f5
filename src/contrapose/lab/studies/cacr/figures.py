"""Studies of the figures of the CACR paper."""

from __future__ import annotations

import math
from dataclasses import replace

from contrapose.lab.report.document import Block, Chart, points
from contrapose.lab.studies.cacr import printed
from contrapose.lab.studies.cacr.methods import (
    ACCURACY_AXIS,
    CACR_K1,
    CACR_K4,
    CIFAR100,
    CIFAR_AND_STL,
    CIFAR_PRESET,
    CL,
    CMC,
    FOUR_POSITIVES,
    HALF_SCALE,
    LINEAR,
    LOSSES,
    ONE_POSITIVE,
    SHORT_SCALE,
    imbalanced,
    positives_row,
    six_methods,
)
from contrapose.lab.studies.cacr.queries import (
    DISTANCES,
    falls_during_training,
    own_class_weighs_more,
    show_maps,
    show_weights,
)
from contrapose.lab.studies.claims import Claim, computed_claim, is_above, is_best, is_monotonic
from contrapose.lab.studies.measures import QueryMap, QueryWeights, RecordEntry, Words
from contrapose.lab.studies.report_blocks import curves, over_epochs
from contrapose.lab.studies.results import Results
from contrapose.lab.studies.study import CIFAR10, Quantity, Row, Study, StudyData

_BATCHES = (64, 128, 256, 512, 768)  # of Figure 8
_PROBE, _LAST_EPOCH = LINEAR


def _batch_rows() -> tuple[Row, ...]:
    """Return a row for each method and batch size of Figure 8."""
    rows = []
    for name, loss in LOSSES.items():
        for batch in _BATCHES:
            changes = {
                "loss": loss,
                **(FOUR_POSITIVES if "K=4" in name else ONE_POSITIVE),
                "batch": batch,
                "lr": round(0.12 * batch / 256, 6),  # linear scaling: 0.12 for 256 images
            }
            rows.append(Row(name=f"{name}, M = {batch}", changes=changes, x=batch, series=name))
    return tuple(rows)


def _leads_during_training(row: str, quantity: Quantity, what: str) -> Claim:
    """Claim that the row's curve is above all other methods' curves at 80 % of the recorded epochs or more."""

    def decide(results: Results) -> tuple[bool | None, str]:
        shares = {}
        for data_set in results.sets:
            others = [name for name in printed.METHODS if name != row and name in results.rows]
            curve, *other_curves = (_signed_curve(results, name, quantity, data_set) for name in (row, *others))
            common = [epoch for epoch in curve if all(epoch in other for other in other_curves)]
            if common and other_curves:
                leading = [all(curve[epoch] > other[epoch] for other in other_curves) for epoch in common]
                shares[data_set] = sum(leading) / len(leading)
        if not shares:
            return None, "no curves to compare"
        lowest = min(shares.values())
        evidence = ", ".join(f"{data_set}: {100 * share:.0f} %" for data_set, share in shares.items())
        outcome = True if lowest >= 0.8 else False if lowest <= 0.5 else None
        return outcome, f"highest at this share of epochs: {evidence}"

    return computed_claim(f"{row} is ahead in {what} during training", decide)


def _signed_curve(results: Results, row: str, quantity: Quantity, data_set: str) -> dict[float, float]:
    """Return the values of a quantity in the records, by epoch."""
    sign = -1 if quantity.negated else 1
    return {epoch: sign * value for epoch, value in results.curve(row, quantity.measure, data_set)}


_ENTROPY = RecordEntry(
    "entropy",
    Words(
        "conditional entropy H(X⁻|X) of the projector's output after each epoch, all test images in mini-batches of the "
        "training batch size M"
    ),
)
_H = Quantity(name="H", measure=_ENTROPY, unit="")
_BELOW_MAXIMUM = Quantity(
    name="H - ln(M - 1)",
    measure=RecordEntry("entropy_deficit", Words("distance of H from its maximum ln(M - 1)")),
    unit="",
    negated=True,
    paper="the maximum ln(M - 1), as a dotted line",
)


def _show_entropy(study: Study, results: Results) -> list[Block]:
    """Return a chart of H(X⁻|X) over epochs, with a dotted line at the maximum for each batch size, and the table."""
    chart, *rest = over_epochs(_ENTROPY, "H(X⁻|X), nats")(study, results)
    assert isinstance(chart, Chart)
    limits: dict[float, float] = {}  # each maximum, and the last epoch to which its line is drawn
    for data_set in results.sets:
        for row in study.rows:
            curves = (results.curve(row.name, q.measure, data_set) for q in (_H, _BELOW_MAXIMUM))
            for (epoch, entropy), (_, deficit) in zip(*curves, strict=True):
                maximum = round(entropy + deficit, 4)
                limits[maximum] = max(epoch, limits.get(maximum, epoch))
    lines = [
        points(f"ln({math.exp(maximum):.0f})", [(1.0, maximum), (last, maximum)], printed=True)
        for maximum, last in sorted(limits.items())
    ]
    return [replace(chart, series=(*chart.series, *lines)), *rest]


def _entropy_study(name: str, title: str, sets: tuple[StudyData, ...]) -> Study:
    """Return a study of the conditional entropy H(X⁻|X) during training."""
    return Study(
        name=name,
        title=title,
        claim="H(X⁻|X) rises to its maximum; CACR (K=4) reaches it first, and stays highest on imbalanced data.",
        preset=CIFAR_PRESET,
        base={"extra_metrics": ("entropy:{k1}@1",)},
        rows=six_methods({}),
        quantities=(_H, _BELOW_MAXIMUM),
        sets=sets,
        show=_show_entropy,
        claims=(
            _leads_during_training(CACR_K4, _BELOW_MAXIMUM, "H(X⁻|X) - ln(M - 1)"),
            is_above(CACR_K4, CL, _BELOW_MAXIMUM.name, margin=0.01),
        ),
        short_settings=SHORT_SCALE,
        note="M is each method's own batch size (768 with one positive, 128 with four). All methods use the t⁻ of CACR (K=1) on "
        "the data set: 2 on CIFAR-10, 3 on CIFAR-100. The paper states neither t⁻ nor whether validation images are "
        "augmented; ours are not. Because the maxima differ, we compare H - ln(M - 1), which does not depend on M for a given "
        "distribution; H / ln(M - 1) would be higher for a larger M. Embeddings that have collapsed to a point, as they nearly "
        "have before training, also reach the maximum.",
        differences=("H - ln(M - 1) is added, to compare curves with different M.",),
    )


FIGURES = (
    Study(name="cacr/figure1", title="CL and CACR side by side", claim="A drawing.", diagram=True),
    Study(name="cacr/figure2", title="The CACR framework", claim="A drawing.", diagram=True),
    _entropy_study(
        name="cacr/figure3",
        title="Conditional entropy on CIFAR-10",
        sets=(CIFAR10, imbalanced(CIFAR10, "linear")),
    ),
    _entropy_study(
        name="cacr/figure4",
        title="Conditional entropy on CIFAR-100",
        sets=(CIFAR100, imbalanced(CIFAR100, "linear")),
    ),
    _entropy_study(
        name="cacr/figure5",
        title="Conditional entropy with exponential imbalance",
        sets=(imbalanced(CIFAR10, "exponential"), imbalanced(CIFAR100, "exponential")),
    ),
    Study(
        name="cacr/figure6",
        title="Weights of the positives and negatives of one query",
        claim="Distant positives and negatives of a related class weigh more.",
        preset=CIFAR_PRESET,
        rows=(
            Row(
                name=CACR_K4,
                changes={"loss": LOSSES[CACR_K4], **FOUR_POSITIVES},
                measures=(QueryWeights("query_weights"),),
            ),
        ),
        quantities=(
            Quantity(
                name="weight of the own class / equal weight",
                measure=QueryWeights("own_class_weight"),
                unit="",
                paper="weights of one query's positives and negatives, beside their images",
            ),
        ),
        show=show_weights,
        claims=(own_class_weighs_more(CACR_K4),),
        short_settings=SHORT_SCALE,
        note="The query is the first test image in a fixed random order, and the other images in its mini-batch are its "
        "negatives; the paper does not state its data set or split. Distant positives weigh more by the definition of π⁺, so "
        "this is not tested. In the paper, negatives with large weights belong to related classes; our claim is about "
        "negatives from the query's own class.",
        differences=(
            "The mean weight of negatives from the query's own class, over about 2,000 queries, is added to "
            "decide the claim.",
        ),
    ),
    Study(
        name="cacr/figure7",
        title="t-SNE of one query at epochs 1, 20 and 200, CL and CACR",
        claim="Positives come closer and negatives are pushed away, more evenly with CACR.",
        preset=CIFAR_PRESET,
        rows=tuple(
            Row(
                name=name,
                changes={"loss": LOSSES[name], "keep": (1, 20, 200)},
                short_settings={"keep": (1, 5, 50)},
                measures=(QueryMap("query_map"),),
            )
            for name in (CL, CACR_K1)
        ),
        quantities=tuple(
            Quantity(
                name=name,
                measure=QueryMap(key),
                unit="",
                paper="t-SNE of one query's positives and negatives at three epochs",
            )
            for key, name in DISTANCES.items()
        ),
        show=show_maps,
        claims=(
            *(falls_during_training(row, key) for row in (CL, CACR_K1) for key in DISTANCES),
            *(is_above(CL, CACR_K1, name, margin=0.005) for name in DISTANCES.values()),
        ),
        short_settings=SHORT_SCALE,
        note="CACR is trained with one positive, as in the paper's text; the map shows four views of the query. The "
        "paper does not "
        "state its data set or which output it maps; we map the projector's output. Distances in a t-SNE map are not "
        "meaningful, so the claims are about distances between embeddings: the distance to positives relative to negatives, "
        "and how much the distances to negatives vary. The short scale uses epochs 1, 5 and 50.",
        differences=(
            "The paper crops its map at ±10 around the query and draws a circle of radius t⁻; ours shows all points.",
            "Mean distances over about 2,000 queries are added to decide the claims.",
        ),
    ),
    Study(
        name="cacr/figure8",
        title="Linear accuracy against batch size",
        claim="CACR (K=4) is best at any batch; CACR (K=1) is a little below the baselines at 64.",
        preset=CIFAR_PRESET,
        rows=_batch_rows(),
        quantities=LINEAR,
        sets=CIFAR_AND_STL,
        show=curves("images in a batch", ACCURACY_AXIS, log_x=True),
        claims=(
            is_above("CACR (K=4), M = 256", "CMC (K=4), M = 256", margin=0.3),
            *(is_best(f"{CACR_K4}, M = {batch}", [f"{name}, M = {batch}" for name in LOSSES]) for batch in _BATCHES),
            is_above("CL, M = 64", "CACR (K=1), M = 64", margin=0.3),
        ),
        small_settings=HALF_SCALE,  # for all rows, because batches of 64 with four positives would take eight minutes
        short_settings=SHORT_SCALE,
    ),
    Study(
        name="cacr/figure9",
        title="Linear accuracy against the number of positives",
        claim="Accuracy rises with K.",
        preset=CIFAR_PRESET,
        rows=tuple(positives_row(k) for k in printed.TABLE14),
        quantities=LINEAR,
        sets=(CIFAR10, CIFAR100),
        show=curves("K", ACCURACY_AXIS),
        claims=(is_monotonic([(float(k), f"K = {k}") for k in printed.TABLE14], up=True, margin=0.5, what="accuracy"),),
        small_settings=SHORT_SCALE,  # for all rows, because ten positives would take twelve minutes
        note="Every K uses batches of 128 and the t⁻ of K = 4, since the paper gives neither value.",
        differences=("The panel on ImageNet-1K (K from 1 to 4) is left out; cacr/table15 has K = 1 and 4.",),
    ),
    Study(
        name="cacr/figure10",
        title="Accuracy during training",
        claim="At any epoch CACR is above the other methods.",
        preset=CIFAR_PRESET,
        rows=six_methods(printed.TABLE8),
        base={"extra_metrics": (f"{_LAST_EPOCH.measure.key}@10",)},  # one probe gives both accuracies
        quantities=LINEAR,
        sets=CIFAR_AND_STL,
        show=over_epochs(_PROBE.measure, "linear accuracy, %"),
        claims=(_leads_during_training(CACR_K4, _PROBE, "linear accuracy"), is_above(CACR_K4, CMC, margin=0.3)),
        short_settings=SHORT_SCALE,
        note="The paper's numbers are those of its Table 8, after 200 epochs.",
    ),
)
