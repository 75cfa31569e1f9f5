"""The losses of the first steps are unchanged: a refactor must not alter any number."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

_spec = importlib.util.spec_from_file_location("golden", Path(__file__).with_name("golden.py"))
assert _spec is not None
golden = importlib.util.module_from_spec(_spec)
assert _spec.loader is not None
_spec.loader.exec_module(golden)


RECORDED = json.loads(golden.PATH.read_text())
# One framework: the ordinary suite. All of them: `make test-all`.
FIRST = ("simclr nt_xent(temperature=0.2)",)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in FIRST else pytest.mark.thorough) for name in RECORDED]
)
def test_twenty_steps(name: str) -> None:
    losses = golden.losses(*name.split(" ", 1))
    for step, loss_now, loss_then in zip(golden.STEPS, losses, RECORDED[name], strict=True):
        # Rounding differences between processors grow with the number of steps.
        assert loss_now == pytest.approx(loss_then, rel=1e-6 * step)
