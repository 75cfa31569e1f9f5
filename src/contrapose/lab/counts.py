"""Numbers of things in messages, with the noun in singular or plural."""

from __future__ import annotations


def count_of(number: int, noun: str) -> str:
    """Return a number and its noun, which is given in the singular.

    >>> count_of(1, "broken file"), count_of(1200, "broken file"), count_of(2, "class")
    ('1 broken file', '1,200 broken files', '2 classes')
    """
    plural = f"{noun}es" if noun.endswith("s") else f"{noun}s"
    return f"{number:,} {noun if number == 1 else plural}"


def is_or_are(number: int) -> str:
    """Return the verb that follows `count_of`."""
    return "is" if number == 1 else "are"
