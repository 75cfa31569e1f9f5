"""How contrapose starts other processes: data-loading workers, the jobs of a study, memory measurements.

A process that has used OpenMP must not be forked. The child inherits the state of a thread pool but none of its threads,
and on ARM the child's first matrix product waits for those threads forever. Children therefore come from a fork server, a
process that has imported torch and computed nothing. On platforms without a fork server, children are spawned.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import forkserver, resource_tracker
from multiprocessing.connection import wait
from multiprocessing.context import BaseContext

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
START_METHOD = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"


def process_context() -> BaseContext:
    """Return the multiprocessing context with which this package starts every process."""
    context = multiprocessing.get_context(START_METHOD)
    # Importing torch takes seconds. The server does it once, so that a child starts in a tenth of a second.
    context.set_forkserver_preload([__name__, "torch", "PIL.Image"])
    if START_METHOD == "forkserver":
        resource_tracker.ensure_running()  # started before signals are blocked, because starting the tracker unblocks them
        with _blocked_signals():
            forkserver.ensure_running()
    return context


@contextmanager
def _blocked_signals() -> Iterator[None]:
    """Hold back SIGTERM and SIGINT in this block; processes that are started in it never receive them.

    Job schedulers and service managers signal every process of a job. The training process saves a checkpoint first, and
    needs its helper processes until the checkpoint is written.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def exit_on_signals() -> None:
    """Make a child process exit on SIGTERM and SIGINT; it receives them from the next `unblock_signals`.

    The child ends with an exception, so that it releases its locks. The workers of a pool share the lock of a queue: if a
    worker were killed while holding the lock, the others would wait forever.
    """
    for number in STOP_SIGNALS:
        signal.signal(number, lambda number, frame: sys.exit(128 + number))


def unblock_signals() -> None:
    """Let SIGTERM and SIGINT reach this child process; the children of the fork server start with both blocked."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)


def _leave_process_group() -> None:
    """Make the fork server, which imports this module, ignore signals that are sent to the whole process group.

    The training process handles Ctrl-C and SIGTERM. It saves a checkpoint first, and needs its children until the
    checkpoint is written.
    """
    if any("multiprocessing.forkserver" in argument for argument in sys.orig_argv):
        os.setsid()


_leave_process_group()


def exit_with_parent() -> None:
    """Exit when the process that requested this child ends, for whatever reason.

    A child calls this function first. Its parent's pid would not reveal that the requesting process has ended: the parent is
    the fork server, which lives as long as its children do.
    """
    parent = multiprocessing.parent_process()
    if parent is None:
        return

    def watch() -> None:
        wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch, name="exit-with-parent", daemon=True).start()
