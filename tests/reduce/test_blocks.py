"""Reduced a few rows at a time or all at once: the same numbers, and no stored matrix."""

from __future__ import annotations

import resource
import subprocess
import sys

import pytest
import torch
from cases import Case, combinations, named
from kinds import Kind

from contrapose.reduce import memory


@pytest.mark.parametrize("pair", combinations(), ids=named)
def test_blocks_change_nothing(pair: tuple[Case, Kind]) -> None:
    case, kind = pair
    raw = kind.draw(m=5, d=3)

    def run(block: int, kept: int) -> list[torch.Tensor]:
        leaves = {name: value.clone().requires_grad_() for name, value in raw.items()}
        with memory(block=block, kept=kept):
            loss = case.loss(kind.make(leaves), reduction="mean")
            loss.backward()
        return [loss.detach(), *(leaf.grad for leaf in leaves.values() if leaf.grad is not None)]

    wanted = run(10**9, 10**9)
    for limits in ((20, 0), (20, 10**9)):
        for ours, whole in zip(run(*limits), wanted, strict=True):
            torch.testing.assert_close(ours, whole, rtol=1e-12, atol=1e-14)


MEASURE = """
import resource, sys, torch
from contrapose.losses import nt_xent
from contrapose.pairs import two_views
def step(m):
    z = torch.randn(m, 64, requires_grad=True)
    nt_xent(two_views(z, z.detach() + 0.1), temperature=0.2).backward()
step(64)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
step(int(sys.argv[1]))
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""


def test_memory_does_not_grow_with_the_square() -> None:
    """16,384 anchors: the matrix alone is 1 GiB in float32."""
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss > 0
    said = subprocess.check_output([sys.executable, "-c", MEASURE, "8192"], text=True)
    assert int(said) < 300
