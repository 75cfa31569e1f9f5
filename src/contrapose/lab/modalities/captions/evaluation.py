"""Evaluate the two towers of a run on images with captions together."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from contrapose.lab.modalities.captions.captions import Captions
from contrapose.lab.modalities.captions.recall import CaptionIndex, caption_recall
from contrapose.lab.modalities.modality import SampleEmbedder, Source, Split
from contrapose.metrics import two_tower_measures


class CaptionEvaluation:
    """Recall of images and captions in both directions, and the geometry of their common space."""

    def scores(self, towers: Mapping[str, SampleEmbedder], split: Split) -> dict[str, float]:
        """Return recall at 1, 5 and 10 of the test images and their captions, in per cent; nothing without any."""
        if split.test is None:
            return {}
        assert isinstance(split.test, Captions)
        index = CaptionIndex.of(split.test.written)
        return caption_recall(*embed_both(towers, split.test), index.image_of_text, ids=index.ids)

    def metrics(self, towers: Mapping[str, SampleEmbedder], source: Source) -> dict[str, float]:
        """Return the uniformity of each tower, the alignment of captions with their images, and the modality gap."""
        assert isinstance(source, Captions)
        return two_tower_measures(*embed_both(towers, source), CaptionIndex.of(source.written).image_of_text)


def embed_both(towers: Mapping[str, SampleEmbedder], source: Captions) -> tuple[Tensor, Tensor]:
    """Return the embeddings of images (n, d) and of all their captions (t, d), image by image.

    towers   those of images and text, as in `Model.towers`
    source   images with captions, such as `prepare(run).test`
    """
    return towers["images"].features(source.images), towers["text"].features(source.texts)
