"""Losses timed side by side: every path of ours, and every installed peer, forward and backward on this machine."""

from __future__ import annotations

import importlib.util
import os
import resource
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from contrapose.losses import align_uniform, balanced, cacr, dcl, hard_negative, nt_xent
from contrapose.pairs import cross, two_views
from contrapose.pairs.negatives import hardest
from contrapose.reduce import path
from contrapose.temperature import cosine
from contrapose.validate import check_known
from contrapose.workers import process_context

Step = Callable[[Tensor, Tensor], Tensor]  # two views, or two sides, to a loss

LOSSES: dict[str, Callable[..., Tensor]] = {
    "nt_xent": partial(nt_xent, temperature=0.1),
    "dystress": partial(nt_xent, temperature=cosine(0.07, 0.2)),
    "dcl": partial(dcl, temperature=0.1),
    "balanced": partial(balanced, alpha=4.0, weight=2.0),
    "hard_negative": partial(hard_negative, temperature=0.5),
    "cacr": cacr,
    "align_uniform": align_uniform,
    "hardest": partial(nt_xent, temperature=0.3, negatives=hardest(0.0819)),
    "cross": partial(nt_xent, temperature=0.1),  # one direction, as CLIP: n anchors against n others
}
PATHS = ("ours", "dense", "chunked", "fused")
PEERS = ("PyTorch", "torch.compile", "lightly", "inf-cl", "siglip-kernel")
WITHOUT_MATRIX = ("ours", "chunked", "fused", "inf-cl", "siglip-kernel")


@dataclass(frozen=True)
class Timing:
    """One contestant at one size: forward and backward of n anchors."""

    loss: str
    who: str
    n: int
    d: int
    dtype: str
    ms: float | None = None  # median
    mib: float | None = None  # peak, beside the embeddings
    tflops: float | None = None  # 6 n² d for each step, whatever was computed
    share: float | None = None  # of the rate measured for a matrix product
    note: str = ""


def contestants(loss: str) -> dict[str, Step]:
    """Ours by each path, and what else is installed that computes this loss."""
    check_known("losses", loss, LOSSES)
    made: dict[str, Step] = {who: partial(_ours, loss, who) for who in PATHS}
    if loss == "nt_xent":
        made |= {"PyTorch": plain_nt_xent, "torch.compile": torch.compile(plain_nt_xent)}
        if _installed("lightly"):
            made["lightly"] = _lightly
    if loss == "cross":
        made |= {"PyTorch": plain_cross, "torch.compile": torch.compile(plain_cross)}
        if _installed("inf_cl"):
            made["inf-cl"] = _inf_cl
        if _installed("siglip_kernel"):
            made["siglip-kernel"] = _siglip
    return made


def _installed(name: str) -> bool:
    return importlib.util.find_spec(name) is not None


def _ours(loss: str, who: str, a: Tensor, b: Tensor) -> Tensor:
    pairs = cross if loss == "cross" else two_views
    if who == "ours":
        return LOSSES[loss](pairs(a, b))
    with path(who):
        return LOSSES[loss](pairs(a, b))


def plain_nt_xent(z1: Tensor, z2: Tensor) -> Tensor:
    """The whole matrix and a cross-entropy, as it is usually written; τ = 0.1."""
    z = torch.nn.functional.normalize(torch.cat([z1, z2]).float(), dim=1)
    with _as_given(z1):
        logits = (z @ z.T).float() / 0.1
    target = torch.arange(len(z), device=z.device).roll(len(z1))
    return torch.nn.functional.cross_entropy(logits.fill_diagonal_(-torch.inf), target)


def plain_cross(a: Tensor, b: Tensor) -> Tensor:
    """One direction of CLIP's loss, the whole matrix; τ = 0.1."""
    a, b, given = (*(torch.nn.functional.normalize(x.float(), dim=1) for x in (a, b)), a)
    with _as_given(given):
        logits = (a @ b.T).float() / 0.1
    return torch.nn.functional.cross_entropy(logits, torch.arange(len(a), device=a.device))


def _as_given(z: Tensor) -> torch.autocast:
    """Products in bf16 where the embeddings came so."""
    return torch.autocast(z.device.type, torch.bfloat16, enabled=z.dtype == torch.bfloat16)


def _lightly(a: Tensor, b: Tensor) -> Tensor:
    from lightly.loss import NTXentLoss

    with _as_given(a):
        value: Tensor = NTXentLoss(temperature=0.1)(a, b)
    return value


def _inf_cl(a: Tensor, b: Tensor) -> Tensor:
    from inf_cl import cal_flash_loss

    a, b = (torch.nn.functional.normalize(x.float(), dim=1) for x in (a, b))
    value: Tensor = cal_flash_loss(a, b, scale=10.0, head_dim=a.shape[1]).mean()
    return value


def _siglip(a: Tensor, b: Tensor) -> Tensor:
    """Another loss, a sigmoid for each pair, over the same products."""
    from siglip_kernel import fused_siglip_loss

    dtype = a.dtype
    a, b = (torch.nn.functional.normalize(x.float(), dim=1).to(dtype) for x in (a, b))
    value: Tensor = fused_siglip_loss(a, b, a.new_tensor(2.3), a.new_tensor(-10.0))
    return value


def prepared(loss: str, who: str, n: int, d: int, dtype: str, device: str) -> Callable[[], None]:
    """One step of a contestant, on embeddings of its own."""
    generator = torch.Generator().manual_seed(n)
    rows = n if loss == "cross" else n // 2
    first = torch.randn(rows, d, generator=generator)
    second = first + 0.5 * torch.randn(rows, d, generator=generator)
    a, b = (x.to(device, getattr(torch, dtype)).requires_grad_() for x in (first, second))
    loss_of = contestants(loss)[who]

    def step() -> None:
        a.grad = b.grad = None
        loss_of(a, b).backward()

    return step


def peak_memory(loss: str, who: str, n: int, d: int, dtype: str, device: str) -> float:
    """MiB that a step holds at most, beside the embeddings and, on a GPU, their gradients."""
    if device == "cpu":
        step = prepared(loss, who, n, d, dtype, device)
        step()  # what is loaded, or compiled, once
        before = _high_water(reset=True)
        step()
        return _high_water() - before
    step = prepared(loss, who, n, d, dtype, device)
    step()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    held = torch.cuda.memory_allocated()
    step()
    return (torch.cuda.max_memory_allocated() - held) / 2**20


def _high_water(*, reset: bool = False) -> float:
    """MiB that this process has held at most; Linux can forget what was before."""
    status = Path("/proc/self/status")
    if not status.exists():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == "darwin" else 1024)
    if reset:
        Path("/proc/self/clear_refs").write_text("5")
    line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) / 1024


def interleaved(steps: dict[str, Callable[[], None]], device: str, seconds: float) -> dict[str, float]:
    """Median milliseconds of each step, taken in turns for `seconds` each: five times at least."""
    found: dict[str, list[float]] = {who: [] for who in steps}
    for step in (*steps.values(), *steps.values()):
        step()
    stop = time.perf_counter() + seconds * len(steps)
    while time.perf_counter() < stop or any(len(times) < 5 for times in found.values()):
        for who, step in steps.items():
            found[who].append(_milliseconds(step, device))
        if all(len(times) >= 200 for times in found.values()):
            break
    return {who: statistics.median(times) for who, times in found.items()}


def _milliseconds(step: Callable[[], None], device: str) -> float:
    if device == "cpu":
        start = time.perf_counter()
        step()
        return 1e3 * (time.perf_counter() - start)
    before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    before.record()
    step()
    after.record()
    torch.cuda.synchronize()
    return float(before.elapsed_time(after))


def _memory(device: str) -> float:
    if device != "cpu":
        return float(torch.cuda.get_device_properties(device).total_memory)
    return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))


def matmul_rate(device: str, dtype: str) -> float:
    """TFLOP/s of a large square matrix product."""
    size = 8192 if device != "cpu" else 2048
    x = torch.randn(size, size, device=device, dtype=getattr(torch, dtype))

    def step() -> None:
        torch.mm(x, x)

    return 2 * size**3 / interleaved({"": step}, device, 0.5)[""] / 1e9


def compare(
    losses: Sequence[str],
    sizes: Sequence[int],
    d: int,
    dtype: str,
    device: str,
    rate: float,
    *,
    seconds: float = 1.0,
    only: Sequence[str] = (),
) -> Iterator[Timing]:
    """Every contestant of every loss at every size, timed in turns. On the CPU memory is that of a process of its own.

    `rate` is what `matmul_rate` measured.
    """
    for loss in losses:
        everyone = contestants(loss)
        for n in sizes:
            chosen = [who for who in everyone if not only or who in only]
            yield from _compare_at(loss, n, d, dtype, device, chosen, seconds, rate)


def _compare_at(
    loss: str, n: int, d: int, dtype: str, device: str, chosen: Sequence[str], seconds: float, rate: float
) -> Iterator[Timing]:
    steps: dict[str, Callable[[], None]] = {}
    memory: dict[str, float] = {}
    for who in chosen:
        row = partial(Timing, loss, who, n, d, dtype)
        if who == "fused" and device == "cpu":
            continue  # it is the interpreter there
        if who not in WITHOUT_MATRIX and 16 * n * n > 0.6 * _memory(device):
            yield row(note=f"not run: a matrix of {4 * n * n / 2**30:.0f} GiB, several times")
            continue
        try:
            if device == "cpu":
                with ProcessPoolExecutor(1, mp_context=process_context()) as pool:
                    memory[who] = pool.submit(peak_memory, loss, who, n, d, dtype, device).result()
            else:
                torch.cuda.empty_cache()
                memory[who] = peak_memory(loss, who, n, d, dtype, device)
            steps[who] = prepared(loss, who, n, d, dtype, device)
        except Exception as error:  # a peer may fail in any way; the others are measured all the same
            steps.pop(who, None)
            yield row(note=f"failed: {(str(error).strip() or type(error).__name__).splitlines()[0][:160]}")
    for who, ms in interleaved(steps, device, seconds).items():
        tflops = 6 * n * n * d / ms / 1e9
        figures = round(ms, 4), round(memory[who], 2), round(tflops, 2), round(tflops / rate, 4)
        yield Timing(loss, who, n, d, dtype, *figures)


def as_record(timing: Timing) -> dict[str, Any]:
    """Without what was not measured."""
    return {key: value for key, value in asdict(timing).items() if value not in (None, "")}
