"""Training one run in several processes, started by torchrun. In a single process, these functions do nothing."""

from __future__ import annotations

import os
import warnings
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from contrapose.distributed import sum_over_ranks
from contrapose.lab.devices import own_device
from contrapose.lab.networks.norms import ReplacementBatchNorm, at_least_float32, replace_norms
from contrapose.lab.training.checkpoints.checkpoint import newest_first
from contrapose.lab.training.heartbeat import Heartbeat, rank_failures
from contrapose.lab.training.run import Run
from contrapose.lab.training.shards import shard

# Seconds that a collective waits for a process that is alive but late, because it evaluates or reads on its own.
_LATE = 1800.0


def join_process_group(folder: Path, *, timeout: float) -> tuple[int, int]:
    """Return (rank, world_size), after joining torchrun's process group if there is one.

    folder    directory of the run, whose checkpoints say where it resumes if a process fails
    timeout   seconds without a sign of life after which a process has failed
    """
    world_size = int(os.environ.get("WORLD_SIZE", "1"))
    if world_size == 1 or not dist.is_available():
        return 0, 1
    if not dist.is_initialized():
        # NCCL's watchdog then ends a process whose collective takes longer; without it, the process would wait forever.
        os.environ.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "3")
        backend = "nccl" if own_device().type == "cuda" else "gloo"
        dist.init_process_group(backend, timeout=timedelta(seconds=max(_LATE, timeout)))
    rank, world_size = dist.get_rank(), dist.get_world_size()
    heartbeat = Heartbeat.start(rank=rank, world_size=world_size, timeout=timeout)
    if heartbeat is not None:
        heartbeat.how_to_resume = lambda: _how_to_resume(folder)
    return rank, world_size


def check_world_size(run: Run, world_size: int) -> None:
    """Raise ValueError if this many processes cannot train the run."""
    if run.batch % world_size:
        raise ValueError(f"batch: {run.batch} {run.kind.noun} cannot be shared equally by {world_size} processes")
    if run.ring and world_size > 1 and run.batch == world_size:
        raise ValueError(
            f"batch: with --ring, each process needs two samples or more, got {run.batch} for {world_size}"
        )
    if world_size > 1 and run.norm_splits > 1:
        raise ValueError(f"norm_splits: {world_size} processes synchronise their batch norms; leave it at 1")


def _how_to_resume(folder: Path) -> str:
    """Complete the sentence "run the same command again to" for a run that ends without saving its current step."""
    saved = newest_first(folder / "checkpoints")
    return f"resume after step {int(saved[0].name[5:])}" if saved else "start over, since no step is saved yet"


def leave_process_group() -> None:
    """Wait for the other processes and leave torchrun's process group."""
    if dist.is_available() and dist.is_initialized():
        with rank_failures():
            dist.barrier()
        heartbeat = Heartbeat.running()
        if heartbeat is not None:
            heartbeat.leave()
        dist.destroy_process_group()


def any_requested(requests: list[int], device: torch.device, world_size: int) -> bool:
    """Return whether any process has received a signal, and add that signal to the `requests` of every process.

    All processes must stop at the same step: if only one stopped, the others would wait for it in their next collective.
    """
    if world_size == 1:
        return bool(requests)
    number = torch.tensor(requests[0] if requests else 0, device=device)  # no signal has the number 0
    dist.all_reduce(number, dist.ReduceOp.MAX)
    if int(number) and not requests:
        requests.append(int(number))
    return int(number) > 0


def distributed(network: nn.Module, learner: nn.Module, device: torch.device, *, divided: bool) -> nn.Module:
    """Return a module whose gradients processes average; batch norms are replaced in place by synchronised ones.

    network   the network
    learner   what is called in a step: the network, or a part of its computation
    divided   whether to divide the network's parameters among the processes, in place, instead of having all in each
    """
    synchronise_batch_norms(network, device)
    if divided:
        with rank_failures():
            shard(network, device)
        return learner
    # Buffers are equal on all processes: they come from gathered batches and synchronised statistics.
    with rank_failures(), warnings.catch_warnings():  # torch 2.15 has a new name for this argument
        warnings.simplefilter("ignore", FutureWarning)
        return DistributedDataParallel(learner, broadcast_buffers=False)


def synchronise_batch_norms(network: nn.Module, device: torch.device) -> nn.Module:
    """Replace a network's batch norms with ones that use statistics over all processes, and return the network."""
    if device.type == "cuda":
        converted: nn.Module = nn.SyncBatchNorm.convert_sync_batchnorm(network)
        return converted
    return replace_norms(network, SyncedBatchNorm)


class SyncedBatchNorm(ReplacementBatchNorm):
    """A batch norm with statistics over all processes, on any device; `nn.SyncBatchNorm` supports only GPUs."""

    def normalise_batch(self, x: Tensor) -> Tensor:
        """Normalise (B, C, …) over all dimensions except the channels, across all processes."""
        dims = [d for d in range(x.ndim) if d != 1]
        shape = [1, -1] + [1] * (x.ndim - 2)
        # Every process has a batch of the same size, so the count needs no reduction.
        count, values = x.numel() / x.shape[1] * dist.get_world_size(), at_least_float32(x)
        mean = sum_over_ranks(values.sum(dims)) / count
        # The variance needs a second reduction: E[x²] - E[x]² in one pass would cancel in float32.
        centred = values - mean.view(shape)
        variance = sum_over_ranks(centred.square().sum(dims)) / count
        self.update_running_statistics(mean, variance, count)
        return self.scale(centred, variance.view(shape), x.ndim - 2).to(x.dtype)
