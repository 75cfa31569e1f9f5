"""Run a function in several processes of a gloo process group."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import start_processes

from contrapose.child_processes import START_METHOD, exit_on_signals, process_context, unblock_signals
from contrapose.lab.cli import main

# The command line in two processes
TORCHRUN = (
    *(sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"),
    *("-m", "contrapose"),
)
Work = Callable[[int, int, str], None]  # rank, world_size, path for the result


def run_in_process_group(work: Work, world_size: int, out: Path) -> None:
    """Run `work` in `world_size` new processes, which import it: it must be defined at the top level of a module."""
    start_process_group(work, world_size, out, wait=True)


def start_process_group(work: Work, world_size: int, out: Path, *, wait: bool = False) -> Any:
    """Do the same, by default without waiting for the processes, and return them."""
    # Port 0 lets the system choose a free one, so that tests can run at the same time.
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    if str(Path(__file__).parent) not in sys.path:
        sys.path.insert(0, str(Path(__file__).parent))  # the new processes import this module from it
    process_context()  # starts a server that has imported torch, which takes each new process seconds otherwise
    arguments = (world_size, port, work, str(out))
    return start_processes(_run_member, args=arguments, nprocs=world_size, join=wait, start_method=START_METHOD)


def start_command(arguments: list[str], log: Path, *, before: Callable[[], object] = bool) -> Any:
    """Start the command line in a new process, which calls `before` first and appends its output to a file; return the process."""
    process = process_context().Process(target=_run_command, args=(arguments, log, before))  # type: ignore[attr-defined]
    process.start()
    return process


def run_command(arguments: list[str], log: Path) -> None:
    """Run the command line in this process, with its output appended to a file."""
    handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(handle, 1)
    os.dup2(handle, 2)
    sys.stderr.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    main(arguments)


def _run_command(arguments: list[str], log: Path, before: Callable[[], None]) -> None:
    exit_on_signals()
    unblock_signals()
    torch.set_num_threads(1)
    before()
    run_command(arguments, log)


def _run_member(rank: int, world_size: int, port: int, work: Work, out: str) -> None:
    exit_on_signals()
    unblock_signals()
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=world_size)
    work(rank, world_size, out)
    if dist.is_initialized():  # the command line leaves the group at its end
        dist.barrier()
    sys.stdout.flush()
    os._exit(0)  # gloo's threads can abort a normal exit of the interpreter, after the test has passed
