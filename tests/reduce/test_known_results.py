"""Statistics whose results are known have the gradients of statistics that are computed again, without a forward pass."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
import torch
from interpreter import SETUP, run

from contrapose.pairs import cross, two_views
from contrapose.reduce import Count, Expectation, KnownResults, LogSumExp, Maximum, Scale, autograd, cpu, path
from contrapose.reduce.blocks import BLOCKS


@pytest.mark.parametrize("make", [two_views, cross])
@pytest.mark.parametrize(("name", "engine"), [("blocks", BLOCKS), ("cpu", cpu.CPU)])
@pytest.mark.parametrize("samples", [12, 700])
def test_known_results_are_used(
    make: Any, name: str, engine: Any, samples: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def forward(*arguments: Any) -> Any:
        calls.append(arguments)
        return engine.forward(*arguments)

    counted = replace(engine, forward=forward)
    monkeypatch.setattr(autograd, "BLOCKS", counted)
    monkeypatch.setattr(cpu, "CPU", counted)
    torch.manual_seed(0)
    raw = torch.randn(2, samples, 8)
    scale = torch.tensor(5.0, requires_grad=name == "blocks")
    statistics: list[Any] = [LogSumExp(Scale(5.0))]
    if name == "blocks":
        statistics = [LogSumExp(Scale(scale)), Expectation(Scale(3.0)), Maximum(), Count()]
    known, gradients = KnownResults(), []
    with path(name), torch.no_grad(), known.keep():
        expected = make(*raw).reduce(*statistics)
    for uses in (False, True):
        leaves = raw.clone().requires_grad_()
        before = len(calls)
        with path(name), known.use() if uses else KnownResults().keep():
            values = make(*leaves).reduce(*statistics)
        assert len(calls) == before + (not uses)
        torch.testing.assert_close(values, expected, rtol=0, atol=0)
        loss = sum((value * torch.linspace(1, 2, len(value))).sum() for value in values)
        inputs = [leaves, scale] if scale.requires_grad else [leaves]
        gradients.append(torch.autograd.grad(loss, inputs))
    torch.testing.assert_close(*gradients, rtol=0, atol=0)


KERNELS = (
    SETUP
    + """
from contrapose.reduce import Expectation, KnownResults, LogSumExp, Scale, autograd
from contrapose.reduce.tiled.engine import TILED

precision, = json.loads(sys.argv[1])
torch.manual_seed(0)
raw, scale = torch.randn(2, 11, 40), torch.linspace(2, 5, 22, requires_grad=True)
found = {}
for name, statistics in {
    "log-sum-exp": [LogSumExp(Scale(5.0))],
    "expectation": [LogSumExp(Scale(5.0)), Expectation(Scale(5.0))],
    "learned": [LogSumExp(Scale(scale))],
}.items():
    known, gradients = KnownResults(), []
    for uses in (None, False, True):
        leaves = raw.clone().requires_grad_(uses is not None)
        context = known.keep() if uses is None else known.use() if uses else KnownResults().keep()
        with path("tiled", precision=precision), torch.set_grad_enabled(uses is not None), context:
            values = two_views(*leaves).reduce(*statistics)
        if uses is not None:
            inputs = [leaves, scale] if name == "learned" else [leaves]
            gradients.append(torch.autograd.grad(sum(value.square().sum() for value in values), inputs))
    found[name] = [len(known.calls), known.used, all(torch.equal(a, b) for a, b in zip(*gradients))]
print(json.dumps(found))
"""
)


@pytest.mark.thorough
def test_known_results_are_used_by_kernels() -> None:
    found = json.loads(run(KERNELS, '["tf32x3"]'))
    assert found == {"log-sum-exp": [1, 1, True], "expectation": [1, 1, True], "learned": [1, 1, True]}
