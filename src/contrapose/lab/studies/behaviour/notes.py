"""Notes that many studies of Wang & Liu share: what the paper does not say or gets wrong, and what remains different here."""

from __future__ import annotations

from contrapose.lab.studies.behaviour.methods import TOLERANCE, UNIFORMITY
from contrapose.lab.studies.study import Study

_IMAGES = (
    "The paper does not say on which images, or after which epoch, uniformity and tolerance are measured; we use all "
)
_IMAGES += "test images, after the last epoch."
_TOLERANCE = (
    "As printed, Equation 11 divides by all pairs, so that tolerance could not exceed 1 over the number of classes; "
)
_TOLERANCE += "the paper's values require the mean over pairs within a class, as here."
_HARD = (
    "We use 4095 hard negatives on every data set; the α printed for SVHN and ImageNet-100 would give other numbers."
)
_SIMPLE = (
    "The paper does not give the simple loss's λ; ours is 1 over the number of negatives, as in the authors' code."
)
_FLIPS = (
    "According to the paper, views are flipped on every data set; the authors' code flips neither CIFAR nor SVHN when it trains "
    "the encoder. We flip CIFAR, unless --set views=insdis-svhn is given, and not SVHN, where a mirrored digit is no digit."
)


def with_notes(study: Study) -> Study:
    """Return a study with the notes that apply to its measures, its losses and its data added."""
    measures = {quantity.measure for quantity in study.quantities}
    losses = {str(row.changes.get("loss")) for row in study.rows}
    notes = {
        _IMAGES: bool(measures & {UNIFORMITY.measure, TOLERANCE.measure}),
        _TOLERANCE: TOLERANCE.measure in measures,
        _HARD: any("hardest" in loss for loss in losses),
        _SIMPLE: "simple" in losses,
    }
    small = {study_data.data for study_data in study.sets} & {"cifar10", "cifar100", "svhn"}
    differences = {_FLIPS: bool(study.rows) and bool(small)}
    return study.with_sentences(notes=notes, differences=differences)
