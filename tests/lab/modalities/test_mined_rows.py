"""Rows of negatives: what is written is what the reader of texts reads, and a failed write changes nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from contrapose.lab.modalities.mined_rows import (
    FORMATS,
    check_rows_file,
    reading_options,
    triplets,
    tuples,
    write_rows,
)
from contrapose.lab.modalities.text.files import open_texts

NAMES = ("anchor", "positive", "negative_1", "negative_2")
ROWS = [
    ("what is it?", 'a "thing', "no, a cat", "naïve 猫"),
    (" two  spaces ", "a\\tb", "b", "#comment"),
    ("anchor", "2", "1.5", "answer"),
]


@pytest.mark.parametrize("ending", FORMATS)
def test_the_reader_of_texts_reads_the_same_rows(ending: str, tmp_path: Path) -> None:
    path = tmp_path / "new" / f"mined{ending}"
    assert write_rows(path, NAMES, iter(ROWS)) == 0
    assert reading_options(path, NAMES) == []
    texts = open_texts(path)
    assert texts.columns == NAMES
    assert list(texts.rows()) == ROWS
    assert [file.name for file in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize("ending", FORMATS)
@pytest.mark.parametrize("row", [("anchor", "positive", "question", "answer"), ("a", "1.5", "b", "c")])
def test_texts_that_look_like_names_or_numbers_need_the_names_of_columns(
    row: tuple[str, ...], ending: str, tmp_path: Path
) -> None:
    path = tmp_path / f"mined{ending}"
    write_rows(path, NAMES, [row, *ROWS])
    options = reading_options(path, NAMES)
    if "1.5" in row or ending == ".tsv":
        assert options == ["--columns", *NAMES]
    assert list(open_texts(path, columns=options[1:]).rows()) == [row, *ROWS]


def test_many_rows_in_several_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("contrapose.lab.modalities.mined_rows._ROWS", 4)
    rows = [(f"query {i}", f"document {i}") for i in range(11)]
    write_rows(tmp_path / "mined.parquet", NAMES[:2], rows)
    assert list(open_texts(tmp_path / "mined.parquet").rows()) == rows


def test_line_breaks_become_spaces_only_in_tsv(tmp_path: Path) -> None:
    rows = [("a\tb", "c\r\n\nd", "e", "f\r")]
    changed = {ending: write_rows(tmp_path / f"mined{ending}", NAMES, rows) for ending in FORMATS}
    assert changed == {".tsv": 3, ".jsonl": 0, ".parquet": 0}
    assert list(open_texts(tmp_path / "mined.tsv").rows()) == [("a b", "c d", "e", "f ")]
    assert list(open_texts(tmp_path / "mined.jsonl").rows()) == rows
    assert list(open_texts(tmp_path / "mined.parquet").rows()) == rows


@pytest.mark.parametrize("ending", [".tsv", ".jsonl"])
def test_a_line_that_train_would_refuse_leaves_the_file_as_it_was(ending: str, tmp_path: Path) -> None:
    path = tmp_path / f"mined{ending}"
    path.write_text("of yesterday")
    with pytest.raises(
        ValueError, match=r"out: row 4 has 100,\d\d\d characters, and `train` reads at most 100,000 in a line"
    ):
        write_rows(path, NAMES, [*ROWS, ("x" * 50_000, "y" * 50_000, "z", "z")])
    assert path.read_text() == "of yesterday"
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


def test_rows_of_queries() -> None:
    queries, documents = ["a", "b", "c"], ["A", "B", "C", "D"]
    positives, negatives = [[0], [1, 3], [2]], [[1, 2], [0, 2], [3]]
    assert list(tuples(queries, documents, positives, negatives, count=2)) == [
        ("a", "A", "B", "C"),
        ("b", "B", "A", "C"),
        ("b", "D", "A", "C"),
    ]
    assert list(triplets(queries, documents, positives, negatives)) == [
        *[("a", "A", "B"), ("a", "A", "C")],
        *[("b", "B", "A"), ("b", "B", "C"), ("b", "D", "A"), ("b", "D", "C")],
        ("c", "C", "D"),
    ]


def test_refusals(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match=r"out: expected a name that ends in \.tsv, \.jsonl or \.parquet, got mined\.csv"
    ):
        check_rows_file(Path("mined.csv"))
    (tmp_path / "mined.tsv").mkdir()
    with pytest.raises(ValueError, match=r"out: .*mined\.tsv is a directory"):
        check_rows_file(tmp_path / "mined.tsv")
