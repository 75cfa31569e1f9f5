"""Real processes in a gloo group."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import spawn

Work = Callable[[int, int, str], None]  # rank, number of processes, path for the result


def in_group(work: Work, world: int, out: Path) -> None:
    """Run `work` in `world` processes; it must be a function of a module, since the processes are new."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    if str(Path(__file__).parent) not in sys.path:
        sys.path.insert(0, str(Path(__file__).parent))  # the children import their helpers from here
    spawn(_member, args=(world, port, work, str(out)), nprocs=world)


def _member(rank: int, world: int, port: int, work: Work, out: str) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=world)
    work(rank, world, out)
    dist.barrier()
    sys.stdout.flush()
    os._exit(0)  # gloo's threads may abort the interpreter's own exit, after all is done
