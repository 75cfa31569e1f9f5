"""Parquet files whose columns and pages are not what they seem to be."""

from __future__ import annotations

import itertools
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from contrapose.lab.modalities.text.files import open_texts

LENGTHS = ("DELTA_LENGTH_BYTE_ARRAY", "DELTA_BYTE_ARRAY")


def number(value: int) -> bytes:
    """Return a number in groups of 7 bits."""
    return bytes([value & 127 | 128]) + number(value >> 7) if value > 127 else bytes([value])


def refused(path: Path) -> str:
    with pytest.raises(ValueError, match=r"^data: .*a\.parquet") as error:
        list(open_texts(path, skip_broken=True).rows())
    return str(error.value)


def write(path: Path, texts: list[str | None], **options: Any) -> Path:
    parquet.write_table(pa.table({"text": texts}), path, use_dictionary=False, **options)
    return path


@pytest.mark.parametrize("second", [[{"b": "y" * 10}], [["y" * 10]], ["y"]])
def test_two_columns_with_one_name_are_refused(tmp_path: Path, second: list[Any]) -> None:
    path = tmp_path / "a.parquet"
    parquet.write_table(pa.table([pa.array(["x"]), pa.array(second)], names=["text", "text"]), path)
    assert "it has several columns with the name 'text'" in refused(path)


@pytest.mark.thorough
def test_a_column_that_is_read_with_another_one_is_limited_too(tmp_path: Path) -> None:
    """pyarrow takes the column text.b for a part of the column text."""
    path = tmp_path / "a.parquet"
    large = pa.array([["y" * 2 * 10**8]])
    options = {"use_dictionary": False, "compression": "zstd"}
    parquet.write_table(pa.table([pa.array(["x"]), large], names=["text", "text.b"]), path, **options)
    assert f"data: a page of {path} would take 1 GiB of memory" in refused(path)


@pytest.mark.parametrize("encoding", LENGTHS)
@pytest.mark.parametrize("version", ["1.0", "2.0"])
def test_a_page_that_claims_more_lengths_than_texts_is_refused(tmp_path: Path, encoding: str, version: str) -> None:
    path = tmp_path / "a.parquet"
    write(path, ["ab" * 40] * 300, compression="none", column_encoding=encoding, data_page_version=version)
    content = path.read_bytes()
    before = number(128) + b"\4" + number(300)
    places = [at for at in range(len(content)) if content.startswith(before, at)]
    assert len(places) == (1 if encoding == LENGTHS[0] else 2)
    claim = number(2**28) + b"\1" + number(2**28) + b"\0\0\0"
    for at in places:  # in the list of prefixes, and in that of the rest
        path.write_bytes(content[:at] + claim + content[at + len(claim) :])
        assert "a page of 300 texts claims to have 268,435,456 lengths" in refused(path)


@pytest.mark.parametrize("encoding", LENGTHS)
@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("compression", ["none", "zstd", "snappy", "gzip", "lz4", "brotli"])
def test_pages_with_lengths_are_read(tmp_path: Path, encoding: str, version: str, compression: str) -> None:
    rng, options = random.Random(0), {"compression": compression, "data_page_version": version}
    for count, missing in itertools.product((1, 2, 33, 129, 3000), (0.0, 0.3)):
        texts = ["a", *(None if rng.random() < missing else "abc" * rng.randint(1, 60) + str(i) for i in range(count))]
        path = write(tmp_path / "a.parquet", texts, column_encoding=encoding, data_page_size=4000, **options)
        read = [row[0] for row in open_texts(path, skip_broken=True).rows()]
        assert read == [text for text in texts if text is not None]
