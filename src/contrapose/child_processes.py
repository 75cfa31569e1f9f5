"""How contrapose starts other processes: data-loading workers, the jobs of a study, memory measurements.

A process that has used OpenMP must not be forked. The child inherits the state of a thread pool but none of its threads,
and on ARM its first matrix product waits for them forever. Children therefore come from a fork server, a process that has
imported torch and computed nothing; where the platform has none, they are spawned.
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
    """Return the multiprocessing context that every process of this package is started with."""
    context = multiprocessing.get_context(START_METHOD)
    # Importing torch takes seconds. The server does it once, so that a child starts in a tenth of a second.
    context.set_forkserver_preload([__name__, "torch", "PIL.Image"])
    if START_METHOD == "forkserver":
        resource_tracker.ensure_running()  # started first, because its start unblocks the signals
        with _blocked_signals():
            forkserver.ensure_running()
    return context


@contextmanager
def _blocked_signals() -> Iterator[None]:
    """Hold back SIGTERM and SIGINT in this block; processes that are started in it never receive them.

    Job schedulers and service managers signal every process of a job. The one that trains saves its step, and needs its
    helpers until then.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def receive_signals() -> None:
    """Make a child process exit on SIGTERM and SIGINT, which the fork server and its children ignore by default.

    The child ends by an exception, so that it releases the locks that it holds: the workers of a pool share the lock of a
    queue, and would wait forever for one that was killed while it waited for work.
    """
    for number in STOP_SIGNALS:
        signal.signal(number, lambda number, frame: sys.exit(128 + number))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)


def _leave_process_group() -> None:
    """Make the fork server, which imports this module, ignore signals that are sent to the whole process group.

    Ctrl-C and SIGTERM are handled by the process that trains. It saves its step first, and needs its children until then.
    """
    if any("multiprocessing.forkserver" in argument for argument in sys.orig_argv):
        os.setsid()


_leave_process_group()


def exit_with_parent() -> None:
    """Exit when the process that requested this child ends, for whatever reason.

    Called first thing in a child. A child of a fork server cannot detect that from its parent's pid: the parent is the server,
    which lives as long as its children do.
    """
    parent = multiprocessing.parent_process()
    if parent is None:
        return

    def watch() -> None:
        wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch, name="exit-with-parent", daemon=True).start()
