"""The state of a run as named tensors for checkpoints: the network, the loss and the optimiser state after a step."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from contrapose.lab.training.shards import divide_like, whole
from contrapose.lab.training.weights import difference

# The tensors that each optimiser keeps per parameter. All except `step` have the parameter's shape.
_ADAM = ("exp_avg", "exp_avg_sq", "step")
_KEPT = {"SGD": ("momentum_buffer",), "Adam": _ADAM, "AdamW": _ADAM, "LARS": ("velocity",)}
_STATELESS = "optimiser.stateless"  # indices of the parameters for which the optimiser keeps no state


def collect(network: nn.Module, optimiser: Optimizer) -> dict[str, Tensor]:
    """Return the state of a network and its optimiser as one flat dictionary of tensors.

    If the network is divided among processes, all of them must call this.
    """
    tensors = {f"state.{name}": tensor for name, tensor in network.state_dict().items()}
    states = optimiser.state_dict()["state"]
    for position, state in states.items():
        for name, value in state.items():
            tensors[f"optimiser.{position}.{name}"] = torch.as_tensor(value)
    # A parameter without a gradient has no state. Such parameters are listed, so that a lost state is recognised as an error.
    stateless = [position for position in _parameters(optimiser) if not states.get(position)]
    return whole(tensors | {_STATELESS: torch.tensor(stateless, dtype=torch.long)})


def restore(
    network: nn.Module, optimiser: Optimizer, tensors: Mapping[str, Tensor], others: Mapping[str, Tensor]
) -> None:
    """Load the state that `collect` returned; raise ValueError if names, shapes or types differ.

    `others` has an example, keyed by name, of each other tensor that the checkpoint must contain.
    """
    own = {name.removeprefix("state."): t for name, t in tensors.items() if name.startswith("state.")}
    rest = {name: t for name, t in tensors.items() if not name.startswith("state.") and name != _STATELESS}
    # The network is checked first, because its parameter names point to a wrong setting better than the optimiser's indices.
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
    network.load_state_dict({name: divide_like(own[name], t) for name, t in network.state_dict().items()})
    parameters = _parameters(optimiser)
    state = {
        place: {name: divide_like(t, parameters[place]) for name, t in entries.items()}
        for place, entries in state.items()
    }
    # The parameter groups contain settings, which come from the run and not from the checkpoint.
    optimiser.load_state_dict({"state": state, "param_groups": optimiser.state_dict()["param_groups"]})
    # Files do not store memory layouts, but fused optimisers require the parameter's layout (such as channels_last).
    for parameter, entries in optimiser.state.items():
        for name, value in entries.items():
            if value.shape == parameter.shape and value.stride() != parameter.stride():
                entries[name] = torch.empty_like(parameter, dtype=value.dtype).copy_(value)


def _optimiser_tensors(optimiser: Optimizer, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return meta tensors with the names and shapes of the optimiser tensors that a checkpoint must contain."""
    stateless = _stateless(optimiser, tensors)
    return {
        f"optimiser.{position}.{name}": torch.empty(() if name == "step" else parameter.shape, device="meta")
        for position, parameter in _parameters(optimiser).items()
        if position not in stateless
        for name in _KEPT[type(optimiser).__name__]
    }


def _stateless(optimiser: Optimizer, tensors: Mapping[str, Tensor]) -> set[int]:
    """Return the positions of the parameters that have no optimiser state in a checkpoint."""
    if _STATELESS in tensors:
        return set(tensors[_STATELESS].flatten().tolist())
    # Version 0.1.0 wrote no such list. Only an fp16 run may have no state at all, because all of its first steps may be skipped.
    held = {name.split(".")[1] for name in tensors if name.startswith("optimiser.")}
    if not held and "scaler.scale" not in tensors:
        return set()
    return {position for position in _parameters(optimiser) if str(position) not in held}


def _parameters(optimiser: Optimizer) -> dict[int, Tensor]:
    """Return the parameters keyed by their indices in the optimiser's `state_dict`."""
    return dict(enumerate(parameter for group in optimiser.param_groups for parameter in group["params"]))
