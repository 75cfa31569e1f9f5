"""Curves of the doctor's numbers over the steps, as small drawings in SVG."""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from contrapose.doctor.look import Look

_WIDTH, _HEIGHT, _LEFT, _TOP, _BOTTOM = 360, 190, 46, 24, 24
_COLOURS = ("#0072B2", "#D55E00", "#009E73")  # also told apart without colour vision
_DASHES = ("", "6 3", "2 3")


@dataclass(frozen=True)
class Curve:
    """One drawing: up to three lines over the steps."""

    title: str
    lines: tuple[tuple[str, Callable[[Look], float | None]], ...]


def short(value: float) -> str:
    """Return a number with three digits; what differs from 0 by rounding only is 0."""
    return "0" if abs(value) < 1e-9 else f"{value:.3g}"


def _action(name: str) -> Callable[[Look], float | None]:
    return lambda look: None if look.action is None else float(getattr(look.action, name))


def _side(number: int, name: str) -> Callable[[Look], float | None]:
    return lambda look: float(getattr(look.sides[number], name)) if number < len(look.sides) else None


CURVES = (
    Curve(
        "loss",
        (
            ("measured", _action("loss")),
            ("wrong pairs", _action("mismatched")),
            ("perfect", _action("ideal")),
        ),
    ),
    Curve(
        "nearest row is a positive", (("share", lambda look: look.retrieval), ("by chance", lambda look: look.chance))
    ),
    Curve("similarity", (("positives", lambda look: look.positive), ("others", lambda look: look.negative))),
    Curve("negatives that carry the push", (("number", _action("effective_negatives")),)),
    Curve("push on the hardest 1 %", (("share", _action("hardest_share")),)),
    Curve("effective rank", tuple((f"side {k + 1}", _side(k, "rank")) for k in range(2))),
    Curve("deviation", tuple((f"side {k + 1}", _side(k, "deviation")) for k in range(2))),
)


def drawing(curve: Curve, looks: Sequence[Look]) -> str:
    """Return a figure; empty if fewer than two looks have the numbers."""
    lines = [(name, _points(looks, value)) for name, value in curve.lines]
    lines = [(name, points) for name, points in lines if len(points) > 1]
    if not lines:
        return ""
    xs = [x for _, points in lines for x, _ in points]
    ys = [y for _, points in lines for _, y in points]
    low, high = min(ys), max(ys)
    if high - low < 1e-9 * max(1.0, abs(high)):
        low, high = low - 0.5, high + 0.5
    first, last = min(xs), max(xs)

    def place(x: float, y: float) -> str:
        across = _LEFT + (x - first) / max(1e-9, last - first) * (_WIDTH - _LEFT - 8)
        down = _TOP + (high - y) / (high - low) * (_HEIGHT - _TOP - _BOTTOM)
        return f"{across:.1f},{down:.1f}"

    drawn = [_axes(low, high, first, last)]
    for number, (name, points) in enumerate(lines):
        style = f'stroke="{_COLOURS[number]}" stroke-dasharray="{_DASHES[number]}"'
        drawn.append(
            f'<polyline fill="none" stroke-width="1.6" {style} points="{" ".join(place(*p) for p in points)}"/>'
        )
        x = _LEFT + number * (_WIDTH - _LEFT) / max(2, len(lines))
        drawn.append(f'<path d="M{x:.0f} 10h16" stroke-width="1.6" fill="none" {style}/>')
        drawn.append(f'<text x="{x + 20:.0f}" y="14" font-size="10">{html.escape(name)}</text>')
    alt = f"{curve.title}: " + ", ".join(f"{name} {points[0][1]:.3g} to {points[-1][1]:.3g}" for name, points in lines)
    return (
        f'<figure role="img" aria-label="{html.escape(alt)}"><figcaption>{html.escape(curve.title)}</figcaption>'
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" xmlns="http://www.w3.org/2000/svg">{"".join(drawn)}</svg></figure>'
    )


def _points(looks: Sequence[Look], value: Callable[[Look], float | None]) -> list[tuple[float, float]]:
    known = ((look.step, value(look)) for look in looks)
    return [(step, y) for step, y in known if y is not None and math.isfinite(y)]


def _axes(low: float, high: float, first: float, last: float) -> str:
    bottom = _HEIGHT - _BOTTOM
    frame = f'<path d="M{_LEFT} {_TOP}V{bottom}H{_WIDTH - 8}" fill="none" stroke="#888"/>'
    texts = (
        (_LEFT - 4, _TOP + 4, "end", short(high)),
        (_LEFT - 4, bottom, "end", short(low)),
        (_LEFT, _HEIGHT - 8, "start", f"step {first:,.0f}"),
        (_WIDTH - 8, _HEIGHT - 8, "end", f"{last:,.0f}"),
    )
    return frame + "".join(
        f'<text x="{x}" y="{y}" font-size="10" text-anchor="{anchor}">{text}</text>' for x, y, anchor, text in texts
    )
