"""Detection: the encoder of a run, fine-tuned as the backbone of a detector on VOC or COCO."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from contrapose.lab.evaluation.detection import PROTOCOLS, draw_shapes, read_detection_data
from contrapose.lab.studies.measures.downstream import MADE, DownstreamEvaluation, weights_file
from contrapose.lab.studies.measures.measure import Context, Words
from contrapose.lab.studies.measures.transfer import chosen_encoder
from contrapose.lab.training import Run

# Replaces VOC and COCO at the smoke scale: seconds on a CPU, with far too few iterations for a good detector.
_TRIAL: Mapping[str, Any] = {"iterations": 6, "batch": 2, "regions": 16, "precise_batches": 2}
_TRIAL_SIZE = 48  # pixels
# Encoders trained on small images, as at the small scale, are fine-tuned on small images for a tenth of the iterations.
_SMALL_SIZE = 128


@dataclass(frozen=True)
class Detection(DownstreamEvaluation):
    """A score of Faster R-CNN on VOC, or of Mask R-CNN on COCO: `data_set` is voc or coco."""

    kind = "detection"
    score: str  # AP, AP50 or AP75; on COCO also mask_AP, mask_AP50 and mask_AP75
    weights: str = ""  # selects the encoder, as in `Transfer`

    @property
    def files(self) -> tuple[str, ...]:
        """Return the name of the file of weights, if the measure needs one."""
        return weights_file(self.weights)

    def describe(self, run: Run) -> Words:
        """Describe the detector, its training and its data; the row's name says which weights are used."""
        protocol = PROTOCOLS[self.data_set]
        detector, what = ("Mask R-CNN", "COCO val2017") if protocol.masks else ("Faster R-CNN", "VOC 2007 test")
        of = "masks" if self.score.startswith("mask_") else "boxes"
        return Words(
            f"AP, AP50 and AP75 of {of} on {what}: {detector} C4 with the encoder as backbone, all layers "
            f"fine-tuned for {protocol.iterations:,} iterations of {protocol.batch} images"
        )

    def evaluate(self, context: Context) -> dict[str, float]:
        """Return all scores of the detector."""
        model, protocol, path = context.model, PROTOCOLS[self.data_set], context.downstream[self.data_set]
        with tempfile.TemporaryDirectory() as folder:
            if path == MADE:
                protocol = replace(protocol.at_size(_TRIAL_SIZE), **_TRIAL)
                draw_shapes(folder, layout=self.data_set, train=8, test=4, size=_TRIAL_SIZE)
            elif model.kind.example_input(model.views).shape[-1] < _SMALL_SIZE:
                protocol = replace(protocol.at_size(_SMALL_SIZE), iterations=protocol.iterations // 10)
            data = read_detection_data(folder if path == MADE else path, masks=protocol.masks)
            # Compiled networks from the trainer would be compiled again for these image sizes.
            with model.evaluation_context():
                encoder = chosen_encoder(model, context.split, self.weights, context.downstream)
                scores = protocol(encoder, data, views=model.views, device=model.device, seed=model.run.seed)
        return {replace(self, score=score).key: value for score, value in scores.items()}
