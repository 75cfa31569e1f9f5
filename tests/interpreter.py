"""Run a script under Triton's interpreter, with tiles and blocks so small that a few rows already have several of each."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile

SETUP = """
import json, sys
import torch
from torch import Tensor
from contrapose.losses import align_uniform, cacr, clip, dcl, hard_negative, nt_xent, siglip, sogclr
from contrapose.pairs import bank, cross, hardest, queue, two_views, views
from contrapose.reduce import choose, path
from contrapose.reduce.hardest import thresholds
from contrapose.reduce.tiled import engine, launch, sigmoid, soft
from contrapose.temperature import cosine

torch.set_num_threads(1)
choose.MAX_FUSED_WIDTH = 0  # tiles at any width
engine.BLOCK = engine._FORWARD_BLOCK = sigmoid.BLOCK = soft.BLOCK = soft._FORWARD_BLOCK = 32
for precision in launch.TILES:
    launch.TILES[precision] = launch.GUIDED_TILES[precision] = (16, 16, 16, 4, 2)
sigmoid._TILE = (16, 16, 16, 4, 2)


def errors(make, loss, raw, precision):
    results = []
    for dtype, which in ((torch.float64, "dense"), (torch.float32, "dense"), (torch.float32, "fused")):
        leaves = [x.to(dtype, copy=True).requires_grad_() for x in raw]
        learned = torch.tensor([0.2, -2.0], dtype=dtype, requires_grad=True)  # temperature and bias
        with path(which, precision=precision if which == "fused" else None):
            value = loss(make(*leaves), learned)
            value.backward()
        gradients = [x.grad.double().flatten() for x in (*leaves, learned) if x.grad is not None]
        results.append((float(value.detach()), torch.cat(gradients)))
    (true, gradient), *others = results
    scale = float(gradient.norm()) + 1e-9
    return [abs(v - true) / max(1.0, abs(true)) + float((g - gradient).norm()) / scale for v, g in others]
"""


def run(script: str, *arguments: str) -> str:
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONWARNINGS": "ignore"}
    with tempfile.NamedTemporaryFile("w", suffix=".py") as file:  # Triton reads the source of kernels from their file
        file.write(script)
        file.flush()
        return subprocess.check_output([sys.executable, file.name, *arguments], text=True, env=environment)
