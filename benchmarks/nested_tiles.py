"""Time a nested loss: one pass for all prefixes with several tiles and blocks, a pass for each prefix, and the full width.

    python benchmarks/nested_tiles.py
    python benchmarks/nested_tiles.py --objective clip --tiles 64x128x64x4x3 --blocks 4096 8192

Prints JSON lines: first the errors of both forms against float64 at a smaller size, then milliseconds of the forward pass and of
forward and backward pass in eager mode, with bf16 embeddings, medians of interleaved repetitions. A tile is rows x columns x
coordinates per step x warps x pipeline stages; a block has rows and columns of the weights of a single loss.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from unittest.mock import patch

import torch
from fused import write_record
from loss_timing import matmul_rate, median_times, step_memory
from torch import Tensor

from contrapose.losses import clip, nested, nt_xent
from contrapose.pairs import Pairs, cross, two_views
from contrapose.reduce import choose, path
from contrapose.reduce.tiled import prefixes
from contrapose.reduce.tiled.launch import BLOCK

Tile = tuple[int, int, int, int, int]
FORWARD_TILES = ["64x128x64x4x3", "128x128x64x4x3", "128x128x64x8x3"]
TILES = ["64x128x64x4x3", "128x128x64x8x3", "64x64x64x4x3"]
OBJECTIVES: dict[str, tuple[Callable[..., Tensor], Callable[..., Pairs]]] = {
    "nt_xent": (partial(nt_xent, temperature=0.1), two_views),
    "clip": (partial(clip, temperature=0.07), partial(cross, symmetric=True)),
}


def main() -> None:
    """Check, and time all combinations that differ from the default in one setting."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=65536)
    parser.add_argument("--dims", type=int, nargs="+", default=[64, 128, 256, 768], help="the last one is the width")
    parser.add_argument("--objective", choices=list(OBJECTIVES), default="nt_xent")
    parser.add_argument("--forward-tiles", nargs="*", default=FORWARD_TILES)
    parser.add_argument("--tiles", nargs="*", default=TILES, help="of the backward pass")
    parser.add_argument("--blocks", type=int, nargs="*", default=[4096, 8192, 12288])
    parser.add_argument("--seconds", type=float, default=1.0, help="time for each combination")
    options = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    name = torch.cuda.get_device_name() if device == "cuda" else "cpu"
    write_record(device=name, torch=torch.__version__, matmul_tflops=round(matmul_rate(device, "bfloat16"), 1))
    check_errors(options.objective, options.dims, device, min(3072, options.samples))
    objective, make = OBJECTIVES[options.objective]
    views = [x.requires_grad_() for x in embeddings(options.samples, options.dims[-1], device)]
    plain, of_all = (partial(_compute, loss, make, views) for loss in (objective, nested(objective, dims=options.dims)))
    forms = {
        "full width": Form(plain),
        "a pass for each prefix": Form(of_all, most_prefixes=0),
        "one pass": Form(of_all),
        **{f"one pass, forward tile {tile}": Form(of_all, forward_tile=_tile(tile)) for tile in options.forward_tiles},
        **{f"one pass, tile {tile}": Form(of_all, tile=_tile(tile)) for tile in options.tiles},
        **{f"one pass, block {block}": Form(of_all, block=block) for block in options.blocks},
    }
    measure(forms, views, device, options.seconds)


@dataclass(frozen=True)
class Form:
    """A loss, computed with some settings of the kernels."""

    loss: Callable[[], Tensor]
    tile: Tile | None = None
    forward_tile: Tile | None = None
    block: int = BLOCK
    most_prefixes: int = choose.MAX_PREFIXES

    @contextmanager
    def settings(self) -> Iterator[None]:
        """Use these settings in this context."""
        with (
            path("tiled"),  # which alone allows one pass
            patch.dict(prefixes._TILES, {} if self.tile is None else {"bf16": self.tile}),
            patch.dict(prefixes._FORWARD_TILES, {} if self.forward_tile is None else {"bf16": self.forward_tile}),
            patch.object(prefixes, "BLOCK", self.block),
            patch.object(choose, "MAX_PREFIXES", self.most_prefixes),
        ):
            yield

    def forward(self) -> None:
        """Compute the loss."""
        with self.settings():
            self.loss()

    def step(self, views: Sequence[Tensor]) -> None:
        """Compute the loss and the gradients of the views."""
        for view in views:
            view.grad = None
        with self.settings():
            self.loss().backward()


def measure(forms: dict[str, Form], views: list[Tensor], device: str, seconds: float) -> None:
    """Print the times of each form, and their ratio to the full width's."""
    steps: dict[str, Callable[[], None]] = {name: partial(form.step, views) for name, form in forms.items()}
    times = median_times(steps, device, seconds)
    of_forward = median_times({name: form.forward for name, form in forms.items()}, device, seconds / 4)
    for name, milliseconds in times.items():
        write_record(
            form=name, n=len(views[0]), forward_ms=round(of_forward[name], 2), ms=round(milliseconds, 2),
            ratio=round(milliseconds / times["full width"], 3), memory_mib=round(step_memory(steps[name], device), 1),
        )  # fmt: skip


def check_errors(name: str, dims: Sequence[int], device: str, samples: int) -> None:
    """Print the relative errors of value and gradient of both forms against float64."""
    objective, make = OBJECTIVES[name]
    criterion, raw = nested(objective, dims=dims), embeddings(samples, dims[-1], device)
    views = [x.double().requires_grad_() for x in raw]
    with path("dense"):
        exact = criterion(make(*views))
        exact.backward()
    gradient = torch.cat([x.grad for x in views if x.grad is not None])
    for form, most in (("a pass for each prefix", 0), ("one pass", choose.MAX_PREFIXES)):
        views = [x.float().requires_grad_() for x in raw]  # the same numbers, but the gradient is not rounded to bf16
        with (
            Form(partial(_compute, criterion, make, views), most_prefixes=most).settings(),
            path("tiled", precision="bf16"),
        ):
            loss = criterion(make(*views))
            loss.backward()
        own = torch.cat([x.grad.double() for x in views if x.grad is not None])
        write_record(
            form=form, n=samples, value_error=abs(loss.item() - exact.item()) / abs(exact.item()),
            gradient_error=float((own - gradient).norm() / gradient.norm()),
        )  # fmt: skip


def embeddings(samples: int, width: int, device: str) -> list[Tensor]:
    """Return two correlated views in bf16."""
    generator = torch.Generator(device).manual_seed(0)
    a, b = (torch.randn(samples, width, device=device, generator=generator) for _ in range(2))
    return [a.bfloat16(), (0.5 * a + b).bfloat16()]


def _compute(loss: Callable[..., Tensor], make: Callable[..., Pairs], views: Sequence[Tensor]) -> Tensor:
    return loss(make(*views))


def _tile(text: str) -> Tile:
    rows, columns, depth, warps, stages = map(int, text.split("x"))
    return rows, columns, depth, warps, stages


if __name__ == "__main__":
    main()
