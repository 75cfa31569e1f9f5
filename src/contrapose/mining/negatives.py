"""`mine`: the documents that are most similar to each query and are not its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from contrapose.metrics.retrieval import check_finite
from contrapose.mining.copies import first_copies
from contrapose.mining.search import NONE, Search
from contrapose.reduce.unit import units
from contrapose.validate import check_count, check_embeddings, check_index, check_number, check_width

Indices = Tensor | Sequence[int] | Sequence[Sequence[int]]


@dataclass(frozen=True, eq=False)
class MinedNegatives:
    """Hard negatives of q queries, the most similar first; created by `mine`.

    >>> mined = mine(torch.eye(3), torch.eye(3), k=1, max_similarity=0.5)
    >>> mined.counts.tolist(), mined.dropped["own"]
    ([1, 1, 1], 3)
    """

    indices: Tensor  # (q, k) rows of the documents; -1 where a query has fewer than k negatives
    similarities: Tensor  # (q, k) cosine to the query; -inf where there is no negative
    counts: Tensor  # (q,) number of negatives of each query
    positive: Tensor  # (q,) similarity of the most similar positive, from which the margin counts; -inf: none
    copies: int  # number of documents that are copies of an earlier one
    dropped: dict[str, int]  # numbers of similarities left out, by the first reason that applies


@torch.no_grad()
def mine(
    queries: Tensor,
    documents: Tensor,
    k: int = 10,
    *,
    margin: float | None = None,
    relative: bool = False,
    positives: Indices | None = None,
    excluded: Indices | None = None,
    labels: Tensor | None = None,
    ids: Tensor | None = None,
    rank_from: int = 1,
    rank_to: int | None = None,
    min_similarity: float | None = None,
    max_similarity: float | None = None,
    on_block: Callable[[int, int], None] | None = None,
) -> MinedNegatives:
    """Return the k documents most similar to each query that are not its own: hard negatives, by exact search.

    queries          embeddings (q, d)
    documents        embeddings (m, d)
    k                number of negatives per query
    margin           how much less similar than the query's positive a negative must be: documents with s > s⁺ - margin are left
                     out, since they are probably false negatives; None: no such limit
    relative         whether the margin is a fraction of |s⁺|, as in NV-Retriever, whose best value is 0.05
    positives        rows of each query's own documents, (q,) or (q, p), or a list of lists; -1 stands for none. By default,
                     document i belongs to query i. With several positives, s⁺ is the similarity of the most similar one
    excluded         rows of further documents that are no negatives of each query, in the same form, such as its own text
    labels           integers (m,): documents with the label of one of the query's positives are no negatives, such as images
                     of the same class; -1 is a label like any other
    ids              integers (m,): documents with equal ids, such as equal texts, are copies; by default, documents with equal
                     embeddings are. The first copy stands for all: only it is mined, and not if one of them is the query's own
    rank_from        first rank to take; the most similar document that is neither the query's own nor excluded, nor has its
                     label, has rank 1
    rank_to          last rank to take; None: all
    min_similarity   least similarity of a negative
    max_similarity   largest similarity of a negative
    on_block         is called after each block of queries with the numbers of finished queries and of all queries

    Similarity is the cosine. Equal similarities are ranked by row, the lowest first. Ranks are counted before margins apply.
    Fewer than k negatives are returned for a query only if no other document satisfies the conditions: the search is not limited
    to a number of candidates. Similarities are computed in blocks of queries, so that the memory is that of the embeddings and of
    one block.

    `dropped` counts pairs of a query and a document: `own`, `excluded`, `label`; `margin` and `max_similarity`, too similar; and
    `rank`, before `rank_from`.

    >>> z = torch.tensor([[1.0, 0.0], [0.8, 0.6], [0.0, 1.0]])
    >>> mine(z, z, k=1).indices.tolist()
    [[1], [0], [1]]
    >>> mine(z, z, k=1, margin=0.3).indices.tolist()  # 0.8 exceeds 1 - 0.3
    [[2], [2], [1]]
    """
    _check_embeddings(queries, documents)
    _check_limits(k, margin, relative, (rank_from, rank_to), (min_similarity, max_similarity))
    own = _own_rows(positives, queries, documents)
    others = _rows_of_each("excluded", [[]] * len(queries) if excluded is None else excluded, queries, documents)
    available = len(documents) - int(bool((own != NONE).any()))
    if k > available:
        raise ValueError(
            f"k: expected at most {available}, the number of documents without a query's own one, got {k}; use more documents"
        )
    for name, numbers in (("labels", labels), ("ids", ids)):
        if numbers is not None:
            check_index(name, numbers, len(documents), of="document")
    queries, documents = _units(queries, documents)
    first = first_copies(documents, None if ids is None else ids.to(documents.device))
    is_first = first == torch.arange(len(first), device=first.device)
    # The documents that are searched, and the row of each document, or of its first copy, among them
    kept, row = is_first.nonzero()[:, 0], (is_first.cumsum(0) - 1)[first]
    classes = None if labels is None else labels.to(own.device).unique(return_inverse=True)[1]
    own_rows, other_rows = _take(row, own), _take(row, others)
    search = Search(
        queries=queries,
        documents=documents if len(kept) == len(documents) else documents[kept],
        own=_distinct(own_rows),
        others=_without(_distinct(other_rows), own_rows),
        labels=None if classes is None else classes[kept],
        own_labels=None if classes is None else _take(classes, own),
        k=k,
        margin=margin,
        relative=relative,
        ranks=(rank_from, rank_to),
        limits=(min_similarity, max_similarity),
    )
    found, dropped = search.run(on_block)
    indices, similarities, positive = (torch.cat(parts) for parts in zip(*found, strict=True))
    return MinedNegatives(
        indices=_take(kept, indices),
        similarities=similarities,
        counts=(indices != NONE).sum(1),
        positive=positive,
        copies=len(documents) - len(kept),
        dropped=dropped,
    )


def _check_embeddings(queries: Tensor, documents: Tensor) -> None:
    """Check that queries and documents can be compared."""
    for name, z in (("queries", queries), ("documents", documents)):
        check_embeddings(name, z, 2, shapes={2: "(n, d)"})
    check_width("documents", documents, queries)
    if documents.device != queries.device:
        raise ValueError(f"documents: expected the device of queries, {queries.device}, got {documents.device}")


def _units(queries: Tensor, documents: Tensor) -> tuple[Tensor, Tensor]:
    """Return unit vectors; raise ValueError for embeddings that are not finite."""
    normalised = units(queries, documents)
    for name, z, unit in zip(("queries", "documents"), (queries, documents), normalised, strict=True):
        # NaN and infinity become NaN. Two numbers are looked at, since looking at all rows takes many times as long.
        if not bool(torch.stack(torch.aminmax(unit)).isfinite().all()):
            check_finite(name, z)
    return normalised[0], normalised[1]


def _check_limits(
    k: int,
    margin: float | None,
    relative: bool,
    ranks: tuple[int, int | None],
    limits: tuple[float | None, float | None],
) -> None:
    """Check the numbers that say which documents are taken."""
    check_count("k", k, least=1)
    if margin is not None:
        check_number("margin", margin)
    elif relative:
        raise ValueError("margin: expected a number, the fraction for relative=True, got None")
    first, last = ranks
    check_count("rank_from", first, least=1)
    if last is not None:
        check_count("rank_to", last, least=first + k - 1)  # fewer ranks cannot give k negatives
    for name, limit in zip(("min_similarity", "max_similarity"), limits, strict=True):
        if limit is not None:
            check_number(name, limit)
    least, most = limits
    if least is not None and most is not None and least > most:
        raise ValueError(f"min_similarity: expected at most {most}, the max_similarity, got {least}")


def _rows_of_each(name: str, rows: Indices, queries: Tensor, documents: Tensor) -> Tensor:
    """Return rows of documents for each query as a matrix (q, p), padded with -1."""
    if not isinstance(rows, Tensor):
        lists = [[own] if isinstance(own, int) else torch.as_tensor(own).flatten().tolist() for own in rows]
        width = max(map(len, lists), default=0)
        rows = torch.tensor([own + [NONE] * (width - len(own)) for own in lists], dtype=torch.long)
    matrix = rows[:, None] if rows.ndim == 1 else rows
    if matrix.ndim != 2 or len(matrix) != len(queries) or matrix.is_floating_point() or matrix.dtype == torch.bool:
        raise ValueError(
            f"{name}: expected rows of documents for each query, integers ({len(queries)},) or ({len(queries)}, p), got "
            f"{rows.dtype} of shape {tuple(rows.shape)}"
        )
    matrix = matrix.to(queries.device, torch.long)
    outside = (matrix < NONE) | (matrix >= len(documents))
    if bool(outside.any()):
        raise ValueError(
            f"{name}: expected rows of the {len(documents)} documents, from 0 on, or -1 for none, got {int(matrix[outside][0])}"
        )
    # At least one column, so that every query has a largest value.
    return pad(matrix, (0, 1), value=NONE) if matrix.shape[1] == 0 else matrix


def _own_rows(positives: Indices | None, queries: Tensor, documents: Tensor) -> Tensor:
    """Return the rows of each query's own documents, (q, p)."""
    if positives is not None:
        return _rows_of_each("positives", positives, queries, documents)
    if len(documents) < len(queries):
        raise ValueError(
            f"positives: expected the rows of each query's own documents, got None, and there are fewer documents, "
            f"{len(documents)}, than queries, {len(queries)}"
        )
    return torch.arange(len(queries), device=queries.device)[:, None]


def _distinct(rows: Tensor) -> Tensor:
    """Replace repetitions in each row of indices (q, p) by -1."""
    rows = rows.sort(dim=1).values
    repeated = pad(rows[:, 1:] == rows[:, :-1], (1, 0), value=False)
    return rows.masked_fill(repeated, NONE)


def _without(rows: Tensor, others: Tensor) -> Tensor:
    """Replace indices (q, e) that occur in the same row of `others` (q, p) by -1."""
    for other in others.unbind(1):
        rows = rows.masked_fill(rows == other[:, None], NONE)
    return rows


def _take(values: Tensor, rows: Tensor) -> Tensor:
    """Return the values (m,) at rows of any shape, -1 for rows that are -1."""
    return values[rows.clamp(min=0)].masked_fill(rows == NONE, NONE)
