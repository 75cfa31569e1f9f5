"""Nouns agree with their numbers."""

from __future__ import annotations

from contrapose.lab.counts import count_of, is_or_are


def test_nouns_agree_with_their_numbers() -> None:
    assert [count_of(number, "loss") for number in (0, 1, 2000)] == ["0 losses", "1 loss", "2,000 losses"]
    assert f"{count_of(1, 'file')} {is_or_are(1)}, {count_of(3, 'file')} {is_or_are(3)}" == "1 file is, 3 files are"
