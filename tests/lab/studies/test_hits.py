"""Hits of test samples, read from the evaluations of runs."""

from __future__ import annotations

import pytest
import torch

from contrapose.lab.studies.results import Results
from contrapose.lab.studies.scores import JOINT, RECALL, hits_of


def test_a_sample_with_several_queries_has_one_number() -> None:
    """The mean of the numbers is the share of all queries that are hits."""
    texts = ["011 10 1", "000 11 0"]
    evaluations = {("clip", "mine"): tuple({"joint_hits_by_sample": text} for text in texts)}
    hits = hits_of(Results(sets=("mine",), evaluations=evaluations), ["clip"], JOINT)["clip"]
    torch.testing.assert_close(hits, torch.tensor([[2.0, 1, 1], [0, 2, 0]]).double() * 3 / 6)
    assert hits.mean(1).tolist() == pytest.approx([4 / 6, 2 / 6])


def test_a_sample_with_one_query_is_a_hit_or_not() -> None:
    evaluations = {("simcse", "mine"): ({"recall_hits": "0110"}, {"recall_hits": "1110"})}
    hits = hits_of(Results(sets=("mine",), evaluations=evaluations), ["simcse"], RECALL)["simcse"]
    assert hits.tolist() == [[0, 1, 1, 0], [1, 1, 1, 0]]
