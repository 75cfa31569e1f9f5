"""Encoders that keep only their blocks' inputs for the backward pass, and compute everything else in a block a second time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

from torch import Tensor, is_grad_enabled, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.checkpoint import checkpoint

from contrapose.lab.networks.norms import ReplacementBatchNorm


class PassInput:
    """A tensor that modules of a network read while a batch passes through it; None between the passes."""

    def __init__(self) -> None:
        self.value: Tensor | None = None


def recompute_blocks(network: nn.Module) -> int:
    """Make the equal blocks in a network, such as a transformer's layers, compute their activations again in the backward pass.

    Values and gradients are bit-identical; in evaluation, nothing changes. Blocks with batch norms are left as they are, since
    their running statistics would count each batch twice. The network is changed in place; return the number of blocks.
    """
    blocks = list(_blocks(network))
    for block in blocks:
        read = [own for module in block.modules() for own in vars(module).values() if isinstance(own, PassInput)]
        block.forward = partial(_recomputed_pass, block, block.forward, list(dict.fromkeys(read)))
    if not blocks:
        raise ValueError(
            "recompute: the encoder has no equal blocks in a row without batch norms; choose one that has, such as vit-s16-moco "
            "for images or small for sentences, or leave out --recompute"
        )
    return len(blocks)


def _blocks(network: nn.Module) -> Iterator[nn.Module]:
    """Yield the members of lists and sequences of two or more equal modules that have parts, without lists of such lists."""
    for module in network.modules():
        if _has_blocks(module) and not any(
            _has_blocks(inner) for child in module.children() for inner in child.modules()
        ):
            yield from (child for child in module.children() if not any(map(_is_batch_norm, child.modules())))


def _has_blocks(module: nn.Module) -> bool:
    children = list(module.children())
    equal = len({type(child) for child in children}) == 1 and any(True for _ in children[0].children())
    return isinstance(module, nn.ModuleList | nn.Sequential) and len(children) > 1 and equal


def _is_batch_norm(module: nn.Module) -> bool:
    return isinstance(module, _BatchNorm | ReplacementBatchNorm)


def _recomputed_pass(block: nn.Module, forward: Any, read: Sequence[PassInput], *inputs: Any, **named: Any) -> Any:
    if not (block.training and is_grad_enabled()):
        return forward(*inputs, **named)
    values = [own.value for own in read]
    return checkpoint(
        forward,
        *inputs,
        use_reentrant=False,
        context_fn=lambda: (nullcontext(), _restored_inputs(read, values)),
        **named,
    )


@contextmanager
def _restored_inputs(read: Sequence[PassInput], values: Sequence[Tensor | None]) -> Iterator[None]:
    """Give modules what they read in the first pass, which has ended by the time of the backward pass."""
    before = [own.value for own in read]
    for own, value in zip(read, values, strict=True):
        own.value = value
    try:
        yield
    finally:
        for own, value in zip(read, before, strict=True):
            own.value = value
