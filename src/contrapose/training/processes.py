"""Several processes on one run, as torchrun starts them; alone, nothing of this happens."""

from __future__ import annotations

import os

import torch
import torch.distributed as dist
from torch import Tensor, nn

from contrapose.distributed import sum_over_ranks
from contrapose.networks.norms import ReplacementBatchNorm, at_least_float32, replace_norms


def join() -> tuple[int, int]:
    """(rank, number of processes); joins torchrun's group if there is one."""
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if world == 1 or not dist.is_available():
        return 0, 1
    if not dist.is_initialized():
        dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    return dist.get_rank(), dist.get_world_size()


def leave() -> None:
    """Wait for the others and leave torchrun's group."""
    if dist.is_available() and dist.is_initialized():
        dist.barrier()
        dist.destroy_process_group()


def any_requested(requests: list[int], device: torch.device, world_size: int) -> bool:
    """Return whether a signal came to any process. All stop at the same step: one alone would leave the others waiting."""
    if world_size == 1:
        return bool(requests)
    number = torch.tensor(requests[0] if requests else 0, device=device)
    dist.all_reduce(number, dist.ReduceOp.MAX)
    if int(number) and not requests:
        requests.append(int(number))
    return int(number) > 0


def own_device() -> torch.device:
    """This process's GPU, or the CPU."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    torch.cuda.set_device(device)
    return device


def synchronised(network: nn.Module, device: torch.device) -> nn.Module:
    """Batch norms that take their statistics from the batches of all processes."""
    if device.type == "cuda":
        converted: nn.Module = nn.SyncBatchNorm.convert_sync_batchnorm(network)
        return converted
    return replace_norms(network, SyncedBatchNorm)


class SyncedBatchNorm(ReplacementBatchNorm):
    """A batch norm with the statistics of all processes, on any device (torch's own is for GPUs alone)."""

    def normalise_batch(self, x: Tensor) -> Tensor:
        """Over everything but the channels, dimension 1, in all processes."""
        over = [d for d in range(x.ndim) if d != 1]
        shape = [1, -1] + [1] * (x.ndim - 2)
        count, values = x.numel() / x.shape[1] * dist.get_world_size(), at_least_float32(x)
        mean = sum_over_ranks(values.sum(over)) / count
        centred = values - mean.view(shape)
        variance = sum_over_ranks(centred.square().sum(over)) / count
        self.update_running_statistics(mean, variance, count)
        return self.scale(centred, variance.view(shape), x.ndim - 2).to(x.dtype)
