"""Every loss of the catalogue can be timed, and a loss that is too slow or too large has a reason in place of figures."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import costs
import pytest
import torch

from contrapose.losses import CATALOGUE

measure = partial(costs.measure, d=8, dtype="float32", device="cpu", seconds=0.0)


@pytest.mark.parametrize("name", [*CATALOGUE, *costs.OTHERS])
def test_every_loss_is_timed(name: str) -> None:
    (row,) = measure([name], [32], longest=10.0)
    assert row["ms"] > 0
    assert "note" not in row
    assert ("prototypes" in row) == (name in costs.PROTOTYPES)


def test_forms_are_the_losses_that_their_names_say() -> None:
    assert costs.objective_of(costs.NESTED, 64).func.__name__ == "nested(nt_xent, dims=(8, 16, 32, 64))"
    (guided,) = (name for name in costs.OTHERS if "self_guided" in name)
    assert costs.objective_of(guided, 8).keywords["temperature"] == CATALOGUE["simclr"]().keywords["temperature"]


def test_a_slow_loss_is_not_run_at_a_larger_size() -> None:
    small, large = measure(["simclr"], [64, 16], longest=1e-9)
    assert (small["n"], large["n"]) == (16, 64)
    assert large["note"].startswith("not run: a step takes")


@pytest.mark.parametrize(
    ("error", "note"),
    [
        (torch.OutOfMemoryError("too large"), "does not fit into memory"),
        (RuntimeError("CUSOLVER_STATUS\nmore"), "failed: CUSOLVER_STATUS"),
    ],
)
def test_a_failure_leaves_a_note_and_the_next_loss_is_measured(
    error: Exception, note: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_step = costs.make_step

    def fail(name: str, n: int, **settings: Any) -> Callable[[], None]:
        if name == "dcl":
            raise error
        return make_step(name, n, **settings)

    monkeypatch.setattr(costs, "make_step", fail)
    failed, measured = measure(["dcl", "simclr"], [16], longest=10.0)
    assert failed["note"] == note
    assert measured["ms"] > 0
