"""Memory does not grow with the number of steps: a training of any length needs that of a short one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import captioned
import pytest
import streaming
from conftest import Promise
from framework_cases import FRAMEWORK_CASES

from contrapose.lab.modalities.text.settings import TEXT_SETTINGS

# Trains in a process of its own, whose memory is that of the training alone, and prints KiB in use after every fourth step:
# what malloc has handed out. Resident memory also has the gaps between allocations, which change by MiB at random.
SCRIPT = """
import ctypes, gc, json, sys, tempfile
from pathlib import Path
import torch
from contrapose.lab.training import Run, Trainer


class Allocated(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in (
        "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost")]


mallinfo2 = ctypes.CDLL(None).mallinfo2  # of glibc: in use are uordblks of its heaps and hblkhd of large blocks
mallinfo2.restype = Allocated

settings, leak = json.loads(sys.argv[1]), int(sys.argv[2])
leaked = []


def watch(progress):
    if leak:
        leaked.append(torch.ones(leak, 1024 // 4))  # KiB in each step
    if progress.step % 128 == 0:
        gc.collect()  # each checkpoint leaves a few KiB in cycles, of which Python collects 4 MiB at a time
    if progress.step % 4 == 0:
        allocated = mallinfo2()
        print((allocated.uordblks + allocated.hblkhd) // 1024)


run = Run(**settings)
with tempfile.TemporaryDirectory() as folder:
    Trainer(run, Path(folder) / "run", watch, lambda text: None).train()
"""
STEPS_OF_AN_EPOCH, STEPS_BETWEEN = 32, 4
SMALL = {"limit": 256, "batch": 8, "knn": 3, "metrics": 0, "threads": 1}
LIMIT = 0.1  # KiB in each step: less than one record or tensor that is kept by mistake
SHORT_LIMIT = 1.0  # of a short training, in which what is allocated once weighs more
SHORT, LONG = 2_048, 10_016


def growth(settings: dict[str, Any], leak: int = 0) -> float:
    """Return by how many KiB the memory in use grows in each step of the second half of a training."""
    environment = {**os.environ, "PYTHONMALLOC": "malloc"}  # so that Python's objects are counted too
    command = [sys.executable, "-c", SCRIPT, json.dumps(settings), str(leak)]
    sizes = [int(size) for size in subprocess.check_output(command, text=True, env=environment).split()]
    # Allocators settle in the first half. The least of each third of the second half: single peaks do not count.
    late = sizes[len(sizes) // 2 :]
    third = len(late) // 3
    first, second, last = (min(late[i * third : (i + 1) * third]) for i in range(3))
    # A leak grows from each third to the next; what is allocated once, such as another thread's heap, does not.
    return min(second - first, last - second) / (third * STEPS_BETWEEN)


def digits(steps: int, **settings: Any) -> dict[str, Any]:
    """Return settings of a run of this many steps."""
    epochs = steps // STEPS_OF_AN_EPOCH
    return SMALL | {"epochs": epochs, "knn_every": epochs} | settings


@pytest.mark.slow
@pytest.mark.parametrize("framework", sorted(set(FRAMEWORK_CASES) - {"simcse"}))
def test_memory_is_flat(framework: str, promise: Promise) -> None:
    promise.case(growth(digits(SHORT, **FRAMEWORK_CASES[framework])))
    assert promise.worst < SHORT_LIMIT


def sentences(folder: Path) -> dict[str, Any]:
    (folder / "a.txt").write_text("".join(f"number {i} of {i % 7} sentences\n" for i in range(256)))
    settings = dict(TEXT_SETTINGS) | {"encoder": "tiny", "views": "dropout", "batch": 8}
    return {"data": str(folder / "a.txt"), **settings, "epochs": 80, "metrics": 0, "threads": 1}


def captions(folder: Path) -> dict[str, Any]:
    return vars(captioned.run_of(captioned.write_folder(folder), epochs=SHORT // 4, knn_every=SHORT // 4, metrics=0))


def streamed_images(folder: Path) -> dict[str, Any]:
    return vars(replace(streaming.streamed_run(streaming.write_folder(folder)), batch=8, epochs=400, knn_every=400))


@pytest.mark.slow
@pytest.mark.parametrize("settings_of", [sentences, captions, streamed_images])
def test_memory_is_flat_for_other_data(
    settings_of: Callable[[Path], dict[str, Any]], tmp_path: Path, promise: Promise
) -> None:
    promise.case(growth(settings_of(tmp_path)))
    assert promise.worst < SHORT_LIMIT


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    ("framework", "loss"), [("simclr", "simclr"), ("moco", "isogclr"), ("memory-bank", "dystress")]
)
def test_memory_is_flat_in_a_long_run(framework: str, loss: str, promise: Promise) -> None:
    promise.case(growth(digits(LONG, framework=framework, loss=loss, queue=64)))
    assert promise.worst < LIMIT


@pytest.mark.slow
def test_a_leak_is_noticed() -> None:
    """The negative control: 64 KiB in each step are kept."""
    assert growth(digits(96), leak=64) > SHORT_LIMIT
