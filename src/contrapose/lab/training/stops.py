"""Why training stops before its last step (a signal, a non-finite loss), and what must not stop it (a closed terminal)."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import ParamSpec

P = ParamSpec("P")


class Stopped(BaseException):
    """A signal requested a stop; finished work is saved.

    Like KeyboardInterrupt, it is not an `Exception`: code that skips unreadable images must not swallow a signal.
    """

    def __init__(self, message: str, number: int = signal.SIGTERM) -> None:
        super().__init__(message)
        self.number = number


class Diverged(Exception):
    """A loss or gradient was not finite; the weights are those of the step before."""


class StopRequests(list[int]):
    """Signals received so far; checked between steps, when the state of the run is complete."""

    _immediate = False
    _listens = False

    def listen(self) -> None:
        """Receive SIGTERM and SIGINT from now on; raise ValueError outside of the main thread, which alone receives signals."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self)
        self._listens = True

    def listen_again(self) -> None:
        """Receive signals again if a library has taken over: compilers of GPU kernels install handlers that end the process."""
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
        """Let a signal raise immediately within this block: for work that can be interrupted, such as loading or waiting."""
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
    if requests:  # it came after the last check
        raise requests.stopped()


def ignore_closed_output(show: Callable[P, None]) -> Callable[P, None]:
    """Return the same display function, for which a closed pipe or terminal does not stop the training."""

    def shown(*values: P.args, **more: P.kwargs) -> None:
        with suppress(OSError):
            show(*values, **more)

    return shown
