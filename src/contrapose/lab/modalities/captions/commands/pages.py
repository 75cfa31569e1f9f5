"""Pictures found for a query: the page that `contrapose search` writes, and a sheet of hits and misses for a report."""

from __future__ import annotations

import html
import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import torch
from torch import Tensor

from contrapose.lab.modalities.images.decoding import ImagePath, as_rgb, open_image, quiet_decoders
from contrapose.lab.report.document import Thumbnail, Thumbnails
from contrapose.lab.report.page import image_element, page
from contrapose.validate import check_count

if TYPE_CHECKING:
    from PIL.Image import Image

# A decoded image, or the place where an image is stored
Picture: TypeAlias = "ImagePath | Image"

_SIDE = 240  # longest side of a thumbnail, in pixels
_ROUNDING = 8  # scores that differ by fewer units of rounding count as equal
# Portraits and landscapes get cells of one height, so that the rows in the grid align. Names and captions are in <bdi>:
# right-to-left text must not change the order of the text around it.
_STYLE = """
body { overflow-wrap: anywhere }
ol.pictures { list-style: none; padding: 0; display: grid; gap: 1.4rem 1rem;
  grid-template-columns: repeat(auto-fill, minmax(min(13rem, 100%), 1fr)) }
ol.pictures li { min-width: 0; break-inside: avoid }
ol.pictures img { width: 100%; height: 12rem; object-fit: contain; background: #8882; border-radius: .3rem; display: block }
ol.pictures p { margin: .3rem 0 0; font-size: .9rem; line-height: 1.4 }
ol.pictures small, ol.pictures details { display: block; font-size: .8rem; opacity: .8 }
ol.pictures details ul { margin: .2rem 0; padding-left: 1.1rem }
section > p img { max-width: 100%; border-radius: .3rem }
@media (max-width: 30rem) { ol.pictures { grid-template-columns: 1fr 1fr; gap: 1rem .7rem } ol.pictures img { height: 9rem } }
"""


@dataclass(frozen=True)
class Match:
    """A picture that was found, and the similarity of its embedding to the query's."""

    image: Picture
    score: float  # cosine
    name: str  # file name
    captions: tuple[str, ...] = ()


@dataclass(frozen=True)
class SearchResult:
    """The pictures that are nearest to a query, nearest first."""

    query: str  # a text, or the name of the picture
    matches: tuple[Match, ...]
    image: Picture | None = None  # the query, if it is a picture


@dataclass(frozen=True)
class RetrievalRow:
    """The pictures that are nearest to a caption, and the rank of the caption's own picture among all pictures."""

    query: str
    matches: tuple[Match, ...]
    rank: int  # from 1 on


def thumbnail(image: Picture, *, side: int = _SIDE) -> bytes:
    """Return an image as a JPEG file whose longest side has at most `side` pixels.

    The file has no metadata: a page must not reveal where a photograph was taken.
    """
    from PIL import Image

    with quiet_decoders():
        if isinstance(image, Image.Image):
            small = as_rgb(image)
        else:
            with open_image(image) as file:
                file.draft("RGB", (2 * side, 2 * side))  # decoding a JPEG at a fraction of its size is faster
                small = as_rgb(file)
        small.thumbnail((side, side))
    buffer = io.BytesIO()
    small.save(buffer, "JPEG", quality=80)
    return buffer.getvalue()


def search_page(results: Sequence[SearchResult], *, run: str, step: int, data: str, pictures: int) -> str:
    """Return an HTML page with the pictures found for each query.

    results    one result per query
    run        name of the run whose embeddings were compared, of this step
    data       what was searched, which has so many pictures
    """
    about = (
        f"<p>Searched: {pictures:,} pictures of <bdi>{html.escape(data)}</bdi>, with the run "
        f"<bdi>{html.escape(run)}</bdi> at step {step:,}. The number of a picture is its rank; its score is the cosine between "
        "its embedding and that of the query, at most 1.</p>"
    )
    links = "".join(
        f'<li><a href="#query-{number}">{_quoted(result)}</a></li>' for number, result in enumerate(results, 1)
    )
    contents = [f"<nav><ol>{links}</ol></nav>"] if len(results) > 1 else []
    parts = [_html_result(number, result) for number, result in enumerate(results, 1)]
    return page("Search", [about, *contents, *parts], style=_STYLE)


def _html_result(number: int, result: SearchResult) -> str:
    """Return a query's heading, the query's picture if it is a picture, and the pictures that were found."""
    query = ""
    if result.image is not None:
        query = f"<p>{image_element(thumbnail(result.image), f'The query: {result.query}')}</p>"
    items = "".join(_html_match(rank, match) for rank, match in enumerate(result.matches, 1))
    return f'<section id="query-{number}"><h2>{_quoted(result)}</h2>{query}<ol class="pictures">{items}</ol></section>'


def _quoted(result: SearchResult) -> str:
    text = f"<bdi>{html.escape(result.query)}</bdi>"
    return f"“{text}”" if result.image is None else f"Like the picture {text}"


def _html_match(rank: int, match: Match) -> str:
    """Return a picture with rank, score, name and captions; the first caption is visible, the others appear on a click."""
    first, *others = match.captions or ("",)
    caption = f"<p><bdi>{html.escape(first)}</bdi></p>" if first else ""
    if others:
        more = "".join(f"<li><bdi>{html.escape(other)}</bdi></li>" for other in others)
        caption += f"<details><summary>{len(others)} more</summary><ul>{more}</ul></details>"
    picture = image_element(thumbnail(match.image), first or match.name)
    return (
        f"<li>{picture}<p><b>{rank}</b> · {match.score:.3f}</p>"
        f"<small><bdi>{html.escape(match.name)}</bdi></small>{caption}</li>"
    )


def retrieval_rows(
    queries: Sequence[str], scores: Tensor, right: Sequence[int], pictures: Sequence[Picture], *, top: int = 5
) -> list[RetrievalRow]:
    """Return the `top` pictures for each query, and the rank of the correct picture among all pictures.

    queries    captions
    scores     cosines (queries, pictures)
    right      number of the picture that each caption belongs to
    pictures   all pictures that are ranked

    At a tie, a wrong picture is ranked before the correct one, as in recall@k.
    """
    check_count("top", top, least=1)
    expected = (len(queries), len(pictures))
    if tuple(scores.shape) != expected or len(right) != len(queries):
        raise ValueError(
            f"scores: expected one row per query with the number of its right picture, and one column per picture, {expected}, "
            f"got {tuple(scores.shape)} and {len(right)} right pictures"
        )
    if not bool(scores.isfinite().all()):
        raise ValueError("scores: expected finite cosines, got NaN or infinity")
    rows = []
    for query, own_scores, own in zip(queries, scores.float().cpu(), right, strict=True):
        ranked = own_scores.clone()
        ranked[own] -= _ROUNDING * torch.finfo(torch.float32).eps
        order = ranked.argsort(descending=True, stable=True).tolist()
        matches = (Match(pictures[i], float(own_scores[i]), _name(pictures[i])) for i in order[:top])
        rows.append(RetrievalRow(query, tuple(matches), 1 + order.index(own)))
    return rows


def _name(picture: Picture) -> str:
    """Return a picture's file name; empty if it has no file."""
    return str(getattr(picture, "name", ""))


def retrieval_sheet(
    rows: Sequence[RetrievalRow], *, pictures: int, title: str = "Pictures by their captions"
) -> Thumbnails:
    """Return a block for a report: each query with its nearest pictures, in which the correct picture has a green frame.

    rows       queries, such as some captions of the test set
    pictures   number of pictures that were ranked
    """
    groups = []
    for row in rows:
        thumbnails = []
        for rank, match in enumerate(row.matches, 1):
            mark = "hit" if rank == row.rank else "miss"
            alt = f"Rank {rank}, {mark}: {match.captions[0] if match.captions else match.name or 'a picture'}"
            caption = f"{rank} · {mark} · {match.score:.3f}"
            thumbnails.append(Thumbnail(thumbnail(match.image), caption, alt, mark))
        groups.append((f"“{row.query}”: the right picture has rank {row.rank:,} of {pictures:,}", tuple(thumbnails)))
    return Thumbnails(title, tuple(groups))
