"""Time soft targets, filters of false negatives, prefixes and the temperature-free loss beside NT-Xent and CLIP.

    python benchmarks/soft.py > benchmarks/soft-h200.jsonl

Prints JSON lines. Each line is one loss at one size: forward and backward pass in eager mode, bf16 embeddings and guides,
median of interleaved repetitions, its ratio to a reference of the same run, and peak memory without embeddings and guide. The
dense form stores the matrices, and is measured up to 16,384 samples.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial

import torch
from fused import write_record
from loss_timing import matmul_rate, median_times, step_memory
from torch import Tensor
from torch.nn.functional import cross_entropy, normalize

from contrapose.losses import clip, nested, nt_xent, soft_nt_xent
from contrapose.pairs import cross, guide_targets, guided, self_guided, two_views
from contrapose.reduce import path
from contrapose.temperature import arctanh

LossOf = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]  # two towers, and a guide's two towers
both = partial(cross, symmetric=True)
soft = partial(soft_nt_xent, temperature=0.07)
plain = partial(nt_xent, temperature=0.1)
PREFIXES = (12, 6, 3, 1)  # the width divided by these: 64, 128, 256 and 768 of 768


def dense_soft(a: Tensor, b: Tensor, g: Tensor, h: Tensor) -> Tensor:
    """Return both directions of a softmax with a guide's soft targets, from whole matrices under autocast."""
    a, b, g, h = (normalize(x, dim=1) for x in (a, b, g, h))
    with torch.autocast(a.device.type, torch.bfloat16):
        logits, targets = (a @ b.T).float() / 0.07, (g @ h.T).float() / 0.1
    return (cross_entropy(logits, targets.softmax(1)) + cross_entropy(logits.T, targets.T.softmax(1))) / 2


# Each loss with the one that its time is compared with
LOSSES: dict[str, tuple[str, LossOf]] = {
    "clip": ("clip", lambda a, b, g, h: clip(a, b, temperature=0.07)),
    "soft targets of clip": ("clip", lambda a, b, g, h: soft(both(a, b), targets=guide_targets(both(g, h)))),
    "soft targets of clip, dense": ("clip", dense_soft),
    "guided clip": ("clip", lambda a, b, g, h: clip(a, b, negatives=guided(both(g, h), margin=0.1))),
    "nt_xent": ("nt_xent", lambda a, b, g, h: plain(two_views(a, b))),
    "soft targets": ("nt_xent", lambda a, b, g, h: soft(two_views(a, b), targets=guide_targets(two_views(g, h)))),
    "self_guided": ("nt_xent", lambda a, b, g, h: plain(two_views(a, b), negatives=self_guided(margin=0.1))),
    "guided": ("nt_xent", lambda a, b, g, h: plain(two_views(a, b), negatives=guided(two_views(g, h), margin=0.1))),
    "arctanh": ("nt_xent", lambda a, b, g, h: nt_xent(two_views(a, b), temperature=arctanh())),
    "nested": ("nt_xent", lambda a, b, g, h: nested(plain, dims=[a.shape[1] // k for k in PREFIXES])(two_views(a, b))),
}


def make_step(compute: LossOf, towers: list[Tensor], guide: list[Tensor]) -> Callable[[], None]:
    """Return a function that runs one forward and backward pass."""

    def step() -> None:
        for tower in towers:
            tower.grad = None
        compute(*towers, *guide).backward()

    return step


def main() -> None:
    """Measure all losses at all sizes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[4096, 16384, 65536], help="samples")
    parser.add_argument("--widths", type=int, nargs="+", default=[128, 768])
    parser.add_argument("--guide-width", type=int, default=768)
    parser.add_argument("--losses", nargs="+", default=list(LOSSES), choices=list(LOSSES))
    parser.add_argument(
        "--blocks-up-to", type=int, default=16384, help="largest size at which blocks without kernels are timed"
    )
    parser.add_argument("--seconds", type=float, default=0.5, help="time for each loss")
    options = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    name = torch.cuda.get_device_name() if device == "cuda" else "cpu"
    write_record(device=name, torch=torch.__version__, matmul_tflops=round(matmul_rate(device, "bfloat16"), 1))
    for d in options.widths:
        for n in options.sizes:
            measure(n, d, options.guide_width, options.losses, device, options.seconds, options.blocks_up_to)


def measure(n: int, d: int, guide_width: int, names: list[str], device: str, seconds: float, blocks_up_to: int) -> None:
    """Print the times and the memory of some losses of n samples and width d."""
    generator = torch.Generator(device).manual_seed(0)
    towers, guide = (
        [torch.randn(n, w, device=device, generator=generator).bfloat16() for _ in range(2)] for w in (d, guide_width)
    )
    for pair in (towers, guide):
        pair[1] += 0.5 * pair[0]
    towers = [x.requires_grad_() for x in towers]
    steps = {
        name: make_step(LOSSES[name][1], towers, guide) for name in names if not name.endswith("dense") or n <= 16384
    }
    for name in ("soft targets", "self_guided", "guided"):
        if name in steps and n <= blocks_up_to:
            steps[f"{name}, in blocks"] = partial(_in_blocks, steps[name])
    times = median_times(steps, device, seconds)
    for name, milliseconds in times.items():
        reference = LOSSES[name.removesuffix(", in blocks")][0]
        ratio = milliseconds / times[reference] if reference in times else None
        write_record(
            loss=name, n=n, d=d, guide=guide_width, ms=round(milliseconds, 3), reference=reference,
            ratio=ratio and round(ratio, 3), memory_mib=round(step_memory(steps[name], device), 1),
        )  # fmt: skip


def _in_blocks(step: Callable[[], None]) -> None:
    with path("blocks"):
        step()


if __name__ == "__main__":
    main()
