"""The page of `contrapose search`: the nearest images or texts of each query."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from contrapose.lab.report.page import image_element, page


@dataclass(frozen=True)
class Match:
    """A sample that was found, and the similarity of its embedding to the query's."""

    score: float  # cosine
    name: str = ""  # path of its file
    image: bytes = b""  # a PNG or JPEG file; empty for a text, or if the file cannot be read
    label: str = ""  # name of its class
    texts: tuple[str, ...] = ()  # the text itself, or captions

    def __str__(self) -> str:
        """One line for the terminal: score, class and path, or else the text."""
        return "  ".join([f"{self.score:.3f}", *filter(None, (self.label, self.name or " ".join(self.texts[:1])))])


@dataclass(frozen=True)
class SearchResult:
    """The samples that are nearest to a query, nearest first."""

    query: str  # a text, or the path of the image
    matches: tuple[Match, ...]
    image: bytes = b""  # the query, if it is an image


def search_page(
    results: Sequence[SearchResult],
    *,
    run: str,
    step: int,
    data: str,
    samples: str,
    scores: Mapping[str, float] | None = None,
) -> str:
    """Return an HTML page with the samples found for each query.

    results   one result per query
    run       name of the run whose embeddings were compared, of this step
    data      what was searched
    samples   number and kind of the samples that were searched: 8,000 images
    scores    what the run's records say about its held-out data, in per cent: {"text_to_image_recall_1": 41.0}
    """
    measured = ", ".join(f"{_score_name(name)} {value:.1f} %" for name, value in (scores or {}).items())
    recorded = f" On held-out data, the run's last evaluation gave {html.escape(measured)}." if measured else ""
    # Names and captions are in <bdi>: right-to-left text must not change the order of the text around it.
    about = (
        f"<p class='muted'>Searched: {html.escape(samples)} of <bdi>{html.escape(data)}</bdi>, with the run "
        f"<bdi>{html.escape(run)}</bdi> at step {step:,}. The bold number is the rank; the number next to it is the cosine "
        f"similarity to the query, at most 1.{recorded}</p>"
    )
    links = "".join(
        f'<li><a href="#query-{number}">{_quoted(result)}</a></li>' for number, result in enumerate(results, 1)
    )
    contents = [f"<nav><ol>{links}</ol></nav>"] if len(results) > 1 else []
    parts = [_html_result(number, result) for number, result in enumerate(results, 1)]
    return page("Search", [about, *contents, *parts])


def _score_name(name: str) -> str:
    """Return a score in words: "knn_top1" is "kNN accuracy", "text_to_image_recall_1" is "text-to-image recall@1"."""
    return "kNN accuracy" if name == "knn_top1" else name.replace("_recall_", " recall@").replace("_", "-")


def _html_result(number: int, result: SearchResult) -> str:
    """Return a query's heading, the query itself if it is an image, and what was found."""
    query = f"<p>{image_element(result.image, f'The query: {result.query}')}</p>" if result.image else ""
    items = "".join(_html_match(rank, match) for rank, match in enumerate(result.matches, 1))
    kind = "pictures" if any(match.name for match in result.matches) else "pictures texts"
    found = (
        f'<ol class="{kind}">{items}</ol>'
        if items
        else "<p>Nothing was found: there is no sample beside the query.</p>"
    )
    return f'<section id="query-{number}"><h2>{_quoted(result)}</h2>{query}{found}</section>'


def _quoted(result: SearchResult) -> str:
    text = f"<bdi>{html.escape(result.query)}</bdi>"
    return f"Like the image {text}" if result.image else f"“{text}”"


def _html_match(rank: int, match: Match) -> str:
    """Return a match with rank, score, class, path and texts; the first text is visible, the others appear on a click."""
    first, *others = match.texts or ("",)
    text = f"<p><bdi>{html.escape(first)}</bdi></p>" if first else ""
    if others:
        more = "".join(f"<li><bdi>{html.escape(other)}</bdi></li>" for other in others)
        text += f"<details><summary>{len(others)} more</summary><ul>{more}</ul></details>"
    picture = image_element(match.image, first or match.name) if match.image else ""
    if match.name and not match.image:
        picture = '<div class="missing">The image cannot be read.</div>'
    label = f" · <bdi>{html.escape(match.label)}</bdi>" if match.label else ""
    name = f"<small><bdi>{html.escape(match.name)}</bdi></small>" if match.name else ""
    return f"<li>{picture}<p><b>{rank}</b> · {match.score:.3f}{label}</p>{name}{text}</li>"
