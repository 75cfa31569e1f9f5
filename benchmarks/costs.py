"""Time one step of every loss with its default settings, and measure its peak memory. Prints JSON lines.

    python benchmarks/costs.py > benchmarks/costs-h200.jsonl        # on a GPU
    python benchmarks/costs.py --device cpu --sizes 64 256 --losses simclr vicreg "simclr(negatives=hardest(16))"
    python benchmarks/costs.py --width 768 --losses clip soft_nt_xent        # soft targets beside CLIP

Losses are those of the catalogue, the objectives that no method uses, and forms that `OTHERS` lists. A step is a forward and
backward pass on n embeddings: two views of n/2 samples, 128 dimensions, bf16. Labels, a teacher's or guide's embeddings of the
same width, a certainty or prototypes are there where the loss needs them, and a state between steps is updated. A loss that
does not fit into memory, or would take too long, has a line that says so in place of figures. Memory is measured on a GPU
only.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from fused import write_record
from loss_timing import median_times, step_memory
from torch import Tensor

from contrapose.embeddings import Embeddings, between_towers, within_batch
from contrapose.losses import CATALOGUE, Loss, nested
from contrapose.losses.objective import with_state
from contrapose.losses.parse import parse
from contrapose.pairs import guide_targets

CLASSES = 100
NESTED = "nested(simclr)"  # prefixes of an eighth, a quarter and half of the width, and the whole
# Objectives that no method of the catalogue uses, and forms of others
OTHERS = (
    "soft_nt_xent", "margin_mse", "sogclr", "koleo", "sigreg", "spread_out", "simclr(negatives=self_guided(margin=0.1))", NESTED
)  # fmt: skip
PROTOTYPES = {"swav": 3000, "dino": 65536}  # the defaults of their frameworks


def make_step(name: str, n: int, *, d: int, dtype: str, device: str, prototypes: int) -> Callable[[], None]:
    """Return a function that runs one forward and backward pass of a loss on its own random embeddings."""
    samples = n // 2
    generator = torch.Generator().manual_seed(n)
    first = torch.randn(samples, d, generator=generator)
    z = torch.stack([first, first + 0.5 * torch.randn(samples, d, generator=generator)])
    z = z.to(device, getattr(torch, dtype)).requires_grad_()
    objective, state = with_state(objective_of(name, d), samples)
    criterion = Loss(objective, state=state).to(device)
    criterion.epoch = 0
    traits = criterion.traits
    rows = torch.randn(prototypes, d, generator=generator).to(z).requires_grad_() if prototypes else None
    provided: dict[str, Any] = {
        "ids": torch.arange(samples, device=device),
        "target": z.detach().clone() if traits.needs_target else None,
        "score": torch.zeros(2, samples, device=device) if "score" in traits.provided else None,
        "sample_labels": torch.arange(samples, device=device) % CLASSES if "labels" in traits.provided else None,
        "prototypes": rows,
    }
    compare = within_batch if traits.make_pairs is None else between_towers
    guide = torch.randn(2, samples, d, generator=generator).to(z) if "targets" in traits.provided else None

    def step() -> None:
        z.grad = None
        criterion.zero_grad()
        # The guide's embeddings are compared in each step, as in training.
        own = None if guide is None else guide_targets(Embeddings(z=guide, compare=compare, ids=provided["ids"]).pairs)
        criterion(Embeddings(z=z, compare=compare, **provided), **({} if own is None else {"targets": own})).backward()

    return step


def objective_of(name: str, d: int) -> partial[Tensor]:
    """Return a loss by its name in the output, for embeddings of d dimensions."""
    return nested("simclr", dims=(d // 8, d // 4, d // 2, d)) if name == NESTED else parse(name)


def measure(
    losses: Sequence[str], sizes: Sequence[int], *, d: int, dtype: str, device: str, seconds: float, longest: float
) -> Iterator[dict[str, Any]]:
    """Yield a record for each loss and size. A loss that would need more than `longest` seconds for a step is not run."""
    for name in losses:
        smaller: tuple[int, float] | None = None  # the size before this one and its milliseconds
        for n in sorted(sizes):
            prototypes = min(PROTOTYPES.get(name, 0), n)
            row: dict[str, Any] = {"loss": name, "n": n, "d": d, "dtype": dtype}
            row |= {"prototypes": prototypes} if prototypes else {}
            if smaller is not None and smaller[1] * (n / smaller[0]) ** 2 > 1e3 * longest:
                yield row | {"note": f"not run: a step takes {smaller[1]:,.0f} ms at {smaller[0]:,} embeddings"}
                continue
            try:
                step = make_step(name, n, d=d, dtype=dtype, device=device, prototypes=prototypes)
                # On a CPU, the memory of one step is not told apart from what the allocator keeps of earlier ones.
                memory = {} if device == "cpu" else {"mib": round(step_memory(step, device), 2)}
                smaller = n, median_times({"": step}, device, seconds, least=3)[""]
                yield row | {"ms": round(smaller[1], 4)} | memory
            except torch.OutOfMemoryError:
                yield row | {"note": "does not fit into memory"}
            except Exception as error:  # a kernel may fail in any way, and the other losses are still measured
                yield row | {"note": f"failed: {(str(error).strip() or type(error).__name__).splitlines()[0][:160]}"}
            step = None  # type: ignore[assignment]  # its embeddings would count as memory of the next loss
            if device != "cpu":
                torch.cuda.empty_cache()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[8192, 65536], help="numbers of embeddings")
    parser.add_argument("--losses", nargs="+", default=[*CATALOGUE, *OTHERS], metavar="LOSS", help="as in train --loss")
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float32"])
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--seconds", type=float, default=0.2, help="for which a step is repeated")
    parser.add_argument("--longest", type=float, default=10.0, help="seconds that a step may take")
    options = parser.parse_args()
    for name in options.losses:
        objective_of(name, options.width)  # raises ValueError for an unknown one before anything is measured
    machine = "CPU" if options.device == "cpu" else torch.cuda.get_device_name()
    write_record(device=machine, torch=torch.__version__)
    records = measure(
        options.losses,
        options.sizes,
        d=options.width,
        dtype=options.dtype,
        device=options.device,
        seconds=options.seconds,
        longest=options.longest,
    )
    for record in records:
        print(json.dumps(record), flush=True)


if __name__ == "__main__":
    main()
