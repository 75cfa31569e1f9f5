"""Time the losses in two checkouts alternately, to see whether a refactoring costs speed. Prints JSON lines, then ratios.

    git worktree add ../before 8e57bb0
    python benchmarks/two_versions.py ../before/src src > benchmarks/two-versions-h200.jsonl

Each version runs in its own processes, alternately, so that a change in the clock rate or the load affects both. Times are
medians of forward and backward pass in eager mode; small sizes show the time of the host. Ratios are second / first, computed
from the smallest medians.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

LARGE = [
    ("nt_xent", 65536, 128), ("nt_xent", 65536, 768), ("dystress", 65536, 128), ("hardest", 65536, 128),
    ("clip", 16384, 768), ("siglip", 16384, 768), ("hardest", 8192, 768),
]  # fmt: skip
SMALL = [(loss, n, d) for n in (256, 4096) for d in (128, 768) for loss in ("nt_xent", "clip", "siglip")]
CPU = [(loss, n, 128) for n in (256, 1024) for loss in ("nt_xent", "dystress", "hardest", "clip", "siglip")]


def measure(device: str, seconds: float) -> None:
    """Print the median time of each case, with the contrapose that Python finds."""
    import torch
    from torch import Tensor

    from contrapose import clip, cosine, hardest, learned, learned_number, nt_xent, siglip, two_views

    tau, bias = learned(0.07, low=0.01).to(device), learned_number(-10.0).to(device)
    losses: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
        "nt_xent": lambda a, b: nt_xent(two_views(a, b), temperature=0.1),
        "dystress": lambda a, b: nt_xent(two_views(a, b), temperature=cosine(0.07, 0.2)),
        "hardest": lambda a, b: nt_xent(two_views(a, b), temperature=0.3, negatives=hardest(0.0819)),
        "clip": lambda a, b: clip(a, b, temperature=tau),
        "siglip": lambda a, b: siglip(a, b, temperature=tau, bias=bias),
    }
    for loss, n, d in CPU if device == "cpu" else LARGE + SMALL:
        torch.manual_seed(0)
        first = torch.randn(n if loss in ("clip", "siglip") else n // 2, d, device=device)
        second = first + 0.5 * torch.randn_like(first)
        dtype = torch.float32 if device == "cpu" else torch.bfloat16
        a, b = (z.to(dtype).requires_grad_() for z in (first, second))

        def step(loss: str = loss, a: Tensor = a, b: Tensor = b) -> None:
            a.grad = b.grad = None
            losses[loss](a, b).backward()
            if device == "cuda":
                torch.cuda.synchronize()

        for _ in range(5):
            step()
        times: list[float] = []
        stop = time.perf_counter() + seconds
        while time.perf_counter() < stop or len(times) < 7:
            start = time.perf_counter()
            step()
            times.append(1e3 * (time.perf_counter() - start))
        print(json.dumps({"loss": loss, "n": n, "d": d, "ms": round(statistics.median(times), 4)}), flush=True)


def main() -> None:
    """Run both versions alternately."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("versions", nargs=2, type=Path, help="two folders that hold the package contrapose")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=1.0, help="for each case and round")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        measure(options.device, options.seconds)
        return
    times: dict[tuple[str, int, int], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for _ in range(options.rounds):
        for which, folder in zip(("first", "second"), options.versions, strict=True):
            if not (folder / "contrapose").is_dir():
                raise SystemExit(f"{folder} holds no package contrapose; expected a checkout's src")
            command = [sys.executable, __file__, *map(str, options.versions), "--worker"]
            command += ["--device", options.device, "--seconds", str(options.seconds)]
            environment = {**os.environ, "PYTHONPATH": f"{folder.resolve()}:{os.environ.get('PYTHONPATH', '')}"}
            for line in subprocess.check_output(command, text=True, env=environment).splitlines():
                row = json.loads(line)
                times[row["loss"], row["n"], row["d"]][which].append(row["ms"])
                print(json.dumps({"version": which, **row}), flush=True)
    print(f"{'loss':10}{'n':>8}{'d':>6}{'first':>10}{'second':>10}{'ratio':>8}", file=sys.stderr)
    for (loss, n, d), found in times.items():
        first, second = min(found["first"]), min(found["second"])
        print(f"{loss:10}{n:8}{d:6}{first:10.3f}{second:10.3f}{second / first:8.3f}", file=sys.stderr)


if __name__ == "__main__":
    main()
