"""The losses of the first steps are unchanged: a refactor must not alter any number."""

from __future__ import annotations

import importlib.util
import json
from itertools import product
from pathlib import Path

import pytest

_spec = importlib.util.spec_from_file_location("golden", Path(__file__).with_name("golden.py"))
assert _spec is not None
golden = importlib.util.module_from_spec(_spec)
assert _spec.loader is not None
_spec.loader.exec_module(golden)


# Each loss once, in another framework: the ordinary suite. All pairs: `make test-all`.
FIRST = (("simclr", "nt_xent(temperature=0.2)"), ("moco", "dystress"), ("memory-bank", "cacr"))


@pytest.mark.parametrize(
    ("framework", "loss"),
    [
        pytest.param(*pair, marks=() if pair in FIRST else pytest.mark.thorough)
        for pair in product(golden.FRAMEWORKS, golden.LOSSES)
    ],
)
def test_twenty_steps(framework: str, loss: str) -> None:
    expected = json.loads(golden.PATH.read_text())[f"{framework} {loss}"]
    for step, loss_now, loss_then in zip(golden.STEPS, golden.losses(framework, loss), expected, strict=True):
        # Rounding differences between processors grow with the number of steps.
        assert loss_now == pytest.approx(loss_then, rel=1e-6 * step)
