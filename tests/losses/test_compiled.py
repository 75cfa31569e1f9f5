"""Losses in a user's code that torch.compile compiles: equal values, gradients and states."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from travelling import embeddings

from contrapose import losses
from contrapose.losses import CATALOGUE, Loss
from contrapose.losses.objective import with_state


def criterion_of(name: str) -> Loss:
    method = CATALOGUE[name]
    objective, state = with_state(method(), samples=20)
    return Loss(objective, state=state if method.state is None else method.state(20)).double()


def two_steps(criterion: Loss, *, compiles: bool) -> dict[str, Tensor]:
    """Return what two steps give: the state of the first one counts in the second one."""
    results: dict[str, Tensor] = {}
    has_target = criterion.traits.needs_target or criterion.objective is losses.dino

    batch = embeddings(target=has_target)
    # In float64: whitening by a nearly singular covariance magnifies what compiled code rounds in another way.
    in_float64: dict[str, Any] = {
        name: x.double() for name, x in vars(batch).items() if isinstance(x, Tensor) and x.is_floating_point()
    }
    batch = replace(batch, **in_float64)

    def step(z: Tensor, scale: Tensor) -> Tensor:
        value: Tensor = criterion(replace(batch, z=z * scale))
        return value.mean()

    torch.compiler.reset()
    compiled = torch.compile(step) if compiles else step
    for number, factor in enumerate((1.0, 1.5)):
        z = batch.z.detach().clone().requires_grad_()
        value = compiled(z, torch.tensor(factor, dtype=torch.float64))
        value.backward()
        assert z.grad is not None
        results |= {f"value {number}": value.detach(), f"gradient {number}": z.grad}
        results |= {
            f"{name} {number}": one.grad.clone() for name, one in criterion.named_parameters() if one.grad is not None
        }
    return results | {f"state {name}": value.clone() for name, value in criterion.state_dict().items()}


# `test_blocks` compiles six losses faster; the compiler for this machine takes minutes for all of them.
@pytest.mark.slow
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("name", sorted(CATALOGUE))
def test_a_compiled_method_is_the_same(name: str) -> None:
    criterion = criterion_of(name)
    expected = two_steps(copy.deepcopy(criterion), compiles=False)
    torch.testing.assert_close(two_steps(criterion, compiles=True), expected, rtol=1e-9, atol=1e-11)
