"""Measure detection: the encoder of a run, fine-tuned as the backbone of a detector on VOC or COCO.

detection:voc:SCORE    Faster R-CNN on VOC; SCORE is AP, AP50 or AP75
detection:coco:SCORE   Mask R-CNN on COCO; also mask_AP, mask_AP50 and mask_AP75
detection:…:start, detection:…:supervised   with other weights of the encoder, as in `transfer`
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from contrapose.lab.evaluation.detection import PROTOCOLS, Detection, draw_shapes, read_detection_data
from contrapose.lab.modalities import Split
from contrapose.lab.studies.downstream import MADE
from contrapose.lab.studies.transfer import chosen_encoder
from contrapose.lab.training import Model

# In place of VOC and COCO at the smoke scale: seconds on a CPU, which is far too few iterations for a good detector.
_TRIAL: Mapping[str, Any] = {"iterations": 6, "batch": 2, "regions": 16, "precise_batches": 2}
_TRIAL_SIZE = 48  # pixels
# Encoders trained on small images, as at the small scale, detect in small images, with a tenth of the iterations.
_SMALL_SIZE = 128


def detection(
    model: Model, split: Split, name: str, score: str, weights: str = "", *, downstream: Mapping[str, str],
    root: Path | None = None,
) -> dict[str, float]:  # fmt: skip
    """Return all scores of a detector on the downstream data `name`; downloads are not used."""
    protocol, path = PROTOCOLS[name], downstream[name]
    with tempfile.TemporaryDirectory() as folder:
        if path == MADE:
            protocol = replace(protocol.at_size(_TRIAL_SIZE), **_TRIAL)
            draw_shapes(folder, layout=name, train=8, test=4, size=_TRIAL_SIZE)
        elif model.kind.example_input(model.views).shape[-1] < _SMALL_SIZE:
            protocol = replace(protocol.at_size(_SMALL_SIZE), iterations=protocol.iterations // 10)
        data = read_detection_data(folder if path == MADE else path, masks=protocol.masks)
        # Networks that a trainer has compiled would be compiled again for the sizes of these images.
        with model.evaluation_context():
            encoder = chosen_encoder(model, split, weights, downstream)
            scores = protocol(encoder, data, views=model.views, device=model.device, seed=model.run.seed)
    suffix = f":{weights}" if weights else ""
    return {f"detection:{name}:{key}{suffix}": value for key, value in scores.items()}


def describe_detection(name: str, score: str, weights: str = "") -> str:
    """Return in words what is measured; the names of rows say with which weights."""
    protocol: Detection = PROTOCOLS[name]
    detector, what = ("Mask R-CNN", "COCO val2017") if protocol.masks else ("Faster R-CNN", "VOC 2007 test")
    of = "masks" if score.startswith("mask_") else "boxes"
    return (
        f"AP, AP50 and AP75 of {of} on {what}: {detector} C4 with the encoder as backbone, all layers "
        f"fine-tuned for {protocol.iterations:,} iterations of {protocol.batch} images"
    )
