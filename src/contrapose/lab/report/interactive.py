"""Describe charts and heat maps as JSON for plotly, which draws them in the HTML page with zoom and hover texts."""

from __future__ import annotations

import html
from collections.abc import Sequence
from textwrap import fill

from contrapose.extras import needs_extra
from contrapose.lab.report.document import Chart, Heat, Series
from contrapose.lab.report.labels import label_places
from contrapose.lab.report.style import COLOURS

_DASHES = ("solid", "dash", "dashdot", "dot", "longdash", "longdashdot")
_LABEL_LENGTH = 44  # characters per line of the y axis's label
_SYMBOLS = ("circle", "square", "triangle-up", "diamond", "triangle-down", "cross", "x", "star")


def plotly_source() -> str:
    """Return plotly's JavaScript, which is copied into the page so that it needs no network."""
    with needs_extra("a page with charts", "figures", {"plotly"}):
        from plotly.offline import get_plotlyjs
    source: str = get_plotlyjs()
    return source


def plotly(block: Chart | Heat, *, legend: bool = True) -> dict[str, object]:
    """Return the plotly version of `draw.figure`, without the title; its legend can hide series, and points show hover texts."""
    # A label of the y axis is as high as the axes, so a long one has several lines.
    x, y = ({"title": {"text": _text(title)}, "automargin": True} for title in (block.x, fill(block.y, _LABEL_LENGTH)))
    annotated = isinstance(block, Chart) and any(series.annotations for series in block.series)
    layout: dict[str, object] = {
        # The text next to the last point needs room at the right.
        "xaxis": x, "yaxis": y, "margin": {"l": 60, "r": 55 if annotated else 20, "t": 30, "b": 50}, "template": "none",
        "hovermode": "closest", "showlegend": legend and isinstance(block, Chart) and len(block.series) > 1,
        # At the bottom of the container, because below a narrow chart the legend has several lines, which need room.
        "legend": {"font": {"size": 11}, "orientation": "h", "yref": "container", "y": 0, "yanchor": "bottom"},
    }  # fmt: skip
    if isinstance(block, Heat):
        # Categories instead of numbers, so that all cells have the same size, as in the PNG.
        layout |= {"xaxis": {**x, "type": "category"}, "yaxis": {**y, "type": "category"}}
        return {"data": [_heat_map(block)], "layout": layout}
    if block.is_map:
        layout |= {"xaxis": {"visible": False}, "yaxis": {"visible": False, "scaleanchor": "x"}}
    elif block.log_x:
        ticks = block.log_ticks()
        chosen = {"tickvals": list(ticks), "ticktext": list(ticks.values())} if ticks else {}
        layout["xaxis"] = {**x, "type": "log", **chosen}
    elif block.has_whole_x and max((x for series in block.series for x in series.x), default=0) <= 10:
        layout["xaxis"] = {**x, "dtick": 1}
    traces = [
        _trace(series, index, places)
        for (index, series), places in zip(block.numbered(), label_places(block), strict=True)
    ]
    return {"data": traces, "layout": layout}


def _text(text: str) -> str:
    """Return a text, in one or several lines, as plotly shows it: "<" would start a tag there."""
    return html.escape(text, quote=False).replace("\n", "<br>")  # plotly does not decode &quot;


def _heat_map(heat: Heat) -> dict[str, object]:
    return {
        "type": "heatmap",
        "z": heat.values,
        "text": [["" if value is None else f"{value:.1f}" for value in row] for row in heat.values],
        "texttemplate": "%{text}",
        "colorscale": "Cividis",
        "colorbar": {"title": {"text": _text(heat.unit), "side": "right"}},
        "x": [f"{x:g}" for x in heat.xs],
        "y": [f"{y:g}" for y in heat.ys],
    }


def _trace(series: Series, index: int, places: Sequence[str]) -> dict[str, object]:
    trace: dict[str, object] = {"name": _text(series.name), "x": series.x, "y": series.y}
    symbol = _SYMBOLS[index % len(_SYMBOLS)]
    if series.printed:
        trace |= {"mode": "lines+markers", "line": {"color": "#888", "dash": "dot", "width": 1.5}}
        trace["marker"] = {"color": "#888", "symbol": f"{symbol}-open", "size": 6}
    else:
        colour = COLOURS[index % len(COLOURS)]
        mode = "markers" if series.points or len(series.x) == 1 else "lines" if len(series.x) > 60 else "lines+markers"
        trace |= {"mode": mode, "line": {"color": colour, "dash": _DASHES[index % len(_DASHES)]}}
        trace["marker"] = {"color": colour, "symbol": symbol, "size": 5 if series.points and len(series.x) > 30 else 8}
    if any(series.spread):
        trace["error_y"] = {"type": "data", "array": series.spread}
    if series.labels:
        trace["hovertext"] = [_text(label) for label in series.labels]
        if series.points:  # the coordinates of points on a map have no meaning
            trace["hoverinfo"] = "text"
    if series.annotations:
        trace |= {
            "text": [_text(text) for text in series.annotations],
            "mode": f"{trace['mode']}+text",
            "textposition": places,
            "cliponaxis": False,
        }
    return trace
