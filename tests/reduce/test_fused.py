"""Kernels under Triton's interpreter equal the dense formula, gradients included. Each test is a process of its own: whether
kernels are interpreted is decided when they are made."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
import torch

from contrapose.losses import nt_xent
from contrapose.pairs import two_views
from contrapose.reduce import path

SCRIPT = """
import json, sys
import torch
from contrapose.losses import balanced, cacr, dcl, generalized_nt_xent, hard_negative, nt_xent
from contrapose.negatives import hardest
from contrapose.pairs import bank, cross, queue, two_views
from contrapose.reduce import path
from contrapose.temperature import cosine, linear

torch.set_num_threads(1)
LOSSES = {
    "nt_xent": lambda p: nt_xent(p, temperature=0.2),
    "sharp": lambda p: nt_xent(p, temperature=0.005),
    "per anchor": lambda p: nt_xent(p, temperature=torch.linspace(0.1, 0.5, p.shape[0])),
    "dcl": lambda p: dcl(p, temperature=0.1),
    "dystress": lambda p: nt_xent(p, temperature=cosine(0.07, 0.2)),
    "dystress not detached": lambda p: nt_xent(p, temperature=cosine(0.1, 0.2, detach=False)),
    "linear": lambda p: nt_xent(p, temperature=linear(0.07, 0.2)),
    "balanced": lambda p: balanced(p, alpha=4.0, weight=2.0),
    "hard_negative": lambda p: hard_negative(p, temperature=0.5),
    "cacr": cacr,
    "hardest": lambda p: nt_xent(p, temperature=0.2, negatives=hardest(0.5)),
}
KINDS = {
    "two_views": lambda a, b, c: two_views(a, b),
    "ids": lambda a, b, c: two_views(a, b, ids=torch.arange(len(a)) // 2 if len(a) > 2 else None),
    "cross": lambda a, b, c: cross(a, b),
    "queue": lambda a, b, c: queue(a, b, c, batch=True),
    "bank": lambda a, b, c: bank(a, torch.arange(len(a)), c),
}
worst = {}
for m, d in json.loads(sys.argv[1]):
    torch.manual_seed(m)
    raw = [torch.randn(m, d), torch.randn(m, d), torch.randn(2 * m + 1, d)]
    for kind, make in KINDS.items():
        for name, loss in LOSSES.items():
            found = []
            for dtype, which in ((torch.float64, "dense"), (torch.float32, "dense"), (torch.float32, "fused")):
                live = [x.to(dtype, copy=True).requires_grad_() for x in raw]
                with path(which):
                    value = loss(make(*live))
                    value.backward()
                grads = [x.grad.double() for x in live if x.grad is not None]
                found.append((float(value.detach()), torch.cat([g.flatten() for g in grads])))
            (true, gradient), plain, fused = found
            scale = float(gradient.norm()) + 1e-9
            errors = [abs(v - true) / max(1.0, abs(true)) + float((g - gradient).norm()) / scale for v, g in (plain, fused)]
            worst[f"{m} {d} {kind} {name}"] = errors
print(json.dumps(worst))
"""


@pytest.mark.parametrize(
    "sizes",
    [[(2, 3), (7, 17), (33, 128)], pytest.param([(63, 200), (65, 16), (129, 3)], marks=pytest.mark.slow)],
    ids=str,
)
def test_kernels_equal_the_dense_formula(sizes: list[tuple[int, int]]) -> None:
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONWARNINGS": "ignore"}
    out = subprocess.check_output([sys.executable, "-c", SCRIPT, json.dumps(sizes)], text=True, env=environment)
    worst: dict[str, list[float]] = json.loads(out)
    assert len(worst) == 55 * len(sizes)
    for name, (plain, fused) in worst.items():
        assert fused <= 2 * plain + 2e-6, f"{name}: {fused} against the dense path's {plain}"


def test_paths_agree_and_bad_ones_are_refused() -> None:
    z1, z2 = torch.randn(2, 40, 8, dtype=torch.float64)
    values = []
    for name in ("dense", "chunked"):
        with path(name):
            values.append(float(nt_xent(two_views(z1, z2), temperature=0.1)))
    assert values[0] == pytest.approx(values[1], rel=1e-14)
    with path("fused"):  # float64 is not for kernels
        assert float(nt_xent(two_views(z1, z2), temperature=0.1)) == pytest.approx(values[0], rel=1e-14)
    with pytest.raises(ValueError, match="path: expected dense, chunked or fused"), path("sparse"):
        pass
    with pytest.raises(ValueError, match="precision: expected ieee"), path("fused", precision="fp8"):
        pass
