"""Inspect texts before training: rows, columns, lengths, duplicates and lines that cannot be used."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from contrapose.lab.modalities.modality import BrokenFiles, DataSettings
from contrapose.lab.modalities.text.files import TextFile
from contrapose.lab.modalities.text.lines import BadLine
from contrapose.lab.modalities.text.load import check_text_settings, column_notes, held_out_rows, open_data
from contrapose.lab.modalities.text.views import DEFAULT_LENGTH

Array = NDArray[np.int64]
_ROWS = {1: "sentences", 2: "pairs", 3: "triplets"}  # words for rows, by the number of their columns
_MOST_WORDS = DEFAULT_LENGTH - 2  # two tokens mark start and end, and a word has at least one token

_NO_TEST = "none, so runs have no score, except with pairs, or with --extra-metrics sts:FILE@1"


@dataclass
class Inspection:
    """What the rows of a file contain."""

    columns: tuple[str, ...]
    lengths: list[Counter[int]]  # of each column: how many texts have this many words
    # Hashes and a number of 8 bytes each, instead of the texts: a file may have many millions of rows.
    hashes: array[int] = field(default_factory=lambda: array("q"))  # of the whole row
    anchors: array[int] = field(default_factory=lambda: array("q"))  # of the first text
    pairs: array[int] = field(default_factory=lambda: array("q"))  # of the first two texts
    negatives: list[array[int]] = field(default_factory=list)  # of the first text and each further one
    numbers: array[int] = field(default_factory=lambda: array("q"))
    equal: list[int] = field(default_factory=list)  # numbers of rows whose first two texts are equal
    own_negatives: list[int] = field(default_factory=list)  # numbers of rows with a negative that equals one of these
    bad: list[tuple[int, BadLine]] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.numbers)

    def add(self, number: int, row: tuple[str, ...] | BadLine) -> None:
        """Add the row at a line."""
        if isinstance(row, BadLine):
            self.bad.append((number, row))
            return
        for lengths, text in zip(self.lengths, row, strict=True):
            lengths[len(text.split())] += 1
        self.hashes.append(hash(row))
        self.numbers.append(number)
        if len(row) == 1:
            return
        anchor, positive, *negatives = map(str.strip, row)
        self.anchors.append(hash(anchor))
        self.pairs.append(hash((anchor, positive)))
        self.negatives = self.negatives or [array("q") for _ in negatives]
        for hashes, negative in zip(self.negatives, negatives, strict=True):
            hashes.append(hash((anchor, negative)))
        if anchor == positive:
            self.equal.append(number)
        if anchor in negatives or positive in negatives:
            self.own_negatives.append(number)


def describe_texts(settings: DataSettings) -> Iterator[str]:
    """Yield what training would use and what looks wrong; at the end, raise `BrokenFiles` if some lines cannot be used."""
    check_text_settings(settings)
    texts = open_data(settings)
    inspection = Inspection(texts.columns, [Counter() for _ in texts.columns])
    for number, row in texts.read() if isinstance(texts, TextFile) else enumerate(texts.rows(), start=1):
        inspection.add(number, row)
    line = "row" if isinstance(texts, TextFile) and texts.table.format == ".parquet" else "line"
    noun, count = _ROWS.get(len(texts.columns), f"rows of {len(texts.columns)} texts"), len(inspection)
    if count:
        test = held_out_rows(texts, count, settings.hold_out)
        yield f"columns: {', '.join(texts.columns)}"
        yield f"train: {count - len(test):,} {noun}"
        yield f"test:  {f'{len(test):,} {noun}' if len(test) else _NO_TEST}"
        for column, lengths in zip(texts.columns, inspection.lengths, strict=True):
            yield describe_lengths(column, lengths)
        yield from column_notes(texts, settings)
        yield from _warnings(inspection, noun, line, held_out=test.tolist())
    yield from _bad_lines(inspection.bad, line)
    if not count:
        raise ValueError(f"data: {settings.data} has no {line} that can be used; expected at least one row of text")
    yield f"{count:,} of {count + len(inspection.bad):,} {line}s can be used"
    if inspection.bad:
        yield f"train, evaluate and embed leave the other {line}s out with --skip-broken; by default, they are an error"
        raise BrokenFiles(f"{len(inspection.bad)} {line}s of {settings.data} cannot be used")


def describe_lengths(name: str, lengths: Counter[int]) -> str:
    """Return the shortest, median and longest of some texts, whose numbers of words are counted."""
    values = sorted(lengths)
    # The middle text, or the lower one of the two in the middle.
    position, median = (lengths.total() + 1) // 2, values[0]
    for value in values:
        position -= lengths[value]
        if position <= 0:
            median = value
            break
    return f"length of {name}: {values[0]} to {values[-1]} words, median {median}"


def warn_of_long_texts(noun: str, lengths: Iterable[Counter[int]], option: str) -> Iterator[str]:
    """Yield a warning if some texts are surely truncated at the default number of tokens, which `option` changes."""
    long = sum(count for counts in lengths for words, count in counts.items() if words > _MOST_WORDS)
    if long:
        # The number of tokens depends on the tokenizer, so texts with fewer words may be truncated too.
        yield (
            f"warning: {noun} of more than {DEFAULT_LENGTH} tokens, which are truncated unless {option} allows more: at least "
            f"{long:,}"
        )


def _warnings(inspection: Inspection, noun: str, line: str, *, held_out: Sequence[int]) -> Iterator[str]:
    yield from warn_of_long_texts("texts", inspection.lengths, "--size")
    rows = np.asarray(inspection.hashes)
    repeats = len(rows) - len(np.unique(rows))
    if repeats:
        yield f"warning: {noun} that repeat an earlier one: {repeats:,}{_example(inspection, _first_two(rows), line)}"
    if len(inspection.columns) == 1:
        return
    pairs = np.asarray(inspection.pairs)
    is_test = np.isin(np.arange(len(pairs)), np.asarray(held_out, dtype=np.int64))
    leaks = len(np.intersect1d(pairs[is_test], pairs[~is_test]))
    if leaks:
        # Only the first two texts are scored: the same pair with another negative is a leak too.
        what = noun if len(inspection.columns) == 2 else f"first two texts of {noun}"
        yield f"warning: {what} that are in both train and test, so that scores will be too high: {leaks:,}"
    for what, numbers in (
        (f"{noun} whose first two texts are equal", inspection.equal),
        (f"{noun} with a negative that equals their first or second text", inspection.own_negatives),
    ):
        if numbers:
            yield f"warning: {what}: {len(numbers):,}, for example in {line} {numbers[0]:,}"
    yield from _contradictions(inspection, pairs, line)


def _contradictions(inspection: Inspection, pairs: Array, line: str) -> Iterator[str]:
    """Yield warnings about texts that belong together in one row and are negatives of each other in another one.

    pairs   (n,) hashes of each row's first two texts
    """
    _, rows = np.unique(pairs, return_index=True)
    rows.sort()
    anchors = np.asarray(inspection.anchors)[rows]  # of different pairs
    several = int((np.unique(anchors, return_counts=True)[1] > 1).sum())
    if several:
        example = _example(inspection, rows[_first_two(anchors)], line)
        what = "first texts with several second texts, which are negatives of each other in a batch"
        yield f"warning: {what}: {several:,}{example}"
    contradictions = np.zeros(len(pairs), dtype=bool)
    for hashes in inspection.negatives:
        negatives = np.asarray(hashes)
        contradictions |= np.isin(negatives, pairs) & (negatives != pairs)
    if contradictions.any():
        row = int(np.flatnonzero(contradictions)[0])
        own = [np.asarray(hashes)[row] for hashes in inspection.negatives]
        other = int(np.flatnonzero(np.isin(pairs, own))[0])
        example = _example(inspection, sorted((row, other)), line)
        count = int(contradictions.sum())
        yield f"warning: negatives that are the second text of the same first text in another row: {count:,}{example}"


def _first_two(values: Array) -> Array:
    """Return the positions of the first value that occurs twice, and of its repetition."""
    _, group, counts = np.unique(values, return_inverse=True, return_counts=True)
    return np.flatnonzero(group == np.flatnonzero(counts > 1)[0])[:2]


def _example(inspection: Inspection, rows: Iterable[int], line: str) -> str:
    """Return where two rows are, as the end of a warning."""
    one, other = (inspection.numbers[row] for row in rows)
    return f", for example in {line}s {one:,} and {other:,}"


def _bad_lines(bad: Sequence[tuple[int, BadLine]], line: str) -> Iterator[str]:
    """Yield the first bad line of each kind, and how many more there are."""
    kinds: dict[str, list[tuple[int, str]]] = {}
    for number, problem in bad:
        # What follows a colon differs from line to line, such as the position of an invalid byte.
        kinds.setdefault(problem.reason.partition(":")[0], []).append((number, problem.reason))
    for (number, reason), *others in kinds.values():
        yield f"{line} {number:,} {reason}" + (f"; {len(others):,} more like it" if others else "")
