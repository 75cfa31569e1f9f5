"""Batch norms that replace a network's own batch norms and normalise by other statistics."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.functional import batch_norm
from torch.nn.modules.batchnorm import _BatchNorm

Network = TypeVar("Network", bound=nn.Module)


class ReplacementBatchNorm(nn.Module, ABC):
    """A batch norm that takes over another one's parameters and buffers; subclasses define what is normalised together.

    Parameters and buffers keep their names, so that checkpoints do not depend on the kind of batch norm.
    """

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
        """Normalise (B, C, …) by the statistics of the batch in training and by running statistics in evaluation."""
        if self.training:
            return self.normalise_batch(x)
        return batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps)

    @abstractmethod
    def normalise_batch(self, x: Tensor) -> Tensor:
        """Normalise by the statistics of the batch and update the running statistics."""

    def scale(self, centred: Tensor, variance: Tensor, spatial_dims: int) -> Tensor:
        """Divide by the standard deviation, then scale and shift; `spatial_dims` dimensions follow the channels."""
        y = centred * torch.rsqrt(variance + self.eps)
        shape = [-1] + [1] * spatial_dims
        return y if self.weight is None else y * self.weight.view(shape) + self.bias.view(shape)

    @torch.no_grad()
    def update_running_statistics(self, mean: Tensor, variance: Tensor, count: float) -> None:
        """Move the running statistics towards those of a batch with `count` values per channel."""
        self.num_batches_tracked += 1
        self.running_mean.lerp_(mean, self.momentum)
        # As in torch: normalise by the biased variance, but keep the unbiased one as a running statistic.
        self.running_var.lerp_(variance * count / (count - 1), self.momentum)


@torch.no_grad()
def estimate_statistics(network: nn.Module, batches: Iterable[Tensor | tuple[Any, ...]]) -> None:
    """Replace the running statistics of all batch norms by their means over batches, and leave the network in evaluation mode.

    An untrained network has a running mean of 0 and a running variance of 1, which do not describe any data. After training
    with small batches, the running statistics lag behind the weights.

    network   any network that takes the inputs
    batches   inputs (B, …) of equal size; a tuple holds several arguments for the network
    """
    norms = [module for module in network.modules() if isinstance(module, _BatchNorm | ReplacementBatchNorm)]
    if not norms:
        network.eval()
        return
    momenta = [norm.momentum for norm in norms]
    network.train()
    for count, batch in enumerate(batches, 1):
        for norm in norms:
            norm.momentum = 1 / count  # the mean of all batches so far; the first batch replaces the initial values
        network(*(batch if isinstance(batch, tuple) else (batch,)))
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum
    network.eval()


def at_least_float32(x: Tensor) -> Tensor:
    """Return x in float32 or better: in half precision, sums over a batch would lose most of their digits."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def replace_norms(network: Network, make: Callable[[_BatchNorm], nn.Module]) -> Network:
    """Replace every batch norm inside a network by `make(norm)`, in place, and return the network."""
    for module in network.modules():
        for name, child in list(module.named_children()):  # a list, since children are replaced during the iteration
            if isinstance(child, _BatchNorm):
                setattr(module, name, make(child))
    return network


class SplitBatchNorm(ReplacementBatchNorm):
    """A batch norm that normalises each of `splits` parts of the batch separately; image i is in part i mod splits.

    It reproduces on one GPU what several GPUs do without synchronised statistics. Running statistics are the mean over
    parts.
    """

    def __init__(self, norm: _BatchNorm, splits: int) -> None:
        super().__init__(norm)
        self.splits = splits

    def normalise_batch(self, x: Tensor) -> Tensor:
        """Normalise each part separately."""
        if len(x) % self.splits:
            raise ValueError(f"norm_splits: a batch of {len(x)} cannot be split into {self.splits} equal parts")
        if x.numel() == self.splits * x.shape[1]:
            raise ValueError(f"norm_splits: {self.splits} parts of {len(x)} images leave nothing to average over")
        return self.explicit(x) if torch.compiler.is_compiling() else self.grouped(x)

    def grouped(self, x: Tensor) -> Tensor:
        """Normalise with one call of torch's batch norm, (B, C, …) -> (B, C, …)."""
        # Parts become channels, so that one call of torch's kernel, which saves only its input for the backward pass, suffices.
        parts = self.splits
        mean, var = self.running_mean.repeat(parts), self.running_var.repeat(parts)
        weight, bias = (None if p is None else p.repeat(parts) for p in (self.weight, self.bias))
        channels = x.reshape(len(x) // parts, parts * x.shape[1], *x.shape[2:])
        y = batch_norm(channels, mean, var, weight, bias, training=True, momentum=self.momentum, eps=self.eps)
        # `mean` and `var` are copies, which the call has updated per part; the running statistics are their averages.
        self.running_mean.copy_(mean.view(parts, -1).mean(0))
        self.running_var.copy_(var.view(parts, -1).mean(0))
        self.num_batches_tracked += 1
        return y.reshape(x.shape)

    def explicit(self, x: Tensor) -> Tensor:
        """Return the same as `grouped` by elementary operations, without reshaping the batch, for torch.compile."""
        # The compiler fuses these operations into one kernel; it cannot fuse the call in `grouped`.
        parts = at_least_float32(x.unflatten(0, (-1, self.splits)))  # (B / splits, splits, C, …)
        dims = (0, *range(3, parts.ndim))
        variance, mean = torch.var_mean(parts, dims, correction=0, keepdim=True)
        count = parts.numel() / mean.numel()
        self.update_running_statistics(mean.mean(1).flatten(), variance.mean(1).flatten(), count)
        return self.scale(parts - mean, variance, parts.ndim - 3).flatten(0, 1).to(x.dtype)


class ViewBatchNorm(ReplacementBatchNorm):
    """A batch norm that normalises each view in a batch of `views` consecutive views separately.

    It gives the values and the running statistics of one forward pass for each view.
    """

    views = 1  # set before each pass

    def normalise_batch(self, x: Tensor) -> Tensor:
        """Normalise each view separately."""
        return torch.cat([self._normalise_view(view) for view in x.chunk(self.views)])

    def _normalise_view(self, x: Tensor) -> Tensor:
        self.num_batches_tracked += 1
        statistics, affine = (self.running_mean, self.running_var), (self.weight, self.bias)
        return batch_norm(x, *statistics, *affine, training=True, momentum=self.momentum, eps=self.eps)


def ordinary_norms(network: nn.Module) -> None:
    """Replace split and synchronised 2D batch norms by ordinary ones with the same weights and statistics, in place."""
    for module in network.modules():
        for name, child in list(module.named_children()):
            if isinstance(child, ReplacementBatchNorm | nn.SyncBatchNorm):
                norm = nn.BatchNorm2d(child.weight.numel(), eps=child.eps, momentum=child.momentum)
                norm.load_state_dict(child.state_dict())
                setattr(module, name, norm.to(child.weight.device))


def split_norms(network: Network, splits: int) -> Network:
    """Make every batch norm in a network normalise `splits` parts of the batch separately, in place."""
    return replace_norms(network, lambda norm: SplitBatchNorm(norm, splits))
