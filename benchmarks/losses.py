"""Compare losses with lightly and pytorch-metric-learning on the CPU: time and peak memory of forward and backward pass.

    make benchmark                                    # everything, about ten minutes on two cores
    python benchmarks/losses.py --images 128 512      # some sizes
    python benchmarks/losses.py --losses nt_xent      # some losses

Time is the median of interleaved repetitions in one process. Peak memory is the growth of the resident set during one step,
with each loss in its own process. Ratios are peer / ours: above 1, ours is faster or smaller.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor

WIDTH = 128
Criterion = Callable[[Tensor, Tensor], Tensor]
OURS, LIGHTLY, METRIC = "contrapose", "lightly", "pytorch-metric-learning"


def criteria(loss: str) -> dict[str, Callable[[], Criterion]]:
    """Return a constructor of the loss for each library.

    The constructors import the libraries, so that a process that measures one library holds no other in memory.
    """

    def ours(**settings: Any) -> Callable[[], Criterion]:
        def make() -> Criterion:
            from contrapose import losses

            return losses.Loss(getattr(losses, loss), **settings)

        return make

    def lightly(name: str, **settings: float) -> Callable[[], Criterion]:
        def make() -> Criterion:
            import lightly.loss
            from lightly.loss import hypersphere_loss

            criterion: Criterion = (getattr(lightly.loss, name, None) or getattr(hypersphere_loss, name))(**settings)
            return criterion

        return make

    def metric_learning() -> Criterion:
        from pytorch_metric_learning.losses import NTXentLoss, SelfSupervisedLoss

        criterion: Criterion = SelfSupervisedLoss(NTXentLoss(temperature=0.5))
        return criterion

    return {
        "nt_xent": {
            OURS: ours(temperature=0.5),
            LIGHTLY: lightly("NTXentLoss", temperature=0.5),
            METRIC: metric_learning,
        },
        "dcl": {OURS: ours(temperature=0.1), LIGHTLY: lightly("DCLLoss", temperature=0.1)},
        "dclw": {OURS: ours(temperature=0.1), LIGHTLY: lightly("DCLWLoss", temperature=0.1)},
        "macl": {OURS: ours(temperature=0.1), LIGHTLY: lightly("MACLLoss", temperature=0.1)},
        "align_uniform": {OURS: ours(), LIGHTLY: lightly("HypersphereLoss", t=2.0)},
    }[loss]


LOSSES = ("nt_xent", "dcl", "dclw", "macl", "align_uniform")


def views(m: int) -> tuple[Tensor, Tensor]:
    """Return embeddings of two views of m images, each (m, WIDTH)."""
    generator = torch.Generator().manual_seed(m)
    z1 = torch.randn(m, WIDTH, generator=generator)
    z2 = z1 + 0.5 * torch.randn(m, WIDTH, generator=generator)
    return z1.requires_grad_(), z2.requires_grad_()


def step(criterion: Criterion, z1: Tensor, z2: Tensor) -> float:
    """Run forward and backward pass and return the loss."""
    z1.grad = z2.grad = None
    loss = criterion(z1, z2)
    loss.backward()
    return float(loss.detach())


def affordable(library: str, m: int) -> bool:
    """Whether the library can run at this size on an ordinary machine."""
    return library != METRIC or m <= 256  # this library keeps an n × n × n tensor: 34 GB at m = 1024


def time_all(loss: str, m: int, seconds: float) -> dict[str, dict[str, float]]:
    """Return median time and loss value for each library; the libraries take turns, so that drift affects all of them."""
    built = {name: make() for name, make in criteria(loss).items() if affordable(name, m)}
    z1, z2 = views(m)
    values = {name: step(criterion, z1, z2) for name, criterion in built.items()}
    times: dict[str, list[float]] = {name: [] for name in built}
    stop = time.perf_counter() + seconds
    while len(times[OURS]) < 5 or time.perf_counter() < stop:
        for name, criterion in built.items():
            if name == METRIC and len(times[name]) >= 3:  # seconds per step at m = 256
                continue
            start = time.perf_counter()
            step(criterion, z1, z2)
            times[name].append(time.perf_counter() - start)
        if len(times[OURS]) >= 200:
            break
    return {name: {"ms": 1e3 * median(times[name]), "value": values[name]} for name in built}


def peak_memory(loss: str, library: str, m: int) -> float:
    """Return the growth of the resident set during one step, in MiB; to be called in a fresh process."""
    criterion = criteria(loss)[library]()
    step(criterion, *views(64))  # one-time allocations of torch and the library do not count
    z1, z2 = views(m)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    step(criterion, z1, z2)
    return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024


def in_child(*arguments: str) -> dict[str, dict[str, float]]:
    """Run this script in a fresh process and return the JSON of its last line."""
    # malloc returns freed memory to the system at once, so that the resident set follows the memory in use.
    environment = {**os.environ, "MALLOC_TRIM_THRESHOLD_": "0", "PYTHONWARNINGS": "ignore"}
    completed = subprocess.run(
        [sys.executable, __file__, *arguments], env=environment, check=True, stdout=subprocess.PIPE, text=True
    )
    figures: dict[str, dict[str, float]] = json.loads(completed.stdout.splitlines()[-1])
    return figures


def machine() -> dict[str, str]:
    from importlib.metadata import version

    return {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, {torch.get_num_threads()} threads",
        "python": platform.python_version(),
        **{name: version(name) for name in ("torch", "lightly", "pytorch-metric-learning", "contrapose")},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, nargs="+", default=[128, 256, 512, 1024, 2048, 4096])
    parser.add_argument("--losses", nargs="+", default=list(LOSSES), choices=LOSSES)
    parser.add_argument("--seconds", type=float, default=2.0, help="minimum duration of one comparison")
    parser.add_argument("--out", type=Path, help="also write the figures to this JSON file")
    parser.add_argument("--child", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        kind, loss, m, *rest = options.child
        if kind == "time":
            print(json.dumps(time_all(loss, int(m), float(rest[0]))))
        else:
            print(json.dumps({rest[0]: {"MiB": peak_memory(loss, rest[0], int(m))}}))
        return
    rows = []
    header = f"{'loss':14}{'m':>6}  {'library':24}{'ms':>10}{'peer/ours':>11}{'MiB':>10}{'peer/ours':>11}  value"
    print(header, flush=True)
    for loss in options.losses:
        for m in options.images:
            measured = in_child("--child", "time", loss, str(m), str(options.seconds))
            for name in measured:
                measured[name] |= in_child("--child", "memory", loss, str(m), name)[name]
            for name, figures in measured.items():
                slower, larger = (figures[key] / max(measured[OURS][key], 1e-9) for key in ("ms", "MiB"))
                ratios = ("", "") if name == OURS else (f"{slower:.2f}", f"{larger:.2f}")
                columns = f"{figures['ms']:10.2f}{ratios[0]:>11}{figures['MiB']:10.1f}{ratios[1]:>11}"
                print(f"{loss:14}{m:6}  {name:24}{columns}  {figures['value']:.5f}", flush=True)
                rows.append({"loss": loss, "images": m, "library": name, **figures})
    if options.out:
        options.out.write_text(json.dumps({"machine": machine(), "width": WIDTH, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
