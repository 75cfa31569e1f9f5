"""The Markdown copy of a page: what only Sphinx understands becomes plain Markdown, or is left out."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

_FENCE = re.compile(r"(?P<marks>`{3,})(?:\{(?P<directive>[\w-]+)\} ?)?(?P<argument>.*)")
_LEFT_OUT = ("toctree", "raw")  # the sidebar, and drawings


def plain_markdown(text: str) -> str:
    """Return a page's text without directives: a card becomes a section, a formula one between dollar signs."""
    return "\n".join(_plain(text.split("\n")))


def _plain(lines: Sequence[str]) -> Iterator[str]:
    rest = iter(lines)
    for line in rest:
        fence = _FENCE.fullmatch(line)
        if fence is None:
            yield line
            continue
        body = list(iter(rest.__next__, fence["marks"]))  # to the line that closes the block
        if not fence["directive"]:
            yield from (line, *body, fence["marks"])
        elif fence["directive"] == "math":
            yield from ("$$", *body, "$$")
        elif fence["directive"] not in _LEFT_OUT:
            if fence["directive"] == "grid-item-card":
                yield f"**{fence['argument']}**\n"
            yield from _plain([own for own in body if not re.match(r":[\w-]+:", own)])
