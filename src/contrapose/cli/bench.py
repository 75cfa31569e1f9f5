"""`contrapose bench losses`: how fast losses are on this machine."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import torch
from tyro.conf import arg

from contrapose.bench import LOSSES, PATHS, PEERS, Timing, as_record, compare, matmul_rate
from contrapose.training.records import environment, write_whole
from contrapose.validate import check_choice, check_known, check_number


@dataclass(frozen=True)
class BenchLosses:
    """Time losses on this machine, forward and backward: each path of ours beside every installed peer.

    Peers: plain PyTorch with the whole matrix, torch.compile of it and, where installed, lightly, inf-cl and siglip-kernel.
    """

    losses: tuple[str, ...] = ("nt_xent", "dystress", "cross")
    """Which: nt_xent, dystress, dcl, balanced, hard_negative, cacr, align_uniform, hardest, cross (one direction of CLIP)."""
    sizes: tuple[int, ...] = (256, 2048, 8192)
    """Numbers of anchors: two views of half as many images, or as many on each side."""
    width: int = 128
    """Of the embeddings."""
    dtype: str = ""
    """Of the embeddings: float32, or bfloat16, which is the default on a GPU."""
    device: str = ""
    """cpu or cuda; by default a GPU where there is one."""
    seconds: float = 1.0
    """How long each is repeated."""
    only: tuple[str, ...] = ()
    """Only these, such as ours, dense, chunked, PyTorch or lightly."""
    out: Annotated[Path | None, arg(aliases=["-o"])] = None
    """Write the figures as JSON, with machine and versions."""

    def __call__(self) -> None:
        """Print a line as each is done, slower ones beside ours."""
        for n in self.sizes:
            check_number("sizes", n, least=4)
        for loss in self.losses:
            check_known("losses", loss, LOSSES)
        for who in self.only:
            check_known("only", who, (*PATHS, *PEERS))
        device = self.device or ("cuda" if torch.cuda.is_available() else "cpu")
        check_choice("device", device, "cpu", "cuda")
        if device == "cuda" and not torch.cuda.is_available():
            raise ValueError("device: there is no GPU here that torch can use; leave --device out, or say cpu")
        if self.out is not None:
            self.out.parent.mkdir(parents=True, exist_ok=True)
        dtype = self.dtype or ("float32" if device == "cpu" else "bfloat16")
        check_choice("dtype", dtype, "float32", "bfloat16")
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
            print(_line(timing, ours), flush=True)
        if self.out is not None:
            here = {"machine": environment(torch.device(device)), "matmul_tflops": round(rate, 1)}
            write_whole(self.out, here | {"rows": [as_record(row) for row in rows]})
            print(f"figures {self.out}")


def _line(timing: Timing, ours: float | None) -> str:
    start = f"{timing.loss:14}{timing.n:8}  {timing.who:15}"
    if timing.ms is None or timing.mib is None or timing.tflops is None or timing.share is None:
        return f"{start}{timing.note}"
    times = f"{timing.ms / ours:.2f} ×" if ours else ""
    return f"{start}{timing.ms:10.3f}{times:>9}{timing.mib:10.1f}{timing.tflops:9.3g}{timing.share:11.1%}"
