"""NT-Xent and DySTreSS, forward + backward on a GPU: kernels, blocks, the dense form as peers write it. JSON lines.

python benchmarks/fused.py [--sizes 256 2048 8192 16384 65536 131072] [--width 128] > benchmarks/fused-h200.jsonl

Time is the median of device events after warm-up; memory is what a step allocates at most beside its inputs. Errors are those
of value and gradient against float64, on embeddings near convergence (τ = 0.07).
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable

import torch
from torch import Tensor

from contrapose.losses import nt_xent
from contrapose.pairs import two_views
from contrapose.reduce import path
from contrapose.temperature import Temperature, cosine

LOSSES: dict[str, Temperature] = {"nt_xent": 0.1, "dystress": cosine(0.07, 0.2)}
PATHS = {"fused bf16": ("fused", "bf16"), "fused tf32": ("fused", "tf32"), "chunked": ("chunked", "ieee")}


def ours(z1: Tensor, z2: Tensor, temperature: Temperature, name: str) -> Tensor:
    which, precision = PATHS[name]
    with path(which, precision=precision):
        return nt_xent(two_views(z1, z2), temperature=temperature)


def dense(z1: Tensor, z2: Tensor, temperature: Temperature, name: str) -> Tensor:
    """The whole matrix, in bf16 autocast, and a cross-entropy: what peers do."""
    z = torch.nn.functional.normalize(torch.cat([z1, z2]), dim=1)
    n = len(z1)
    with torch.autocast("cuda", torch.bfloat16, enabled="bf16" in name):
        s = (z @ z.T).float()
    tau = temperature(s) if callable(temperature) else temperature
    logits = (s / tau).fill_diagonal_(-torch.inf)
    target = torch.arange(2 * n, device=z.device).roll(n)
    return torch.nn.functional.cross_entropy(logits, target)


def timed(step: Callable[[], None], repeats: int) -> float:
    for _ in range(3):
        step()
    times = []
    for _ in range(repeats):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        step()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end))
    return float(sorted(times)[len(times) // 2])


def measure(n: int, width: int, loss: str, name: str) -> dict[str, object]:
    torch.manual_seed(0)
    live = [torch.randn(n // 2, width, device="cuda", requires_grad=True) for _ in range(2)]
    run = dense if name.startswith("dense") else ours

    def step() -> None:
        for z in live:
            z.grad = None
        run(live[0], live[1], LOSSES[loss], name).backward()

    step()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    milliseconds = timed(step, 5 if n > 20_000 else 20)
    peak = (torch.cuda.max_memory_allocated() - before) / 2**20
    flops = 6 * n * n * width / milliseconds / 1e9
    return {"loss": loss, "path": name, "n": n, "d": width, "ms": round(milliseconds, 3), "peak_mib": round(peak, 1),
            "tflops": round(flops, 1)}  # fmt: skip


def errors(loss: str, name: str, n: int = 2048, width: int = 128) -> dict[str, object]:
    torch.manual_seed(0)
    base = torch.randn(n // 2, width, device="cuda")
    raw = [(base + 0.3 * torch.randn_like(base)).bfloat16() for _ in range(2)]
    temperature: Temperature = 0.07 if loss == "nt_xent" else LOSSES[loss]
    found = []
    for dtype, run in ((torch.float64, dense), (torch.float32, dense if name.startswith("dense") else ours)):
        live = [z.to(dtype).requires_grad_() for z in raw]
        value = run(live[0], live[1], temperature, "dense" if dtype == torch.float64 else name)
        value.backward()
        gradient = torch.cat([z.grad for z in live if z.grad is not None]).double()
        found.append((float(value.detach()), gradient))
    (true, gradient), (value_, ours_) = found
    relative = float((ours_ - gradient).norm() / gradient.norm())
    return {"loss": loss, "path": name, "n": n, "value_error": abs(value_ - true), "gradient_error": relative}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=[256, 2048, 8192, 16384, 65536, 131072])
    parser.add_argument("--width", type=int, default=128)
    given = parser.parse_args()
    product = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)

    def multiply() -> None:
        torch.mm(product, product)

    rate = 2 * 8192**3 / timed(multiply, 10) / 1e9
    device = torch.cuda.get_device_name()
    print(json.dumps({"device": device, "torch": torch.__version__, "matmul_bf16_tflops": round(rate, 1)}), flush=True)
    for which in LOSSES:
        for kind in (*PATHS, "dense bf16", "dense"):
            print(json.dumps(errors(which, kind)), flush=True)
    for size in given.sizes:
        for which in LOSSES:
            for kind in (*PATHS, "dense bf16"):
                too_large = (kind.startswith("dense") and size > 40_000) or (kind == "chunked" and size > 70_000)
                if not too_large:
                    print(json.dumps(measure(size, given.width, which, kind)), flush=True)
