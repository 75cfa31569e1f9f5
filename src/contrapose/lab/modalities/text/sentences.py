"""Sentences as tokens: a data set in memory, or in a file from which only the needed rows are read."""

from __future__ import annotations

import zlib
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from contrapose.lab.modalities.source import ViewMaker
from contrapose.lab.modalities.text.tokens import Texts
from contrapose.lab.modalities.text.views import NO_TOKEN
from contrapose.randomness import bits

_HASHED = 2**16  # rows to hash at a time
_MOST_COUNTS = 2**28  # counts of words to hold in memory: 1 GiB in float32


@dataclass(frozen=True, eq=False)
class Sentences:
    """Rows of one or more columns of text, as token ids."""

    name: str
    tokens: Tensor  # int32 (N, C, L), padded with the tokenizer's padding
    tokenizer: Any
    stream: bool = False  # whether tokens stay in host memory or in a file and are moved to the device batch by batch
    content: str = ""  # a checksum of the texts, if they come from a file
    origin: Texts | None = None  # source of the texts themselves, from which they can be read again
    rows: Tensor | None = None  # (N,) rows of the origin; None: all rows
    first_column: int = 0  # number of the first column among the origin's columns
    compared: int = 1  # column whose equal texts are not negatives of each other, if it exists
    labels: Tensor | None = None
    classes: tuple[str, ...] = ()
    paths: Sequence[Path] = ()  # empty: a sample is a line, not a file

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def columns(self) -> int:
        """Number of texts per row: 1 for sentences, 2 for pairs, more with negatives."""
        return int(self.tokens.shape[1])

    @cached_property
    def ids(self) -> Tensor | None:
        """Numbers that are equal for rows with equal texts in the compared column; None if all texts differ."""
        compared = min(self.compared, self.columns - 1)
        unique, ids = self.hashes(compared, compared + 1).unique(return_inverse=True)
        return None if len(unique) == len(self) else ids

    def hashes(self, first: int, end: int) -> Tensor:
        """Return a number for each row that is equal for rows with equal texts in the columns from `first` to before `end`."""
        texts = self.tokens[:, first:end]
        position = torch.arange(texts.shape[1] * texts.shape[2]).view(texts.shape[1:])
        # Integers wrap around, so the sum of the tokens' hashes is a hash of the texts.
        return torch.cat([bits(part, position).sum((1, 2)) for part in texts.split(_HASHED)])

    @property
    def fingerprint(self) -> str:
        """A checksum of the texts, or else of their tokens."""
        return self.content or f"{zlib.crc32(self.tokens.contiguous().numpy().data):08x}"

    def counts(self) -> list[int]:
        """Raise ValueError: sentences have no classes."""
        raise ValueError(f"{self.name}: this needs labels, but the data set has none")

    def subset(self, index: Tensor | Sequence[int]) -> Sentences:
        """Return the rows at these indices, in this order."""
        index = torch.as_tensor(index, dtype=torch.long)
        rows = index if self.rows is None else self.rows[index]
        # A subset of a file needs a different fingerprint than the file.
        return replace(self, tokens=self.tokens[index], rows=rows, content="")

    def column(self, number: int) -> Sentences:
        """Return one column, as a data set of sentences."""
        tokens = self.tokens[:, number : number + 1]
        return replace(self, tokens=tokens, first_column=self.first_column + number, content="")

    def with_neighbours(self) -> Sentences:
        """Return rows of two columns: each sentence and the next one; the last sentence has the previous one."""
        if self.columns > 1:
            raise ValueError(
                f"views: neighbours are lines of a file of single sentences, and {self.name} has {self.columns} columns; use "
                "--views columns, or choose one column with --columns"
            )
        following = torch.cat([self.tokens[1:], self.tokens[-2:-1]])[: len(self)]
        return replace(self, tokens=torch.cat([self.tokens, following], 1))

    def in_memory(self, views: ViewMaker) -> Sentences:
        """Return the rows without streaming, so that all tokens will be on the device."""
        return replace(self, stream=False)

    def texts(self) -> list[str]:
        """Return the texts in the first column: read again from their origin, or else decoded from tokens."""
        if self.origin is None:
            return list(self.tokenizer.batch_decode(self.tokens[:, 0], skip_special_tokens=True))
        rows = range(len(self)) if self.rows is None else self.rows.tolist()
        wanted = set(rows)
        read = {number: row[self.first_column] for number, row in enumerate(self.origin.rows()) if number in wanted}
        return [read[row] for row in rows]

    def reader(self, views: ViewMaker, device: torch.device, *, workers: int, timeout: float) -> TokenReader:
        """Move the tokens to the device, unless they are streamed, and return a reader."""
        padding = int(self.tokenizer.pad_token_id)
        tokens = self.tokens if self.stream else _without_padding(self.tokens.to(device), padding)
        return TokenReader(tokens, views, device, padding=padding, resident=None if self.stream else tokens)


@dataclass(frozen=True, eq=False)
class TokenReader:
    """Rows of tokens, and a maker of views of these rows on a device."""

    tokens: Tensor  # (N, C, L)
    views: ViewMaker
    device: torch.device
    padding: int
    resident: Tensor | None  # the tokens, if all are on the device, with NO_TOKEN as padding

    def train(self, batches: Sequence[list[int]], *, seed: int, epoch: int) -> Iterator[list[Tensor]]:
        """Yield the views of each batch of indices."""
        for batch in batches:
            index = torch.as_tensor(batch)
            raw = _trim(self._rows(index))
            yield self.views.train(raw, index.to(self.device), seed=seed, epoch=epoch)

    def stage(self, batches: Sequence[list[int]], *, seed: int, epoch: int) -> Generator[list[Tensor], None, None]:
        """Yield the tokens of each batch of indices, on the device."""
        for batch in batches:
            yield [self._rows(torch.as_tensor(batch))]

    def finish(self, staged: list[Tensor], index: Tensor, *, seed: int | Tensor, epoch: int | Tensor) -> list[Tensor]:
        """Return the views of a batch from its tokens."""
        return self.views.train(staged[0], index, seed=seed, epoch=epoch)

    def plain(self) -> Iterator[Tensor]:
        """Yield the first column of all rows, in batches."""
        for index in torch.arange(len(self.tokens)).split(self.views.evaluation_batch(self.device)):
            yield self.views.plain(_trim(self._rows(index)))

    def _rows(self, index: Tensor) -> Tensor:
        if self.resident is not None:
            return self.resident[index.to(self.device)]
        return _without_padding(self.tokens[index].to(self.device), self.padding)


def _without_padding(tokens: Tensor, padding: int) -> Tensor:
    return torch.where(tokens == padding, NO_TOKEN, tokens)


def _trim(rows: Tensor) -> Tensor:
    """Remove trailing padding that all rows (B, C, L) share: the longest text in a batch determines its time."""
    if rows.is_cuda:  # reading the length back would wait for the GPU, which takes longer than computing on padding
        return rows
    return rows[..., : max(1, int((rows != NO_TOKEN).sum(-1).max()))]


def weigh_tokens(sources: Sequence[Sentences]) -> list[Tensor]:
    """Return the tf-idf of the tokens in the first text of each row, (N, V), where V is the number of distinct tokens.

    The count of a token is multiplied by 1 + log((1 + texts) / (1 + texts that contain it)), as in scikit-learn.
    """
    tokens = [source.tokens[:, 0] for source in sources]
    padding = sources[0].tokenizer.pad_token_id
    vocabulary, rows = torch.unique(torch.cat(tokens), return_inverse=True)
    if len(rows) * len(vocabulary) > _MOST_COUNTS:
        raise ValueError(f"counts of {len(vocabulary):,} tokens in {len(rows):,} texts take too much memory")
    counts = torch.zeros(len(rows), len(vocabulary)).scatter_add_(1, rows, torch.ones(rows.shape))
    counts[:, vocabulary == padding] = 0
    weights = 1 + torch.log((1 + len(counts)) / (1 + (counts > 0).sum(0)))
    return list((counts * weights).split([len(part) for part in tokens]))


def row_noun(columns: int) -> str:
    """Return what rows with this many texts are called.

    >>> row_noun(1), row_noun(2), row_noun(3)
    ('sentences', 'pairs', 'rows of 3 texts')
    """
    return {1: "sentences", 2: "pairs"}.get(columns, f"rows of {columns} texts")
