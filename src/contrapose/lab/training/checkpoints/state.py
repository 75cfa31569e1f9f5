"""The state of a run as named tensors, for checkpoints: what a network, a loss and an optimiser hold after a step."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from contrapose.lab.training.weights import difference

# What each optimiser keeps for a parameter. All but the step have the parameter's shape.
_ADAM = ("exp_avg", "exp_avg_sq", "step")
_KEPT = {"SGD": ("momentum_buffer",), "Adam": _ADAM, "AdamW": _ADAM, "LARS": ("velocity",)}
_STATELESS = "optimiser.stateless"  # indices of the parameters for which the optimiser keeps no state


def collect(network: nn.Module, optimiser: Optimizer) -> dict[str, Tensor]:
    """Return the state of a network and its optimiser as one flat dictionary of tensors."""
    tensors = {f"state.{name}": tensor for name, tensor in network.state_dict().items()}
    states = optimiser.state_dict()["state"]
    for position, state in states.items():
        for name, value in state.items():
            tensors[f"optimiser.{position}.{name}"] = torch.as_tensor(value)
    # A parameter without a gradient has no state. Listed, to distinguish a state that is lost from one that never existed.
    stateless = [position for position in _parameters(optimiser) if not states.get(position)]
    return tensors | {_STATELESS: torch.tensor(stateless, dtype=torch.long)}


def restore(
    network: nn.Module, optimiser: Optimizer, tensors: Mapping[str, Tensor], others: Mapping[str, Tensor]
) -> None:
    """Load the state that `collect` returned; raise ValueError if names, shapes or types are not the same.

    `others` are tensors like those that the checkpoint must hold beside it, by name.
    """
    own = {name.removeprefix("state."): t for name, t in tensors.items() if name.startswith("state.")}
    rest = {name: t for name, t in tensors.items() if not name.startswith("state.") and name != _STATELESS}
    # The network is checked first: its names help more to find the wrong setting than the optimiser's indices.
    obstacle = difference(network.state_dict(), own) or difference(
        {**_optimiser_tensors(optimiser, tensors), **others}, rest
    )
    if obstacle:
        raise ValueError(obstacle)
    state: dict[int, dict[str, Tensor]] = {}
    for name, tensor in rest.items():
        if name.startswith("optimiser."):
            _, position, key = name.split(".", 2)
            state.setdefault(int(position), {})[key] = tensor
    network.load_state_dict(own)
    # The groups hold settings, which come from the run and not from the checkpoint.
    optimiser.load_state_dict({"state": state, "param_groups": optimiser.state_dict()["param_groups"]})
    # Files do not keep a memory layout, and fused optimisers require that of the parameter (channels_last, for example).
    for parameter, entries in optimiser.state.items():
        for name, value in entries.items():
            if value.shape == parameter.shape and value.stride() != parameter.stride():
                entries[name] = torch.empty_like(parameter, dtype=value.dtype).copy_(value)


def _optimiser_tensors(optimiser: Optimizer, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return tensors, without memory, of the names and shapes that a checkpoint must hold for the optimiser."""
    stateless = _stateless(optimiser, tensors)
    return {
        f"optimiser.{position}.{name}": torch.empty(() if name == "step" else parameter.shape, device="meta")
        for position, parameter in _parameters(optimiser).items()
        if position not in stateless
        for name in _KEPT[type(optimiser).__name__]
    }


def _stateless(optimiser: Optimizer, tensors: Mapping[str, Tensor]) -> set[int]:
    """Return the positions of the parameters without a state in a checkpoint."""
    if _STATELESS in tensors:
        return set(tensors[_STATELESS].flatten().tolist())
    # Version 0.1.0 has no list. No state at all is possible only in fp16, whose first steps may all be skipped.
    held = {name.split(".")[1] for name in tensors if name.startswith("optimiser.")}
    if not held and "scaler.scale" not in tensors:
        return set()
    return {position for position in _parameters(optimiser) if str(position) not in held}


def _parameters(optimiser: Optimizer) -> dict[int, Tensor]:
    """Return the parameters by their positions, as an optimiser's `state_dict` numbers them."""
    return dict(enumerate(parameter for group in optimiser.param_groups for parameter in group["params"]))
