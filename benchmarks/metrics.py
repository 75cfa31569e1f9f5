"""Time uniformity, tolerance and the ten nearest neighbours in blocks and by the dense formula. Prints JSON lines.

    python benchmarks/metrics.py [--sizes 10000 50000] [--width 512] [--repeats 3]

Each measurement runs in its own process, so that memory peaks do not mix. The peak is the largest resident set of the process
minus its resident set after the embeddings are created.
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
    """Return the three metrics by their formulas, on the whole matrix of similarities."""
    s = z @ z.T
    s.fill_diagonal_(-torch.inf)
    n = len(z)
    uniformity = float(torch.logsumexp((4 * s - 4).flatten(), 0)) - torch.tensor(n * (n - 1.0)).log().item()
    nearest = s.topk(10, dim=1).values.mean(0).tolist()
    same = labels[:, None] == labels
    same.fill_diagonal_(False)
    return uniformity, float(s[same].mean()), nearest


def blocks(z: torch.Tensor, labels: torch.Tensor) -> tuple[float, float, list[float]]:
    """Return the same three metrics by `contrapose.metrics`, which never holds the whole matrix."""
    nearest = metrics.local_separation(z, z).nearest
    return metrics.uniformity(z), metrics.tolerance(z, labels), list(nearest)


def status(name: str) -> float:
    """Return the resident set of this process in MiB: now (VmRSS) or its peak so far (VmHWM)."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name):
            return int(line.split()[1]) / 1024
    raise RuntimeError(f"{name} is not in /proc/self/status")


def measure(which: str, n: int, width: int, repeats: int) -> None:
    """Print the record of one form at one size; the time is the best of `repeats`."""
    torch.manual_seed(0)
    z = torch.nn.functional.normalize(torch.randn(n, width), dim=1)
    labels = torch.randint(0, 10, (n,))
    baseline, seconds = status("VmRSS"), []
    for _ in range(repeats):
        start = time.perf_counter()
        values = {"dense": dense, "blocks": blocks}[which](z, labels)
        seconds.append(time.perf_counter() - start)
    record = {"which": which, "n": n, "d": width, "seconds": round(min(seconds), 3), "repeats": repeats,
              "peak_mib": round(status("VmHWM") - baseline), "process_mib": round(status("VmHWM")),
              "uniformity": values[0], "tolerance": values[1], "nearest": values[2][0],
              "torch": torch.__version__, "threads": torch.get_num_threads(), "machine": platform.machine()}  # fmt: skip
    print(json.dumps(record), flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[10_000, 50_000])
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", choices=("dense", "blocks"))
    options = parser.parse_args()
    if options.only:
        measure(options.only, options.sizes[0], options.width, options.repeats)
    else:
        for size in options.sizes:
            # The dense form holds several n × n matrices, 9.3 GiB each at 50,000.
            for name in ("blocks", "dense") if size <= 20_000 else ("blocks",):
                arguments = ["--only", name, "--sizes", str(size), "--width", str(options.width)]
                subprocess.run([sys.executable, __file__, *arguments, "--repeats", str(options.repeats)], check=True)
