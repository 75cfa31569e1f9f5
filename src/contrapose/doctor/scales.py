"""The learned numbers of a criterion, their bounds, and a fingerprint of the model's parts."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from contrapose.doctor.call import Call
from contrapose.temperature import LearnedTemperature

Bounds = dict[str, tuple[float | None, float | None]]
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
    """Return the parameters of each part of a model: its named modules, or the children of a module that has several."""
    if model is None:
        return {}
    if not isinstance(model, nn.Module):
        return {name: list(part.parameters()) for name, part in model.items()}
    children = {name: list(child.parameters()) for name, child in model.named_children()}
    children = {name: parameters for name, parameters in children.items() if parameters}
    if len(children) == 1:
        (name,) = children
        return parts_of(model.get_submodule(name)) or children
    return children or ({"model": list(model.parameters())} if list(model.parameters()) else {})


@torch.no_grad()
def fingerprint(parts: Mapping[str, list[Tensor]]) -> dict[str, tuple[float, ...]]:
    """Return the norms of each part's parameters, which training changes: one wait for the device in all."""
    if not parts:
        return {}
    flat = [p.detach() for parameters in parts.values() for p in parameters]
    norms = torch.stack([norm.double().cpu() for norm in torch._foreach_norm(flat)]).tolist()
    values, start = {}, 0
    for name, parameters in parts.items():
        values[name] = tuple(norms[start : start + len(parameters)])
        start += len(parameters)
    return values
