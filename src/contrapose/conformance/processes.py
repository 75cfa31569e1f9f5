"""Gradients of a criterion in several processes, connected by gloo, with different data in each process.

The gradients are averaged over processes, as DistributedDataParallel does. DistributedDataParallel itself is not used,
because it imports torch's compiler, which takes seconds in every process. FSDP2 does not, and is used itself.
"""

from __future__ import annotations

import math
import os
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing import forkserver
from multiprocessing.connection import Connection, wait
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from contrapose.child_processes import exit_with_parent, process_context
from contrapose.conformance.measure import MakeCriterion, evaluate, first_line

SAMPLES, WIDTH = 8, 6
TIMEOUT = 60.0  # seconds after which a deadlock is assumed


def check_picklable(make: MakeCriterion) -> None:
    """Check that other processes can import `make`."""
    try:
        ForkingPickler.dumps(make)
    except Exception as error:
        raise ValueError(
            "distributed: expected a function that is defined at the top level of a module, since other processes "
            f"import it, got {make!r}"
        ) from error


def whole_batch_gradient(make: MakeCriterion, temperature: float) -> Tensor:
    """Return the gradient of the encoder's weights, computed in one process on the whole batch."""
    return _gradient(make, temperature, slice(None))


def start_server(preload: Sequence[str]) -> None:
    """Start the fork server with these modules imported, so that its child processes need not import them."""
    context: Any = process_context()
    context.set_forkserver_preload(["torch", "contrapose.child_processes", __name__, *preload])
    if context.get_start_method() == "forkserver":
        forkserver.ensure_running()


def distributed_gradient(make: MakeCriterion, temperature: float, world_size: int, *, divided: bool = False) -> Tensor:
    """Return the gradient of the encoder's weights, averaged over processes that each have a part of the batch.

    `make` is called in each process after the process group has been initialised, so that it can read rank and world size.
    `divided` divides the encoder's weights among the processes with FSDP2, which then averages the gradient.
    """
    context: Any = process_context()
    receivers, processes = [], []
    # New processes for each group: torch.distributed.nn keeps the first group that it has seen as its default.
    with tempfile.TemporaryDirectory() as folder:
        for rank in range(world_size):
            receiver, sender = context.Pipe(duplex=False)
            arguments = (rank, world_size, f"{folder}/store", make, temperature, divided, sender)
            process = context.Process(target=_run_rank, args=arguments, daemon=True)
            process.start()
            sender.close()  # otherwise the receiver would not notice that the process has died
            receivers.append(receiver)
            processes.append(process)
        try:
            first, *_ = _results_by_rank(receivers)
        finally:
            for process in processes:
                process.join(timeout=1.0)
                if process.is_alive():  # the process waits for another one that has failed
                    process.kill()
                    process.join()
    return torch.tensor(first, dtype=torch.float64)


def _results_by_rank(receivers: list[Connection]) -> list[Any]:
    """Return the gradients by rank; raise RuntimeError with the first failure, since it causes the later ones."""
    results: dict[int, Any] = {}
    deadline = time.monotonic() + TIMEOUT
    while len(results) < len(receivers):
        waiting = [receiver for rank, receiver in enumerate(receivers) if rank not in results]
        ready = wait(waiting, timeout=max(0.0, deadline - time.monotonic()))
        if not ready:
            raise RuntimeError(f"no result after {TIMEOUT:.0f} s: processes wait for each other")
        failures = []
        for receiver in ready:
            assert isinstance(receiver, Connection)
            try:
                result = receiver.recv()
            except EOFError:
                result = _Failure(math.inf, "a process ended early: it must be able to import the criterion")
            if isinstance(result, _Failure):
                failures.append(result)
            results[receivers.index(receiver)] = result
        if failures:
            raise RuntimeError(min(failures).message)
    return [results[rank] for rank in range(len(receivers))]


@dataclass(frozen=True, order=True)
class _Failure:
    """An error in a process."""

    time: float
    message: str


def _run_rank(
    rank: int,
    world_size: int,
    store: str,
    make: MakeCriterion,
    temperature: float,
    divided: bool,
    sender: Connection,
) -> None:
    """Send the averaged gradient, or an error message, to the parent process."""
    exit_with_parent()
    # gloo announces its connections on stdout, in the middle of the caller's output.
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 1)
    os.dup2(silence, 2)
    torch.set_num_threads(1)
    try:
        dist.init_process_group(
            "gloo",
            init_method=f"file://{store}",
            rank=rank,
            world_size=world_size,
            timeout=timedelta(seconds=TIMEOUT),
        )
        rows = SAMPLES // world_size
        gradient = _gradient(make, temperature, slice(rank * rows, (rank + 1) * rows), divided=divided)
        dist.all_reduce(gradient)  # with FSDP2 all processes have the same average already
        dist.barrier()  # no process exits while another one still receives
        # A list, because a tensor in shared memory would be freed with this process.
        sender.send((gradient / world_size).tolist())
    except Exception as error:
        sender.send(_Failure(time.monotonic(), f"{type(error).__name__}: {first_line(error)}"))
    os._exit(0)  # gloo's threads can abort a normal exit of the interpreter


def _gradient(make: MakeCriterion, temperature: float, rows: slice, *, divided: bool = False) -> Tensor:
    """Return the gradient of a linear encoder's weights, in a process that holds these rows of the batch."""
    generator = torch.Generator().manual_seed(3)
    x1, noise = torch.randn(2, SAMPLES, WIDTH, dtype=torch.float64, generator=generator)
    encoder = nn.Linear(WIDTH, 4, bias=False, dtype=torch.float64)
    with torch.no_grad():
        encoder.weight.copy_(torch.randn(WIDTH, 4, dtype=torch.float64, generator=generator).T)
    if divided:
        _divide(encoder)
    # For criteria that take ids: sample 0 is in the first process and again in the last.
    ids = torch.tensor([*range(SAMPLES - 1), 0])
    z1, z2 = encoder(x1[rows]), encoder((x1 + noise)[rows])
    evaluate(make(temperature), z1, z2, ids=ids[rows]).backward()
    gradient = encoder.weight.grad
    assert gradient is not None
    return gradient.full_tensor() if hasattr(gradient, "full_tensor") else gradient


def _divide(encoder: nn.Module) -> None:
    """Divide the weights among the processes; their gradients are averaged and have `full_tensor`, which gathers them."""
    # Imported here: the other cases do not need it, and it takes a second.
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    fully_shard(encoder, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
