"""Batch norms that take the place of a network's own, with other statistics."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.nn.functional import batch_norm
from torch.nn.modules.batchnorm import _BatchNorm

Network = TypeVar("Network", bound=nn.Module)


class AdoptedBatchNorm(nn.Module, ABC):
    """The names and values of the batch norm that it replaces; what is normalised together is for its children to say."""

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

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, …): by statistics of the batch in training, by the running ones in evaluation."""
        if self.training:
            return self.by_batch(x)
        return batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps)

    @abstractmethod
    def by_batch(self, x: Tensor) -> Tensor:
        """Normalised by statistics of the batch, which the running ones follow."""

    def scaled(self, centred: Tensor, variance: Tensor, places: int) -> Tensor:
        """To the learned scale and shift; channels are followed by `places` dimensions."""
        y = centred * torch.rsqrt(variance + self.eps)
        shape = [-1] + [1] * places
        return y if self.weight is None else y * self.weight.view(shape) + self.bias.view(shape)

    @torch.no_grad()
    def follow(self, mean: Tensor, variance: Tensor, count: float) -> None:
        """The running statistics take their step towards those of `count` values a channel."""
        self.num_batches_tracked += 1
        self.running_mean.lerp_(mean, self.momentum)
        self.running_var.lerp_(variance * count / (count - 1), self.momentum)


def wide(x: Tensor) -> Tensor:
    """In float32 at least: statistics are not made in less."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


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

    def by_batch(self, x: Tensor) -> Tensor:
        """Each part by itself."""
        if len(x) % self.splits:
            raise ValueError(f"norm_splits: a batch of {len(x)} cannot be split into {self.splits} equal parts")
        if x.numel() == self.splits * x.shape[1]:
            raise ValueError(f"norm_splits: {self.splits} parts of {len(x)} images leave nothing to average over")
        return self.written_out(x) if torch.compiler.is_compiling() else self.grouped(x)

    def grouped(self, x: Tensor) -> Tensor:
        """The parts as channels of their own: nothing but the input is kept for the backward pass."""
        parts = self.splits
        mean, var = self.running_mean.repeat(parts), self.running_var.repeat(parts)
        weight, bias = (None if p is None else p.repeat(parts) for p in (self.weight, self.bias))
        channels = x.reshape(len(x) // parts, parts * x.shape[1], *x.shape[2:])
        y = batch_norm(channels, mean, var, weight, bias, training=True, momentum=self.momentum, eps=self.eps)
        self.running_mean.copy_(mean.view(parts, -1).mean(0))
        self.running_var.copy_(var.view(parts, -1).mean(0))
        self.num_batches_tracked += 1
        return y.reshape(x.shape)

    def written_out(self, x: Tensor) -> Tensor:
        """The same where the images lie, for a compiler: it makes one kernel of it, and is lost in the other form."""
        parts = wide(x.unflatten(0, (-1, self.splits)))  # (B / splits, splits, C, …)
        over = (0, *range(3, parts.ndim))
        variance, mean = torch.var_mean(parts, over, correction=0, keepdim=True)
        self.follow(mean.mean(1).flatten(), variance.mean(1).flatten(), parts.numel() / mean.numel())
        return self.scaled(parts - mean, variance, parts.ndim - 3).flatten(0, 1).to(x.dtype)


def split_norms(network: Network, splits: int) -> Network:
    """Every batch norm of a network over parts of the batch, in place."""
    return replace_norms(network, lambda norm: SplitBatchNorm(norm, splits))
