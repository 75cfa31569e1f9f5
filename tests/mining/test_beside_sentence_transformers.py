"""`mine` finds what `mine_hard_negatives` of sentence-transformers finds, where the options of both mean the same."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from datasets import Dataset
from sentence_transformers import SentenceTransformer
from sentence_transformers.util import mine_hard_negatives
from sentences import static

from contrapose import mine

QUERIES, CORPUS = 12, 60
# Ours, and theirs: their ranks start at 0 and end before the last one, and are counted after other filters.
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "plain": ({}, {}),
    "ranks": ({"rank_from": 3, "rank_to": 20}, {"range_min": 2, "range_max": 20}),
    "margin": ({"margin": 0.1}, {"absolute_margin": 0.1, "range_max": CORPUS}),
    "relative margin": ({"margin": 0.05, "relative": True}, {"relative_margin": 0.05, "range_max": CORPUS}),
    "largest similarity": ({"max_similarity": 0.4}, {"max_score": 0.4, "range_max": CORPUS}),
    "least similarity": ({"min_similarity": 0.45}, {"min_score": 0.45}),
}


def texts() -> tuple[list[str], list[str], list[str]]:
    """Queries, their documents and further documents: words in a random order, so that no two texts are equal."""
    words = [f"{kind}{i}" for kind in "qpn" for i in range(12)]
    drawn = torch.rand(QUERIES * 2 + CORPUS, len(words), generator=torch.Generator().manual_seed(0)).argsort(1)[:, :4]
    made = [" ".join(words[number] for number in row) for row in drawn.tolist()]
    # A query shares a word with its document, so that most positives are similar.
    documents = [f"{made[i]} {made[QUERIES + i].split()[0]}" for i in range(QUERIES)]
    return made[:QUERIES], documents, made[2 * QUERIES :]


def ours(
    model: SentenceTransformer, queries: list[str], documents: list[str], positives: Any, **options: Any
) -> list[list[str]]:
    asked, known = (torch.from_numpy(model.encode(part)) for part in (queries, documents))
    mined = mine(asked, known, 3, positives=positives, **options)
    return [[documents[row] for row in rows if row >= 0] for rows in mined.indices.tolist()]


@pytest.mark.parametrize(("options", "their_options"), CASES.values(), ids=list(CASES))
def test_the_same_negatives(options: dict[str, Any], their_options: dict[str, Any]) -> None:
    model, (queries, documents, others) = static(), texts()
    mined = mine_hard_negatives(
        Dataset.from_dict({"query": queries, "answer": documents}),
        model,
        corpus=[*documents, *others],
        num_negatives=3,
        output_format="labeled-list",
        verbose=False,
        **their_options,
    )
    theirs = dict(zip(mined["query"], [listed[1:] for listed in mined["answer"]], strict=True))
    own = ours(model, queries, [*documents, *others], None, **options)
    assert {query: found for query, found in zip(queries, own, strict=True) if found} == theirs
    assert sum(map(len, own)) > 3


def test_the_same_negatives_with_several_positives() -> None:
    """A query that occurs twice has two positives; without a margin, whose positive differs, nothing else does."""
    model, (queries, documents, others) = static(), texts()
    corpus = [*documents, *others]
    mined = mine_hard_negatives(
        Dataset.from_dict({"query": queries * 2, "answer": [*documents, *others[:QUERIES]]}),
        model,
        corpus=corpus,
        num_negatives=3,
        output_format="n-tuple",
        verbose=False,
    )
    theirs = {row["query"]: [row[f"negative_{i}"] for i in (1, 2, 3)] for row in mined}
    own = ours(model, queries, corpus, [[i, QUERIES + i] for i in range(QUERIES)])
    assert dict(zip(queries, own, strict=True)) == theirs
