"""What docs/moving.toml calls the same has the same value and gradients, beside the real packages."""

from __future__ import annotations

import tomllib
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import contrapose

LIBRARIES: list[dict[str, Any]] = tomllib.loads((Path(__file__).parents[1] / "docs/moving.toml").read_text())["library"]
ROWS = [(library["setup"], theirs, ours) for library in LIBRARIES for theirs, ours in library["rows"]]


def with_gradients(code: str, names: dict[str, Any]) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    z1, z2 = (torch.randn(12, 8, generator=generator, dtype=torch.float64).requires_grad_() for _ in range(2))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the other libraries
        loss = eval(code, names | {"z1": z1, "z2": z2})
    return [loss.detach(), *torch.autograd.grad(loss, [z1, z2], materialize_grads=True)]


@pytest.mark.parametrize(
    ("setup", "theirs", "ours"), ROWS, ids=[row[1].split("(")[0] + f" {i}" for i, row in enumerate(ROWS)]
)
def test_both_sides_are_equal(setup: str, theirs: str, ours: str) -> None:
    names: dict[str, Any] = {"torch": torch, "labels": torch.arange(12) % 5, "model": torch.nn.Identity()}
    own = names | {name: getattr(contrapose, name) for name in contrapose.__all__}
    exec(setup, names)
    for value, expected in zip(with_gradients(ours, own), with_gradients(theirs, names), strict=True):
        torch.testing.assert_close(value, expected, rtol=1e-10, atol=1e-10)
