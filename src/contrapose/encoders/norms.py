"""Batch norms that take the place of a network's own, with other statistics."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from torch import Tensor, nn
from torch.nn.functional import batch_norm
from torch.nn.modules.batchnorm import _BatchNorm

Network = TypeVar("Network", bound=nn.Module)


class AdoptedBatchNorm(nn.Module):
    """The names and values of the batch norm that it replaces; how to normalise is for its children to say."""

    running_mean: Tensor
    running_var: Tensor
    num_batches_tracked: Tensor

    def __init__(self, norm: _BatchNorm) -> None:
        super().__init__()
        self.eps, self.momentum = norm.eps, norm.momentum or 0.0
        self.weight, self.bias = norm.weight, norm.bias
        self.register_buffer("running_mean", norm.running_mean)
        self.register_buffer("running_var", norm.running_var)
        self.register_buffer("num_batches_tracked", norm.num_batches_tracked)


def replace_norms(network: Network, make: Callable[[_BatchNorm], nn.Module]) -> Network:
    """Every batch norm inside a network replaced by what `make` makes of it, in place."""
    for module in network.modules():
        for name, child in list(module.named_children()):
            if isinstance(child, _BatchNorm):
                setattr(module, name, make(child))
    return network


class SplitBatchNorm(AdoptedBatchNorm):
    """A batch norm whose statistics are those of `splits` parts of the batch; image i is in part i mod splits.

    It is what several GPUs without synchronised statistics see, on one. Running statistics are the mean over the parts.
    """

    def __init__(self, norm: _BatchNorm, splits: int) -> None:
        super().__init__(norm)
        self.splits = splits

    def forward(self, x: Tensor) -> Tensor:
        """Normalise each part by itself in training, all by the running statistics in evaluation."""
        if not self.training:
            return batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps)
        parts = self.splits
        if len(x) % parts:
            raise ValueError(f"norm_splits: a batch of {len(x)} cannot be split into {parts} equal parts")
        mean, var = self.running_mean.repeat(parts), self.running_var.repeat(parts)
        weight, bias = (None if p is None else p.repeat(parts) for p in (self.weight, self.bias))
        grouped = x.reshape(len(x) // parts, parts * x.shape[1], *x.shape[2:])
        y = batch_norm(grouped, mean, var, weight, bias, training=True, momentum=self.momentum, eps=self.eps)
        self.running_mean.copy_(mean.view(parts, -1).mean(0))
        self.running_var.copy_(var.view(parts, -1).mean(0))
        self.num_batches_tracked += 1
        return y.reshape(x.shape)


def split_norms(network: Network, splits: int) -> Network:
    """Every batch norm of a network over parts of the batch, in place."""
    return replace_norms(network, lambda norm: SplitBatchNorm(norm, splits))
