"""Embeddings of texts in their order, although texts of similar length are embedded together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor

from contrapose.lab.modalities import mining
from contrapose.lab.modalities.mining import embed_texts, number_texts


@dataclass
class Lengths:
    """Embeds a text as its length and its first letter, and keeps the batches."""

    batches: list[list[str]] = field(default_factory=list)

    def embed(self, samples: Sequence[Any]) -> Tensor:
        self.batches.append(list(samples))
        return torch.tensor([[float(len(text)), float(ord(text[0]))] for text in samples])

    def features(self, source: Any) -> Tensor:
        raise NotImplementedError


@pytest.mark.parametrize("size", [1, 2, 1024])
def test_rows_are_in_the_order_of_the_texts(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mining, "_TEXTS", size)
    texts, embedder = ["ccc", "a", "dddd", "bb", "e"], Lengths()
    embeddings = embed_texts(embedder, texts)
    assert embeddings.tolist() == [[len(text), ord(text[0])] for text in texts]
    assert [len(text) for batch in embedder.batches for text in batch] == [1, 1, 2, 3, 4]
    assert max(map(len, embedder.batches)) == min(size, 5)


def test_equal_texts_have_one_number() -> None:
    assert number_texts(["b", "a", "b", "c", "a"]) == {"b": 0, "a": 1, "c": 2}
