"""Measures of images with captions: zero-shot classification on the user's data, and recall in the records."""

from __future__ import annotations

from dataclasses import dataclass

from contrapose.lab.evaluation import TEMPLATES
from contrapose.lab.modalities.evaluations import DownstreamData
from contrapose.lab.studies.measures.downstream import CLASS_NAMES_FILE, MADE, DownstreamEvaluation
from contrapose.lab.studies.measures.measure import Context, Words
from contrapose.lab.studies.measures.records import RecordEntry
from contrapose.lab.training import Run

_PROMPT = "photo"
_DIRECTIONS = {"image_to_text": "image-to-text", "text_to_image": "text-to-image"}


@dataclass(frozen=True)
class ZeroShot(DownstreamEvaluation):
    """Zero-shot accuracy on a data set's test images, which are classified by the names of the classes."""

    class_names: bool = False  # take names from --data class_names=FILE, for folders named by ids, such as ImageNet's
    towers = 2

    @property
    def key(self) -> str:
        """Return zero_shot:SET or zero_shot:SET:class_names."""
        return ":".join(("zero_shot", *self.needs_data))

    @property
    def files(self) -> tuple[str, ...]:
        """Return the name of the file of class names, if the measure needs one."""
        return (CLASS_NAMES_FILE,) if self.class_names else ()

    def describe(self, run: Run) -> Words:
        """Return the data set and the prompt."""
        prompt = TEMPLATES[_PROMPT][0]
        of = f', zero-shot: the class whose name in "{prompt}" has the largest cosine with the image'
        return Words(f"accuracy on {self.data_set}", of)

    def evaluate(self, context: Context) -> dict[str, float]:
        """Return the accuracy."""
        path = context.downstream[self.data_set]
        file = context.downstream[CLASS_NAMES_FILE] if self.class_names else ""
        data = DownstreamData(
            name=self.data_set,
            path="" if path == MADE else path,
            split=context.split,
            class_names="" if file == MADE else file,
            root=context.data_root,
        )
        return {self.key: context.model.kind.downstream["zero_shot"](context.model.towers, data)["top1"]}


def caption_recall(direction: str, k: int) -> RecordEntry:
    """Return the measure of recall@k on the test images in the records; `direction` is image_to_text or text_to_image."""
    return RecordEntry(
        f"{direction}_recall_{k}",
        Words(f"recall@{k}", f" of {_DIRECTIONS[direction]} retrieval on the test set, last epoch"),
    )
