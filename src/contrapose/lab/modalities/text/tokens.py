"""Tokens of the texts in a file, computed once and kept in the user's cache folder, where they are memory-mapped."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from contrapose.lab.cached_files import CachedFile, Entry, cache_path, not_kept
from contrapose.lab.modalities.progress import progress_bar
from contrapose.lab.modalities.text.vocabulary import check_special_tokens, pad_on_the_right
from contrapose.validate import check_count

Block = NDArray[np.int32]  # tokens (n, C, l) of consecutive rows, padded to the longest of them
_IDS_ONLY = {"return_attention_mask": False, "return_token_type_ids": False}
_ROWS = 4096  # rows per block
_FORMAT = 2  # part of the fingerprint; raise it when the same texts give different tokens than before


class Texts(Protocol):
    """Rows of texts, such as a `TextFile`."""

    @property
    def path(self) -> Path:
        """Path of the file, or name of the built-in set."""

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns."""

    @property
    def fingerprint(self) -> str:
        """A checksum of the texts."""

    def rows(self) -> Iterator[tuple[str, ...]]:
        """Yield one text for each column, row by row."""

    def __len__(self) -> int: ...


def tokenise(
    texts: Texts, tokenizer: Any, *, length: int, cached: bool = False, log: Callable[[str], None] = print
) -> Tensor:
    """Return the tokens of a file's texts, int32 (N, C, L), padded on the right.

    tokenizer   a fast tokenizer of transformers
    length      number of tokens, including the start and end tokens, after which a text is truncated; L is smaller if all
                texts are shorter
    cached      whether the tokens are kept in the user's cache folder, and memory-mapped; otherwise they are kept in memory
    log         receives a line if kept tokens are not used, or cannot be written
    """
    check_count("length", length, least=3)  # a start token, an end token and one token between them
    if not getattr(tokenizer, "is_fast", False):
        raise ValueError(f"tokenizer: expected a fast tokenizer of transformers, got {type(tokenizer).__name__}")
    pad_on_the_right(tokenizer, tokenizer.name_or_path)
    check_special_tokens(tokenizer, length, tokenizer.name_or_path)
    if cached:
        file = _cached_file(texts, tokenizer, length, log)
        kept = file.read()
        if kept is None:
            try:
                _write(file, _tokenise_blocks(texts, tokenizer, length), tokenizer.pad_token_id)
                kept = file.read()
            except OSError as error:
                log(not_kept(file.path, error))
        if kept is not None:
            return kept["tokens"]
    blocks = list(_tokenise_blocks(texts, tokenizer, length))
    longest = max(block.shape[2] for block in blocks)
    return torch.from_numpy(np.concatenate([_pad(block, longest, tokenizer.pad_token_id) for block in blocks]))


def text_lengths(tokens: Tensor, pad: int) -> Tensor:
    """Return the number of tokens of each text, without padding: (…, L) -> (…)."""
    return (tokens != pad).sum(-1)


def _tokenise_blocks(texts: Texts, tokenizer: Any, length: int) -> Iterator[Block]:
    total = -(-len(texts) // _ROWS)  # counting also reports a broken row before the slow part
    rows = texts.rows()
    with progress_bar("tokenise", total) as advance:
        while block := list(islice(rows, _ROWS)):
            flat = [text for row in block for text in row]
            encoded = tokenizer(
                flat, padding=True, truncation=True, max_length=length, return_tensors="np", **_IDS_ONLY
            )
            yield encoded["input_ids"].astype(np.int32).reshape(len(block), len(texts.columns), -1)
            advance()


def _pad(block: Block, length: int, pad: int) -> Block:
    return np.pad(block, ((0, 0), (0, 0), (0, length - block.shape[2])), constant_values=pad)


def _cached_file(texts: Texts, tokenizer: Any, length: int, log: Callable[[str], None]) -> CachedFile:
    """Return the file of these tokens; its name and its fingerprint depend on everything that determines them."""
    content = json.loads(tokenizer.backend_tokenizer.to_str())
    # Each call of the tokenizer changes these two settings.
    content |= {"truncation": None, "padding": None}
    # The backend does not know these two, which change the tokens as well.
    others = [tokenizer.truncation_side, tokenizer.split_special_tokens]
    key = [_FORMAT, texts.fingerprint, content, others, tokenizer.pad_token_id, length]
    path = cache_path("tokens", texts.path.name, key)
    return CachedFile(path, path.stem, log)


def _write(file: CachedFile, blocks: Iterator[Block], pad: int) -> None:
    """Write the blocks as one array, padded to the longest text."""
    file.path.parent.mkdir(parents=True, exist_ok=True)
    # The shape, which precedes the values in the file, is known only after the last block; until then, blocks are kept in a
    # second file.
    with tempfile.TemporaryFile(dir=file.path.parent) as spool:
        shapes = []
        for block in blocks:
            np.save(spool, block)
            shapes.append(block.shape)
        spool.seek(0)
        shape = (sum(rows for rows, _, _ in shapes), shapes[0][1], max(length for _, _, length in shapes))
        padded = (_pad(np.load(spool), shape[2], pad).tobytes() for _ in shapes)
        file.write(Entry("tokens", "I32", shape, padded))
