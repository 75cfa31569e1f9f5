"""Joint evaluation of the two towers of a run on images with captions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from contrapose.lab.modalities.captions.captions import Captions
from contrapose.lab.modalities.captions.recall import (
    CaptionIndex,
    caption_chance,
    caption_recall,
    first_images_are_right,
)
from contrapose.lab.modalities.captions.shapes import labelled_shapes
from contrapose.lab.modalities.captions.zero_shot import class_embeddings, find_class_names, zero_shot_scores
from contrapose.lab.modalities.evaluations import DownstreamData, SampleEmbedder
from contrapose.lab.modalities.images.class_names import CLASS_NAMES
from contrapose.lab.modalities.images.load import load
from contrapose.lab.modalities.source import Source, Split
from contrapose.metrics import two_tower_measures


class CaptionEvaluation:
    """Recall between images and captions in both directions, and the geometry of the shared embedding space."""

    score = "text_to_image_recall_1"

    def scores(self, towers: Mapping[str, SampleEmbedder], split: Split) -> dict[str, float]:
        """Return recall@1, 5 and 10 between test images and captions, in per cent; empty if there are no test images."""
        if split.test is None:
            return {}
        images, texts, index = _test(towers, split)
        return caption_recall(images, texts, index.image_of_text, ids=index.ids)

    def chance(self, split: Split) -> dict[str, float]:
        """Return the recall of a random ranking, with the same keys; empty if there are no test images."""
        if split.test is None:
            return {}
        assert isinstance(split.test, Captions)
        index = CaptionIndex.of(split.test.written)
        return caption_chance(index.image_of_text, ids=index.ids)

    def metrics(self, towers: Mapping[str, SampleEmbedder], source: Source) -> dict[str, float]:
        """Return each tower's uniformity, the alignment between captions and their images, and the modality gap."""
        assert isinstance(source, Captions)
        return two_tower_measures(*embed_both(towers, source), CaptionIndex.of(source.written).image_of_text)

    def arrays(self, towers: Mapping[str, SampleEmbedder], source: Source) -> dict[str, Tensor | Sequence[str]]:
        """Return the embeddings of images and of all captions, the captions, and the image that each caption belongs to."""
        assert isinstance(source, Captions)
        images, texts = embed_both(towers, source)
        index = CaptionIndex.of(source.written)
        return {
            "features": images,
            "text_features": texts,
            "texts": index.texts,
            "image_of_text": index.image_of_text,
        }

    def map(self, towers: Mapping[str, SampleEmbedder], source: Source) -> tuple[Tensor, tuple[str, ...]]:
        """Return the embeddings of the images and of the first caption of each."""
        assert isinstance(source, Captions)
        images = towers["images"].features(source.images)
        texts = towers["text"].features(source.texts.subset(source.first))
        return torch.cat([images, texts.to(images.device)]), ("images", "captions")

    def hits(self, towers: Mapping[str, SampleEmbedder], split: Split) -> Sequence[Tensor]:
        """Return for each test image whether the image nearest to each of its captions is one that has the caption."""
        images, texts, index = _test(towers, split)
        hits = first_images_are_right(images, texts, index.image_of_text, ids=index.ids)
        counts: list[int] = index.image_of_text.bincount(minlength=len(images)).tolist()
        return list(hits.split(counts))


def _test(towers: Mapping[str, SampleEmbedder], split: Split) -> tuple[Tensor, Tensor, CaptionIndex]:
    """Return the embeddings of test images and of their captions, and the captions."""
    if split.test is None:
        raise ValueError(f"{split.train.name} has no held-out images to measure retrieval with")
    assert isinstance(split.test, Captions)
    return *embed_both(towers, split.test), CaptionIndex.of(split.test.written)


def embed_both(towers: Mapping[str, SampleEmbedder], source: Captions) -> tuple[Tensor, Tensor]:
    """Return the embeddings of images (n, d) and of all their captions (t, d), image by image.

    towers   the image tower and the text tower, as in `Model.towers`
    source   images with captions, such as `prepare(run).test`
    """
    return towers["images"].features(source.images), towers["text"].features(source.texts)


def zero_shot(towers: Mapping[str, SampleEmbedder], data: DownstreamData) -> dict[str, float]:
    """Return `zero_shot_scores` on labelled images, with the prompt "a photo of a NAME."."""
    images = _labelled_images(data) if data.path else labelled_shapes()
    assert images.labels is not None
    # An .npz file has no class names, but the name of the data set determines them.
    built_in = data.name if not images.classes and data.name in CLASS_NAMES else ""
    classes = find_class_names(images, data.class_names or built_in)
    embeddings = towers["images"].features(images)
    texts = class_embeddings(towers["text"].embed, classes).to(embeddings.device)
    return zero_shot_scores(embeddings, images.labels, texts)


def _labelled_images(data: DownstreamData) -> Source:
    """List the test images in a data set, or all of its images if it has no test images."""
    images = load(data.path, root=data.root, hold_out=0).held_out
    if images.labels is None:
        raise ValueError(
            f"data: the images of {data.path} have no classes; expected a folder with one subfolder per class"
        )
    return images
