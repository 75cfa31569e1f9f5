"""Which queries, documents and pairs a file and a corpus have."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

from contrapose.lab.modalities.modality import DataSettings
from contrapose.lab.modalities.text.mining import mine_pairs, pair_task


def lengths(texts: Sequence[str]) -> Tensor:
    """Embed a text as its length: each embedding shows which text it belongs to."""
    return torch.tensor([[float(len(text)), 1.0] for text in texts])


def test_equal_queries_and_documents_are_one() -> None:
    pairs = [("a", "AAAA"), ("bb", "BBBBB"), ("a", "BBBBB"), ("ccc", "a"), ("a", "AAAA")]
    task = pair_task(pairs, ["dddddd", "BBBBB", "bb"], lengths, notes=["first"])
    assert task.queries == ["a", "bb", "ccc"]
    assert task.documents == ["AAAA", "BBBBB", "a", "dddddd", "bb"]
    assert task.positives == [[0, 1], [1], [2]]
    assert task.excluded == [[2], [4], []]  # documents with the query's own text
    assert task.query_embeddings[:, 0].tolist() == [1, 2, 3]
    assert task.document_embeddings[:, 0].tolist() == [4, 5, 1, 6, 2]
    assert task.notes == ("first", "1 pair of 5 repeat an earlier one and are left out")
    assert task.for_training


def test_a_file_and_a_corpus(tmp_path: Path) -> None:
    (tmp_path / "pairs.tsv").write_text("id\tquestion\tanswer\tnegative\n7\ta\tAA\tx\n8\tb\tBBB\ty\n")
    (tmp_path / "corpus.jsonl").write_text('{"text": "CCCC", "other": "no"}\n')
    settings = DataSettings(data=str(tmp_path / "pairs.tsv"))
    task = mine_pairs(settings, str(tmp_path / "corpus.jsonl"), lambda: lengths)
    assert task.documents == ["AA", "BBB", "CCCC"]
    assert [note.split(str(tmp_path))[0] for note in task.notes] == ["columns of ", "pairs of "]
    assert task.notes[1].endswith("question, answer; other columns are not used")
    swapped = DataSettings(data=str(tmp_path / "pairs.tsv"), columns=("answer", "question"))
    assert mine_pairs(swapped, "", lambda: lengths).queries == ["AA", "BBB"]


def test_refusals_come_before_the_encoder_is_loaded(tmp_path: Path) -> None:
    (tmp_path / "one.txt").write_text("a\nb\n")
    (tmp_path / "pairs.tsv").write_text("a\tA\nb\tB\n")
    for data, corpus, message in (
        ("one.txt", "", r"data: expected pairs, a file with two columns of texts, got .*one\.txt with one: text"),
        ("pairs.tsv", "none.txt", r"corpus: .*none\.txt does not exist; expected a file of texts"),
        ("none.tsv", "", r"data: .*none\.tsv does not exist"),
    ):
        path = str(tmp_path / corpus) if corpus else ""
        with pytest.raises(ValueError, match=message):
            mine_pairs(DataSettings(data=str(tmp_path / data)), path, lambda: pytest.fail("the encoder was loaded"))
