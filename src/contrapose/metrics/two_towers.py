"""How images and their captions are distributed in their joint embedding space: modality gap, alignment, uniformity."""

from __future__ import annotations

import torch
from torch import Tensor

from contrapose.metrics.embeddings import unit_vectors
from contrapose.metrics.geometry import alignment, uniformity
from contrapose.pairs import unit
from contrapose.validate import check_embeddings, check_index, check_values, check_width


def two_tower_measures(images: Tensor, texts: Tensor, image_of_text: Tensor) -> dict[str, float]:
    """Return the modality gap, the alignment of captions with their images, and the uniformity of each tower.

    modality_gap                         ‖mean of image embeddings - mean of text embeddings‖ (Liang et al. 2022), 0 to 2
    alignment                            mean of ‖image - caption‖² over all captions, each with its image, 0 to 4
    image_uniformity, text_uniformity    `uniformity` of each tower, t = 2: 0 if collapsed, lower if more uniform

    images          embeddings (n, d); all embeddings are scaled to unit length first
    texts           embeddings of the captions (t, d)
    image_of_text   row of `images` that each caption belongs to, integers (t,)

    >>> measures = two_tower_measures(torch.eye(2), -torch.eye(2), torch.tensor([0, 1]))
    >>> {name: round(value, 3) for name, value in measures.items()}
    {'modality_gap': 1.414, 'alignment': 4.0, 'image_uniformity': -4.0, 'text_uniformity': -4.0}
    """
    check_captions(images, texts, image_of_text)
    # Normalised here, since a network's outputs have any length and `unit_vectors` would warn; it also rejects zero vectors.
    images, texts = unit_vectors("images", unit(images)), unit_vectors("texts", unit(texts))
    gap = images.double().mean(0) - texts.double().mean(0)
    return {
        "modality_gap": float(torch.linalg.vector_norm(gap)),
        "alignment": alignment(texts, images[image_of_text.to(images.device)].to(texts.dtype)),
        "image_uniformity": uniformity(images),
        "text_uniformity": uniformity(texts),
    }


def check_captions(images: Tensor, texts: Tensor, image_of_text: Tensor) -> None:
    """Check embeddings of images (n, d) and captions (t, d), and that each image has at least one caption."""
    for name, z in (("images", images), ("texts", texts)):
        check_embeddings(name, z, 2, shapes={2: "(n, d)"})
    check_width("texts", texts, images)
    if len(images) < 2:
        raise ValueError(f"images: expected at least two, got {len(images)}")
    check_image_of_text(image_of_text, images=len(images), texts=len(texts))


def check_image_of_text(image_of_text: Tensor, *, images: int, texts: int) -> None:
    """Check that each text belongs to one of the images, and that each image has a text."""
    check_index("image_of_text", image_of_text, texts, of="text")
    is_image = (image_of_text >= 0) & (image_of_text < images)
    check_values(
        is_image,
        lambda: f"image_of_text: expected numbers from 0 to {images - 1}, got {int(image_of_text[~is_image][0])}",
    )
    counts = torch.bincount(image_of_text, minlength=images)
    check_values(counts, lambda: f"image_of_text: image {int(counts.argmin())} has no text; leave out such images")
