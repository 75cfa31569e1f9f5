"""Notes that many studies of CACR share: what the paper does not say, and what remains different here."""

from __future__ import annotations

from contrapose.lab.studies.cacr.methods import LINEAR_IMAGENET, LOSSES, MOCO_PRESET
from contrapose.lab.studies.study import Study

_CMC = (
    "The paper does not give CMC's temperature; we use CL's, 0.19. CMC's loss is the mean over pairs of views. With "
    "five views, the sum in its own paper is 20 times as large, which acts like a learning rate 20 times as high."
)
_HARD_NEGATIVE = "The paper does not give HN-CL's τ⁺; we use 0.1 (0.05 on CIFAR-100, 0.01 on ImageNet)."
_SCHEDULE = 'The learning rate follows a cosine; the paper says "a cosine scheduler … at epoch 120 and epoch 160".'
_STL = (
    "On STL-10, encoders are also trained on the unlabelled images, 105,000 in total, as in the authors' code; the "
    "paper says the training "
    "set."
)
_LAST_EPOCH = "We report the probe's last epoch; the authors' code prints the best one."
_SIMCLR = "SimCLR is trained with its own settings (LARS, batches of 4096) and evaluated like the other rows."
# From the appendices of SimSiam's paper.
_REPRODUCED = (
    "Up to 800 epochs, the paper's numbers for BYOL, SwAV, SimSiam, SimCLR and MoCov2 are SimSiam's authors' "
    "reproductions: with a third "
    "layer in the projectors of SwAV and SimCLR, both views of MoCov2 as queries, and linear probes with LARS."
)
_BASELINES = (
    "BYOL, Barlow Twins, SimSiam and SwAV use their authors' settings, with Table 4's batch sizes and bf16: those of "
    "`contrapose train --preset METHOD/imagenet`, with a learning rate in proportion to the batch for Barlow Twins and SimSiam; "
    "those of SwAV's scripts for batches of 4096; and those of BYOL for 100, 300 or 1000 epochs, of which we use the next "
    "longer one."
)
_FNC = (
    "FNC with multi-crop uses its authors' settings and ten full-size views that are all anchors, as in their code; but no "
    "RandAugment."
)
_MOCO_V3 = (
    "With MoCo v3, CACR is the objective in the authors' code, cacr_moco_v3: InfoNCE that weights the queries of each key. "
    "The paper has no formula for this objective."
)
_LOCAL_CROPS = (
    "CACR's local crops are augmented like the first view, which is always blurred; the authors blur half of them, "
    "and interpolate "
    "them by cubics."
)
_ADAMW = "We exclude biases and norms from weight decay in AdamW; MoCo v3's code does not."


def with_notes(study: Study) -> Study:
    """Return a study with the notes that apply to its settings, losses and data added."""
    losses = {str(row.changes.get("loss")) for row in study.rows}
    encoders = {study.preset, *(study_data.name for study_data in study.sets)}
    rows = {row.name for row in study.rows}
    moco_v3 = study.preset.startswith("cacr/moco-v3")
    notes = {
        _CMC: LOSSES["CMC (K=4)"] in losses,
        _HARD_NEGATIVE: any("hard_negative" in loss for loss in losses),
        _SCHEDULE: study.preset == MOCO_PRESET,
        _MOCO_V3: moco_v3,
    }
    differences = {
        _STL: any(study_data.data == "stl10" for study_data in study.sets),
        _LAST_EPOCH: LINEAR_IMAGENET[0] in study.quantities,
        _SIMCLR: study.preset == MOCO_PRESET and "SimCLR" in rows,
        _BASELINES: "BYOL" in rows,
        _REPRODUCED: "BYOL" in rows,
        _FNC: "FNC (multi-crop)" in rows,
        _LOCAL_CROPS: moco_v3 and any(row.local_crops for row in study.rows),
        _ADAMW: moco_v3 and any("vit" in encoder.lower() for encoder in encoders),
    }
    return study.with_sentences(notes=notes, differences=differences)
