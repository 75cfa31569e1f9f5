"""The learned numbers of a criterion, their bounds, and a fingerprint of the model's parts."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from contrapose.doctor.call import Call
from contrapose.temperature import LearnedTemperature

Bounds = dict[str, tuple[float | None, float | None]]
_LEAST_SHARE = 0.2  # of a model's parameters that a child must have to be a part of its own
_CLIP_SCALE = 100.0  # the largest logit scale of CLIP, to which open_clip's loop clamps it


def learned_numbers(criterion: Callable[..., Any] | None, call: Call) -> tuple[dict[str, float], Bounds]:
    """Return the learned numbers of a criterion and among its arguments, and the bounds of those that have any."""
    values: dict[str, Tensor] = {}
    bounds: Bounds = {}
    if isinstance(criterion, nn.Module):
        for name, module in criterion.named_modules():
            if isinstance(module, LearnedTemperature):
                key = f"{name}.log_temperature".removeprefix(".")
                low, high = (None if b is None else math.log(b) for b in (module.low, module.high))
                bounds[key] = (low, high)
        values |= {name: p for name, p in criterion.named_parameters() if p.numel() == 1 and p.requires_grad}
    scale = _scale_argument(call)
    if scale is not None:
        values["logit scale"] = scale
        bounds["logit scale"] = (None, _CLIP_SCALE)
    if not values:
        return {}, {}
    numbers = torch.stack([value.detach().reshape(()).double().cpu() for value in values.values()]).tolist()
    return dict(zip(values, numbers, strict=True)), bounds


def _scale_argument(call: Call) -> Tensor | None:
    """Return the learned scale among the arguments, as open_clip passes it: the first number that requires a gradient."""
    for leaf in call.leaves:
        if isinstance(leaf, Tensor) and leaf.numel() == 1 and leaf.requires_grad and leaf.ndim <= 1:
            return leaf
    return None


def parts_of(model: nn.Module | Mapping[str, nn.Module] | None) -> dict[str, list[Tensor]]:
    """Return the parameters of each part of a model: its named modules, or the large children of a module."""
    if model is None:
        return {}
    for module in [model] if isinstance(model, nn.Module) else model.values():
        if any(is_lazy(p) for p in module.parameters()):
            raise ValueError(
                "model: expected parameters with values, got a lazy module that has none yet; pass one batch through it first"
            )
    if not isinstance(model, nn.Module):
        parts = {name: _weights(part) for name, part in model.items()}
        return {name: own for name, own in parts.items() if own}
    whole = _weights(model)
    # A small unused child, such as BERT's pooler, is no tower; it belongs to the rest.
    least = _LEAST_SHARE * sum(p.numel() for p in whole)
    children = {name: _weights(child) for name, child in model.named_children()}
    large = {name: part for name, part in children.items() if part and sum(p.numel() for p in part) >= least}
    return large if len(large) > 1 else {"model": whole} if whole else {}


def _weights(module: nn.Module) -> list[Tensor]:
    """Return the parameters that can be trained in principle: integers are weights that are stored in few bits."""
    return [p for p in module.parameters() if p.is_floating_point()]


@torch.no_grad()
def fingerprint(parts: Mapping[str, list[Tensor]]) -> dict[str, float]:
    """Return the sum of the norms of each part's parameters, which training changes: one wait for the device in all."""
    if not parts:
        return {}
    flat = [p.detach() for parameters in parts.values() for p in parameters]
    norms = iter(torch.stack([norm.double().cpu() for norm in _norms(flat)]).tolist())
    return {name: math.fsum(islice(norms, len(parameters))) for name, parameters in parts.items()}


def _norms(tensors: list[Tensor]) -> Sequence[Tensor]:
    if all(tensor.dtype in (torch.float32, torch.float64) for tensor in tensors):
        return torch._foreach_norm(tensors)
    # Rounded to 16 bits, a norm stays the same while the weights change.
    return [
        torch.linalg.vector_norm(tensor, dtype=torch.promote_types(tensor.dtype, torch.float32)) for tensor in tensors
    ]
