"""Tokens of files, and their cache."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
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
    cache = pairs.path.parent / "deep" / "cache" if cached else None
    tokens = tokenise(pairs, tokenizer, length=length, cache=cache)
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


def test_a_cached_file_is_not_tokenised_again(pairs: TextFile, tokenizer: Any, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    computed = int(tokenise(pairs, tokenizer, length=16, cache=cache)[3, 1, 2])
    file = only_file(cache)
    assert file.name.startswith("pairs.tsv-")
    assert file.suffix == ".tokens"
    stored = np.load(file)
    stored[3, 1, 2] = computed + 1  # tells a cached token from a computed one
    with file.open("wb") as out:
        np.save(out, stored)
    tokenizer(["another call"], padding="max_length", truncation=True, max_length=9)  # changes the tokenizer's settings
    again = tokenise(open_texts(pairs.path), tokenizer, length=16, cache=cache)
    assert again[3, 1, 2] == computed + 1
    again[0] = 0  # changes the copy in memory only
    assert np.array_equal(np.load(file), stored)


def test_the_cache_depends_on_texts_tokenizer_and_length(pairs: TextFile, tokenizer: Any, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    other_tokenizer = train_vocabulary(["another vocabulary of the dog"])
    tokenise(pairs, tokenizer, length=16, cache=cache)
    tokenise(pairs, tokenizer, length=5, cache=cache)
    tokenise(pairs, other_tokenizer, length=16, cache=cache)
    tokenise(open_texts(pairs.path, columns=["2"]), tokenizer, length=16, cache=cache)
    pairs.path.write_text("the dog\ta cat\n")
    changed = tokenise(open_texts(pairs.path), tokenizer, length=16, cache=cache)
    assert changed.shape[0] == 1
    assert len(list(cache.iterdir())) == 5


@pytest.mark.parametrize(
    "damage",
    [
        lambda raw: raw[:-4],
        lambda raw: raw[:40],
        lambda raw: b"",
        lambda raw: b"x" + raw[1:],
        lambda raw: raw[:-8] + b"\xff" * 8,
        lambda raw: raw.replace(b"<i4", b"<f4"),
    ],
)
def test_a_damaged_cache_file_is_made_again(pairs: TextFile, tokenizer: Any, tmp_path: Path, damage: Any) -> None:
    cache = tmp_path / "cache"
    expected = tokenise(pairs, tokenizer, length=16, cache=cache).clone()
    raw = only_file(cache).read_bytes()
    only_file(cache).unlink()
    (cache / f"{pairs.path.name}-{module._cache_key(pairs, tokenizer, 16)}.tokens").write_bytes(damage(raw))
    assert torch.equal(tokenise(pairs, tokenizer, length=16, cache=cache), expected)
    assert only_file(cache).read_bytes() == raw


def test_a_broken_row_leaves_no_file(tokenizer: Any, tmp_path: Path) -> None:
    path, cache = tmp_path / "a.txt", tmp_path / "cache"
    path.write_text("a dog\n\na cat\n")
    with pytest.raises(ValueError, match="line 2 is empty"):
        tokenise(open_texts(path), tokenizer, length=16, cache=cache)
    assert list(cache.iterdir()) == []
    assert len(tokenise(open_texts(path, skip_broken=True), tokenizer, length=16, cache=cache)) == 2


def test_bad_arguments_are_refused(pairs: TextFile, tokenizer: Any, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="length: expected a whole number of at least 3, got 2"):
        tokenise(pairs, tokenizer, length=2, cache=None)
    with pytest.raises(ValueError, match="tokenizer: expected a fast tokenizer of transformers, got str"):
        tokenise(pairs, "tokenizer", length=16, cache=None)
    with pytest.raises(ValueError, match=r"data_root: .* is a file, but a directory is needed"):
        tokenise(pairs, tokenizer, length=16, cache=pairs.path)


@pytest.mark.skipif(not os.path.exists("/proc/self/maps"), reason="lists memory maps on Linux only")
def test_cached_tokens_are_memory_mapped(pairs: TextFile, tokenizer: Any, tmp_path: Path) -> None:
    tokens = tokenise(pairs, tokenizer, length=16, cache=tmp_path)
    assert only_mapped(tmp_path, Path("/proc/self/maps").read_text())
    del tokens
    assert not only_mapped(tmp_path, Path("/proc/self/maps").read_text())


def only_mapped(folder: Path, maps: str) -> bool:
    return any(str(folder) in line and line.endswith(".tokens") for line in maps.splitlines())
