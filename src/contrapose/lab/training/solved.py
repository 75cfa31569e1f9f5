"""A task that an untrained network solves in the first steps: its views are too similar, and training teaches nothing.

The loss of guessing among K candidates is log K. If the loss is soon below a small share of it, gradients vanish. The encoder
then changes little, and not for the better: Adam divides a gradient by the average size of recent gradients, so that after
thousands of steps without any, a single one may move every weight by many times the learning rate, and the loss may jump.
"""

from __future__ import annotations

import math
from collections import deque

from contrapose.lab.frameworks import FRAMEWORKS
from contrapose.lab.modalities import Source
from contrapose.lab.training.run import Run
from contrapose.losses.parse import parse

_SHARE = 0.01  # of the loss of guessing; a solved task is below it
_STEPS = 20  # number of steps over which the loss is averaged
_FIRST_STEPS = 200  # a network that takes longer than this has learned something
_SHORT_EPOCH = 40  # steps after which a small data set may be memorised rather than solved
_CROSS_ENTROPIES = ("nt_xent", "clip")  # objectives whose loss is log K if all candidates are equally similar


class SolvedWatch:
    """Follows the losses of a run's first steps."""

    def __init__(self, run: Run, *, steps_per_epoch: int) -> None:
        self.run = run
        self.last_step = min(_FIRST_STEPS, max(_SHORT_EPOCH, steps_per_epoch))
        self.chance = loss_of_guessing(run)
        self.is_watching = True
        self.is_solved = False
        self._recent: deque[tuple[int, float]] = deque()  # steps and their losses

    def add(self, step: int, loss: float) -> bool:
        """Add the loss of a step, counted from 1; return True once, when the task turns out to be solved."""
        if self.is_solved or self.chance is None or not self.is_watching or step > self.last_step:
            return False
        self._recent.append((step, loss))
        # On a GPU, only one loss in many is read: the oldest one kept is at least `_STEPS` old, once there is such a loss.
        while len(self._recent) > 1 and self._recent[1][0] <= step - _STEPS:
            self._recent.popleft()
        mean = sum(loss for _, loss in self._recent) / len(self._recent)
        self.is_solved = self._recent[0][0] <= step - _STEPS and mean < _SHARE * self.chance
        return self.is_solved

    def describe(self, step: int, source: Source) -> str:
        """Return what was found after a step on the training data `source`, and what may help."""
        return (
            f"the task is too easy: after {step} steps, the loss is below {_SHARE:.0%} of the loss of guessing "
            f"({self.chance:.2f}), so that more steps teach the encoder nothing and may make it worse; "
            f"{self.run.kind.harder_task(source, self.run.view_maker())}"
        )


def loss_of_guessing(run: Run) -> float | None:
    """Return the loss if all candidates are equally similar to an anchor; None if unknown, or if weights are pretrained.

    A pretrained encoder recognises most views from the first step on, and may still improve: SimCSE trains at such a loss.
    """
    pretrained = bool(run.init) or run.kind.is_pretrained(run.encoder)
    objective = getattr(parse(run.loss, run.loss_data).func, "__name__", "")
    if pretrained or objective not in _CROSS_ENTROPIES:
        return None
    negatives = FRAMEWORKS[run.framework].negatives(run, run.view_maker().count)
    # With --dims, the loss is a sum over prefixes, each of which guesses among the same candidates.
    return max(1, len(run.dims)) * math.log1p(negatives) if negatives else None
