"""`MiningTask`: queries and documents with their embeddings, among which `contrapose mine` looks for hard negatives."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from torch import Tensor

from contrapose.lab.modalities.evaluations import SampleEmbedder
from contrapose.lab.modalities.progress import progress_bar

_TEXTS = 1024  # texts to embed between two steps of the progress bar


@dataclass(frozen=True, eq=False, kw_only=True)
class MiningTask:
    """Queries and documents, and which documents belong to each query."""

    queries: Sequence[str]  # texts, or paths of images, as they are written
    documents: Sequence[str]  # no two of them are equal
    query_embeddings: Tensor  # (q, d)
    document_embeddings: Tensor  # (m, d)
    positives: Sequence[Sequence[int]]  # documents of each query
    excluded: Sequence[Sequence[int]] | None = None  # other documents that are no negatives of each query
    labels: Tensor | None = None  # (m,) documents with the label of a query's positive are not its negatives
    nouns: tuple[str, str] = ("queries", "documents")  # what they are called in messages
    for_training: bool = False  # whether `train` reads rows of a query, its document and negatives
    notes: tuple[str, ...] = ()  # what may surprise a user about the data, one sentence each


def number_texts(texts: Iterable[str]) -> dict[str, int]:
    """Return the number of each distinct text, in the order of their first occurrence."""
    numbers = dict[str, int]()
    for text in texts:
        numbers.setdefault(text, len(numbers))
    return numbers


def embed_texts(embedder: SampleEmbedder, texts: Sequence[str]) -> Tensor:
    """Return the embeddings of texts on the CPU, (n, d), with a progress bar; texts of similar length share a batch."""
    order = sorted(range(len(texts)), key=lambda number: len(texts[number]))
    parts = [order[start : start + _TEXTS] for start in range(0, len(order), _TEXTS)]
    embeddings: Tensor | None = None
    with progress_bar("embed texts", len(parts)) as advance:
        for part in parts:
            rows = embedder.embed([texts[number] for number in part]).cpu()
            if embeddings is None:
                embeddings = rows.new_empty(len(texts), rows.shape[1])
            embeddings[part] = rows
            advance()
    assert embeddings is not None  # a data set has at least one text
    return embeddings
