"""Files of texts: formats, compressions, columns, and files that cannot be read."""

from __future__ import annotations

import bz2
import contextlib
import gzip
import json
import lzma
import os
import random
import tempfile
import time
import tracemalloc
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from contrapose.lab.modalities.text.files import is_text_file, open_texts

PAIRS = [
    ("A dog runs.", "Ein Hund läuft."),
    ('He said "no', "他说不"),
    ("tabs, commas", "x, \u2028 y"),
    ("1984", "a year"),
]
COMPRESSIONS: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": gzip.compress,
    ".xz": lzma.compress,
    ".bz2": bz2.compress,
}


def written(folder: Path, name: str, content: str | bytes) -> Path:
    path = folder / name
    raw = content.encode() if isinstance(content, str) else content
    path.write_bytes(COMPRESSIONS.get(path.suffix, bytes)(raw))
    return path


def rows(path: Path, **settings: Any) -> list[tuple[str, ...]]:
    return list(open_texts(path, **settings).rows())


def json_lines(records: list[Any]) -> str:
    return "".join(f"{json.dumps(record, ensure_ascii=False)}\n" for record in records)


def quoted(text: str) -> str:
    return '"' + text.replace('"', '""') + '"'


@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize("ending", [".txt", ".tsv", ".csv", ".jsonl", ".ndjson"])
def test_text_formats(tmp_path: Path, ending: str, compression: str) -> None:
    expected = [(text,) for text, _ in PAIRS] if ending == ".txt" else PAIRS
    content = {
        ".txt": "\r\n".join(text for text, _ in PAIRS),
        ".tsv": "".join(f"{one}\t{other}\n" for one, other in [("Sentence1", "Sentence2"), *PAIRS]),
        ".csv": "".join(f"{quoted(one)},{quoted(other)}\r\n" for one, other in [("sent0", "sent1"), *PAIRS]),
        ".jsonl": json_lines([{"positive": other, "id": "i", "score": 0.5, "anchor": one} for one, other in PAIRS]),
        ".ndjson": json_lines([list(pair) for pair in PAIRS]),
    }[ending]
    path = written(tmp_path, f"my.texts{ending.upper()}{compression}", content)
    texts = open_texts(path, columns=("1", "2") if ending == ".ndjson" else ())
    assert is_text_file(path)
    assert list(texts.rows()) == expected
    assert list(texts.rows()) == expected  # can be read again
    assert (len(texts), texts.skipped, len(texts.columns)) == (len(PAIRS), 0, len(expected[0]))


def test_parquet_is_read_in_batches(tmp_path: Path) -> None:
    path = tmp_path / "pairs.parquet"
    table = pa.table(
        {
            "document": pa.array([f"d{i}" for i in range(5000)]).dictionary_encode(),
            "vector": [[0.5]] * 5000,
            "query": pa.array([f"q{i}" for i in range(5000)], pa.large_string()),
        }
    )
    parquet.write_table(table, path)
    texts = open_texts(path)
    assert (texts.columns, len(texts)) == (("query", "document"), 5000)
    assert next(islice(texts.rows(), 4999, None)) == ("q4999", "d4999")
    assert open_texts(path, columns=["document"]).columns == ("document",)
    with pytest.raises(ValueError, match="columns: expected one of document, query, got 'vector'"):
        open_texts(path, columns=["vector"])


# Line ends, NUL and halves of surrogate pairs cannot be in a line of text.
LINES = st.text(st.characters(exclude_characters="\n\r\0", exclude_categories=["Cs"]), max_size=30)


@given(st.lists(LINES.filter(str.strip), min_size=1), st.sampled_from(["\n", "\r\n"]), st.booleans())
def test_lines_are_read_as_they_were_written(texts: list[str], end: str, mark: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        content = "\ufeff" * mark + end.join(texts) + end
        # A byte order mark at the start is not part of the first text.
        expected = [texts[0].removeprefix("" if mark else "\ufeff"), *texts[1:]]
        if all(text.strip() for text in expected):
            assert rows(written(Path(folder), "a.txt", content)) == [(text,) for text in expected]


def test_empty_lines_at_the_end_are_no_rows(tmp_path: Path) -> None:
    assert rows(written(tmp_path, "a.txt", "one\ntwo\n\n  \r\n")) == [("one",), ("two",)]


@pytest.mark.parametrize(
    ("header", "order"),
    [
        ("score\tsentence2\tsentence1", "sentence1 sentence2"),
        ("s2\ts1", "s1 s2"),
        ("text_b\ttext_a", "text_a text_b"),
        ("negative_2\tPositive\tnegative_1\tAnchor", "Anchor Positive negative_1 negative_2"),
        ("document\tid\tquery", "query document"),
        ("label\ttext", "text"),
    ],
)
def test_columns_are_chosen_by_usual_names(tmp_path: Path, header: str, order: str) -> None:
    path = written(tmp_path, "a.tsv", f"{header}\n" + "\t".join(f"the {name}" for name in header.split("\t")) + "\n")
    assert open_texts(path).columns == tuple(order.split())
    assert rows(path) == [tuple(f"the {name}" for name in order.split())]


@pytest.mark.parametrize(
    "header",
    [
        "question\tanswer",
        "query\tdocument",
        "anchor\tpositive",
        "sentence1\tsentence2",
        "premise\thypothesis",
        "source\ttarget",
        "src\ttgt",
        "Query\tPassage",
    ],
)
def test_a_header_with_usual_names_is_no_row(tmp_path: Path, header: str) -> None:
    assert rows(written(tmp_path, "a.tsv", f"{header}\nA man runs.\tSomebody moves.\n")) == [
        ("A man runs.", "Somebody moves.")
    ]
    assert rows(written(tmp_path, "b.tsv", f"{header}\ncar\tautomobile\n")) == [("car", "automobile")]


@pytest.mark.parametrize(
    "content",
    [
        "Question\tWhat is it?\nHello\tHow are you?\n",
        "text\ta written message\nboat\ta small ship\n",
        "what is a query\ttext\nwhat is rain\twater\n",
        "document\tpaper\ncar\tautomobile\n",  # synonyms
        "text1\ttext2\ntext3\ttext4\n",
        "answer\tresponse\nquestion\tquery\n",
    ],
)
def test_a_first_row_of_texts_is_no_header(tmp_path: Path, content: str) -> None:
    expected = [tuple(line.split("\t")) for line in content.splitlines()]
    assert rows(written(tmp_path, "a.tsv", content)) == expected


def test_a_header_with_one_usual_name(tmp_path: Path) -> None:
    """The text below it shows that it is a header; a column of numbers does too, since texts may be single words."""
    assert rows(written(tmp_path, "a.tsv", "label\ttext\nsport\tThe match is over.\n")) == [("The match is over.",)]
    assert rows(written(tmp_path, "b.tsv", "id\ttext\n1\thello\n")) == [("hello",)]


def test_columns_are_chosen_by_request(tmp_path: Path) -> None:
    named = written(tmp_path, "named.tsv", "id\ttitle\tbody\n7\tT\tB\n")
    assert rows(named, columns=("body", "title")) == [("B", "T")]
    plain = written(tmp_path, "plain.tsv", "7.jpg\t0\ta dog\n8.jpg\t1\ta cat\n")
    assert rows(plain, columns=["3"]) == [("a dog",), ("a cat",)]
    assert "expected one of 1, 2, 3, got 'caption'" in refusal(plain, columns=["caption"])
    unnamed = written(tmp_path, "unnamed.jsonl", json_lines([{"b": "B", "n": 1, "a": "A"}]))
    assert open_texts(unnamed).columns == ("b", "a")
    assert "has int instead of a text in column 'n'" in refusal(unnamed, columns=["n"])


def test_a_column_of_numbers_is_not_taken_for_text(tmp_path: Path) -> None:
    expected = "column '1' of {} has numbers such as '4.5'; name the columns of text, for example --columns 2 3"
    for name, content in (("a.tsv", "4.5\tone\ttwo\n"), ("b.csv", "rating,left,right\n4.5,one,two\n")):
        path = written(tmp_path, name, content)
        assert expected.format(path) in refusal(path)


def test_quoted_cells_may_have_line_breaks(tmp_path: Path) -> None:
    path = written(tmp_path, "a.csv", 'text,positive\n"one\n\ntwo","a, ""b"""\nthree,four\n')
    assert rows(path) == [("one\n\ntwo", 'a, "b"'), ("three", "four")]


def refusal(path: Path, **settings: Any) -> str:
    with pytest.raises(ValueError, match=r"^(data|columns): ") as error:
        rows(path, **settings)
    assert "\n" not in str(error.value)
    return str(error.value)


FIX = "; correct it, or leave it out with --skip-broken"
BROKEN: dict[str, tuple[str | bytes, str]] = {
    "empty.txt": ("one\n\ntwo\n \nthree\n", "line 2 is empty, and 1 more line cannot be used either; correct them, or"),
    "long.txt": (f"one\n{'x' * 100_001}\n", f"line 2 has more than 100,000 characters{FIX}"),
    "longer.txt": (f"one\n{'x' * 2_000_000}\ntwo\n", f"line 2 has more than 100,000 characters{FIX}"),
    "latin.txt": (
        "one\nun café\ntwo".encode("latin1"),
        "line 2 is not UTF-8: byte 7 is 0xe9 (convert the file with: iconv -f latin1 -t utf-8 latin.txt > NEW)" + FIX,
    ),
    "width.tsv": ("a\tb\nc\td\te\nf\n", "line 2 has 3 columns, expected 2 as in the first row, and 1 more line"),
    "cell.tsv": ("a\tb\nc\t \n", f"line 2 has an empty text in column '2'{FIX}"),
    "quote.csv": ('text\none\n"two\n', f"line 3 has a quotation mark that is not closed{FIX}"),
    "strict.csv": ('text\none\n"two"x\n', "line 3 is not CSV: ',' expected after '\"'"),
    "cut.jsonl": (
        '{"text": "one"}\n{"text": "tw',
        f"line 2 is not JSON: Unterminated string starting at (character 10){FIX}",
    ),
    "key.jsonl": ('{"text": "one"}\n{"txt": "two"}\n', f"line 2 has no text in column 'text'{FIX}"),
    "type.jsonl": ('{"text": "one"}\n7\n', "line 2 is neither a JSON object nor an array"),
    "mixed.jsonl": ('["one", "two"]\n["three"]\n', "line 2 has 1 column, expected 2 as in the first row"),
    "half.jsonl": ('["one"]\n["\\ud800"]\n', "line 2 has half of a surrogate pair, which is not a character"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_rows_are_refused_or_skipped(tmp_path: Path, name: str) -> None:
    content, message = BROKEN[name]
    path = written(tmp_path, name, content)
    assert f"data: {path}, {message}" in refusal(path)
    kept = open_texts(path, skip_broken=True)
    assert len(kept) == len(list(kept.rows())) > 0
    assert kept.skipped == 1 + ("more line" in message)
    assert kept.fingerprint != open_texts(path).fingerprint


def test_rows_without_text_in_parquet_are_refused_or_skipped(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    parquet.write_table(pa.table({"text": [None, "one", "", "two", "x" * 100_001]}), path)
    assert "row 1 has no text in column 'text', and 2 more rows cannot be used either" in refusal(path)
    assert rows(path, skip_broken=True) == [("one",), ("two",)]


UNREADABLE: dict[str, tuple[str | bytes, str]] = {
    "wide.txt": (
        "one\ntwo\n".encode("utf-16"),
        "is UTF-16 text, expected UTF-8; convert it with: iconv -f utf-16 -t utf-8 wide.txt",
    ),
    "picture.txt": (
        b"\x89PNG\r\n\x1a\n\x00\x00",
        "line 3 has a NUL byte: this is not a text file; expected UTF-8 text",
    ),
    "nothing.txt": ("", "is empty; expected at least one row of text"),
    "blank.tsv": ("\n\n", "is empty; expected at least one row of text"),
    "header.tsv": ("sentence1\tsentence2\n", "has no row that can be used; expected at least one row of text"),
    "junk.jsonl": ("not JSON\n", "has no line that can be read: line 1 is not JSON: Expecting value (character 1)"),
    "numbers.jsonl": ('{"a": 1, "b": 2}', "has no column of text, only a, b; expected at least one"),
    "twice.tsv": ("text\ttext\na\tb\n", "has two columns named 'text'; rename one of them"),
    "texts.zst": (b"", "expected a name that ends in .txt, .tsv, .csv, .jsonl, .ndjson, .parquet, where all but"),
    "texts": ("one\n", "cannot tell the format of"),
    "a.parquet.gz": (b"", "cannot tell the format of"),
    "junk.parquet": (b"PAR1 and more that is no table", "cannot be read as Parquet: "),
}


@pytest.mark.parametrize("name", UNREADABLE)
def test_unreadable_files_are_refused(tmp_path: Path, name: str) -> None:
    content, message = UNREADABLE[name]
    path = written(tmp_path, name, content)
    for skip_broken in (False, True):
        answer = refusal(path, skip_broken=skip_broken)
        assert message in answer
        assert str(path) in answer


@pytest.mark.parametrize("compression", [".gz", ".xz", ".bz2"])
def test_damaged_archives_are_refused(tmp_path: Path, compression: str) -> None:
    path = written(tmp_path, f"a.txt{compression}", "".join(f"sentence {i * i}\n" for i in range(20_000)))
    whole = path.read_bytes()
    message = "the file may be incomplete or damaged: copy or download it again"
    path.write_bytes(whole[: len(whole) // 2])
    assert message in refusal(path)
    path.write_bytes(whole[:400] + bytes(100) + whole[500:])
    assert message in refusal(path)
    path.write_bytes(b"no archive\n")
    assert f"{path} cannot be read: " in refusal(path)


def test_folders_and_missing_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "folder.txt").mkdir()
    assert "folder.txt is a folder; expected a file of texts" in refusal(tmp_path / "folder.txt")
    assert "none.txt does not exist; expected a file of texts" in refusal(tmp_path / "none.txt")
    parquet.write_table(pa.table({"n": [1]}), tmp_path / "n.parquet")
    assert "has no column of text; expected at least one" in refusal(tmp_path / "n.parquet")


def test_the_fingerprint_changes_with_what_is_read(tmp_path: Path) -> None:
    one = written(tmp_path, "one.tsv", "a\tb\n")
    (tmp_path / "sub").mkdir()
    prints = [
        open_texts(one).fingerprint,
        open_texts(one, columns=["2"]).fingerprint,
        open_texts(written(tmp_path, "one.txt", "a\tb\n")).fingerprint,
        open_texts(written(tmp_path, "two.tsv", "a\tc\n")).fingerprint,
    ]
    assert len(set(prints)) == len(prints)
    assert open_texts(written(tmp_path / "sub", "moved.tsv", "a\tb\n")).fingerprint == prints[0]


def test_a_large_file_is_read_in_constant_memory(tmp_path: Path) -> None:
    path = written(tmp_path, "a.txt.gz", "a sentence of six short words\n" * 200_000)  # 6 MB
    texts = open_texts(path)
    tracemalloc.start()
    try:
        assert sum(1 for _ in islice(texts.rows(), 10_000)) == 10_000
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 2**20


def test_columns_of_a_file_with_a_header_by_number(tmp_path: Path) -> None:
    path = tmp_path / "pairs.tsv"
    path.write_text("id\tsentence1\tsentence2\n1\tone text\tanother text\n")
    assert open_texts(path, columns=("3", "2")).columns == ("sentence2", "sentence1")
    with pytest.raises(ValueError, match="columns: expected one of id, sentence1, sentence2, got '4'"):
        open_texts(path, columns=("4",))


@pytest.mark.parametrize("encoding", ["RLE_DICTIONARY", "DELTA_BYTE_ARRAY"])
def test_a_text_that_is_stored_once_and_repeated_is_read_in_small_batches(tmp_path: Path, encoding: str) -> None:
    path, length = tmp_path / "a.parquet", 10**6
    options = {"use_dictionary": False, "column_encoding": encoding} if encoding == "DELTA_BYTE_ARRAY" else {}
    parquet.write_table(pa.table({"text": ["a"] + ["a" * length] * 200}), path, compression="zstd", **options)
    assert path.stat().st_size < 700
    texts, before = open_texts(path, skip_broken=True), pa.total_allocated_bytes()
    rows = texts.read()
    assert next(rows) == (1, ("a",))
    assert pa.total_allocated_bytes() - before < 100 * length  # all rows would take 200
    assert sum(1 for _ in rows) == 200


def test_a_page_that_is_too_large_is_refused_before_it_is_unpacked(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    table = pa.table({"text": ["a" * 10**6] * 200, "number": range(200)})
    parquet.write_table(table, path, compression="zstd", use_dictionary=False, data_page_size=2**30)
    before = pa.default_memory_pool().max_memory()
    message = refusal(path)
    assert f"data: a page of {path} would take 1 GiB of memory" in message
    assert pa.default_memory_pool().max_memory() == before


def test_many_unusable_rows_are_not_all_counted(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    parquet.write_table(pa.table({"text": pa.nulls(5000, pa.string())}), path)
    message = refusal(path)
    assert "row 1 has no text in column 'text', and at least 1,000 more rows cannot be used either" in message


def test_damaged_parquet_files_are_read_or_refused(tmp_path: Path) -> None:
    path, rng = tmp_path / "a.parquet", random.Random(0)
    parquet.write_table(pa.table({"anchor": [f"text {i}" for i in range(50)], "positive": ["a", "b"] * 25}), path)
    content = path.read_bytes()
    for _ in range(300):
        damaged = bytearray(content)
        for _ in range(rng.randint(1, 3)):
            damaged[rng.randrange(len(damaged))] ^= 1 << rng.randrange(8)
        path.write_bytes(damaged)
        with contextlib.suppress(ValueError):
            rows(path)


@pytest.mark.parametrize("ending", [".txt", ".csv", ".jsonl", ".parquet"])
def test_what_is_not_a_regular_file_is_refused(tmp_path: Path, ending: str) -> None:
    """Opening a named pipe would wait forever, and /dev/zero never ends."""
    pipe, zero = tmp_path / f"pipe{ending}", tmp_path / f"zero{ending}"
    os.mkfifo(pipe)
    zero.symlink_to("/dev/zero")
    for path in (pipe, zero):
        assert f"data: {path} cannot be read: it is not a regular file" in refusal(path)


def test_many_columns_take_linear_time(tmp_path: Path) -> None:
    names = [f"c{number:04x}" for number in range(16_000)]
    path = written(tmp_path, "a.tsv", "\t".join(names) + "\n" + "\t".join("x" * len(names)) + "\n")
    start = time.process_time()
    opened = open_texts(path, columns=names)
    assert (len(opened), opened.unused) == (1, ())
    assert open_texts(path, columns=names[:1]).unused == tuple(names[1:])
    assert time.process_time() - start < 3


def test_a_quotation_mark_that_is_not_closed_takes_linear_time(tmp_path: Path) -> None:
    path = written(tmp_path, "a.csv", 'a,b\n"' + "x\n" * 60_000 + "c,d\n")
    start = time.process_time()
    assert rows(path, skip_broken=True)[-1] == ("c", "d")
    assert time.process_time() - start < 2
