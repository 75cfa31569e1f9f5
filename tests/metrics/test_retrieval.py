"""Recall at k: values of a plain loop and of torchmetrics, ties, equal documents, blocks, and bad input."""

from __future__ import annotations

import math
import re
from itertools import permutations
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torchmetrics.functional.retrieval import retrieval_recall

from contrapose.metrics import recall_at, retrieval
from contrapose.metrics.retrieval import recall_chance, wrong_before


def recall_oracle(queries: Tensor, documents: Tensor, k: int, ids: list[int]) -> float:
    """Per cent of queries with a right document before the k-th wrong one, by plain loops over float64."""

    def cosine(a: list[float], b: list[float]) -> float:
        return sum(x * y for x, y in zip(a, b, strict=True)) / math.sqrt(sum(x * x for x in a) * sum(y * y for y in b))

    hits = 0
    for i, query in enumerate(queries.double().tolist()):
        similarity = [cosine(query, document) for document in documents.double().tolist()]
        best = max(s for j, s in enumerate(similarity) if ids[j] == ids[i])
        wrong = sum(1 for j, s in enumerate(similarity) if ids[j] != ids[i] and s >= best - 1e-14)
        hits += wrong < k
    return 100 * hits / len(queries)


@settings(max_examples=30, deadline=None)
@given(
    n=st.integers(2, 12),
    distinct=st.integers(1, 12),
    seed=st.integers(0, 100),
    dtype=st.sampled_from([torch.float64, torch.float32]),
)
def test_recall_equals_a_plain_loop(n: int, distinct: int, seed: int, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(seed)
    documents = torch.randn(n, 3, generator=generator, dtype=dtype)
    queries = documents + torch.randn(n, 3, generator=generator, dtype=dtype)
    ids = torch.randint(0, distinct, (n,), generator=generator)
    for given_ids in (None, ids):
        expected = (torch.arange(n) if given_ids is None else given_ids).tolist()
        scores = recall_at(queries, documents, ks=(1, 2), ids=given_ids)
        assert scores == pytest.approx({f"recall@{k}": recall_oracle(queries, documents, k, expected) for k in (1, 2)})


def test_recall_equals_torchmetrics() -> None:
    documents = torch.randn(40, 8)
    queries = documents + torch.randn(40, 8)
    similarity = torch.nn.functional.normalize(queries) @ torch.nn.functional.normalize(documents).T
    for k in (1, 5, 10):
        hits = [retrieval_recall(row, torch.arange(40) == i, top_k=k) for i, row in enumerate(similarity)]
        expected = 100 * float(torch.stack(hits).mean())
        assert 0 < expected < 100
        assert recall_at(queries, documents, ks=(k,)) == {f"recall@{k}": pytest.approx(expected)}


def test_blocks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    documents, ids = torch.randn(50, 6), torch.randint(0, 40, (50,))
    queries = documents + torch.randn(50, 6)
    whole = recall_at(queries, documents, ids=ids)
    for similarities in (7 * 50, 1):  # blocks of seven rows, which do not divide 50, and of one
        monkeypatch.setattr(retrieval, "_BLOCK", similarities)
        assert recall_at(queries, documents, ids=ids) == whole


@pytest.mark.parametrize("n", [3, 100, 517])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_a_collapsed_encoder_finds_nothing(n: int, dtype: torch.dtype) -> None:
    z = torch.randn(1, 37).expand(n, 37).to(dtype)
    assert recall_at(z, z, ks=(1, 2)) == {"recall@1": 0.0, "recall@2": 0.0}
    assert recall_at(torch.zeros(n, 2), torch.zeros(n, 2), ks=(1,)) == {"recall@1": 0.0}


def test_equal_documents_are_right_for_each_other() -> None:
    z = torch.eye(4)[[0, 0, 1, 2]]
    assert recall_at(z, z, ks=(1,)) == {"recall@1": 50.0}
    assert recall_at(z, z, ks=(1,), ids=torch.tensor([5, 5, 1, 2])) == {"recall@1": 100.0}


def test_all_documents_of_equal_queries_are_right() -> None:
    """Two answers to one question: either is right, and neither counts as wrong before the other."""
    generator = torch.Generator().manual_seed(0)
    questions, answers = torch.randn(2, 12, 5, generator=generator, dtype=torch.float64)
    query_ids, ids = torch.arange(12) // 2, torch.tensor([0, 1, 2, 3, 4, 0, 6, 7, 8, 9, 10, 11])
    questions = questions[query_ids]
    cosine = torch.nn.functional.normalize(questions) @ torch.nn.functional.normalize(answers).T
    expected = []
    for i in range(12):
        right = [j for j in range(12) if query_ids[j] == query_ids[i] or ids[j] == ids[i]]
        best = max(float(cosine[i, j]) for j in right)
        expected.append(sum(float(cosine[i, j]) > best for j in range(12) if j not in right))
    assert wrong_before(questions, answers, ids=ids, query_ids=query_ids).tolist() == expected
    both = torch.eye(6, dtype=torch.float64)[query_ids]  # both answers of a question are equal to it
    assert recall_at(both, both, query_ids=query_ids)["recall@1"] == 100
    assert recall_at(both, both)["recall@1"] == 0


def test_chance_with_equal_queries_and_documents() -> None:
    query_ids, ids = torch.tensor([0, 0, 1, 2, 2, 3]), torch.tensor([0, 1, 1, 3, 3, 5])
    right = [sum(bool((query_ids[i] == query_ids[j]) | (ids[i] == ids[j])) for j in range(6)) for i in range(6)]
    assert right == [2, 3, 2, 2, 2, 1]
    expected = 100 * sum(right) / 36
    assert recall_chance(ids, ks=(1,), query_ids=query_ids)["recall@1"] == pytest.approx(expected)


def test_queries_are_ranked_in_one_direction() -> None:
    """Both queries point at document 0, so one of them finds its document; each document finds its own query."""
    queries, documents = torch.tensor([[1.0, 0.1], [1.0, 0.2]]), torch.tensor([[1.0, 0.1], [0.0, 1.0]])
    assert recall_at(queries, documents, ks=(1,)) == {"recall@1": 50.0}
    assert recall_at(documents, queries, ks=(1,)) == {"recall@1": 100.0}


def test_a_k_above_the_number_of_documents_is_left_out() -> None:
    assert recall_at(torch.eye(6), torch.eye(6)) == {"recall@1": 100.0, "recall@5": 100.0}


BAD: list[tuple[dict[str, Any], str]] = [
    ({"queries": [[1.0]]}, "queries: expected a tensor of embeddings, got list"),
    ({"documents": torch.eye(4)[:3]}, "documents: expected the shape of queries, (4, 4), got (3, 4)"),
    ({"queries": torch.eye(4).long()}, "queries: expected floating point embeddings, got torch.int64"),
    ({"queries": torch.eye(4)[:1], "documents": torch.eye(4)[:1]}, "queries: expected at least two, got 1"),
    ({"documents": torch.eye(4) / (1 - torch.eye(4))}, "documents: the embedding of row 0 is not finite"),
    ({"ks": (0,)}, "ks: expected a whole number of at least 1, got 0"),
    ({"ks": (5, 10)}, "ks: expected a k of at most 4, the number of documents, got (5, 10)"),
    ({"ids": torch.arange(3)}, "ids: expected one integer per image, shape (4,), got (3,)"),
]


@pytest.mark.parametrize(("arguments", "message"), BAD)
def test_messages(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        recall_at(**({"queries": torch.eye(4), "documents": torch.eye(4)} | arguments))


def test_wrong_documents_are_counted_before_the_right_one() -> None:
    queries = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    documents = torch.tensor([[0.0, 1.0], [0.1, 1.0], [1.0, 0.9]])
    assert wrong_before(queries, documents).tolist() == [2, 1, 0]
    assert wrong_before(queries, documents, ids=torch.tensor([7, 7, 8])).tolist() == [1, 0, 0]


def test_chance_is_the_mean_over_all_rankings() -> None:
    ids = torch.tensor([0, 1, 0, 2])
    found = {1: 0, 2: 0}
    rankings = list(permutations(range(4)))
    for ranking in rankings:
        for k in found:
            found[k] += sum(any(ids[document] == ids[query] for document in ranking[:k]) for query in range(4))
    expected = {f"recall@{k}": pytest.approx(100 * hits / len(rankings) / 4) for k, hits in found.items()}
    assert recall_chance(ids, ks=(1, 2, 5)) == expected
