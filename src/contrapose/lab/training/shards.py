"""Networks whose parameters, gradients and optimiser states are divided among the processes of a run (FSDP2).

Each part of a framework (encoder, projector, predictor, momentum encoder) is divided on its own, and a large encoder block by
block: a block's parameters are gathered while it computes, and released after it. Everything that is written is whole: a
checkpoint does not depend on how many processes made it, or on whether they divided the network.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor

from contrapose.lab.frameworks import FRAMEWORKS
from contrapose.lab.training.run import Run

_LARGE_BLOCK = 2**20  # parameters; smaller blocks are gathered together with the rest of their part


def check_shard(run: Run) -> None:
    """Raise ValueError for a run whose network cannot be divided."""
    if "assignments" in FRAMEWORKS[run.framework].offers:
        raise ValueError(
            f"shard: {run.framework} reads the weights of its prototypes, which then no process has; leave out --shard"
        )
    if run.precision == "fp16":
        raise ValueError("shard: expected --precision bf16 or fp32, got fp16")


def shard(network: nn.Module, device: torch.device) -> None:
    """Divide the parameters of a network's parts among all processes, in place."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    for parameter in network.parameters():  # channels last, an order that FSDP2 does not divide
        parameter.data = parameter.data.contiguous()
    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    for part in _parts(network):
        for block in (block for child in part.children() for block in _large_blocks(child)):
            fully_shard(block, mesh=mesh, reshard_after_forward=True)
        part.register_forward_hook(_without_view)
        # Divided again after each pass, so that averages of weights and checkpoints always see the divided ones.
        fully_shard(part, mesh=mesh, reshard_after_forward=True)


def _parts(network: nn.Module) -> Iterator[nn.Module]:
    """Yield the modules whose `forward` is called and that have parameters."""
    for child in network.children():
        if isinstance(child, nn.ModuleDict | nn.ModuleList):
            yield from _parts(child)
        elif any(True for _ in child.parameters()):
            yield child


def _large_blocks(module: nn.Module) -> Iterator[nn.Module]:
    """Yield the large modules in lists and sequences of modules, such as the layers of a transformer, but none inside another."""
    for child in module.children():
        is_listed = isinstance(module, nn.ModuleList | nn.Sequential)
        if is_listed and sum(p.numel() for p in child.parameters()) >= _LARGE_BLOCK and not _has_lists(child):
            yield child
        else:
            yield from _large_blocks(child)


def _has_lists(block: nn.Module) -> bool:
    return any(isinstance(module, nn.ModuleList) for module in block.modules())


def _without_view(part: nn.Module, inputs: object, output: object) -> object:
    """Return a part's output as a tensor of its own: FSDP2 warns of views, which an in-place operation would detach from it."""
    return output.clone() if isinstance(output, Tensor) and output._is_view() else output


def whole(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return tensors with the divided ones whole, in the first process's main memory; all processes must call this."""
    # One at a time, since all of them may not fit on a device; by name, since the order of an optimiser's state that was loaded
    # may differ between processes, and each gathering must meet the same one elsewhere.
    return {name: _in_first_process(t) if isinstance(t := tensors[name], DTensor) else t for name in sorted(tensors)}


def _in_first_process(tensor: DTensor) -> Tensor:
    value: Tensor = tensor.full_tensor()
    return value.new_empty(0) if dist.get_rank() else value.cpu()


def divide_like(value: Tensor, example: Tensor) -> Tensor:
    """Return a whole tensor, which all processes have, divided in the way of another; the same one if that is whole."""
    if not isinstance(example, DTensor) or isinstance(value, DTensor) or value.shape != example.shape:
        return value
    value = value.to(example.device)
    divided: Tensor = distribute_tensor(value, example.device_mesh, example.placements, src_data_rank=None)
    return divided


def any_divided(tensors: Iterable[Tensor]) -> bool:
    """Return whether any of these tensors is divided among processes."""
    return any(isinstance(tensor, DTensor) for tensor in tensors)


def clip_divided(parameters: Iterable[nn.Parameter], clip: float, *, each: bool) -> Tensor:
    """Return the norm of the whole gradient, and clip as `gradient_norm` does, if some of the gradients are divided."""
    gradients = [p.grad for p in parameters if p.grad is not None]
    divided = [g.to_local() for g in gradients if isinstance(g, DTensor)]
    squares = torch.stack([torch.linalg.vector_norm(g).square() for g in divided])
    dist.all_reduce(squares)
    others = [g for g in gradients if not isinstance(g, DTensor)]
    norms = torch.stack([*squares.sqrt(), *(torch.linalg.vector_norm(g) for g in others)])
    total: Tensor = torch.linalg.vector_norm(norms)
    if clip:
        factors = (clip / ((norms if each else total.expand_as(norms)) + 1e-6)).clamp(
            max=1.0
        )  # as torch's clip_grad_norm_
        for gradient, factor in zip([*divided, *others], factors, strict=True):
            gradient.mul_(factor.to(gradient.device))
    return total


def decision_of_first(answer: bool, device: torch.device) -> bool:
    """Return what the first process answers, in all processes."""
    agreed = torch.tensor(int(answer), device=device)
    dist.broadcast(agreed, 0)
    return bool(agreed)
