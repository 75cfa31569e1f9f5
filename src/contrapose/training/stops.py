"""Why a training ends before its last step, and what is no reason."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import ParamSpec

P = ParamSpec("P")


class Stopped(Exception):
    """A signal asked the work to stop; what is done is saved."""

    def __init__(self, message: str, number: int = signal.SIGTERM) -> None:
        super().__init__(message)
        self.number = number


class Diverged(Exception):
    """A loss or gradient was not finite; the weights are those of the step before."""


class Asked(list[int]):
    """The signals that came. Who works looks here now and then, and stops where its state is whole."""

    _now = False

    def __call__(self, number: int, frame: object = None) -> None:
        """A signal comes. A second Ctrl-C ends everything at once."""
        self.append(number)
        if self._now:
            raise self.stopped()
        if self.count(signal.SIGINT) > 1:
            raise KeyboardInterrupt

    def stopped(self) -> Stopped:
        """What there is to say."""
        return Stopped(f"stopped by signal {self[0]}; the same command goes on from there", self[0])

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """Inside, a signal ends the work where it is: for what loses nothing by that, such as loading or waiting."""
        self._now = True  # before the look: a signal comes either before it or at once
        try:
            if self:
                raise self.stopped()
            yield
        finally:
            self._now = False


@contextmanager
def signals() -> Iterator[Asked]:
    """SIGTERM and SIGINT are noted instead of ending the process: a step is finished and saved first."""
    asked = Asked()
    try:
        old = {s: signal.signal(s, asked) for s in (signal.SIGTERM, signal.SIGINT)}
    except ValueError:  # not the main thread
        yield asked
        return
    try:
        yield asked
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)
    if asked:  # too late for whoever was at work
        raise asked.stopped()


def kept_on(show: Callable[P, None]) -> Callable[P, None]:
    """The same display, whose end is not that of what it shows: a closed pipe, a terminal that is gone."""

    def shown(*what: P.args, **more: P.kwargs) -> None:
        with suppress(OSError):
            show(*what, **more)

    return shown
