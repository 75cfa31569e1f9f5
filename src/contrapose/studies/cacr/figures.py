"""Studies of the figures of the CACR paper."""

from __future__ import annotations

import math

from contrapose.studies.blocks import curves, over_epochs
from contrapose.studies.cacr import printed
from contrapose.studies.cacr.methods import (
    ACCURACY_AXIS,
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
from contrapose.studies.claims import Claim, computed_claim, is_above, is_best, is_monotonic
from contrapose.studies.results import Results
from contrapose.studies.study import CIFAR10, Quantity, Row, Study, StudyData

_BATCHES = (64, 128, 256, 512, 768)  # of Figure 8


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


def _leads_during_training(row: str, measure: str, what: str) -> Claim:
    """Claim that the row's curve is above those of all other methods at 80 % of the recorded epochs or more."""

    def decide(results: Results) -> tuple[bool | None, str]:
        shares = {}
        for data_set in results.sets:
            others = [name for name in printed.METHODS if name != row and name in results.rows]
            curve, *other_curves = (dict(results.curve(name, measure, data_set)) for name in (row, *others))
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


def _entropy_study(name: str, title: str, sets: tuple[StudyData, ...]) -> Study:
    """Return a study of the conditional entropy H(X⁻|X) during training."""
    return Study(
        name=name,
        title=title,
        claim="H(X⁻|X) rises to its maximum; CACR (K=4) reaches it first, and stays highest on imbalanced data.",
        preset=CIFAR_PRESET,
        rows=six_methods({}),
        quantities=(Quantity(name="H", measure="conditional_entropy", unit=""),),
        sets=sets,
        # A sample of M = 128 images has 127 negatives for each: the entropy of equal weights is ln(127).
        show=over_epochs("conditional_entropy", "H(X⁻|X), nats", limit=math.log(127), limit_name="ln(M - 1)"),
        claims=(
            _leads_during_training(CACR_K4, "conditional_entropy", "H(X⁻|X)"),
            is_above(CACR_K4, CL, "H", margin=0.01),
        ),
        short_settings=SHORT_SCALE,
        note="Measured with M = 128 and t⁻ = 2 for every method and data set, so that the curves can be compared; "
        "the paper uses CACR's own t⁻, which is 3 on CIFAR-100.",
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
        missing="a picture of one batch's images and their weights is not built: runs keep numbers, not images",
    ),
    Study(
        name="cacr/figure7",
        title="t-SNE of one query at epochs 1, 20 and 200, CL and CACR",
        claim="Positives come closer and negatives are pushed away, more evenly with CACR.",
        missing="runs keep their newest checkpoints only, so the embeddings at epochs 1 and 20 are gone",
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
        small_settings=HALF_SCALE,  # in all rows: batches of 64 with four positives would take eight minutes
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
        small_settings=SHORT_SCALE,  # in all rows: ten positives would take twelve minutes
        note="Batches of 128 and the t⁻ of K = 4 for every K. The paper's ImageNet-1K panel (K from 1 to 4) is left "
        "out; cacr/table15 has K = 1 and 4.",
    ),
    Study(
        name="cacr/figure10",
        title="Accuracy during training",
        claim="At any epoch CACR is above the other methods.",
        preset=CIFAR_PRESET,
        rows=six_methods(printed.TABLE8),
        quantities=(*LINEAR, Quantity(name="kNN", measure="knn_top1")),
        sets=CIFAR_AND_STL,
        show=over_epochs("knn_top1", "kNN accuracy, %"),
        claims=(_leads_during_training(CACR_K4, "knn_top1", "kNN accuracy"), is_above(CACR_K4, CMC, margin=0.3)),
        short_settings=SHORT_SCALE,
        note="The paper trains a linear classifier every 10 epochs. Ours shows kNN accuracy during training, and "
        "linear accuracy at the end.",
    ),
)
