"""Tokens of files, and their cache."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from contrapose.lab.modalities.text import tokens as module
from contrapose.lab.modalities.text.files import TextFile, open_texts
from contrapose.lab.modalities.text.tokens import text_lengths, tokenise
from contrapose.lab.modalities.text.vocabulary import train_vocabulary

WORDS = ["the", "dog", "walks", "in", "a", "park", "and", "talks", "to", "cats", "about", "longer", "walks"]
PAIRS = [(" ".join(WORDS[: 1 + i % 12]), " ".join(WORDS[-1 - i % 7 :])) for i in range(50)]


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return train_vocabulary([text for pair in PAIRS for text in pair])


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CONTRAPOSE_CACHE", str(tmp_path / "deep" / "cache"))
    return tmp_path / "deep" / "cache" / "tokens"


@pytest.fixture
def pairs(tmp_path: Path) -> TextFile:
    path = tmp_path / "pairs.tsv"
    path.write_text("".join(f"{one}\t{other}\n" for one, other in PAIRS))
    return open_texts(path)


def expected_tokens(tokenizer: Any, length: int) -> torch.Tensor:
    flat = [text for pair in PAIRS for text in pair]
    options = {"padding": True, "truncation": True, "max_length": length, "return_tensors": "pt"}
    ids: torch.Tensor = tokenizer(flat, **options)["input_ids"]
    return ids.reshape(len(PAIRS), 2, -1).int()


@pytest.mark.parametrize("rows", [7, 4096])  # of a block: several, and one
@pytest.mark.parametrize("cached", [False, True])
@pytest.mark.parametrize("length", [6, 64])
def test_tokens_are_those_of_the_tokenizer(
    pairs: TextFile, tokenizer: Any, length: int, cached: bool, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_ROWS", rows)
    tokens = tokenise(pairs, tokenizer, length=length, cached=cached, log=pytest.fail)
    expected = expected_tokens(tokenizer, length)
    assert tokens.dtype == torch.int32
    assert torch.equal(tokens, expected)
    lengths = text_lengths(tokens, tokenizer.pad_token_id)
    ends = tokens.gather(2, lengths[..., None] - 1)
    assert bool((tokens[..., 0] == tokenizer.cls_token_id).all())
    assert bool((ends == tokenizer.sep_token_id).all())
    assert int(lengths.max()) == tokens.shape[2] == min(length, 14)


def only_file(cache: Path) -> Path:
    (file,) = cache.iterdir()  # no temporary file is left
    return file


def test_a_cached_file_is_not_tokenised_again(
    pairs: TextFile, tokenizer: Any, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = tokenise(pairs, tokenizer, length=16, cached=True).clone()
    file = only_file(cache)
    assert file.name.startswith("pairs.tsv-")
    tokenizer(["another call"], padding="max_length", truncation=True, max_length=9)  # changes the tokenizer's settings
    monkeypatch.setattr(module, "_tokenise_blocks", lambda *arguments: pytest.fail("tokenised"))
    again = tokenise(open_texts(pairs.path), tokenizer, length=16, cached=True, log=pytest.fail)
    assert torch.equal(again, expected)
    raw = file.read_bytes()
    again[0] = 0  # changes the copy in memory only
    assert file.read_bytes() == raw


def test_the_cache_depends_on_texts_tokenizer_and_length(pairs: TextFile, tokenizer: Any, cache: Path) -> None:
    other_tokenizer = train_vocabulary(["another vocabulary of the dog"])
    tokenise(pairs, tokenizer, length=16, cached=True)
    tokenise(pairs, tokenizer, length=5, cached=True)
    tokenise(pairs, other_tokenizer, length=16, cached=True)
    tokenise(open_texts(pairs.path, columns=["2"]), tokenizer, length=16, cached=True)
    pairs.path.write_text("the dog\ta cat\n")
    changed = tokenise(open_texts(pairs.path), tokenizer, length=16, cached=True)
    assert changed.shape[0] == 1
    assert len(list(cache.iterdir())) == 5


def test_the_cache_depends_on_the_tokenizers_own_settings(pairs: TextFile, tokenizer: Any, cache: Path) -> None:
    """Which of a text's ends is cut, and whether special tokens in a text are split: not in the tokenizer's backend."""
    for name, value in (("truncation_side", "left"), ("split_special_tokens", True)):
        tokenise(pairs, tokenizer, length=5, cached=True)
        setattr(tokenizer, name, value)
        kept = tokenise(pairs, tokenizer, length=5, cached=True).clone()
        assert torch.equal(kept, tokenise(pairs, tokenizer, length=5))
    assert len(list(cache.iterdir())) == 3


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "cut": lambda raw: raw[:-4],
    "header only": lambda raw: raw[:40],
    "empty": lambda raw: b"",
    "longer": lambda raw: raw + b"\0" * 8,
    "another token": lambda raw: raw[:-12] + bytes([raw[-12] ^ 1]) + raw[-11:],
    "no token": lambda raw: raw[:-12] + b"\xff" * 8 + raw[-4:],
    "another type": lambda raw: raw.replace(b'"I32"', b'"F32"'),
    "a row twice": lambda raw: raw[:-404] + raw[-804:-404] + raw[-4:],
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_cache_file_is_made_again(pairs: TextFile, tokenizer: Any, cache: Path, damage: str) -> None:
    expected, lines = tokenise(pairs, tokenizer, length=16, cached=True).clone(), list[str]()
    file = only_file(cache)
    raw = file.read_bytes()
    file.unlink()
    file.write_bytes(DAMAGES[damage](raw))
    assert file.read_bytes() != raw
    assert torch.equal(tokenise(pairs, tokenizer, length=16, cached=True, log=lines.append), expected)
    assert only_file(cache).read_bytes() == raw
    (line,) = lines
    assert line.startswith(f"cache: {file} ")
    assert line.endswith("; it is computed again")


def test_a_cache_that_cannot_be_written(pairs: TextFile, tokenizer: Any, cache: Path) -> None:
    """The tokens are then kept in memory, and a line says so."""
    cache.parent.parent.mkdir()
    cache.parent.write_text("a file in the place of the folder")
    lines: list[str] = []
    tokens = tokenise(pairs, tokenizer, length=64, cached=True, log=lines.append)
    assert torch.equal(tokens, expected_tokens(tokenizer, 64))
    (line,) = lines
    assert line.startswith(f"cache: {cache}/pairs.tsv-")
    assert "cannot be written (" in line
    assert "set CONTRAPOSE_CACHE" in line


def test_a_broken_row_leaves_no_file(tokenizer: Any, cache: Path, tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("a dog\n\na cat\n")
    with pytest.raises(ValueError, match="line 2 is empty"):
        tokenise(open_texts(path), tokenizer, length=16, cached=True)
    assert list(cache.iterdir()) == []
    assert len(tokenise(open_texts(path, skip_broken=True), tokenizer, length=16, cached=True)) == 2


def test_bad_arguments_are_refused(pairs: TextFile, tokenizer: Any) -> None:
    with pytest.raises(ValueError, match="length: expected a whole number of at least 3, got 2"):
        tokenise(pairs, tokenizer, length=2)
    with pytest.raises(ValueError, match="tokenizer: expected a fast tokenizer of transformers, got str"):
        tokenise(pairs, "tokenizer", length=16)


@pytest.mark.skipif(not os.path.exists("/proc/self/maps"), reason="lists memory maps on Linux only")
def test_cached_tokens_are_memory_mapped(pairs: TextFile, tokenizer: Any, cache: Path) -> None:
    tokens = tokenise(pairs, tokenizer, length=16, cached=True)
    assert str(only_file(cache)) in Path("/proc/self/maps").read_text()
    del tokens
    assert str(only_file(cache)) not in Path("/proc/self/maps").read_text()
