"""Draw what losses do: the figure of `contrapose explain`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from contrapose.explanation import (
    Explainable,
    Subject,
    Sweep,
    false_negative_push,
    ode_curves,
    positive_pull,
    relative_penalty,
    sweep,
    words,
)
from contrapose.lab.report.page import drawing_of_two, section
from contrapose.lab.report.style import curve_style, figure_style, literal, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Explanation:
    """Explains losses without training: as text, as a figure, or as both in a notebook."""

    subjects: tuple[Subject, ...]

    def words(self) -> dict[str, list[str]]:
        """Return sentences about each loss."""
        return {subject.name: words(subject) for subject in self.subjects}

    def figure(self, *, ode: bool = False) -> Figure:
        """Draw the curves of all losses in six panels."""
        return explain_figure(self.subjects, ode=ode)

    def sections(self, figure: Figure, *, ode: bool = False) -> list[str]:
        """Return what to expect of each loss, the figure and the other sentences as parts of an HTML page."""
        sentences, narrow = self.words(), explain_figure(self.subjects, ode=ode, columns=1)
        return [
            section("What to expect", [f"{name}: {lines[-1]}" for name, lines in sentences.items()]),
            drawing_of_two(figure, narrow, "Six panels; the sentences below say what they show."),
            *(section(name, lines[:-1]) for name, lines in sentences.items()),
        ]

    def __str__(self) -> str:
        return "\n".join(f"{name}\n" + "".join(f"  {line}\n" for line in lines) for name, lines in self.words().items())

    def _repr_html_(self) -> str:
        """Show figure and words in a notebook."""
        return "\n".join(self.sections(self.figure()))


def explain(*losses: Explainable, data: str | None = None, epoch: int = 0) -> Explanation:
    """Explain losses; `data` chooses the catalogue's values for a data set.

    `print(explain("dystress", "simclr"))` prints sentences; `.figure()` is a matplotlib figure; a notebook shows both.

    losses   losses to compare: text as in `contrapose train --loss`, functions of pairs, or instances of `Loss`
    data     name of a data set, such as cifar10; default: the methods' default values
    epoch    epoch at which schedules are evaluated

    >>> len(explain("simclr", "dystress").words()) == 2
    True
    """
    if not losses:
        raise ValueError("losses: expected at least one loss, such as 'dystress'")
    return Explanation(tuple(Subject.of(loss, data, epoch=epoch) for loss in losses))


_SIMILARITY_TICKS = (-1.0, -0.5, 0.0, 0.5, 1.0)


def explain_figure(losses: Sequence[Subject | str], *, ode: bool = False, columns: int = 3) -> Figure:
    """Draw temperature, penalty, entropy, false negatives, the positive and the limits, with one curve per loss.

    Losses are written as in `contrapose train --loss`: `explain_figure(["simclr", "dystress", "nt_xent(temperature=0.1)"])`.
    The six panels are in `columns` columns: 1 suits a phone.
    """
    for loss in losses:
        if not isinstance(loss, Subject | str):
            raise TypeError(f"losses: expected strings such as 'nt_xent(temperature=0.1)', or Subjects, got {loss!r}")
    subjects = [
        Subject.of(loss) if isinstance(loss, str) else loss
        for loss in ([losses] if isinstance(losses, str) else losses)
    ]
    with figure_style():
        figure, axes = new_figure(6 // columns, columns, (4.5 * columns, 0.4 + 3.6 * (6 // columns)))
        for index, subject in enumerate(subjects):
            style = curve_style(index)
            temperature_sweep = sweep(subject, torch.logspace(-2, 2, 33, dtype=torch.float64))
            _draw_temperature(axes[0], subject, style)
            _draw_penalty(axes[1], subject, style)
            _draw_entropy(axes[2], temperature_sweep, style)
            _draw_false_negative(axes[3], subject, style)
            _draw_positive(axes[4], subject, style)
            _draw_limits(axes[5], temperature_sweep, style)
        # Only after all curves are drawn, because it turns automatic scaling off.
        axes[0].set_ylim(bottom=0)
        axes[3].set_ylim(bottom=1e-2)
        if ode:
            _draw_ode(axes[0], subjects)
        # Empty curves for the legend: a loss without a temperature has no curve in the first panel.
        handles = [axes[1].plot([], [], **curve_style(index))[0] for index in range(len(subjects))]
        names = [literal(subject.name) for subject in subjects]
        room = (
            60 * columns // (6 + max(map(len, names)))
        )  # names that fit in a row; a figure is 60 letters wide per column
        ncols = max(1, min(columns + 1, len(subjects), room))
        figure.legend(handles, names, loc="outside upper left", ncols=ncols, fontsize=10)
        return figure


def _set_labels(ax: Any, title: str, x: str, y: str) -> None:
    ax.set_title(title)
    ax.set_xlabel(x)
    ax.set_ylabel(y)


def _draw_temperature(ax: Any, subject: Subject, style: dict[str, Any]) -> None:
    s = torch.linspace(-1, 1, 401, dtype=torch.float64)
    tau = subject.nominal_temperature(s)
    if tau is not None:
        ax.plot(s, tau, **style)
    ax.set_xlim(-1, 1)
    ax.set_xticks(_SIMILARITY_TICKS)
    _set_labels(ax, title="Temperature", x="similarity s", y="τ(s)")


def _draw_ode(ax: Any, subjects: Sequence[Subject]) -> None:
    """Draw the solutions of DySTreSS's Proposition 1 that end at τ(1) of the first loss with a temperature."""
    ends = (subject.nominal_temperature(torch.ones(1, dtype=torch.float64)) for subject in subjects)
    high = next((float(tau) for tau in ends if tau is not None), None)
    if high is None:
        return
    curves = ode_curves(high)
    for _, s, tau in curves:
        ax.plot(s, tau, color="0.5", linewidth=0.8)
    names = ", ".join(name.removeprefix("δK = ") for name, s, _ in curves if float(s[-1]) > 0)
    ax.annotate(f"Proposition 1,\nδK = {names}", (0.04, 0.02 * high), fontsize=7, color="0.4")


def _draw_penalty(ax: Any, subject: Subject, style: dict[str, Any]) -> None:
    s = torch.linspace(-1, 1, max(2001, 12 * subject.least_negatives), dtype=torch.float64)
    r = relative_penalty(subject, s) * len(s)
    ax.plot(s, r.clamp(min=1e-4), **style)  # a log axis cannot show 0; 1e-4 is below the axis's lower end
    if bool((r < 0).any()):
        ax.plot(s, (-r).clamp(min=1e-4), **{**style, "alpha": 0.5})
        # The log axis cannot show negative values, so the pull is drawn as its absolute value, with a note above it.
        left_maximum = float(-r[s < -0.3].min())
        ax.annotate("pulled, not pushed", (-0.95, max(left_maximum, 1e-3) * 1.4), fontsize=8, color=style["color"])
    ax.set_yscale("log")
    ax.set_ylim(1e-3, 300)
    ax.set_xlim(-1, 1)
    ax.set_xticks(_SIMILARITY_TICKS)
    _set_labels(ax, title="Relative penalty of negatives", x="similarity of a negative", y="push ÷ mean push")


def _draw_entropy(ax: Any, temperature_sweep: Sweep, style: dict[str, Any]) -> None:
    middle = len(temperature_sweep.factor) // 2  # a factor of 1 is the unchanged loss
    ax.set_xscale("log")
    ax.set_xlim(0.01, 10)
    ax.set_ylim(0, 1.03)
    _set_labels(
        ax,
        title="Entropy of the relative penalty",
        x="effective temperature (● current setting)",
        y="entropy ÷ its maximum",
    )
    if math.isfinite(temperature_sweep.temperature[middle]) and temperature_sweep.temperature[middle] > 0:
        ax.plot(temperature_sweep.temperature, temperature_sweep.entropy, **style)
        ax.plot(temperature_sweep.temperature[middle], temperature_sweep.entropy[middle], "o", color=style["color"])
    else:  # no temperature to vary: a horizontal line
        ax.axhline(float(temperature_sweep.entropy[middle]), **style)


def _draw_false_negative(ax: Any, subject: Subject, style: dict[str, Any]) -> None:
    s = torch.linspace(0, 0.99, 34, dtype=torch.float64)  # each point is a backward pass among thousands of negatives
    # A log axis cannot show 0; 1e-4 is below the axis's lower end.
    ax.plot(s, false_negative_push(subject, s).clamp(min=1e-4), **style)
    ax.axhline(1, color="0.6", linewidth=0.8)  # the mean push
    ax.set_yscale("log")
    _set_labels(ax, title="Push on a false negative", x="similarity of the false negative", y="push ÷ mean push")


def _draw_positive(ax: Any, subject: Subject, style: dict[str, Any]) -> None:
    s = torch.linspace(-0.5, 1, 31, dtype=torch.float64)
    pull, _ = positive_pull(subject, s)
    ax.plot(s, pull / pull.abs().max().clamp(min=1e-300), **style)
    ax.set_ylim(0, 1.05)
    _set_labels(ax, title="Pull on the positive", x="similarity of the positive", y="pull ÷ its maximum")


def _draw_limits(ax: Any, temperature_sweep: Sweep, style: dict[str, Any]) -> None:
    ax.plot(temperature_sweep.factor, temperature_sweep.hardest, **style)
    ax.set_xscale("log")
    ax.set_ylim(0, 1.03)
    ax.axhline(0.01, color="0.6", linewidth=0.8)  # where all negatives are pushed equally
    ax.annotate("← triplet: hardest only", (0.011, 0.05), fontsize=8, color="0.35")
    ax.annotate("simple: all equal →", (90, 0.95), fontsize=8, color="0.35", ha="right")
    _set_labels(ax, title="Limits: sharper and softer", x="factor on the temperature", y="push on the hardest 1 %")
