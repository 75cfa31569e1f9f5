"""The Markdown copy of a page: what only Sphinx understands becomes plain Markdown, or is left out."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from html import unescape
from pathlib import PurePath

_FENCE = re.compile(r"(?P<marks>`{3,})(?:\{(?P<directive>[\w-]+)\} ?)?(?P<argument>.*)")
_FRONT_MATTER = re.compile(r"\A---\n.*?^---\n+", re.DOTALL | re.MULTILINE)  # settings of a page for Sphinx
_FIGURE = re.compile(r"(!\[[^\]\n]*\]\()([\w-]+\.(?:png|svg)\))")
_LABEL = re.compile(r'<svg[^>]* aria-label="([^"]*)"')


def plain_markdown(text: str, page: PurePath) -> str:
    """Return a page's text without directives: a card becomes a section, a formula one between dollar signs, a drawing a link to
    the HTML page. Sphinx has copied the figures into one folder."""
    plain = "\n".join(_plain(_FRONT_MATTER.sub("", text).split("\n"), f"{page.stem}.html"))
    return _FIGURE.sub(rf"\1{'../' * (len(page.parts) - 1)}_images/\2", plain)


def _plain(lines: Sequence[str], page: str) -> Iterator[str]:
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
        elif fence["directive"] == "raw":
            labels = "; ".join(map(unescape, _LABEL.findall("\n".join(body))))
            if labels:
                yield f"*Picture, only on [the HTML page]({page}): {labels}.*"
        elif fence["directive"] != "toctree":  # which is for the sidebar
            if fence["directive"] == "grid-item-card":
                yield f"**{fence['argument']}**\n"
            yield from _plain([own for own in body if not re.match(r":[\w-]+:", own)], page)
