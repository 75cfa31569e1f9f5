"""`contrapose bench losses`: time the losses on this machine."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import torch
from tyro.conf import arg

from contrapose.bench import LOSSES, PATHS, PEERS, Timing, as_record, compare, matmul_rate
from contrapose.training.records import environment, write_json_atomically
from contrapose.validate import check_choice, check_known, check_number


@dataclass(frozen=True)
class BenchLosses:
    """Time forward and backward of losses on this machine, next to other implementations.

    These are plain PyTorch with the whole similarity matrix, the same with torch.compile and, if installed, lightly, inf-cl and
    siglip-kernel.
    """

    losses: tuple[str, ...] = ("nt_xent", "dystress", "cross")
    """Losses to time: nt_xent, dystress, dcl, balanced, hard_negative, cacr, align_uniform, hardest, cross, clip or siglip."""
    sizes: tuple[int, ...] = (256, 2048, 8192)
    """Numbers of anchors n: two views of n/2 images; for cross, clip and siglip, n embeddings on each side."""
    width: int = 128
    """Dimensions of the embeddings."""
    dtype: str = ""
    """Data type of the embeddings: float32 (default on a CPU) or bfloat16 (default on a GPU)."""
    device: str = ""
    """cpu or cuda (default: cuda if available)."""
    seconds: float = 1.0
    """Seconds for which each measurement is repeated."""
    only: tuple[str, ...] = ()
    """Time only these implementations, such as ours, dense, chunked, PyTorch or lightly."""
    out: Annotated[Path | None, arg(aliases=["-o"])] = None
    """JSON file for the timings, with machine and versions."""

    def __call__(self) -> None:
        """Print one line per measurement, with its time relative to ours."""
        for n in self.sizes:
            check_number("sizes", n, least=4)
        for loss in self.losses:
            check_known("losses", loss, LOSSES)
        for implementation in self.only:
            check_known("only", implementation, (*PATHS, *PEERS))
        device = self.device or ("cuda" if torch.cuda.is_available() else "cpu")
        check_choice("device", device, "cpu", "cuda")
        if device == "cuda" and not torch.cuda.is_available():
            raise ValueError("device: torch finds no GPU on this machine; use --device cpu or omit the option")
        if self.out is not None:
            # Before the measurements, so that a path that cannot be written fails at once.
            self.out.parent.mkdir(parents=True, exist_ok=True)
        dtype = self.dtype or ("float32" if device == "cpu" else "bfloat16")
        check_choice("dtype", dtype, "float32", "bfloat16")
        # The rate of a plain matrix product is the upper bound that timings are compared with.
        rate = matmul_rate(device, dtype)
        print(f"a {dtype} matrix product: {rate:.3g} TFLOP/s; forward and backward, d = {self.width}\n")
        print(f"{'loss':14}{'n':>8}  {'':15}{'ms':>10}{'of ours':>9}{'MiB':>10}{'TFLOP/s':>9}{'of product':>12}")
        rows: list[Timing] = []
        for timing in compare(
            self.losses,
            self.sizes,
            d=self.width,
            dtype=dtype,
            device=device,
            rate=rate,
            seconds=self.seconds,
            only=self.only,
        ):
            rows.append(timing)
            ours = next(
                (row.ms for row in reversed(rows) if (row.who, row.n, row.loss) == ("ours", timing.n, timing.loss)),
                None,
            )
            print(_format_line(timing, ours), flush=True)
        if self.out is not None:
            machine = {"machine": environment(torch.device(device)), "matmul_tflops": round(rate, 1)}
            write_json_atomically(self.out, machine | {"rows": [as_record(row) for row in rows]})
            print(f"timings written to {self.out}")


def _format_line(timing: Timing, ours: float | None) -> str:
    label = f"{timing.loss:14}{timing.n:8}  {timing.who:15}"
    if timing.ms is None or timing.mib is None or timing.tflops is None or timing.share is None:
        return f"{label}{timing.note}"
    ratio = f"{timing.ms / ours:.2f} ×" if ours else ""
    return f"{label}{timing.ms:10.3f}{ratio:>9}{timing.mib:10.1f}{timing.tflops:9.3g}{timing.share:11.1%}"
