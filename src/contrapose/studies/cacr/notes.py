"""What many studies of CACR have in common: where the paper is silent, and what remains different here."""

from __future__ import annotations

from contrapose.studies.cacr.methods import LINEAR_IMAGENET, LOSSES, MOCO_PRESET
from contrapose.studies.study import Study

_CMC = "The paper does not give CMC's temperature: it is CL's 0.19."
_HARD_NEGATIVE = "The paper does not give τ⁺ of HN-CL: it is 0.1, on CIFAR-100 0.05, on ImageNet 0.01."
_SCHEDULE = 'The learning rate falls by a cosine; the paper has "a cosine scheduler … at epoch 120 and epoch 160".'
_STL = (
    "On STL-10 training has the unlabelled images too, 105,000 in all, as in the authors' code; the paper says the training "
    "set."
)
_LAST_EPOCH = "The probe's last epoch counts; the authors' code prints the best one."
_SIMCLR = "SimCLR is trained with its own settings (LARS, batches of 4096), and evaluated as the other rows."
_FORMULA = "CACR is the paper's formula with four positives; the authors' MoCo v3 code weighs InfoNCE instead."
_VIT = "The ViT is torchvision's: it learns its patch projection and positions, which MoCo v3 keeps fixed."


def with_notes(study: Study) -> Study:
    """Return a study with the sentences that apply to its settings, its losses and its data."""
    losses = {str(row.changes.get("loss")) for row in study.rows}
    encoders = {study.preset, *(study_data.name for study_data in study.sets)}
    moco_v3 = study.preset.startswith("cacr/moco-v3")
    notes = {
        _CMC: LOSSES["CMC (K=4)"] in losses,
        _HARD_NEGATIVE: any("hard_negative" in loss for loss in losses),
        _SCHEDULE: study.preset == MOCO_PRESET,
    }
    differences = {
        _STL: any(study_data.data == "stl10" for study_data in study.sets),
        _LAST_EPOCH: LINEAR_IMAGENET[0] in study.quantities,
        _SIMCLR: study.preset == MOCO_PRESET and any(row.name == "SimCLR" for row in study.rows),
        _FORMULA: moco_v3,
        _VIT: moco_v3 and any("vit" in encoder.lower() for encoder in encoders),
    }
    return study.with_sentences(notes=notes, differences=differences)
