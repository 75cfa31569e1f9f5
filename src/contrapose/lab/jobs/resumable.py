"""The work of a job, in each of its processes.

A process imports this module before it handles signals, so this module must not import torch, which takes seconds.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any

_STOPPED = 128 + signal.SIGTERM  # exit code of a command that has saved its step after SIGTERM
_PATIENCE = 5.0  # seconds between the signals that a scheduler sends to the processes of a job


class Resumable:
    """A function that exits with 143 after SIGTERM and resumes when it is called again, as the function of a submitit job.

    Before preemption and before the time limit, submitit's signal stops the function like SIGTERM, and the job is queued again.
    SIGTERM alone, as after `scancel`, stops it without that.
    """

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self.function, self.arguments = function, arguments

    def __call__(self) -> Any:
        """Call the function as one rank of a run."""
        from submitit.helpers import TorchDistributedEnvironment

        # All processes see all GPUs of their node, and each uses the one with its local rank, as under torchrun.
        environment = TorchDistributedEnvironment().export(set_cuda_visible_devices=False, overwrite=True)
        requeue = _RequeueSignal()
        try:
            return self.function(*self.arguments)
        except SystemExit as end:
            if end.code != _STOPPED or not requeue.received():
                raise
            # Only rank 0 queues the job again. The others report success: Slurm may end a job if one process fails.
            return None if environment.rank else requeue.submit_again()

    def checkpoint(self) -> Any:
        """Return what submitit executes when the job starts again: the same work, which finds its own checkpoint."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self)


class _RequeueSignal:
    """Turns submitit's signal into SIGTERM, and remembers it.

    submitit's own handler would end rank 0 in the middle of a step, so it is called after the step is saved. The signal is
    blocked, and a thread waits for it: Slurm also sends it to data-loading workers, which inherit the blocked signal and live on.
    """

    def __init__(self) -> None:
        from submitit import JobEnvironment

        self._number = getattr(signal, f"SIG{JobEnvironment.USR_SIG}")
        self._submit_again, self._event = signal.getsignal(self._number), threading.Event()
        signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(_STOPPED))  # submitit's handler would ignore it
        signal.pthread_sigmask(signal.SIG_BLOCK, [self._number])
        threading.Thread(target=self._forward, name="requeue-signal", daemon=True).start()

    def _forward(self) -> None:
        signal.sigwait([self._number])
        self._event.set()
        os.kill(os.getpid(), signal.SIGTERM)

    def received(self) -> bool:
        """Return whether the signal has arrived; another rank may have received it a little earlier, and stopped this one."""
        return self._event.wait(_PATIENCE)

    def submit_again(self) -> None:
        """Queue this job again, and exit."""
        self._submit_again(self._number, None)  # type: ignore[operator, misc]  # submitit's handler


def run_command_line(*arguments: str) -> None:
    """Run `contrapose` with these arguments in this process."""
    sys.argv = ["contrapose", *arguments]
    runpy.run_module("contrapose", run_name="__main__", alter_sys=True)
