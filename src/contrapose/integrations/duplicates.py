"""Find equal texts in a sentence-transformers batch, so that a duplicate is never a negative."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from contrapose.randomness import bits

# Inputs in addition to the tokens: two images may share one prompt, so equal tokens do not imply equal samples.
_OTHER_INPUTS = ("pixel", "image", "video", "audio", "input_features", "input_values")


def text_ids(features: Mapping[str, Any]) -> Tensor | None:
    """Return a 64-bit hash of each text's tokens, (n,); None for inputs that are not only text.

    Texts with equal tokens are equal, regardless of padding. The hash is the same on every process.
    """
    other = any(key.startswith(_OTHER_INPUTS) for key in features)
    if other or features.get("modality", "text") != "text" or "input_ids" not in features:
        return None
    count, text, position, tokens = _tokens(features)
    hashes = torch.zeros(count, dtype=torch.long, device=tokens.device)
    return hashes.index_add(0, text, bits(tokens, position))  # integer sums do not depend on the order


def _tokens(features: Mapping[str, Any]) -> tuple[int, Tensor, Tensor, Tensor]:
    """Return the number of texts and, for every token, the index of its text, its position in the text and its id."""
    tokens: Tensor = features["input_ids"]
    if tokens.ndim == 2 and "cu_seq_lens_q" not in features:  # padded on either side
        mask = features.get("attention_mask")
        mask = torch.ones_like(tokens, dtype=torch.bool) if mask is None else mask.bool()
        text, column = mask.nonzero(as_tuple=True)
        return len(tokens), text, mask.long().cumsum(1)[text, column], tokens[text, column]
    # Texts one after another, for flash attention or for a StaticEmbedding.
    tokens = tokens.flatten()
    starts = features["cu_seq_lens_q"][:-1] if "cu_seq_lens_q" in features else features["offsets"]
    place = torch.arange(len(tokens), device=tokens.device)
    text = torch.searchsorted(starts.to(place), place, right=True) - 1
    return len(starts), text, place - starts[text] + 1, tokens


def group_ids(queries: Tensor, positives: Tensor, negatives: Tensor) -> tuple[Tensor, Tensor]:
    """Return an id for each pair (n,) and for each explicit negative (k,), from the texts' hashes.

    Pairs that share a text, directly or through other pairs, get the same id: if a query has two positives, neither is
    a negative. An explicit negative gets the id of the pairs that contain its text, or a new id.
    """
    _, texts = torch.unique(torch.cat([queries, positives, negatives]), return_inverse=True)
    ends = texts[: 2 * len(queries)]  # the queries, then their positives
    first, second = ends.chunk(2)
    # Connected components: both texts of a pair take the lower of their labels until nothing changes.
    label = torch.arange(len(texts), device=texts.device)
    while True:
        lower = torch.minimum(label[first], label[second]).repeat(2)
        lowered = label.scatter_reduce(0, ends, lower, "amin")
        if torch.equal(lowered, label):
            return label[first], label[texts[2 * len(queries) :]]
        label = lowered
