"""The style of all figures: colours that colour-blind readers can distinguish, and line styles that work without colour."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from contrapose.extras import install_command

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# The palette of Okabe & Ito with an additional grey, and two colours from Tol's palette.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#7F7F7F", "#882255", "#117733")
LINE_STYLES: tuple[Any, ...] = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (1, 3)))
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*", "<", ">")


def curve_style(index: int) -> dict[str, Any]:
    """Return matplotlib's keyword arguments for curve number `index` of a figure."""
    # The two lists differ in length, so that a repeated colour has another line style.
    return {
        "color": COLOURS[index % len(COLOURS)],
        "linestyle": LINE_STYLES[index % len(LINE_STYLES)],
        "linewidth": 1.8,
    }


@contextmanager
def figure_style() -> Iterator[None]:
    """Apply this style to what matplotlib draws in the block; raise ValueError if matplotlib is not installed."""
    try:
        import matplotlib as mpl
    except ImportError as error:
        raise ValueError(f"figures need matplotlib; install it with: {install_command('figures')}") from error
    # Letters that the font lacks are drawn as boxes, without a warning for each letter.
    # svg.hashsalt fixes the ids of SVG elements, which are random by default; fonttype "none" keeps text searchable.
    with warnings.catch_warnings(), mpl.rc_context({
        "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "grid.alpha": 0.25, "font.size": 10,
        "axes.titlesize": 11, "axes.titleweight": "bold", "axes.titlelocation": "left", "legend.frameon": False,
        "figure.dpi": 110, "svg.fonttype": "none", "svg.hashsalt": "contrapose",
    }):  # fmt: skip
        warnings.filterwarnings("ignore", message=r"Glyph \d+ .* missing from")
        yield


def literal(text: str) -> str:
    """Escape a text so that matplotlib shows it unchanged, instead of parsing the part between two "$" as a formula."""
    return text.replace("$", r"\$")


def new_figure(rows: int, columns: int, size: tuple[float, float], **options: Any) -> tuple[Figure, Sequence[Any]]:
    """Return a figure of `size` inches and its rows · columns axes, as a flat list; `options` go to `subplots`."""
    # Not pyplot: it would keep every figure in a global list and might open a window.
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False, **options)
    return figure, list(axes.flatten())


def hide_axes(ax: Any) -> None:
    """Remove ticks and frame from a map, and give both axes the same scale."""
    ax.set_xticks([])
    ax.set_yticks([])
    ax.set_aspect("equal", "datalim")
    ax.spines[:].set_visible(False)


def save(figure: Figure, path: Path) -> None:
    """Write a figure to a file. The same figure always gives the same bytes in PNG and SVG files."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # The date and the matplotlib version are omitted, because they would make files of equal figures differ.
    metadata = {"Date": None} if path.suffix == ".svg" else {"Software": None} if path.suffix == ".png" else None
    with figure_style():
        figure.savefig(path, metadata=metadata, dpi=150)
