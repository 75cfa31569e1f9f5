"""A self-contained HTML page: no network, readable on a phone and in print."""

from __future__ import annotations

import html
import io
from collections.abc import Iterable
from typing import TYPE_CHECKING

from contrapose.report.style import styled

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_STYLE = """
:root { color-scheme: light dark }
body { font: 17px/1.55 system-ui, sans-serif; max-width: 68rem; margin: 2rem auto; padding: 0 1rem }
h1 { font-size: 1.6rem } h2 { font-size: 1.15rem; margin-top: 2rem; overflow-wrap: anywhere }
figure { margin: 1.5rem 0; background: #fff; overflow-x: auto; border-radius: .4rem }
figure svg { width: 100%; height: auto; min-width: 40rem; display: block }
footer { margin-top: 3rem; font-size: .85rem; opacity: .75 }
@media print { body { max-width: none; margin: 0 } figure svg { min-width: 0 } h2 { break-after: avoid } }
"""


def page(title: str, parts: Iterable[str]) -> str:
    """A whole document of parts that are HTML already."""
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{_STYLE}</style></head>\n<body>\n<h1>{html.escape(title)}</h1>\n"
        + "\n".join(parts)
        + "\n</body></html>\n"
    )


def section(title: str, sentences: Iterable[str]) -> str:
    """A heading and a list of sentences."""
    items = "".join(f"<li>{html.escape(sentence)}</li>" for sentence in sentences)
    return f"<h2>{html.escape(title)}</h2>\n<ul>{items}</ul>"


def drawing(figure: Figure, alt: str) -> str:
    """A matplotlib figure as inline SVG; `alt` says in words what it shows."""
    text = io.StringIO()
    with styled():
        figure.savefig(text, format="svg", metadata={"Date": None})
    svg = text.getvalue()
    return f'<figure role="img" aria-label="{html.escape(alt)}">{svg[svg.index("<svg") :]}</figure>'
