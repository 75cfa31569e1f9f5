"""Check that the prefixes of the embedding that a run trains (`--dims`) are something that its loss can see.

These functions are called while a `Run` is created, so `run` has all settings as fields, but `Run` cannot be imported here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from contrapose.lab.frameworks import FRAMEWORKS, frameworks_with
from contrapose.losses.nested import nested
from contrapose.losses.parse import parse


def check_dims(run: Any) -> None:
    """Raise ValueError for widths out of order, and for a run whose loss does not compare the embedding's coordinates."""
    if not run.dims:
        return
    # A predictor mixes all coordinates of the embedding, so a prefix of its output is not that of the embedding.
    if FRAMEWORKS[run.framework].uses("predictor"):
        raise ValueError(
            f"dims: the loss of {', '.join(frameworks_with('predictor'))} sees a predictor's output, whose prefixes are not "
            f"prefixes of the embedding; use --framework simclr or moco with another loss, got {run.framework}"
        )
    if run.similarity == "neg_euclid":
        raise ValueError("dims: expected --similarity cosine or dot for prefixes of the embedding, got neg_euclid")
    try:
        nested(parse(run.loss, run.loss_data), dims=run.dims)
    except ValueError as error:
        # On the command line, the objective is --loss.
        raise ValueError(str(error).replace("objective: expected", "dims: expected a --loss that is", 1)) from error


def check_width(dims: Sequence[int], widths: Mapping[str, int]) -> None:
    """Raise ValueError unless the last prefix is the whole embedding; `widths` has the width of each tower's embedding."""
    width = min(widths.values())
    if not dims or dims[-1] == width:
        return
    if dims[-1] > width:
        raise ValueError(
            f"dims: expected widths up to {width}, that of the embedding, got {dims[-1]}; --width sets another one"
        )
    raise ValueError(
        f"dims: the embedding has {width} dimensions, and those after {dims[-1]} would not be trained; add {width} to --dims, "
        f"or set --width {dims[-1]}"
    )


def check_prefix(run: Any, folder: Path, dims: int) -> None:
    """Raise ValueError unless the run trained the prefix with `dims` coordinates; 0 is the whole embedding."""
    if not dims or dims in run.dims:
        return
    if not run.dims:
        raise ValueError(
            f"dims: {folder} was trained without --dims, so that a prefix of its embedding means nothing alone, got {dims}"
        )
    raise ValueError(
        f"dims: expected one of {', '.join(map(str, run.dims))}, the prefixes that {folder} was trained with, got {dims}"
    )
