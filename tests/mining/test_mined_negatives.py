"""`mine` beside plain loops over floats, its limits, and what it refuses."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from contrapose import MinedNegatives, mine, unit
from contrapose.mining import search


@dataclass
class Expected:
    """What a query should get: rows and similarities of its negatives, and how many documents each reason leaves out."""

    rows: list[int]
    similarities: list[float]
    positive: float
    dropped: dict[str, int]


def cosine(a: list[float], b: list[float]) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True)) / math.sqrt(sum(x * x for x in a) * sum(y * y for y in b))


def expected(
    query: list[float],
    documents: list[list[float]],
    own: list[int],
    *,
    k: int,
    margin: float | None = None,
    relative: bool = False,
    excluded: tuple[int, ...] = (),
    labels: list[int] | None = None,
    ids: list[int] | None = None,
    rank_from: int = 1,
    rank_to: int | None = None,
    min_similarity: float = -2.0,
    max_similarity: float = 2.0,
) -> Expected:
    """Walk through all documents of one query, the most similar first."""
    keys = ids or [documents.index(document) for document in documents]
    similarity = [cosine(query, document) for document in documents]
    # The first copy stands for all of them.
    positive = max((similarity[keys.index(keys[row])] for row in own), default=-math.inf)
    threshold = math.inf
    if margin is not None and own:
        threshold = positive - margin * (abs(positive) if relative else 1.0)
    dropped = dict.fromkeys(search.DROPPED, 0)
    rows, rank = list[int](), 0
    for row in sorted(range(len(documents)), key=lambda row: (-similarity[row], row)):
        if keys.index(keys[row]) != row:
            continue  # a copy
        if keys[row] in [keys[other] for other in own]:
            dropped["own"] += 1
        elif keys[row] in [keys[other] for other in excluded]:
            dropped["excluded"] += 1
        elif labels is not None and labels[row] in [labels[other] for other in own]:
            dropped["label"] += 1
        else:
            rank += 1
            if similarity[row] > threshold:
                dropped["margin"] += 1
            elif similarity[row] > max_similarity:
                dropped["max_similarity"] += 1
            elif rank < rank_from:
                dropped["rank"] += 1
            elif len(rows) < k and rank <= (rank_to or rank) and similarity[row] >= min_similarity:
                rows.append(row)
    return Expected(rows, [similarity[row] for row in rows], positive, dropped)


def check(queries: Tensor, documents: Tensor, positives: list[list[int]], **options: Any) -> MinedNegatives:
    """Compare `mine` with the loops; return its result."""
    excluded = options.pop("excluded", None)
    result = mine(queries, documents, positives=positives, excluded=excluded, **options)
    plain: dict[str, Any] = {
        name: value.tolist() if isinstance(value, Tensor) else value for name, value in options.items()
    }
    total = dict.fromkeys(search.DROPPED, 0)
    for number, query in enumerate(queries.tolist()):
        others = tuple(excluded[number]) if excluded else ()
        one = expected(query, documents.tolist(), positives[number], excluded=others, **plain)
        missing = options["k"] - len(one.rows)
        assert result.indices[number].tolist() == one.rows + [-1] * missing
        assert result.similarities[number].tolist() == pytest.approx(one.similarities + [-math.inf] * missing)
        assert int(result.counts[number]) == len(one.rows)
        assert float(result.positive[number]) == pytest.approx(one.positive)
        total = {name: total[name] + one.dropped[name] for name in total}
    assert result.dropped == total
    return result


def data(queries: int = 7, documents: int = 40, width: int = 3, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    made = torch.randn(queries + documents, width, generator=generator, dtype=torch.float64)
    return made[:queries], made[queries:]


OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "margin": {"margin": 0.1},
    "margin of zero": {"margin": 0.0},
    "relative margin": {"margin": 0.2, "relative": True},
    "ranks": {"rank_from": 4, "rank_to": 20},
    "last rank cuts off": {"rank_from": 2, "rank_to": 6, "margin": 0.1},
    "ranks and margin": {"rank_from": 9, "margin": 0.1},
    "largest similarity": {"max_similarity": 0.7},
    "both": {"max_similarity": 0.7, "margin": 0.05, "rank_from": 3},
    "least similarity": {"min_similarity": 0.9},
    "more ranks than documents": {"rank_from": 38},
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=list(OPTIONS))
@pytest.mark.parametrize("similarities", [1, 100, 2**24])
def test_every_option_agrees_with_loops(
    options: dict[str, Any], similarities: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks of one query, of two, and one block for all."""
    monkeypatch.setattr(search, "_ON_CPU", similarities)
    queries, documents = data()
    for k in (1, 5):
        check(queries, documents, [[row] for row in range(len(queries))], k=k, **options)


@pytest.mark.parametrize("margin", [None, 0.1])
def test_several_positives_exclusions_labels_and_copies(margin: float | None) -> None:
    queries, documents = data()
    documents[30], documents[31], documents[32] = documents[0], documents[12], documents[12]
    positives = [[0, 3], [1], [], [12, 32, 5], [4], [30], [6, 6]]
    excluded = [[7], [], [8, 9], [12], [31], [], [10, 6]]
    labels = torch.arange(40) % 6
    check(queries, documents, positives, k=4, margin=margin)
    check(queries, documents, positives, k=4, margin=margin, excluded=excluded)
    check(queries, documents, positives, k=4, margin=margin, labels=labels * 10 - 30)
    ids = torch.arange(40) // 2
    result = check(queries, documents, positives, k=4, margin=margin, ids=ids, labels=ids % 5, excluded=excluded)
    assert result.copies == 20
    assert check(queries, documents, positives, k=4).copies == 3


def test_the_default_is_that_document_i_belongs_to_query_i() -> None:
    queries, documents = data()
    by_default, given = mine(queries, documents, 5), mine(queries, documents, 5, positives=torch.arange(7))
    assert torch.equal(by_default.indices, given.indices)
    padded = mine(queries, documents, 5, positives=torch.tensor([[row, -1] for row in range(7)]))
    assert torch.equal(padded.indices, given.indices)
    assert not any(row in by_default.indices[row] for row in range(7))


def test_negatives_are_those_of_a_search_without_a_limit_on_candidates() -> None:
    """sentence-transformers looks at 10 k candidates: with a wide margin, none of them may be left (issue 3279)."""
    queries, documents = data(1, 500, 8)
    documents[0] = -queries[0]  # a positive that is less similar than any other document
    result = check(queries, documents, [[0]], k=3, margin=-0.3)
    assert result.dropped["margin"] > 400
    assert result.counts.tolist() == [3]


def test_ties_go_to_the_lowest_rows() -> None:
    corners = torch.eye(4).repeat(30, 1)  # 120 documents; copies unless ids tell them apart
    result = mine(torch.eye(4), corners, 40, ids=torch.arange(120))
    for query, rows in enumerate(result.indices.tolist()):
        same = [row for row in range(120) if row % 4 == query and row != query]
        assert rows == same + [row for row in range(120) if row % 4 != query][: 40 - len(same)]
    assert mine(torch.eye(4), corners, 3).indices.tolist() == [[1, 2, 3], [0, 2, 3], [0, 1, 3], [0, 1, 2]]
    assert mine(torch.eye(4), corners, 3).copies == 116


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_low_precision_is_computed_in_float32(dtype: torch.dtype) -> None:
    queries, documents = (z.to(dtype) for z in data(width=16))
    result = mine(queries, documents, 5, margin=0.1)
    exact = mine(queries.double(), documents.double(), 5, margin=0.1)
    assert result.similarities.dtype == torch.float32
    assert torch.equal(result.indices, exact.indices)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(mine(queries, documents, 5, margin=0.1).similarities, result.similarities)


def test_similarity_does_not_depend_on_length() -> None:
    queries, documents = data()
    scaled = documents * torch.arange(1, 41)[:, None]
    assert torch.equal(mine(queries, scaled, 5).indices, mine(unit(queries), unit(documents), 5).indices)


def test_progress_counts_queries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "_ON_CPU", 120)
    calls = list[tuple[int, int]]()
    mine(*data(), 2, on_block=lambda done, total: calls.append((done, total)))
    assert calls == [(3, 7), (6, 7), (7, 7)]


def test_no_gradient_is_recorded() -> None:
    queries, documents = data()
    assert not mine(queries.requires_grad_(), documents, 2).similarities.requires_grad


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"queries": [[1.0]]}, "queries: expected a tensor of embeddings, got list"),
    ({"queries": torch.ones(4)}, r"queries: expected embeddings of shape \(n, d\), got shape \(4,\)"),
    ({"documents": torch.ones(4, 3, dtype=torch.long)}, "documents: expected floating point embeddings, got torch.int64"),
    ({"documents": torch.ones(4, 5)}, r"documents: expected rows of the embeddings' width 3, got shape \(4, 5\)"),
    ({"documents": torch.ones(40, 3, device="meta")}, "documents: expected the device of queries, cpu, got meta"),
    ({"documents": torch.ones(40, 3).index_fill(0, torch.tensor(2), torch.nan)}, "documents: the embedding of row 2 is not"),
    ({"queries": torch.full((7, 3), torch.inf)}, "queries: the embedding of row 0 is not finite"),
    ({"documents": torch.ones(2, 3)}, "positives: expected the rows of each query's own documents, got None, and there are"),
    ({"k": 40}, "k: expected at most 39, the number of documents without a query's own one, got 40; use more documents"),
    ({"k": 41, "positives": [[]] * 7}, "k: expected at most 40"),
    ({"k": 0}, "k: expected a whole number of at least 1, got 0"),
    ({"margin": float("nan")}, "margin: expected a finite number, got nan"),
    ({"relative": True}, "margin: expected a number, the fraction for relative=True, got None"),
    ({"rank_from": 0}, "rank_from: expected a whole number of at least 1, got 0"),
    ({"rank_from": 6, "rank_to": 9}, "rank_to: expected a whole number of at least 10, got 9"),
    ({"min_similarity": 0.5, "max_similarity": 0.4}, "min_similarity: expected at most 0.4, the max_similarity, got 0.5"),
    ({"positives": [[0]]}, r"positives: expected rows of documents for each query, integers \(7,\) or \(7, p\), got"),
    ({"positives": torch.zeros(7)}, "positives: expected rows of documents for each query, .*, got torch.float32 of shape"),
    ({"positives": [40] * 7}, "positives: expected rows of the 40 documents, from 0 on, or -1 for none, got 40"),
    ({"excluded": [[-2]] * 7}, "excluded: expected rows of the 40 documents, from 0 on, or -1 for none, got -2"),
    ({"labels": torch.zeros(7)}, r"labels: expected one integer per document, shape \(40,\), got \(7,\)"),
    ({"ids": torch.zeros(40)}, "ids: expected integers, got torch.float32"),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "message"), REFUSED)
def test_refusals(changes: dict[str, Any], message: str) -> None:
    queries, documents = data()
    arguments: dict[str, Any] = {"queries": queries.float(), "documents": documents.float(), "k": 5, **changes}
    with pytest.raises(ValueError, match=message):
        mine(**arguments)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("options", OPTIONS.values(), ids=list(OPTIONS))
def test_a_gpu_finds_the_same(options: dict[str, Any]) -> None:
    queries, documents = data(100, 5000, 16)
    documents[300:400] = documents[:100]
    further: list[dict[str, Any]] = [{}, {"labels": torch.arange(5000) % 7}]
    for extra in further:
        here = mine(queries, documents, 5, **options, **extra)
        there = mine(queries.cuda(), documents.cuda(), 5, **options, **extra)
        assert there.indices.is_cuda
        assert torch.equal(there.indices.cpu(), here.indices)
        assert there.dropped == here.dropped
        assert there.copies == here.copies == 100


def test_positives_as_numbers_of_other_libraries() -> None:
    queries, documents = torch.randn(2, 8, 16)
    expected = mine(queries, documents, k=2).indices
    given: list[Any] = [np.arange(8), list(np.arange(8)), list(torch.arange(8)), [np.array([i]) for i in range(8)]]
    for positives in given:
        assert torch.equal(mine(queries, documents, k=2, positives=positives).indices, expected)
