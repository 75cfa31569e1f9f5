"""How figures look: colours that colour-blind eyes tell apart, and line styles that need no colour."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Okabe & Ito, and two of Tol's.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#7F7F7F", "#882255", "#117733")
STYLES: tuple[Any, ...] = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (1, 3)))
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*", "<", ">")


def line(place: int) -> dict[str, Any]:
    """Keywords of the place-th curve of a figure."""
    return {"color": COLOURS[place % len(COLOURS)], "linestyle": STYLES[place % len(STYLES)], "linewidth": 1.8}


@contextmanager
def styled() -> Iterator[None]:
    """Inside, matplotlib draws as we like it; a clear error where it is not installed."""
    try:
        import matplotlib as mpl
    except ImportError as error:
        raise ValueError("figures need: pip install 'contrapose[figures]'") from error
    with mpl.rc_context({
        "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "grid.alpha": 0.25, "font.size": 10,
        "axes.titlesize": 11, "axes.titleweight": "bold", "axes.titlelocation": "left", "legend.frameon": False,
        "figure.dpi": 110, "svg.fonttype": "none", "svg.hashsalt": "contrapose",
    }):  # fmt: skip
        yield


def blank(rows: int, columns: int, size: tuple[float, float], **more: Any) -> tuple[Figure, Sequence[Any]]:
    """A figure and its axes in one row, bound to no window."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False, **more)
    return figure, list(axes.flatten())


def save(figure: Figure, path: Path) -> None:
    """Write a figure, the same bytes each time."""
    path.parent.mkdir(parents=True, exist_ok=True)
    nothing = {"Date": None} if path.suffix == ".svg" else {"Software": None} if path.suffix == ".png" else None
    with styled():
        figure.savefig(path, metadata=nothing, dpi=150)
