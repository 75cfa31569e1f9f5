"""Views of sentences: the same tokens under two dropout masks, fewer tokens, neighbouring sentences, or a pair's columns.

A raw sample is (C, L) token ids: C columns of L tokens, padded with -1. The encoder's inputs are

    (B, L)      token ids, for evaluation
    (B, 2, L)   token ids, and the dropout key of each token
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from contrapose.lab.modalities.source import ViewMaker
from contrapose.randomness import bits, uniform
from contrapose.validate import check_known

NO_TOKEN = -1
DEFAULT_LENGTH = 32  # SimCSE's
# name -> how tokens are changed before the encoder's dropout
RECIPES = {
    "dropout": "none: views differ in dropout alone (SimCSE)",
    "deletion": "each token is deleted with probability 0.1; deletion:P with probability P",
    "cropping": "a random run of at least 60 % of the tokens is kept; cropping:P of at least the share P",
    "neighbours": "none: a line and the next line of a file of single sentences are the views",
    "columns": "none: the columns of a file are the views; other recipes use the first column",
}
# Of the recipes for single sentences, the one whose runs from scratch have the best STS (docs/text.md)
SCRATCH_VIEWS = "deletion:0.7"
_SHARES = {"deletion": 0.1, "cropping": 0.6}  # the share in a recipe that gives none
_EVALUATION_TOKENS = {"cpu": 2**13, "cuda": 2**17}


@dataclass(frozen=True)
class TextViews:
    """`count` views of sentences of at most `length` tokens."""

    recipe: str = "dropout"
    count: int = 2
    length: int = DEFAULT_LENGTH
    folder: Path | None = None  # folder for a run's tokenizer and the configuration of its encoder

    def __post_init__(self) -> None:
        check_known("views", self.name, RECIPES)
        if ":" in self.recipe:
            self._check_share()
        if self.length < 3:
            raise ValueError(f"size: expected at least 3 tokens, of which two mark start and end, got {self.length}")

    def _check_share(self) -> None:
        try:
            valid = self.name in _SHARES and 0 < self.share < 1
        except ValueError:
            valid = False
        if not valid:
            raise ValueError(
                f"views: expected {' or '.join(f'{name}:P' for name in _SHARES)} with a number P between 0 and 1, "
                f"such as deletion:0.7, got {self.recipe!r}"
            )

    @property
    def name(self) -> str:
        """The recipe without its share: deletion, for deletion:0.7."""
        return self.recipe.partition(":")[0]

    @property
    def share(self) -> float:
        """The share in the recipe: the probability of deletion, or the length of the shortest crop."""
        name, colon, share = self.recipe.partition(":")
        return float(share) if colon else _SHARES[name]

    @property
    def has_paired_rows(self) -> bool:
        """Whether the texts of a row are the views."""
        return self.recipe in ("columns", "neighbours")

    @property
    def kept(self) -> Path | None:
        """The folder, if the run has already written it."""
        return self.folder if self.folder is not None and self.folder.is_dir() else None

    def train(self, raw: Tensor, index: Tensor, *, seed: int | Tensor, epoch: int | Tensor) -> list[Tensor]:
        """Return views of sentences (B, C, L) as one tensor (V, B, 2, L)."""
        self.check_columns(raw.shape[1])
        columns = raw.shape[1] if self.has_paired_rows else 1
        views = [
            self._view(raw[:, number % columns], index, number, seed=seed, epoch=epoch) for number in range(self.count)
        ]
        return [torch.stack(views)]

    def check_columns(self, columns: int) -> None:
        """If the texts of a row are the views, refuse a single text, and more or fewer texts than views."""
        if not self.has_paired_rows:
            return
        if columns == 1:
            raise ValueError(
                f"views: columns are the views of pairs, and the data has one column; use --views {SCRATCH_VIEWS}, or a file of "
                "pairs"
            )
        if self.count not in (1, columns):  # a single view is a view of the first column
            raise ValueError(
                f"view_count: expected {columns}, one view for each column of the data, got {self.count}; use --view-count "
                f"{columns}, or choose {self.count} columns with --columns"
            )

    def draw(self, raw: Tensor, index: Tensor, *, seed: int | Tensor, epoch: int | Tensor) -> Tensor:
        """Return one random view of the first column, (B, 2, L)."""
        return self._view(raw[:, 0], index, 0, seed=seed, epoch=epoch)

    def _view(self, ids: Tensor, index: Tensor, view: int, *, seed: int | Tensor, epoch: int | Tensor) -> Tensor:
        keys = bits(index, seed, epoch, view)
        if self.name == "deletion":
            ids = _delete(ids, keys, self.share)
        elif self.name == "cropping":
            ids = _crop(ids, keys, self.share)
        positions = torch.arange(ids.shape[-1], device=ids.device)
        return torch.stack((ids.long(), bits(keys[:, None] + positions)), 1)

    def plain(self, raw: Tensor) -> Tensor:
        """Return the token ids of the first column, (B, L)."""
        return raw[:, 0].long() if raw.ndim == 3 else raw.long()

    def light(self, augment: str = "crops", *, smallest: float | None = 0.2) -> ViewMaker:
        """Return one view with dropout, which is the mild augmentation for sentences."""
        return replace(self, recipe="dropout", count=1)

    def evaluation_batch(self, device: torch.device) -> int:
        """Return a batch size that keeps the device busy."""
        tokens = _EVALUATION_TOKENS.get(device.type, _EVALUATION_TOKENS["cuda"])
        return max(1, tokens // self.length)


def _delete(ids: Tensor, keys: Tensor, probability: float) -> Tensor:
    """Delete tokens in (B, L) at random, except for the first and the last token of a sentence."""
    kept = uniform(keys, ids.shape[-1], 1) >= probability
    return _compact(ids, kept | _ends(ids))


def _crop(ids: Tensor, keys: Tensor, smallest: float) -> Tensor:
    """Keep a random span of the tokens in (B, L), and the first and the last token, which mark start and end.

    The span has at least the share `smallest` of the tokens between them.
    """
    inner = ((ids != NO_TOKEN).sum(-1) - 2).clamp(min=1)
    share, place = uniform(keys, 2, 1).unbind(-1)
    size = ((smallest + (1 - smallest) * share) * inner).ceil()
    start = 1 + (place * (inner - size + 1)).floor()
    positions = torch.arange(ids.shape[-1], device=ids.device)
    kept = (positions >= start[:, None]) & (positions < (start + size)[:, None])
    return _compact(ids, kept | _ends(ids))


def _ends(ids: Tensor) -> Tensor:
    """Return which tokens (B, L) are the first or the last token of a sentence."""
    positions = torch.arange(ids.shape[-1], device=ids.device)
    last = (ids != NO_TOKEN).sum(-1, keepdim=True) - 1
    return (positions == 0) | (positions == last)


def _compact(ids: Tensor, kept: Tensor) -> Tensor:
    """Move the kept tokens in (B, L) to the front, in their order."""
    kept = kept & (ids != NO_TOKEN)
    order = (~kept).long().argsort(dim=-1, stable=True)
    return torch.where(kept, ids, NO_TOKEN).gather(-1, order)
