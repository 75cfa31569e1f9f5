"""The built-in text data sets, with the interface of a text file."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from contrapose.lab.modalities.text.pydoc import pydoc_pairs

BUILT_IN = ("pydoc",)


@dataclass(frozen=True)
class BuiltInTexts:
    """Pairs of texts that come with Python: training pairs, then held-out pairs."""

    name: str
    columns: tuple[str, ...] = ("anchor", "positive")

    @property
    def path(self) -> Path:
        """The name of the data set; for a text file, this is its path."""
        return Path(self.name)

    @cached_property
    def _pairs(self) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
        return pydoc_pairs()

    @property
    def held_out(self) -> int:
        """Number of held-out pairs, which come last."""
        return len(self._pairs[1])

    @cached_property
    def fingerprint(self) -> str:
        """A checksum of the texts."""
        return f"{zlib.crc32(repr(self._pairs).encode()):08x}"

    def rows(self) -> Iterator[tuple[str, ...]]:
        """Yield all pairs."""
        yield from (pair for part in self._pairs for pair in part)

    def __len__(self) -> int:
        return sum(map(len, self._pairs))
