"""Which columns of a file are texts, and in which order, decided by their names."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Sequence

from contrapose.lab.modalities.text.records import is_number
from contrapose.validate import check_known

# Names that published data sets use for anchors, positives and negatives.
_ROLES = (
    ("sentence", "sent", "s", "text", "anchor", "query", "question", "premise", "source", "src"),
    ("positive", "pos", "document", "passage", "answer", "response", "paraphrase", "hypothesis", "target", "tgt"),
    ("negative", "neg", "hard_negative", "hard_neg"),
)
_RANK = {name: rank for rank, names in enumerate(_ROLES) for name in names}
_NUMBERED = re.compile(r"(.+?)(?:[_-]?(\d+)|[_-]([a-z]))?")  # sentence1, negative_2, text_b
_NAME = re.compile(r"[\w.-]*(?: \w)?")  # how a column name looks: one word, or one and a number or letter


def known_order(name: str) -> tuple[int, int] | None:
    """Return the sort key of a known column name, (role, number); None for an unknown name."""
    match = _NUMBERED.fullmatch(name.strip().lower())
    if match is None or match[1] not in _RANK:
        return None
    letter = ord(match[3]) - ord("a") if match[3] else 0
    return _RANK[match[1]], int(match[2] or letter)


def is_header(cells: Sequence[str], following: Sequence[Sequence[str]]) -> bool:
    """Return whether the cells of a first row are column names, judging by some of the following rows too.

    A known name may also be a word in a row of texts. A header has only names, of which several are known, or else texts below
    the one that is known.
    """
    known = [number for number, cell in enumerate(cells) if known_order(cell) is not None]
    rows = [row for row in following if len(row) == len(cells)]
    if not known or not all(_NAME.fullmatch(cell.strip()) for cell in cells):
        return False
    if any(all(known_order(cell) is not None for cell in row) for row in rows):  # such as text1, text2, text3
        return False
    if len(known) == len(cells) or len(known) > 1 or not rows:
        return True
    return any(
        is_number(cell) if number not in known else not _NAME.fullmatch(cell.strip())
        for row in rows
        for number, cell in enumerate(row)
    )


def _by_number(column: str, names: Sequence[str], known: Collection[str]) -> str:
    """Return the name of a column that is given by its number, from 1 on; a column may also be called 2."""
    if column in known or not column.isdecimal() or not 1 <= int(column) <= len(names):
        return column
    return names[int(column) - 1]


def choose_columns(names: Sequence[str], requested: Sequence[str], *, file: str) -> tuple[str, ...]:
    """Return the requested columns, or else the columns with known names in the order of their roles, or else all columns."""
    counts = Counter(names)  # a file may have tens of thousands of columns
    twice = next((name for name, count in counts.items() if count > 1), None)
    if twice is not None:
        raise ValueError(f"data: {file} has two columns named {twice!r}; rename one of them")
    requested = [_by_number(name, names, counts) for name in requested]
    for name in requested:
        check_known("columns", name, counts)
    known = [name for name in names if known_order(name) is not None]
    return tuple(requested or sorted(known, key=lambda name: known_order(name) or (0, 0)) or names)
