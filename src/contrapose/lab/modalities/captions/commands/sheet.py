"""A sheet of captions with the images that are nearest to each, in which the caption's own image is marked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from contrapose.lab.modalities.images.previews import Picture, thumbnail
from contrapose.lab.report.document import Thumbnail, Thumbnails
from contrapose.validate import check_count

_ROUNDING = 8  # scores that differ by fewer units of rounding count as equal


@dataclass(frozen=True)
class RankedPicture:
    """A picture, its rank among all pictures, and the similarity of its embedding to the caption's."""

    image: Picture
    rank: int  # from 1 on
    score: float  # cosine
    is_right: bool  # whether the caption belongs to it


@dataclass(frozen=True)
class RetrievalRow:
    """The pictures that are nearest to a caption; the caption's own picture is always among them, as the last if it is far."""

    query: str
    pictures: tuple[RankedPicture, ...]

    @property
    def rank(self) -> int:
        """The rank of the caption's own picture."""
        return next(picture.rank for picture in self.pictures if picture.is_right)


def retrieval_rows(
    queries: Sequence[str], scores: Tensor, right: Sequence[int], pictures: Sequence[Picture], *, top: int = 5
) -> list[RetrievalRow]:
    """Return the `top` pictures for each query, and the correct picture, whatever its rank among all pictures.

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
        shown = [i for rank, i in enumerate(order, 1) if rank <= top or i == own]
        row = (RankedPicture(pictures[i], 1 + order.index(i), float(own_scores[i]), i == own) for i in shown)
        rows.append(RetrievalRow(query, tuple(row)))
    return rows


def retrieval_sheet(
    rows: Sequence[RetrievalRow], *, pictures: int, title: str = "Images by their captions"
) -> Thumbnails:
    """Return a block for a report: each query with its nearest pictures, in which the correct picture has a green frame.

    rows       queries, such as some captions of the test set
    pictures   number of pictures that were ranked
    """
    groups = []
    for row in rows:
        thumbnails = []
        for picture in row.pictures:
            mark = "hit" if picture.is_right else "miss"
            words = "right" if picture.is_right else "wrong"
            name = str(getattr(picture.image, "name", "")) or "an image"
            thumbnails.append(
                Thumbnail(
                    thumbnail(picture.image),
                    caption=f"{picture.rank:,} · {words} · {picture.score:.3f}",
                    alt=f"Rank {picture.rank:,}, {words}: {name}",
                    mark=mark,
                )
            )
        groups.append((f"“{row.query}”: the right image has rank {row.rank:,} of {pictures:,}", tuple(thumbnails)))
    return Thumbnails(title, tuple(groups))
