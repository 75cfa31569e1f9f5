"""Memory does not grow with the number of steps: a training of any length needs that of a short one."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from conftest import Promise

# Trains in a process of its own, whose memory is that of the training alone, and prints KiB in use after every fourth step:
# what malloc has handed out. Resident memory also has the gaps between allocations, which change by MiB at random.
SCRIPT = """
import ctypes, sys, tempfile
from pathlib import Path
import torch
from contrapose.lab.training import Run, Trainer


class Allocated(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in (
        "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost")]


mallinfo2 = ctypes.CDLL(None).mallinfo2  # of glibc: in use are uordblks of its heaps and hblkhd of large blocks
mallinfo2.restype = Allocated

framework, loss, epochs, leak = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
leaked = []


def watch(progress):
    if leak:
        leaked.append(torch.ones(leak, 1024 // 4))  # KiB in each step
    if progress.step % 4 == 0:
        allocated = mallinfo2()
        print((allocated.uordblks + allocated.hblkhd) // 1024)


run = Run(limit=256, batch=8, epochs=epochs, framework=framework, loss=loss, queue=64, knn=3, knn_every=epochs, metrics=0, threads=1)
with tempfile.TemporaryDirectory() as folder:
    Trainer(run, Path(folder) / "run", watch, lambda text: None).train()
"""
STEPS_OF_AN_EPOCH, STEPS_BETWEEN = 32, 4
LIMIT = 0.1  # KiB in each step: less than one record or tensor that is kept by mistake
SHORT_LIMIT = 1.0  # of a short training, in which what is allocated once weighs more


def growth(framework: str, loss: str, steps: int, leak: int = 0) -> float:
    """Return by how many KiB the memory in use grows in each step of the second half of a training."""
    arguments = [framework, loss, str(steps // STEPS_OF_AN_EPOCH), str(leak)]
    environment = {**os.environ, "PYTHONMALLOC": "malloc"}  # so that Python's objects are counted too
    printed = subprocess.check_output([sys.executable, "-c", SCRIPT, *arguments], text=True, env=environment)
    sizes = [int(size) for size in printed.split()]
    assert len(sizes) == steps // STEPS_BETWEEN
    # Allocators settle in the first half. A third of the second half on each side: single peaks do not count.
    late = sizes[len(sizes) // 2 :]
    third = len(late) // 3
    start, end = min(late[:third]), min(late[-third:])
    return (end - start) / (2 * third * STEPS_BETWEEN)


@pytest.mark.parametrize(
    ("framework", "loss", "steps"),
    [
        pytest.param("moco", "isogclr", 320, marks=pytest.mark.slow),
        *(
            pytest.param(framework, loss, 10_016, marks=[pytest.mark.slow, pytest.mark.timeout(3600)])
            for framework, loss in (("simclr", "simclr"), ("moco", "isogclr"), ("memory-bank", "dystress"))
        ),
    ],
)
def test_memory_is_flat(framework: str, loss: str, steps: int, promise: Promise) -> None:
    promise.case(growth(framework, loss, steps))
    assert promise.worst < (SHORT_LIMIT if steps < 1000 else LIMIT)


@pytest.mark.slow
def test_a_leak_is_noticed() -> None:
    """The negative control: 64 KiB in each step are kept."""
    assert growth("simclr", "simclr", 96, leak=64) > SHORT_LIMIT
