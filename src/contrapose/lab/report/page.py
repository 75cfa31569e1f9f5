"""A self-contained HTML page that needs no network and is readable on a phone and in print."""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Iterable
from typing import TYPE_CHECKING

from contrapose.lab.report.style import figure_style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

JPEG_START = b"\xff\xd8"
# figure keeps a white background in dark mode, since the drawings have black text. Wide figures and tables scroll on
# their own, so that the page itself never scrolls sideways.
_STYLE = """
:root { color-scheme: light dark }
body { font: 17px/1.55 system-ui, sans-serif; max-width: 68rem; margin: 2rem auto; padding: 0 1rem }
h1 { font-size: 1.6rem } h2 { font-size: 1.15rem; margin-top: 2rem } h1, h2, p, li { overflow-wrap: anywhere }
figure { margin: 1.5rem 0; background: #fff; overflow-x: auto; border-radius: .4rem }
figcaption { color: #222; font-weight: 600; padding: .5rem .8rem } figure > img { max-width: 100%; display: block }
figure > svg { width: 100%; height: auto; max-width: 42rem; display: block }
picture > img { width: 100%; display: block }
figure > p { color: #222; margin: .5rem .8rem 0 }
.thumbnails { display: flex; flex-wrap: wrap; gap: .6rem; padding: .3rem .8rem }
.thumbnails figure { margin: 0; width: 6rem; overflow: visible }
.thumbnails figcaption { font-weight: 400; font-size: .8rem; padding: 0 }
.thumbnails .hit, .thumbnails .miss { box-sizing: border-box; width: 9rem; padding: .25rem; border: .2rem solid #009E73 }
.thumbnails .miss { border: .2rem dashed #8888 }
.hit > img, .miss > img { width: 100%; height: 7rem; object-fit: contain }
.wide { overflow-x: auto } div.plot { width: 100%; height: 26rem }
table { border-collapse: collapse; margin: 1rem 0; font-size: .95rem }
caption { text-align: left; font-weight: 600; padding: .3rem 0 }
th, td { padding: .35rem .7rem; text-align: left; border-bottom: 1px solid #8884; vertical-align: top }
thead th { cursor: pointer; border-bottom: 2px solid #8888 } th[aria-sort=descending]::after { content: " ↓" }
th[aria-sort=ascending]::after { content: " ↑" } td small { display: block; opacity: .7 } td.hole { opacity: .7 }
tbody th { min-width: 8rem; overflow-wrap: anywhere } td[data-value] { white-space: nowrap }
ul.verdicts { list-style: none; padding: 0 }
ul.verdicts li { border-left: .3rem solid #888; padding: .2rem .8rem; margin: .5rem 0 }
ul.verdicts li.holds { border-color: #009E73 } ul.verdicts li.does-not-hold { border-color: #D55E00; border-left-style: double }
ul.verdicts li.undecided, ul.verdicts li.too-short-to-tell { border-left-style: dashed } .note { font-size: .9rem; opacity: .85 }
@media (max-width: 40rem) {
  table { font-size: .75rem; hyphens: auto } th, td { padding: .3rem .15rem }
  tbody th { min-width: 4.5rem } td[data-value] { white-space: normal }
}
details { font-size: .85rem } dd { overflow-wrap: anywhere; margin-left: 1rem }
footer { margin-top: 3rem; font-size: .85rem; opacity: .75 }
@media print { body { max-width: none; margin: 0 } h2 { break-after: avoid } }
"""


def page(title: str, parts: Iterable[str], *, style: str = "") -> str:
    """Return an HTML document with this title; `parts` are HTML and are not escaped. `style` is more CSS."""
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{_STYLE}{style}</style></head>\n<body>\n<h1>{html.escape(title)}</h1>\n"
        + "\n".join(parts)
        + "\n</body></html>\n"
    )


def section(title: str, sentences: Iterable[str]) -> str:
    """Return a heading and a bulleted list of sentences as HTML."""
    items = "".join(f"<li>{html.escape(sentence)}</li>" for sentence in sentences)
    return f"<h2>{html.escape(title)}</h2>\n<ul>{items}</ul>"


def image_element(image: bytes, alt: str) -> str:
    """Return a PNG or JPEG file as an image inside the page; `alt` is its description for screen readers."""
    kind = "jpeg" if image.startswith(JPEG_START) else "png"
    return f'<img src="data:image/{kind};base64,{base64.b64encode(image).decode()}" alt="{html.escape(alt)}">'


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
