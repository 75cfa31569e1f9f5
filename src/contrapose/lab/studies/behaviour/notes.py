"""Notes that many studies of Wang & Liu share: what the paper does not say or gets wrong, and what remains different here."""

from __future__ import annotations

from contrapose.lab.studies.behaviour.methods import TOLERANCE, UNIFORMITY
from contrapose.lab.studies.study import Study

_IMAGES = (
    "The paper does not say on which images uniformity and tolerance are measured, nor after which epoch: ours are all "
)
_IMAGES += "test images, after the last."
_TOLERANCE = (
    "As printed, Equation 11 divides by all pairs, so that tolerance could not exceed 1 over the number of classes; "
)
_TOLERANCE += "the printed values need the mean over pairs of one class, as here."
_HARD = "Every data set has 4095 hard negatives: the α printed for SVHN and ImageNet-100 gives other numbers."
_SIMPLE = (
    "The paper does not give λ of the simple loss: ours is 1 over the number of negatives, as in the authors' code."
)
_SVHN = "On SVHN views are not flipped, as in the authors' code; the paper flips on every data set."


def with_notes(study: Study) -> Study:
    """Return a study with the sentences that apply to what it measures, to its losses and to its data."""
    measures = {quantity.measure for quantity in study.quantities}
    losses = {str(row.changes.get("loss")) for row in study.rows}
    notes = {
        _IMAGES: bool(measures & {UNIFORMITY.measure, TOLERANCE.measure}),
        _TOLERANCE: TOLERANCE.measure in measures,
        _HARD: any("hardest" in loss for loss in losses),
        _SIMPLE: "simple" in losses,
    }
    differences = {_SVHN: bool(study.rows) and any(study_data.data == "svhn" for study_data in study.sets)}
    return study.with_sentences(notes=notes, differences=differences)
