"""Run a function in several processes of a gloo process group."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import start_processes

from contrapose.child_processes import START_METHOD, process_context, receive_signals

Work = Callable[[int, int, str], None]  # rank, world_size, path for the result


def run_in_process_group(work: Work, world_size: int, out: Path) -> None:
    """Run `work` in `world_size` new processes, which import it: it must be defined at the top level of a module."""
    # Port 0 lets the system choose a free one, so that tests can run at the same time.
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    if str(Path(__file__).parent) not in sys.path:
        sys.path.insert(0, str(Path(__file__).parent))  # the new processes import this module from it
    process_context()  # starts a server that has imported torch, which takes each new process seconds otherwise
    start_processes(_run_member, args=(world_size, port, work, str(out)), nprocs=world_size, start_method=START_METHOD)


def _run_member(rank: int, world_size: int, port: int, work: Work, out: str) -> None:
    receive_signals()  # which a fork server's children ignore
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=world_size)
    work(rank, world_size, out)
    dist.barrier()
    sys.stdout.flush()
    os._exit(0)  # gloo's threads can abort a normal exit of the interpreter, after the test has passed
