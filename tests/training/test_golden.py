"""A change that should not alter numbers must not alter these."""

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


@pytest.mark.parametrize("loss", golden.LOSSES)
@pytest.mark.parametrize("framework", golden.FRAMEWORKS)
def test_twenty_steps(framework: str, loss: str) -> None:
    wanted = json.loads(golden.PATH.read_text())[f"{framework} {loss}"]
    for step, ours, theirs in zip(golden.STEPS, golden.losses(framework, loss), wanted, strict=True):
        assert ours == pytest.approx(theirs, rel=1e-6 * step)
