"""A self-contained HTML page that needs no network and is readable on a phone and in print."""

from __future__ import annotations

import base64
import html
import io
import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from contrapose.lab.report.style import figure_style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

JPEG_START = b"\xff\xd8"
_FOLDER = Path(__file__).parent


def page(title: str, parts: Iterable[str]) -> str:
    """Return an HTML document with this title and the stylesheet that all pages share; `parts` are HTML and are not escaped."""
    style = (_FOLDER / "page.css").read_text(encoding="utf-8")
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>\n{style}</style></head>\n<body>\n<h1>{html.escape(title)}</h1>\n"
        + "\n".join(parts)
        + "\n</body></html>\n"
    )


def script(file: str) -> str:
    """Return a JavaScript file of this folder as an element."""
    return f"<script>\n{(_FOLDER / file).read_text(encoding='utf-8')}</script>"


def json_element(data: object, attributes: str = "") -> str:
    """Return data for a script of the page."""
    # "</script>" would end the element early, and "<!--<script" would extend it to the end of the page; in JSON,
    # "\\u003c" is the same character.
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
    return f'<script type="application/json"{attributes}>{text}</script>'


def section(title: str, sentences: Iterable[str]) -> str:
    """Return a heading and a bulleted list of sentences as HTML."""
    items = "".join(f"<li>{html.escape(sentence)}</li>" for sentence in sentences)
    return f"<h2>{html.escape(title)}</h2>\n<ul>{items}</ul>"


def image_element(image: bytes, alt: str, name: str = "") -> str:
    """Return a PNG or JPEG file as an image inside the page.

    alt    description for screen readers
    name   id of the element, for scripts
    """
    kind, identity = "jpeg" if image.startswith(JPEG_START) else "png", f' id="{name}"' if name else ""
    return f'<img src="data:image/{kind};base64,{base64.b64encode(image).decode()}" alt="{html.escape(alt)}"{identity}>'


def drawing(figure: Figure, alt: str, *, caption: str = "") -> str:
    """Return a matplotlib figure as inline SVG.

    alt       description for screen readers
    caption   HTML above the drawing
    """
    return f'<figure role="img" aria-label="{html.escape(alt)}">{caption}{_svg(figure)}</figure>'


def drawing_of_two(wide: Figure, narrow: Figure, alt: str) -> str:
    """Return a figure that has a narrow version for phones; `alt` is its description for screen readers."""
    # Not inline: the two would share the ids of their clip paths, and a hidden clip path hides what it clips.
    sources = (f"data:image/svg+xml;base64,{base64.b64encode(_svg(f).encode()).decode()}" for f in (narrow, wide))
    return (
        f'<figure><picture><source media="(max-width: 40rem)" srcset="{next(sources)}">'
        f'<img src="{next(sources)}" alt="{html.escape(alt)}"></picture></figure>'
    )


def _svg(figure: Figure) -> str:
    """Return a figure as an <svg> element, without the XML declaration and doctype, which HTML does not allow."""
    buffer = io.StringIO()
    with figure_style():
        figure.savefig(buffer, format="svg", metadata={"Date": None})  # no date: the same page, the same bytes
    svg = buffer.getvalue()
    return svg[svg.index("<svg") :]
