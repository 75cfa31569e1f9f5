"""Which columns of a file are texts, and in which order, decided by their names."""

from __future__ import annotations

import re
from collections.abc import Sequence

from contrapose.validate import check_known

# Names that published data sets use for anchors, positives and negatives.
_ROLES = (
    ("sentence", "sent", "s", "text", "anchor", "query", "question", "premise", "source"),
    ("positive", "pos", "document", "passage", "answer", "response", "paraphrase", "hypothesis", "target"),
    ("negative", "neg", "hard_negative", "hard_neg"),
)
_RANK = {name: rank for rank, names in enumerate(_ROLES) for name in names}
_NUMBERED = re.compile(r"(.+?)(?:[_-]?(\d+)|[_-]([a-z]))?")  # sentence1, negative_2, text_b


def known_order(name: str) -> tuple[int, int] | None:
    """Return the sort key of a known column name, (role, number); None for an unknown name."""
    match = _NUMBERED.fullmatch(name.strip().lower())
    if match is None or match[1] not in _RANK:
        return None
    letter = ord(match[3]) - ord("a") if match[3] else 0
    return _RANK[match[1]], int(match[2] or letter)


def choose_columns(names: Sequence[str], requested: Sequence[str], *, file: str) -> tuple[str, ...]:
    """Return the requested columns, or else the columns with known names in the order of their roles, or else all columns."""
    twice = [name for name in dict.fromkeys(names) if names.count(name) > 1]
    if twice:
        raise ValueError(f"data: {file} has two columns named {twice[0]!r}; rename one of them")
    for name in requested:
        check_known("columns", name, names)
    known = [name for name in names if known_order(name) is not None]
    return tuple(requested or sorted(known, key=lambda name: known_order(name) or (0, 0)) or names)
