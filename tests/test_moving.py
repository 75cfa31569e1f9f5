"""What docs/moving.toml calls the same has the same value and gradients, beside the real packages."""

from __future__ import annotations

import re
import tomllib
import warnings
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import torch
from test_site import BUILDER
from torch import Tensor
from torch.nn.functional import normalize

import contrapose

LIBRARIES: list[dict[str, Any]] = tomllib.loads((Path(__file__).parents[1] / "docs/moving.toml").read_text())["library"]
ROWS = [(library["setup"], theirs, ours) for library in LIBRARIES for theirs, ours in library["rows"]]


def with_gradients(code: str, names: dict[str, Any]) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    z1, z2 = (torch.randn(12, 128, generator=generator, dtype=torch.float64).requires_grad_() for _ in range(2))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the other libraries
        loss = eval(code, names | {"z1": z1, "z2": z2})
    return [loss.detach(), *torch.autograd.grad(loss, [z1, z2], materialize_grads=True)]


@pytest.mark.parametrize(
    ("setup", "theirs", "ours"), ROWS, ids=[row[1].split("(")[0] + f" {i}" for i, row in enumerate(ROWS)]
)
def test_both_sides_are_equal(setup: str, theirs: str, ours: str) -> None:
    names: dict[str, Any] = {"torch": torch, "labels": torch.arange(12) % 5, "model": torch.nn.Identity()}
    exec(setup, names)
    if "rows" in names:
        # lightly's bank is in float32, whose unit vectors have a length of 1 only up to 1e-7.
        names["rows"] = names["moco"].memory_bank.bank = normalize(names["rows"].double())
    own = names | {name: getattr(contrapose, name) for name in contrapose.__all__}
    for value, expected in zip(with_gradients(ours, own), with_gradients(theirs, names), strict=True):
        torch.testing.assert_close(value, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("library", LIBRARIES, ids=lambda library: str(library["title"]))
def test_a_version_is_the_one_that_is_tested(library: dict[str, Any]) -> None:
    assert version(library["package"]).startswith(f"{library['version']}.")


def test_the_page_imports_what_its_rows_call() -> None:
    page = BUILDER.moving_page()
    imported = re.findall(r"^from contrapose import (.+)$", page, re.M)
    called = {name for _, _, ours in ROWS for name in re.findall(r"\b(\w+)\(", ours)}
    assert set(", ".join(imported).split(", ")) == called | {"Loss"}
    assert "\n\n\n" not in page
