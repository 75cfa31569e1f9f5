"""Draw charts, heat maps and thumbnails with matplotlib, for PNG and SVG files."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import replace
from textwrap import fill
from typing import TYPE_CHECKING, Any

from contrapose.lab.report.document import Chart, Heat, Series, Thumbnails
from contrapose.lab.report.labels import label_places
from contrapose.lab.report.page import JPEG_START
from contrapose.lab.report.style import COLOURS, MARKERS, curve_style, figure_style, hide_axes, literal, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure


_TITLE_LENGTH = 75  # characters; matplotlib cuts off what does not fit
_LABEL_LENGTH = 44  # characters per line of a y axis's label, which is as high as the axes
_NAME_LENGTH = 22  # characters per line of a group's name, for each thumbnail in a row


def page_figure(block: Chart | Heat, *, legend: bool = True) -> Figure:
    """Draw a chart or a heat map for a page: as narrow as a phone, and without the title, which is the page's caption."""
    if isinstance(block, Heat):
        return _draw_heat_map(replace(block, title=""))
    with figure_style():
        fig, (ax,) = new_figure(1, 1, (5.0, 4.2))
        _draw_curves(ax, replace(block, title=""))
        if legend:  # below the axes, where it covers no point and takes no width
            fig.legend(loc="outside lower left", fontsize=9, ncols=5 if block.is_map else 2)
        return fig


def figure(block: Chart | Heat | Thumbnails) -> Figure:
    """Draw a chart, a heat map or thumbnails with matplotlib."""
    if isinstance(block, Thumbnails):
        return _draw_thumbnails(block)
    return _draw_heat_map(block) if isinstance(block, Heat) else _draw_chart(block)


def _draw_thumbnails(block: Thumbnails) -> Figure:
    """Draw each group as a line of images above their captions."""
    from matplotlib.image import imread

    columns, rows = max((len(images) for _, images in block.groups), default=1), max(1, len(block.groups))
    width, height = 1.2 * columns + 0.6, 1.75 * rows + 0.5
    with figure_style():
        fig, axes = new_figure(rows, columns, (width, height))
        # The layout is set in inches, because a layout engine would widen the first column to fit a long name.
        fig.set_layout_engine(None)
        fig.subplots_adjust(
            left=0.1 / width, right=1 - 0.1 / width, top=1 - 0.75 / height, bottom=0.3 / height, hspace=0.65 / 1.1
        )
        for ax in axes:
            ax.set_axis_off()
        for line, (name, images) in enumerate(block.groups):
            row = axes[line * columns : (line + 1) * columns]
            for ax, image in zip(row, images, strict=False):  # a short group leaves the rest of its line empty
                # matplotlib assumes PNG for a file without a name.
                kind = "jpeg" if image.image.startswith(JPEG_START) else "png"
                ax.imshow(imread(io.BytesIO(image.image), format=kind))
                ax.set_anchor("S")  # aligns images of different heights at the bottom
                if image.mark:
                    _draw_frame(ax, image.mark)
                ax.text(0.5, -0.04, literal(image.caption), ha="center", va="top", fontsize=7, transform=ax.transAxes)
            # Placed above the cell and not above the image, which may be lower than others. A caption is plain text, in which
            # "$" must not start a formula.
            cell, lines = row[0].get_position(original=True), fill(name, _NAME_LENGTH * columns)
            fig.text(cell.x0, cell.y1 + 0.06 / height, lines, va="bottom", fontsize=8, parse_math=False)
        fig.suptitle(literal(fill(block.title, _TITLE_LENGTH)), x=0.01, ha="left", fontsize=10, fontweight="bold")
        return fig


def _draw_frame(ax: Any, mark: str) -> None:
    """Frame an image: green for a hit, dashed gray for a miss."""
    style = {"color": COLOURS[2], "linewidth": 3} if mark == "hit" else {"color": "0.6", "linestyle": "--"}
    left, right = ax.get_xlim()
    bottom, top = ax.get_ylim()
    ax.plot([left, right, right, left, left], [bottom, bottom, top, top, bottom], clip_on=False, **style)


def figure_row(charts: Sequence[Chart]) -> Figure:
    """Draw charts of the same series side by side, with one legend below them."""
    with figure_style():
        fig, axes = new_figure(1, len(charts), (6.4 * len(charts), 4.8))
        for ax, chart in zip(axes, charts, strict=True):
            _draw_curves(ax, chart)
        fig.legend(*axes[0].get_legend_handles_labels(), loc="outside lower left", fontsize=8, ncols=2)
        return fig


def _draw_chart(chart: Chart) -> Figure:
    with figure_style():
        fig, (ax,) = new_figure(1, 1, (7.2, 4.6))
        _draw_curves(ax, chart)
        # Points of a map cover the whole area, so its legend is outside.
        outside = {"loc": "upper left", "bbox_to_anchor": (1.0, 1.0), "markerscale": 2} if chart.is_map else {}
        if chart.series:
            ax.legend(fontsize=8, ncols=1 + len(chart.series) // (24 if outside else 9), **outside)
        return fig


def _draw_curves(ax: Any, chart: Chart) -> None:
    """Draw a chart without its legend."""
    for (index, series), places in zip(chart.numbered(), label_places(chart), strict=True):
        if series.printed:
            _draw_printed(ax, series, index)
        else:
            _draw_measured(ax, series, index, places)
    ax.set_title(literal(fill(chart.title, _TITLE_LENGTH)))
    ax.set_xlabel(literal(chart.x))
    ax.set_ylabel(literal(fill(chart.y, _LABEL_LENGTH)))
    if chart.log_x:
        ax.set_xscale("log")
        ticks = chart.log_ticks()
        if ticks:
            ax.set_xticks(list(ticks), list(ticks.values()))
            ax.minorticks_off()
    elif chart.has_whole_x:
        ax.xaxis.get_major_locator().set_params(integer=True)
    else:
        ax.xaxis.get_major_locator().set_params(nbins=5)  # long numbers would touch each other
    if chart.is_map:
        hide_axes(ax)


def _draw_printed(ax: Any, series: Series, index: int) -> None:
    style = {"color": "0.55", "linewidth": 1, "linestyle": (0, (2, 2)), "markersize": 4, "markerfacecolor": "none"}
    ax.plot(series.x, series.y, label=literal(series.name), marker=MARKERS[index % len(MARKERS)], **style)


def _draw_measured(ax: Any, series: Series, index: int, places: Sequence[str]) -> None:
    style, marker, name = curve_style(index), MARKERS[index % len(MARKERS)], literal(series.name)
    if len(series.x) == 1:
        style["linestyle"] = "none"  # the legend would show a line that is not there
    if series.points:
        ax.scatter(series.x, series.y, s=12, color=style["color"], marker=marker, label=name, linewidths=0)
        return
    marker = marker if len(series.x) <= 30 else ""  # markers of a long curve would merge into a band
    if any(series.spread):
        ax.errorbar(series.x, series.y, series.spread, label=name, marker=marker, capsize=3, **style)
    else:
        ax.plot(series.x, series.y, label=name, marker=marker, markersize=5, **style)
    # strict=False: most series have no annotations.
    for x, y, text, place in zip(series.x, series.y, series.annotations, places, strict=False):
        right, top = place.endswith("right"), place.startswith("top")
        ax.annotate(
            literal(text), (x, y), xytext=(6 if right else -6, 4 if top else -4), textcoords="offset points", fontsize=8,
            color=style["color"], ha="left" if right else "right", va="bottom" if top else "top",
        )  # fmt: skip


def _draw_heat_map(heat: Heat) -> Figure:
    with figure_style():
        fig, (ax,) = new_figure(1, 1, (5.4, 4.6))
        grid = [[float("nan") if value is None else value for value in row] for row in heat.values]
        image = ax.imshow(grid, cmap="cividis", origin="lower", aspect="auto")
        measured = [value for row in heat.values for value in row if value is not None]
        middle = (min(measured) + max(measured)) / 2 if measured else 0.0
        for j, row in enumerate(heat.values):
            for i, value in enumerate(row):
                if value is not None:
                    colour = "white" if value < middle else "black"  # low values of cividis are dark
                    ax.text(i, j, f"{value:.1f}", ha="center", va="center", color=colour)
        ax.set_xticks(range(len(heat.xs)), [f"{x:g}" for x in heat.xs])
        ax.set_yticks(range(len(heat.ys)), [f"{y:g}" for y in heat.ys])
        ax.set_title(literal(heat.title))
        ax.set_xlabel(literal(heat.x))
        ax.set_ylabel(literal(heat.y))
        ax.grid(visible=False)
        if measured:  # matplotlib warns about the colour bar of an empty range
            fig.colorbar(image, label=literal(heat.unit))
        return fig
