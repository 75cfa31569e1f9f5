"""Uniformity, tolerance and ten nearest: in blocks, beside the dense formula. One JSON line for each size.

python benchmarks/metrics.py [--sizes 10000 50000] [--width 512] [--repeats 3]

Each measurement is a process of its own, so that its peak of memory is its own; the peak is what the process holds at
most, less what it holds once the embeddings are there.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import time
from pathlib import Path

import torch

from contrapose import metrics


def dense(z: torch.Tensor, labels: torch.Tensor) -> tuple[float, float, list[float]]:
    """The formulas as they are written, on the whole matrix."""
    s = z @ z.T
    s.fill_diagonal_(-torch.inf)
    n = len(z)
    uniformity = float(torch.logsumexp((4 * s - 4).flatten(), 0)) - torch.tensor(n * (n - 1.0)).log().item()
    nearest = s.topk(10, dim=1).values.mean(0).tolist()
    same = labels[:, None] == labels
    same.fill_diagonal_(False)
    return uniformity, float(s[same].mean()), nearest


def blocks(z: torch.Tensor, labels: torch.Tensor) -> tuple[float, float, list[float]]:
    nearest = metrics.local_separation(z, z).nearest
    return metrics.uniformity(z), metrics.tolerance(z, labels), list(nearest)


def status(name: str) -> float:
    """Mebibytes that this process holds now (VmRSS) or held at most (VmHWM)."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name):
            return int(line.split()[1]) / 1024
    raise RuntimeError(f"{name} is not in /proc/self/status")


def one(which: str, n: int, width: int, repeats: int) -> None:
    torch.manual_seed(0)
    z = torch.nn.functional.normalize(torch.randn(n, width), dim=1)
    labels = torch.randint(0, 10, (n,))
    held, seconds = status("VmRSS"), []
    for _ in range(repeats):
        start = time.perf_counter()
        found = {"dense": dense, "blocks": blocks}[which](z, labels)
        seconds.append(time.perf_counter() - start)
    line = {"which": which, "n": n, "d": width, "seconds": round(min(seconds), 3), "repeats": repeats,
            "peak_mib": round(status("VmHWM") - held), "process_mib": round(status("VmHWM")),
            "uniformity": found[0], "tolerance": found[1], "nearest": found[2][0],
            "torch": torch.__version__, "threads": torch.get_num_threads(), "machine": platform.machine()}  # fmt: skip
    print(json.dumps(line), flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=[10_000, 50_000])
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", choices=("dense", "blocks"))
    given = parser.parse_args()
    if given.only:
        one(given.only, given.sizes[0], given.width, given.repeats)
    else:
        for size in given.sizes:
            for name in ("blocks", "dense") if size <= 20_000 else ("blocks",):
                words = ["--only", name, "--sizes", str(size), "--width", str(given.width)]
                subprocess.run([sys.executable, __file__, *words, "--repeats", str(given.repeats)], check=True)
