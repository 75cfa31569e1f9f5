"""Tokens of the texts in a file, computed once and cached on disk.

A cache file is a NumPy array (.npy). Its header gives the type and the shape, and the array can be memory mapped.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from contrapose.lab.modalities.progress import progress_bar
from contrapose.lab.modalities.text.vocabulary import pad_on_the_right
from contrapose.validate import check_count, check_directory

Block = NDArray[np.int32]  # tokens (n, C, l) of consecutive rows, padded to the longest of them
_IDS_ONLY = {"return_attention_mask": False, "return_token_type_ids": False}
_ROWS = 4096  # rows per block
_FORMAT = 1  # part of a cache file's name; raise it when the same texts give different tokens than before


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


def tokenise(texts: Texts, tokenizer: Any, *, length: int, cache: Path | None) -> Tensor:
    """Return the tokens of a file's texts, int32 (N, C, L), padded on the right.

    tokenizer   a fast tokenizer of transformers
    length      number of tokens, including the start and end tokens, after which a text is truncated; L is smaller if all
                texts are shorter
    cache       folder for the memory-mapped token files; None: tokens are kept in memory
    """
    check_count("length", length, least=3)  # a start token, an end token and one token between them
    if not getattr(tokenizer, "is_fast", False):
        raise ValueError(f"tokenizer: expected a fast tokenizer of transformers, got {type(tokenizer).__name__}")
    pad_on_the_right(tokenizer, tokenizer.name_or_path)
    if cache is None:
        blocks = list(_tokenise_blocks(texts, tokenizer, length))
        longest = max(block.shape[2] for block in blocks)
        return torch.from_numpy(np.concatenate([_pad(block, longest, tokenizer.pad_token_id) for block in blocks]))
    file = cache / f"{texts.path.name}-{_cache_key(texts, tokenizer, length)}.tokens"
    limits = (len(texts.columns), length, len(tokenizer))
    tokens = _read(file, *limits)
    if tokens is None:
        check_directory("data_root", cache)
        cache.mkdir(parents=True, exist_ok=True)
        _write(file, _tokenise_blocks(texts, tokenizer, length), tokenizer.pad_token_id)
        tokens = _read(file, *limits)
    if tokens is None:
        raise ValueError(
            f"cache: {file} cannot be read back after it was written; check the disk, or use another folder"
        )
    return tokens


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


def _cache_key(texts: Texts, tokenizer: Any, length: int) -> str:
    """Return a checksum of everything that determines the tokens."""
    content = json.loads(tokenizer.backend_tokenizer.to_str())
    # Each call of the tokenizer changes these two settings.
    content |= {"truncation": None, "padding": None}
    key = [_FORMAT, texts.fingerprint, content, tokenizer.pad_token_id, length]
    return hashlib.blake2b(json.dumps(key, sort_keys=True).encode(), digest_size=8).hexdigest()


def _write(file: Path, blocks: Iterator[Block], pad: int) -> None:
    """Write the blocks as one array, padded to the longest text; the file appears when it is complete."""
    temporary = file.with_name(f".{file.name}.{os.getpid()}")
    # The shape, which precedes the values in the file, is known only after the last block; until then, blocks are kept in a
    # second file.
    with tempfile.TemporaryFile(dir=file.parent) as spool:
        shapes = []
        for block in blocks:
            np.save(spool, block)
            shapes.append(block.shape)
        spool.seek(0)
        shape = (sum(rows for rows, _, _ in shapes), shapes[0][1], max(length for _, _, length in shapes))
        try:
            # Not written through a memory map: on a full disk, that would kill the process without a message.
            with temporary.open("wb") as out:
                header = {"descr": "<i4", "fortran_order": False, "shape": shape}
                np.lib.format.write_array_header_1_0(out, header)
                for _ in shapes:
                    _pad(np.load(spool), shape[2], pad).tofile(out)
                out.flush()
                os.fsync(out.fileno())
            temporary.replace(file)
        finally:
            temporary.unlink(missing_ok=True)


def _read(file: Path, columns: int, length: int, vocabulary: int) -> Tensor | None:
    """Return the memory-mapped tokens in a cache file; None if the file is missing or damaged."""
    try:
        tokens = np.load(file, mmap_mode="c")  # copy on write: PyTorch has no read-only tensors
    except (OSError, ValueError, EOFError):
        return None
    if tokens.dtype != np.int32 or tokens.ndim != 3 or tokens.shape[1] != columns or tokens.shape[2] > length:
        return None
    # Damaged bytes could be token ids that the encoder does not have, which cause an obscure error on a GPU.
    if tokens.size == 0 or tokens.min() < 0 or tokens.max() >= vocabulary:
        return None
    return torch.from_numpy(tokens)
