"""Retrieval between images and their captions: recall@1, 5 and 10 in both directions, and the recall of a random ranking.

The protocol is Karpathy & Fei-Fei's (2015), usually on 1,000 test images with five captions each. Image-to-text retrieval
succeeds if any of the image's captions is among the k most similar texts, and text-to-image retrieval if the text's image is
among the k most similar images.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from contrapose.metrics.retrieval import check_finite, random_hits, wrong_before_right
from contrapose.metrics.two_towers import check_captions, check_image_of_text
from contrapose.validate import check_index

KS = (1, 5, 10)


@dataclass(frozen=True)
class CaptionIndex:
    """The captions of all images in one list, and the image that each caption belongs to."""

    texts: list[str]  # captions of the first image, then captions of the second image, …
    image_of_text: Tensor  # (t,) the image of each text
    ids: Tensor  # (t,) equal for equal texts

    @classmethod
    def of(cls, captions: Sequence[Sequence[str]]) -> CaptionIndex:
        """List the captions of each image."""
        texts = [text for of_image in captions for text in of_image]
        image_of_text = [image for image, of_image in enumerate(captions) for _ in of_image]
        number = {text: i for i, text in enumerate(dict.fromkeys(texts))}
        return cls(texts, torch.tensor(image_of_text), torch.tensor([number[text] for text in texts]))


@torch.no_grad()
def caption_recall(
    images: Tensor, texts: Tensor, image_of_text: Tensor, *, ids: Tensor | None = None
) -> dict[str, float]:
    """Return recall@1, 5 and 10 in both directions in per cent: {"image_to_text_recall_1": …, "text_to_image_recall_10": …}.

    images          embeddings (n, d)
    texts           embeddings of the captions (t, d), one or more per image
    image_of_text   row of `images` that each caption belongs to, integers (t,)
    ids             integers (t,), equal for captions with equal texts: such a text is correct for every image that has it

    Similarity is the cosine. At a tie, a wrong text or image is ranked before the correct one, so that a model that maps
    everything to one point finds nothing. A k larger than the number of texts or images is left out.

    >>> images, texts = torch.eye(3), torch.eye(3)[[0, 0, 1, 2, 1]]
    >>> caption_recall(images, texts, torch.tensor([0, 0, 1, 2, 2]))["text_to_image_recall_1"]
    80.0
    """
    check_captions(images, texts, image_of_text)
    for name, z in (("images", images), ("texts", texts)):
        check_finite(name, z)
    relation = _Relation.of(image_of_text.to(images.device), ids)
    wrong_texts = wrong_before_right(images, texts, relation.right_texts)
    wrong_images = wrong_before_right(texts, images, relation.right_images)
    return _both_ways(
        [(wrong_texts < k).double() for k in KS if k <= len(texts)],
        [(wrong_images < k).double() for k in KS if k <= len(images)],
    )


@torch.no_grad()
def first_images_are_right(
    images: Tensor, texts: Tensor, image_of_text: Tensor, *, ids: Tensor | None = None
) -> Tensor:
    """Return whether the most similar image of each caption is right, bool (t,): the hits of text-to-image recall@1.

    The arguments are those of `caption_recall`.
    """
    check_captions(images, texts, image_of_text)
    relation = _Relation.of(image_of_text.to(images.device), ids)
    return wrong_before_right(texts, images, relation.right_images) == 0


def caption_chance(image_of_text: Tensor, *, ids: Tensor | None = None) -> dict[str, float]:
    """Return the exact expected `caption_recall` of a random ranking, with the same keys.

    image_of_text   image of each caption, integers (t,), 0 to n - 1
    ids             as in `caption_recall`

    >>> round(caption_chance(torch.arange(1000).repeat_interleave(5))["image_to_text_recall_10"], 3)
    0.996
    """
    texts = len(image_of_text)
    check_index("image_of_text", image_of_text, texts, of="text")
    if not texts:
        raise ValueError("image_of_text: expected at least one text, got none")
    images = int(image_of_text.max()) + 1
    check_image_of_text(image_of_text, images=images, texts=texts)
    relation = _Relation.of(image_of_text, ids)
    right_texts = relation.text_id.bincount()[relation.pairs[1]].double()
    right_texts = right_texts.new_zeros(images).index_add_(0, relation.pairs[0], right_texts)
    right_images = relation.pairs[1].bincount()[relation.text_id]
    return _both_ways(
        [random_hits(right_texts, texts, k) for k in KS if k <= texts],
        [random_hits(right_images, images, k) for k in KS if k <= images],
    )


@dataclass(frozen=True)
class _Relation:
    """Which texts are correct for which images: all texts with the same id as one of the image's captions."""

    text_id: Tensor  # (t,) equal for equal texts, 0 to the number of distinct texts - 1
    pairs: Tensor  # (2, pairs): each image with the id of each of its captions, without duplicates
    images: int

    @classmethod
    def of(cls, image_of_text: Tensor, ids: Tensor | None) -> _Relation:
        if ids is None:
            ids = torch.arange(len(image_of_text))
        check_index("ids", ids, len(image_of_text), of="text")
        text_id = ids.to(image_of_text.device).unique(return_inverse=True)[1]
        pairs = torch.stack([image_of_text.long(), text_id]).unique(dim=1)
        return cls(text_id, pairs, int(image_of_text.max()) + 1)

    def right_texts(self, images: Tensor) -> Tensor:
        """Return whether each text is correct for these images (b,): bool (b, t)."""
        return _paired(images, self.pairs, int(self.text_id.max()) + 1)[:, self.text_id]

    def right_images(self, texts: Tensor) -> Tensor:
        """Return whether each image is correct for these texts (b,): bool (b, n)."""
        return _paired(self.text_id[texts], self.pairs.flip(0), self.images)


def _paired(keys: Tensor, pairs: Tensor, count: int) -> Tensor:
    """Return whether `pairs` (2, p) contain each key (b,) with each number below `count`: bool (b, count)."""
    first, second = pairs.unbind()
    distinct, row = keys.unique(return_inverse=True)
    # Only pairs with these keys are used, so that the table has the size of a block.
    asked = torch.isin(first, distinct)
    table = torch.zeros(len(distinct), count, dtype=torch.bool, device=keys.device)
    table[torch.searchsorted(distinct, first[asked]), second[asked]] = True
    return table[row]


def _both_ways(image_to_text: list[Tensor], text_to_image: list[Tensor]) -> dict[str, float]:
    """Return each list's mean in per cent; the tensors hold hits, or probabilities of hits, at the first values in `KS`."""
    directions = {"image_to_text": image_to_text, "text_to_image": text_to_image}
    return {
        f"{name}_recall_{k}": 100 * float(hits.mean())
        for name, at_each_k in directions.items()
        for k, hits in zip(KS, at_each_k, strict=False)
    }
