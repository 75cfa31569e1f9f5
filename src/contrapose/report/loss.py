"""One picture of what losses do: `contrapose explain`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from contrapose.explain import Subject, Sweep, false_negative_push, ode_curves, positive_pull, relative_penalty, sweep
from contrapose.report.style import blank, line, styled

if TYPE_CHECKING:
    from matplotlib.figure import Figure


_FROM_TO = (-1.0, -0.5, 0.0, 0.5, 1.0)


def explain_figure(losses: Sequence[Subject | str], *, ode: bool = False) -> Figure:
    """Temperature, penalty, entropy, false negatives, the positive and the limits, one curve for each loss.

    A loss is written as in `contrapose train --loss`: `explain_figure(["simclr", "dystress", "nt_xent(temperature=0.1)"])`.
    """
    for loss in losses:
        if not isinstance(loss, Subject | str):
            raise TypeError(f"losses: expected names with settings, such as 'dystress', or Subjects, got {loss!r}")
    subjects = [
        Subject.of(loss) if isinstance(loss, str) else loss
        for loss in ([losses] if isinstance(losses, str) else losses)
    ]
    with styled():
        figure, axes = blank(2, 3, (13.5, 7.6))
        for place, subject in enumerate(subjects):
            look, found = line(place), sweep(subject, torch.logspace(-2, 2, 33, dtype=torch.float64))
            _temperature(axes[0], subject, look)
            _penalty(axes[1], subject, look)
            _entropy(axes[2], found, look)
            _false_negative(axes[3], subject, look)
            _positive(axes[4], subject, look)
            _limits(axes[5], found, look)
        axes[0].set_ylim(bottom=0)  # once all are drawn: it ends the choice of a scale
        if ode:
            _ode(axes[0], subjects)
        handles = [axes[1].plot([], [], **line(place))[0] for place in range(len(subjects))]
        names = [subject.name for subject in subjects]
        figure.legend(handles, names, loc="outside upper left", ncols=min(4, len(subjects)), fontsize=10)
        return figure


def _named(ax: Any, title: str, x: str, y: str) -> None:
    ax.set_title(title)
    ax.set_xlabel(x)
    ax.set_ylabel(y)


def _temperature(ax: Any, subject: Subject, look: dict[str, Any]) -> None:
    s = torch.linspace(-1, 1, 401, dtype=torch.float64)
    tau = subject.nominal_temperature(s)
    if tau is not None:
        ax.plot(s, tau, **look)
    ax.set_xlim(-1, 1)
    ax.set_xticks(_FROM_TO)
    _named(ax, "How sharply: the temperature", "similarity s", "τ(s)")


def _ode(ax: Any, subjects: Sequence[Subject]) -> None:
    """DySTreSS's Proposition 1, to the highest temperature of the first loss that has one."""
    ends = (subject.nominal_temperature(torch.ones(1, dtype=torch.float64)) for subject in subjects)
    high = next((float(tau) for tau in ends if tau is not None), None)
    if high is None:
        return
    curves = ode_curves(high)
    for _, s, tau in curves:
        ax.plot(s, tau, color="0.5", linewidth=0.8)
    names = ", ".join(name.removeprefix("δK = ") for name, s, _ in curves if float(s[-1]) > 0)
    ax.annotate(f"Proposition 1,\nδK = {names}", (0.04, 0.02 * high), fontsize=7, color="0.4")


def _penalty(ax: Any, subject: Subject, look: dict[str, Any]) -> None:
    s = torch.linspace(-1, 1, max(2001, 12 * subject.least_negatives), dtype=torch.float64)
    r = relative_penalty(subject, s) * len(s)
    ax.plot(s, r.clamp(min=1e-4), **look)
    if bool((r < 0).any()):
        ax.plot(s, (-r).clamp(min=1e-4), **{**look, "alpha": 0.5})
        left = -r[s < -0.3]  # the words stand above the curve there
        ax.annotate("pulled, not pushed", (-0.95, max(float(left.max()), 1e-3) * 1.4), fontsize=8, color=look["color"])
    ax.set_yscale("log")
    ax.set_ylim(1e-3, 300)
    ax.set_xlim(-1, 1)
    ax.set_xticks(_FROM_TO)
    _named(ax, "Who is pushed: relative penalty", "similarity of a negative", "push ÷ mean push")


def _entropy(ax: Any, found: Sweep, look: dict[str, Any]) -> None:
    here = len(found.factor) // 2
    ax.set_xscale("log")
    ax.set_xlim(0.01, 10)
    ax.set_ylim(0, 1.03)
    _named(ax, "How evenly: entropy of the push", "effective temperature (● as chosen)", "share of its maximum")
    if math.isfinite(found.temperature[here]) and found.temperature[here] > 0:
        ax.plot(found.temperature, found.entropy, **look)
        ax.plot(found.temperature[here], found.entropy[here], "o", color=look["color"])
    else:  # no temperature to vary: a level
        ax.axhline(float(found.entropy[here]), **look)


def _false_negative(ax: Any, subject: Subject, look: dict[str, Any]) -> None:
    s = torch.linspace(0, 0.99, 34, dtype=torch.float64)
    ax.plot(s, false_negative_push(subject, s).clamp(min=1e-2), **look)
    ax.axhline(1, color="0.6", linewidth=0.8)
    ax.set_yscale("log")
    _named(ax, "What a false negative gets", "its similarity to the anchor", "push ÷ mean push")


def _positive(ax: Any, subject: Subject, look: dict[str, Any]) -> None:
    s = torch.linspace(-0.5, 1, 31, dtype=torch.float64)
    pull, _ = positive_pull(subject, s)
    ax.plot(s, pull / pull.abs().max().clamp(min=1e-300), **look)
    ax.set_ylim(0, 1.05)
    _named(ax, "How the positive is pulled", "similarity of the positive", "pull ÷ its strongest")


def _limits(ax: Any, found: Sweep, look: dict[str, Any]) -> None:
    ax.plot(found.factor, found.hardest, **look)
    ax.set_xscale("log")
    ax.set_ylim(0, 1.03)
    ax.axhline(0.01, color="0.6", linewidth=0.8)
    ax.annotate("← triplet: the hardest alone", (0.011, 0.05), fontsize=8, color="0.35")
    ax.annotate("simple: all alike →", (90, 0.95), fontsize=8, color="0.35", ha="right")
    _named(ax, "The limits", "temperature × this factor", "push on the hardest 1 %")
