"""`contrapose detect`: fine-tune a run's encoder as the backbone of a detector, and score it."""

from __future__ import annotations

import sys
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from contrapose.lab.cli.printed_scores import print_scores
from contrapose.lab.devices import DeviceOption
from contrapose.lab.evaluation.detection import PROTOCOLS, read_detection_data
from contrapose.lab.evaluation.detection.detectors import split_encoder
from contrapose.lab.modalities.progress import allow_progress_bars
from contrapose.lab.training import load
from contrapose.lab.training.records.files import write_json_atomically
from contrapose.validate import check_directory


@dataclass(frozen=True)
class Detect(DeviceOption):
    """Fine-tune a run's encoder as the backbone of a detector on VOC or COCO, and print its average precision.

    The detector is torchvision's Faster R-CNN, or Mask R-CNN with --masks. Its backbone consists of all stages of the encoder
    except the last, and its head is the last stage (C4). The default schedule is that of He et al. (MoCo): 24,000 iterations,
    or 90,000 with masks.
    """

    run: Positional[Path]
    """Directory of the run; its encoder must be a ResNet, `tiny` or `small`."""
    data: Positional[Path]
    """The folder VOCdevkit, which contains one or more years, or the folder of COCO."""
    masks: bool = False
    """Predict masks too, with Mask R-CNN. The data needs mask annotations, as in COCO."""
    iterations: int = 0
    """Number of training iterations; 0: the paper's number. The learning rate drops after the same fractions of training."""
    batch: int = 16
    """Batch size."""
    lr: float | None = None
    """Learning rate after the warm-up; default: 0.02 · batch / 16."""
    size: int = 800
    """Shorter side of test images, in pixels. Training images are scaled in proportion."""
    seed: int = 0
    """Random seed for the new layers' weights, the order of the images and their augmentation."""
    out: Annotated[Path | None, arg(aliases=["-o"])] = None
    """JSON file to write scores and settings to; default: detection-DATA.json in the run's directory."""

    @allow_progress_bars()
    def __call__(self) -> None:
        """Print the scores as JSON, and write them to a file."""
        protocol = PROTOCOLS["coco" if self.masks else "voc"]
        protocol = replace(
            protocol.at_size(self.size),
            iterations=self.iterations or protocol.iterations,
            batch=self.batch,
            lr=self.lr,
        )
        out = self.out or self.run / f"detection-{self.data.resolve().name}.json"
        check_directory("out", out.parent)
        model = load(self.run)
        split_encoder(model.encoder)  # refuses an unsuitable encoder before the annotations are read
        data = read_detection_data(self.data, masks=self.masks)
        detector = "Mask R-CNN" if self.masks else "Faster R-CNN"
        sizes = f"{len(data.train):,} training and {len(data.test):,} test images, {len(data.classes)} classes"
        for note in (*data.notes, f"{sizes}; {detector}, {protocol.iterations:,} iterations on {model.device}"):
            print(note, file=sys.stderr)
        scores = protocol(model.encoder, data, views=model.views, device=model.device, seed=self.seed)
        settings = {"data": str(self.data), "seed": self.seed, **asdict(protocol)}
        write_json_atomically(out, {"step": model.step, **scores, "settings": settings})
        print_scores({"step": model.step, **scores})
        print(f"written to {out}", file=sys.stderr)
