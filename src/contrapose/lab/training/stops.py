"""Reasons to stop before the last step (a signal, a non-finite loss, a solved task), and displays that must not stop training."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import ParamSpec

P = ParamSpec("P")


class Stopped(BaseException):
    """A signal requested a stop; all finished steps are saved.

    Like KeyboardInterrupt, this class is not an `Exception`: code that skips unreadable images must not swallow a signal.
    """

    def __init__(self, message: str, number: int = signal.SIGTERM) -> None:
        super().__init__(message)
        self.number = number


class Diverged(Exception):
    """A loss or gradient was not finite; the weights are those from the previous step."""


class Solved(Exception):
    """The first steps have solved the task, so that training teaches nothing; all finished steps are saved."""


class RankFailed(Exception):
    """A process of a run on several GPUs or machines has died, stopped responding or ended before the others."""


class StopRequests(list[int]):
    """The signals received so far; checked between steps, when the state of the run is consistent."""

    _immediate = False
    _listens = False

    def listen(self) -> None:
        """Receive SIGTERM and SIGINT from now on; raise ValueError outside the main thread, the only one to receive signals."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self)
        self._listens = True

    def listen_again(self) -> None:
        """Reinstall the handlers if a library has replaced them: GPU kernel compilers install handlers that end the process."""
        if self._listens:
            self.listen()

    def __call__(self, number: int, frame: object = None) -> None:
        """Receive a signal. A second Ctrl-C ends everything immediately."""
        self.append(number)
        if self._immediate:
            raise self.stopped()
        if self.count(signal.SIGINT) > 1:
            raise KeyboardInterrupt

    def stopped(self) -> Stopped:
        """Return the exception for the first signal."""
        return Stopped(f"stopped by signal {self[0]}; run the same command again to resume", self[0])

    @contextmanager
    def immediate(self) -> Iterator[None]:
        """Let a signal raise `Stopped` immediately within this block, for work that can be interrupted, such as loading."""
        self._immediate = True  # set before the check, so that no signal falls between the two
        try:
            if self:
                raise self.stopped()
            yield
        finally:
            self._immediate = False


@contextmanager
def signals() -> Iterator[StopRequests]:
    """Collect SIGTERM and SIGINT within this block instead of exiting, so that a step can be finished and saved."""
    requests, old = StopRequests(), {s: signal.getsignal(s) for s in (signal.SIGTERM, signal.SIGINT)}
    try:
        requests.listen()
    except ValueError:  # not the main thread
        yield requests
        return
    try:
        yield requests
    finally:
        requests._listens = False
        for number, handler in old.items():
            signal.signal(number, handler)
    if requests:  # a signal arrived after the last check
        raise requests.stopped()


def ignore_closed_output(show: Callable[P, None]) -> Callable[P, None]:
    """Return a display function that does nothing if the pipe or terminal is closed, so that training continues."""

    def shown(*values: P.args, **more: P.kwargs) -> None:
        with suppress(OSError):
            show(*values, **more)

    return shown
