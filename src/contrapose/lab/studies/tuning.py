"""Candidates for the temperature of a loss, and the rounds of short trials that choose among them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from inspect import signature

from contrapose.lab.studies.differences import differences
from contrapose.lab.studies.results import Results
from contrapose.lab.studies.scores import hits_of, score_of
from contrapose.lab.studies.study import Study
from contrapose.losses.parse import parse, temperature_of, with_negatives, with_temperature

_FACTORS = (0.25, 0.5, 2.0, 4.0)  # of the default temperature
_CLOSE = 0.15  # two temperatures with a smaller difference of their logarithms are not tried both
_SHARES = (0.5, 0.1)  # of the negatives that share the push, at temperatures chosen from the similarities
_HARDEST = "hardest(0.1)"  # each anchor's most similar tenth of the negatives
# For each round of trials: its share of the epochs, and how many candidates go on to the next round
ROUNDS = ((0.25, 3), (0.5, 1))
_TYPICAL = 0.1  # the middle of the candidates if the default is no number, such as a learned temperature


@dataclass(frozen=True)
class Trial:
    """The score of a candidate in a round of short trials; None if it could not be measured."""

    loss: str
    epochs: int
    score: float | None


def candidates(loss: str, objective: str, *, spread: float | None = None) -> list[str]:
    """Return the loss itself, at temperatures around its own, with a temperature of similarity, and with hard negatives.

    loss        the loss as text, such as "simclr"
    objective   what it stands for, with all settings, such as "nt_xent(temperature=0.05)"
    spread      standard deviation of the negatives' similarities on the data, for temperatures that suit them; None if unknown

    >>> candidates("simclr", "nt_xent(temperature=0.2)")[:4]
    ['simclr', 'simclr(temperature=0.05)', 'simclr(temperature=0.1)', 'simclr(temperature=0.4)']
    """
    given = _temperature(objective)
    own = given or _TYPICAL
    tried = [factor * own for factor in (1.0, *_FACTORS)]
    values = [f"{factor * own:.3g}" for factor in _FACTORS]
    measured = [temperature_at(share, spread) for share in _SHARES if spread]
    values += [f"{value:.2g}" for value in measured if all(abs(math.log(value / other)) > _CLOSE for other in tried)]
    if given is None:
        values.append(f"{own:g}")
    values.append(f"{0.5 * own:.3g}:{2 * own:.3g}")
    found = [loss, *(with_temperature(loss, value, replace=True) for value in values)]
    hard = with_negatives(loss, _HARDEST)
    # Objectives may refuse a function of similarity, or a choice of negatives, that their settings name.
    return [text for text in dict.fromkeys([*found, *([] if hard is None else [hard])]) if _is_accepted(text)]


def temperature_at(share: float, spread: float) -> float:
    """Return the temperature at which a share of the negatives carries the push, if their similarities have this spread.

    A negative is pushed in proportion to exp(s/τ). If similarities have a normal distribution, the shares of N negatives have
    the entropy log N - σ²/2τ²: that of N·exp(-σ²/2τ²) equal ones.

    >>> round(temperature_at(0.5, spread=0.2), 3)
    0.17
    """
    return spread / math.sqrt(2 * math.log(1 / share))


def _temperature(objective: str) -> float | None:
    """Return the temperature of an objective, or its default, if it is a number."""
    chosen = parse(objective)
    parameter = signature(chosen.func).parameters.get("temperature")
    if "temperature" in chosen.keywords or parameter is None or not isinstance(parameter.default, int | float):
        return temperature_of(objective)
    return float(parameter.default)


def is_clearly_ahead(study: Study, results: Results, first: str, second: str) -> bool:
    """Return whether a loss scores higher than another by more than seeds and test samples explain."""
    score = score_of(study)
    hits = hits_of(results, [first, second], score) if score.hits and results.seeds > 1 else {}
    return len(hits) > 1 and any(found.clear and found.first == first for found in differences(hits))


def _is_accepted(loss: str) -> bool:
    try:
        parse(loss)
    except ValueError:
        return False
    return True


def round_length(one: tuple[float, int], epochs: int) -> int:
    """Return the epochs of one of `ROUNDS`, of a run of so many epochs."""
    return max(1, round(one[0] * epochs))


def choose(
    losses: Sequence[str], epochs: int, score: Callable[[Sequence[str], int], Sequence[float | None]]
) -> list[Trial]:
    """Run rounds of trials, each with fewer candidates and more epochs, and return all trials; the last one is the best.

    losses   the candidates; the first is the default
    epochs   of a whole run
    score    trains the losses for so many epochs and returns their scores, higher is better; None where there is none

    >>> def score(losses, epochs):
    ...     return [len(loss) for loss in losses]
    >>> [(trial.loss, trial.epochs) for trial in choose(["a", "bb", "ccc", "dddd", "eeeee"], 8, score)][-3:]
    [('ccc', 4), ('dddd', 4), ('eeeee', 4)]
    """
    trials: list[Trial] = []
    remaining = list(losses)
    for one in ROUNDS:
        length, kept = round_length(one, epochs), one[1]
        round_of = [Trial(loss, length, found) for loss, found in zip(remaining, score(remaining, length), strict=True)]
        measured = [trial for trial in round_of if trial.score is not None]
        # In ascending order, so that the last trial is the best; of equals, the one that comes first in the list.
        ranked = sorted(measured, key=lambda trial: (trial.score, -remaining.index(trial.loss)))
        trials += [*(trial for trial in round_of if trial.score is None), *ranked]
        remaining = [trial.loss for trial in reversed(ranked[-kept:])]
    return trials
