"""Time one GPU's part of CLIP's loss in a ring, with made neighbours, against the limit of its matrix products.

    python benchmarks/ring_kernels.py --processes 8 --rows 131072 --width 768

`--rows` are images, and captions, of one process. Blocks of candidates are random and arrive at once, so only kernels are timed:
on several GPUs the exchange of the next block overlaps with them. The limit is four products of every block, at the rate of a
large product in bf16: similarities, the same again in the backward pass, and the gradients of both sides. Prints a JSON line.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import Any
from unittest.mock import patch

import torch
from fused import write_record
from loss_timing import matmul_rate, median_times, step_memory
from torch import Tensor

from contrapose import around_ring, cross, nt_xent

RING, REDUCTION = "contrapose.pairs.ring", "contrapose.pairs.ring_reduction"


class Neighbours:
    """Stands in for the other processes: sends nothing, and has received random blocks."""

    def __init__(self, processes: int, rows: int, width: int, device: str) -> None:
        self.processes = processes
        z = torch.randn(2, 2 * rows, width, device=device).bfloat16().float()
        self.blocks = list(torch.nn.functional.normalize(z, dim=2))
        self.passed = 0

    def pass_on(self, tensors: Sequence[Tensor], group: Any = None) -> Callable[[], list[Tensor]]:
        """Return a function that returns a block of the same shape for the first tensor, and the others themselves."""
        self.passed += 1
        first, *others = tensors
        block = self.blocks[self.passed % 2]
        received = [block if first.shape == block.shape else first, *others]
        return lambda: received

    def gather(self, x: Tensor, dim: int = 0, *, group: Any = None) -> Tensor:
        """Return the tensor as if every process had the same."""
        return torch.cat([x] * self.processes, dim)

    def patches(self) -> list[Any]:
        """Return what replaces the exchanges of a ring."""
        size: Callable[..., int] = lambda group=None: self.processes  # noqa: E731
        return [
            patch(f"{RING}.world_size", size),
            patch(f"{REDUCTION}.world_size", size),
            patch(f"{RING}.dist.get_rank", lambda group=None: 0),
            patch(f"{RING}.check_equal_calls", lambda *arguments: None),
            patch(f"{RING}.gather", self.gather),
            patch(f"{REDUCTION}.pass_on", self.pass_on),
        ]


def main() -> None:
    """Measure one step."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--rows", type=int, default=131072)
    parser.add_argument("--width", type=int, default=768)
    options = parser.parse_args()
    processes, rows, width = options.processes, options.rows, options.width
    device = "cuda" if torch.cuda.is_available() else "cpu"
    images, captions = (torch.randn(rows, width, device=device).bfloat16().requires_grad_() for _ in range(2))

    def step() -> None:
        images.grad = captions.grad = None
        pairs = around_ring(cross(images, captions, symmetric=True))
        nt_xent(pairs, temperature=0.07).backward()

    rate = matmul_rate(device, "bfloat16")
    products = 4 * 2 * processes * 2 * rows**2 * width  # four products of both directions of every block
    replaced = Neighbours(processes, rows, width, device).patches()
    for one in replaced:
        one.start()
    milliseconds = median_times({"ring": step}, device, 0.0, least=2)["ring"]
    memory = step_memory(step, device)
    for one in replaced:
        one.stop()
    limit = products / rate / 1e9
    write_record(
        device=torch.cuda.get_device_name() if device == "cuda" else "cpu", torch=torch.__version__, processes=processes,
        rows=rows, width=width, ms=round(milliseconds, 1), matmul_tflops=round(rate, 1), limit_ms=round(limit, 1),
        ratio=round(milliseconds / limit, 3), memory_mib=round(memory),
    )  # fmt: skip


if __name__ == "__main__":
    main()
