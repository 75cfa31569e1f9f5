"""Charts and grids as matplotlib figures, for PNG and SVG files."""

from __future__ import annotations

from typing import TYPE_CHECKING

from contrapose.report.document import Chart, Heat
from contrapose.report.style import COLOURS, MARKERS, blank, line, styled

if TYPE_CHECKING:
    from matplotlib.figure import Figure


_DASHES = ("solid", "dash", "dashdot", "dot", "longdash", "longdashdot")  # plotly's names
_SYMBOLS = ("circle", "square", "triangle-up", "diamond", "triangle-down", "cross", "x", "star")


def figure(block: Chart | Heat) -> Figure:
    """A chart or a grid, drawn."""
    return _heat(block) if isinstance(block, Heat) else _chart(block)


def _chart(chart: Chart) -> Figure:
    with styled():
        made, (ax,) = blank(1, 1, (7.2, 4.6))
        place = theirs = 0
        for series in chart.series:
            if series.printed:
                look = {
                    "color": "0.55",
                    "linewidth": 1,
                    "linestyle": (0, (2, 2)),
                    "markersize": 4,
                    "markerfacecolor": "none",
                }
                ax.plot(series.x, series.y, label=series.name, marker=MARKERS[theirs % len(MARKERS)], **look)
                theirs += 1
                continue
            look, marker = line(place), MARKERS[place % len(MARKERS)]
            place += 1
            if series.points:
                ax.scatter(
                    series.x, series.y, s=12, color=look["color"], marker=marker, label=series.name, linewidths=0
                )
                continue
            marker = marker if len(series.x) <= 30 else ""
            if any(series.spread):
                ax.errorbar(series.x, series.y, series.spread, label=series.name, marker=marker, capsize=3, **look)
            else:
                ax.plot(series.x, series.y, label=series.name, marker=marker, markersize=5, **look)
            for x, y, text in zip(series.x, series.y, series.shown, strict=False):
                ax.annotate(text, (x, y), xytext=(6, 4), textcoords="offset points", fontsize=8, color=look["color"])
        ax.set_title(chart.title)
        ax.set_xlabel(chart.x)
        ax.set_ylabel(chart.y)
        if chart.log_x:
            ax.set_xscale("log")
            ticks = _ticks(chart)
            if ticks:
                ax.set_xticks(ticks["tickvals"], ticks["ticktext"])
                ax.minorticks_off()
        if chart.series:
            ax.legend(fontsize=8, ncols=1 + len(chart.series) // 9)
        return made


def _heat(heat: Heat) -> Figure:
    with styled():
        made, (ax,) = blank(1, 1, (5.4, 4.6))
        numbers = [[float("nan") if v is None else v for v in row] for row in heat.values]
        shown = ax.imshow(numbers, cmap="cividis", origin="lower", aspect="auto")
        there = [v for row in heat.values for v in row if v is not None]
        middle = (min(there) + max(there)) / 2 if there else 0.0
        for j, row in enumerate(heat.values):
            for i, value in enumerate(row):
                if value is not None:
                    ax.text(
                        i, j, f"{value:.1f}", ha="center", va="center", color="white" if value < middle else "black"
                    )
        ax.set_xticks(range(len(heat.xs)), [f"{x:g}" for x in heat.xs])
        ax.set_yticks(range(len(heat.ys)), [f"{y:g}" for y in heat.ys])
        ax.set_title(heat.title)
        ax.set_xlabel(heat.x)
        ax.set_ylabel(heat.y)
        ax.grid(visible=False)
        if there:
            made.colorbar(shown)
        return made


def _ticks(chart: Chart) -> dict[str, object]:
    """Where the points are, if they are few: a logarithmic axis names hardly any of them by itself."""
    places = sorted({x for series in chart.series for x in series.x})
    return {"tickvals": places, "ticktext": [f"{x:g}" for x in places]} if len(places) <= 15 else {}


def plotly(block: Chart | Heat) -> dict[str, object]:
    """The same as plotly's JSON: what the page draws, with zoom, hover and a legend that hides series."""
    layout: dict[str, object] = {
        "title": {"text": block.title, "font": {"size": 15}}, "xaxis": {"title": {"text": block.x}},
        "yaxis": {"title": {"text": block.y}}, "margin": {"l": 60, "r": 20, "t": 50, "b": 90}, "template": "none",
        "font": {"family": "system-ui, sans-serif"}, "hovermode": "closest",
        "legend": {"font": {"size": 11}, "orientation": "h", "y": -0.2},
    }  # fmt: skip
    if isinstance(block, Heat):
        axes = {"x": [f"{x:g}" for x in block.xs], "y": [f"{y:g}" for y in block.ys]}
        texts = [["" if v is None else f"{v:.1f}" for v in row] for row in block.values]
        layout["xaxis"] = {"title": {"text": block.x}, "type": "category"}
        layout["yaxis"] = {"title": {"text": block.y}, "type": "category"}
        heat = {
            "type": "heatmap",
            "z": block.values,
            "text": texts,
            "texttemplate": "%{text}",
            "colorscale": "Cividis",
            **axes,
        }
        return {"data": [heat], "layout": layout}
    if block.log_x:
        layout["xaxis"] = {"title": {"text": block.x}, "type": "log", **_ticks(block)}
    data, place, theirs = [], 0, 0
    for series in block.series:
        trace: dict[str, object] = {"name": series.name, "x": series.x, "y": series.y}
        if series.printed:
            marker = {"color": "#888", "symbol": f"{_SYMBOLS[theirs % len(_SYMBOLS)]}-open", "size": 6}
            trace |= {"mode": "lines+markers", "line": {"color": "#888", "dash": "dot", "width": 1.5}, "marker": marker}
            theirs += 1
        else:
            colour = COLOURS[place % len(COLOURS)]
            mode = "markers" if series.points else "lines" if len(series.x) > 60 else "lines+markers"
            trace |= {"mode": mode, "line": {"color": colour, "dash": _DASHES[place % len(_DASHES)]}}
            trace["marker"] = {
                "color": colour,
                "symbol": _SYMBOLS[place % len(_SYMBOLS)],
                "size": 5 if series.points else 8,
            }
            place += 1
        if any(series.spread):
            trace["error_y"] = {"type": "data", "array": series.spread}
        if series.labels:
            trace["hovertext"] = series.labels
        if series.shown:
            trace |= {"text": series.shown, "mode": f"{trace['mode']}+text", "textposition": "top right"}
        data.append(trace)
    return {"data": data, "layout": layout}
