"""Retrieval: how often a query's own document is among the k documents most similar to the query."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from contrapose.reduce.unit import full_precision, units
from contrapose.validate import check_count, check_embeddings, check_index, check_same_shape, check_values

_BLOCK = 2**24  # similarities held at a time: 64 MiB in float32
_ROUNDING = 8  # cosines that differ by fewer units of rounding count as equal


@torch.no_grad()
def recall_at(
    queries: Tensor,
    documents: Tensor,
    *,
    ks: Sequence[int] = (1, 5, 10),
    ids: Tensor | None = None,
    query_ids: Tensor | None = None,
) -> dict[str, float]:
    """Return the percentage of queries whose document is among the k most similar documents: {"recall@1": …}.

    queries     embeddings (n, d)
    documents   embeddings (n, d); document i belongs to query i
    ks          values of k; values larger than n are left out
    ids         integers (n,): documents with equal ids, such as equal texts, are right for each other's queries, and finding
                one of them is enough
    query_ids   integers (n,): so are the documents of queries with equal ids, such as several answers to one question

    Similarity is the cosine. Documents are ranked for each query, as is customary; for the other direction, swap the arguments.
    Ties count against the encoder: a wrong document that is exactly as similar as the right one is ranked first, so an encoder
    that maps all texts to the same point finds nothing.

    >>> z = torch.eye(4)
    >>> recall_at(z, z.roll(1, 0), ks=(1, 4))
    {'recall@1': 0.0, 'recall@4': 100.0}
    """
    for k in ks:
        check_count("ks", k, least=1)
    wrong = wrong_before(queries, documents, ids=ids, query_ids=query_ids)
    if not any(k <= len(documents) for k in ks):
        raise ValueError(f"ks: expected a k of at most {len(documents)}, the number of documents, got {tuple(ks)}")
    return {f"recall@{k}": 100 * float((wrong < k).double().mean()) for k in ks if k <= len(documents)}


def recall_chance(ids: Tensor, *, ks: Sequence[int] = (1, 5, 10), query_ids: Tensor | None = None) -> dict[str, float]:
    """Return the exact expected `recall_at` of a random ranking, with the same keys.

    ids, query_ids   integers (n,), as in `recall_at`

    >>> round(recall_chance(torch.arange(1000))["recall@10"], 6)
    1.0
    """
    documents = len(ids)
    check_index("ids", ids, documents)
    right = _group_sizes(ids)
    if query_ids is not None:
        check_index("query_ids", query_ids, documents)
        right = right + _group_sizes(query_ids) - _group_sizes(torch.stack([ids, query_ids], dim=1))
    return {f"recall@{k}": 100 * float(random_hits(right, documents, k).mean()) for k in ks if k <= documents}


def _group_sizes(keys: Tensor) -> Tensor:
    """Return how many rows have the key of each row, (n,)."""
    _, group, counts = keys.unique(dim=0, return_inverse=True, return_counts=True)
    sizes: Tensor = counts[group]
    return sizes


def random_hits(right: Tensor, candidates: int, k: int) -> Tensor:
    """Return the probability that one of `right` candidates is among k drawn without replacement: 1 - C(c - r, k) / C(c, k)."""
    drawn = torch.arange(k, dtype=torch.float64, device=right.device)
    missed = ((candidates - right.double()[:, None] - drawn) / (candidates - drawn)).clamp(min=0)
    return 1 - missed.prod(1)


@torch.no_grad()
def wrong_before(
    queries: Tensor, documents: Tensor, *, ids: Tensor | None = None, query_ids: Tensor | None = None
) -> Tensor:
    """Return the number of wrong documents that each query ranks before its own, (n,): 0 if its own is ranked first.

    The arguments are the same as in `recall_at`.
    """
    _check(queries, documents, ids, query_ids)
    given = [keys for keys in (ids, query_ids) if keys is not None] or [torch.arange(len(documents))]
    given = [keys.to(documents.device) for keys in given]

    def is_right(rows: Tensor) -> Tensor:
        return torch.stack([keys[rows][:, None] == keys for keys in given]).any(0)

    return wrong_before_right(queries, documents, is_right)


@torch.no_grad()
def wrong_before_right(queries: Tensor, documents: Tensor, is_right: Callable[[Tensor], Tensor]) -> Tensor:
    """Return the number of wrong documents that each query (q, d) ranks before its first right document, (q,).

    `is_right` maps query indices (b,) to bool (b, documents): whether each document is right for each query. A wrong document
    that is exactly as similar as the right document is ranked before it.
    """
    queries, documents = units(queries, documents)
    indices = torch.arange(len(queries), device=documents.device)
    # In blocks of queries, so that the matrix of all similarities is never stored.
    with full_precision(queries):
        blocks = [
            _wrong_documents_before(queries[rows], documents, is_right(rows))
            for rows in indices.split(max(1, _BLOCK // len(documents)))
        ]
    return torch.cat(blocks)


def _wrong_documents_before(queries: Tensor, documents: Tensor, is_right: Tensor) -> Tensor:
    similarity = queries @ documents.T
    best_right = similarity.masked_fill(~is_right, -torch.inf).amax(1, keepdim=True)
    # A matrix product may round the cosines of equal documents differently.
    tie = _ROUNDING * torch.finfo(similarity.dtype).eps
    return ((similarity >= best_right - tie) & ~is_right).sum(1)


def _check(queries: Tensor, documents: Tensor, ids: Tensor | None, query_ids: Tensor | None) -> None:
    for name, z in (("queries", queries), ("documents", documents)):
        check_embeddings(name, z, 2, shapes={2: "(n, d)"})
    check_same_shape("documents", documents, "queries", queries)
    if len(queries) < 2:
        raise ValueError(
            f"queries: expected at least two, got {len(queries)}: a document without rivals is always found"
        )
    for name, z in (("queries", queries), ("documents", documents)):
        check_finite(name, z)
    for name, keys in (("ids", ids), ("query_ids", query_ids)):
        if keys is not None:
            check_index(name, keys, len(documents))


def check_finite(name: str, z: Tensor) -> None:
    """Check that all embeddings (n, d) are finite."""
    finite = z.isfinite().all(1)
    # Comparisons with NaN are false, so no document would rank before a document with NaN.
    check_values(finite, lambda: f"{name}: the embedding of row {int((~finite).nonzero()[0])} is not finite")
