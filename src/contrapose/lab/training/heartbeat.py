"""Signs of life between the processes of a run, so that one that dies or stops responding ends the run, by name.

A collective waits for every process: gloo notices at once that a process has died but not that it has stopped, NCCL neither. Each
process therefore counts in a thread, through torch's store, and reads the count of the next one. The main thread may evaluate,
compile or read files for hours meanwhile: only a process that does not count any more has failed.
"""

from __future__ import annotations

import atexit
import math
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from itertools import count
from typing import ClassVar

import torch.distributed as dist

from contrapose.lab.training.stops import RankFailed

_BEAT = 1.0  # seconds between two signs of life, or an eighth of a short timeout
_PATIENCE = 5  # beats without a sign of life after which a process is dead, once a connection has closed
_LEFT, _FAILURE = "left", "failure"


class Heartbeat:
    """Counts for the other processes of the run, and ends this process if another one stops counting.

    timeout   seconds without a sign of life
    """

    _running: ClassVar[Heartbeat | None] = None
    _joined: ClassVar[Iterator[int]] = count()

    def __init__(self, *, rank: int, world_size: int, timeout: float) -> None:
        self.rank, self.timeout = rank, timeout
        self.how_to_resume: Callable[[], str] = lambda: "resume"  # completes "run the same command again to"
        self._interval = min(_BEAT, timeout / 8)
        self._others = [(rank + i) % world_size for i in range(1, world_size)]  # the next one first
        self._counts, self._missed, self._names = dict[int, str](), dict[int, int](), dict[int, str]()
        self._unanswered, self._store_ended, self._reported = 0, False, ""
        self._left, self._suspected = threading.Event(), threading.Event()
        # torchrun itself serves the store; without it, rank 0 does.
        self._store_is_in_rank_0 = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
        # A connection of its own: a collective that sets up its own connections blocks the one of the process group.
        address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        server = dist.TCPStore(  # type: ignore[attr-defined]  # torch does not list it
            address, port, is_master=False, wait_for_workers=False, timeout=timedelta(seconds=300)
        )
        # After a restart, torchrun's store still has the keys of the processes before.
        attempt = f"{os.environ.get('TORCHELASTIC_RESTART_COUNT', 0)}-{next(self._joined)}"
        self._store = dist.PrefixStore(f"contrapose-{attempt}", server)  # type: ignore[attr-defined]
        self._store.set(f"name-{rank}", f"{socket.gethostname()}, process {os.getpid()}")
        self._threads = [threading.Thread(target=work, daemon=True) for work in (self._beat, self._watch)]
        for thread in self._threads:
            thread.start()
        atexit.register(self.leave)

    @classmethod
    def start(cls, *, rank: int, world_size: int, timeout: float) -> Heartbeat | None:
        """Return this process's heartbeat, started if it is the first; None without the store's address.

        A process group that a user has set up may have another kind of store, with which only torch's own timeouts apply.
        """
        if cls._running is None and "MASTER_ADDR" in os.environ and "MASTER_PORT" in os.environ:
            cls._running = cls(rank=rank, world_size=world_size, timeout=timeout)
        return cls._running

    @classmethod
    def running(cls) -> Heartbeat | None:
        """Return this process's heartbeat, if it has one."""
        return cls._running

    def leave(self) -> None:
        """Stop counting, which is no failure."""
        atexit.unregister(self.leave)
        self._left.set()
        Heartbeat._running = None
        for thread in self._threads:  # which may wait for a store that does not respond
            thread.join(timeout=2 * self._interval)

    def failure(self, error: Exception) -> RankFailed:
        """Return the failure that closed a connection, once it is known which process has failed.

        If another process has printed it already, end this one, so that a user reads it once.
        """
        self._suspected.set()
        for _ in range(math.ceil(self.timeout / self._interval)):
            time.sleep(self._interval)
            message = self._failure()
            if message:
                return self._report(message)
        reason = str(error).splitlines()[0]
        return RankFailed(f"the processes of the run lost their connection ({reason}); {self._resume()}")

    def _beat(self) -> None:
        """Count, and read the counts of others. A store that does not respond blocks this thread, but not `_watch`."""
        for number in count():
            try:
                self._store.set(str(self.rank), _LEFT if self._left.is_set() else str(number))
                if not self._left.is_set():
                    self._read_others()
            except RuntimeError:  # the store has ended, with rank 0 or with torchrun
                self._store_ended = True
                return
            self._unanswered = 0
            if self._left.is_set():
                return
            self._left.wait(self._interval)

    def _read_others(self) -> None:
        """Read the next process's count, or all of them if one has died, and what another process has reported."""
        for rank in self._others:
            if rank not in self._names and self._store.check([f"name-{rank}"]):
                self._names[rank] = self._store.get(f"name-{rank}").decode()
            found = self._store.get(str(rank)).decode() if self._store.check([str(rank)]) else ""
            # Counted in beats of this process, not in seconds: they must not pass while it is itself suspended.
            self._missed[rank] = self._missed.get(rank, 0) + 1 if found == self._counts.get(rank) else 0
            self._counts[rank] = found
            if found != _LEFT and not self._suspected.is_set():
                break  # each process watches only the next one: the store answers three questions per process and beat
        if self._store.check([_FAILURE]):
            self._reported = self._store.get(_FAILURE).decode()

    def _watch(self) -> None:
        """End this process if another one has failed: its main thread waits for that one, and cannot be interrupted."""
        while not self._left.wait(self._interval):
            self._unanswered += 1
            message = "" if self._suspected.is_set() else self._failure()
            if message:
                with suppress(OSError, SystemExit):  # nobody reads, or another process has printed the message
                    sys.stdout.flush()
                    print(self._shown(self._report(message)), file=sys.stderr, flush=True)
                os._exit(1)

    @staticmethod
    def _shown(failure: RankFailed) -> str:
        show_cursor = "\x1b[?25h" if sys.stderr.isatty() else ""  # hidden by the progress bar, which cannot end
        return f"{show_cursor}contrapose: {failure}"

    def _failure(self) -> str:
        """Return how a process has failed; an empty text if none has."""
        suspected = self._suspected.is_set()
        limit = min(_PATIENCE, math.ceil(self.timeout / self._interval)) if suspected else self.timeout / self._interval
        if self._reported:
            return self._reported
        if self._store_ended:
            return self._died(0) if suspected and self._store_is_in_rank_0 else ""
        if self._unanswered > limit:
            return self._silent(0) if self._store_is_in_rank_0 else ""
        for rank, count_ in list(self._counts.items()):
            if count_ == _LEFT and suspected:
                return (
                    f"{self._name(rank)} ended before the others, for the reason in its own message; {self._resume()}"
                )
            if count_ != _LEFT and self._missed[rank] > limit:
                return self._died(rank) if suspected else self._silent(rank)
        return ""

    def _died(self, rank: int) -> str:
        return f"{self._name(rank)} died; {self._resume()}"

    def _silent(self, rank: int) -> str:
        return f"{self._name(rank)} did not respond for {self.timeout:g} s; {self._resume()}, or with a longer --worker-timeout"

    def _name(self, rank: int) -> str:
        return f"rank {rank} ({self._names[rank]})" if rank in self._names else f"rank {rank}"

    def _resume(self) -> str:
        return f"run the same command again to {self.how_to_resume()}"

    def _report(self, message: str) -> RankFailed:
        """Return the failure, or end this process if another process is the first to report one."""
        if self._unanswered > 1 or self._store_ended:  # no other process can be told
            return RankFailed(message)
        mine = f"{message}\n{self.rank}"
        first = self._store.compare_set(_FAILURE, "", mine).decode()
        time.sleep(2 * self._interval)  # this process may serve the store, from which the others read the message
        if first != mine:
            raise SystemExit(1)
        return RankFailed(message)


@contextmanager
def rank_failures() -> Iterator[None]:
    """Turn a connection that closes in this block into `RankFailed`, with the rank of the process that has failed."""
    try:
        yield
    except RuntimeError as error:
        heartbeat = Heartbeat.running()
        # gloo's errors have no class of their own.
        if heartbeat is None or not (isinstance(error, dist.DistError) or "gloo" in str(error)):
            raise
        raise heartbeat.failure(error) from error
