"""Time losses on this machine, forward and backward: every path of contrapose and every installed peer library.

python benchmarks/loss_timing.py                                              # three losses at three sizes
python benchmarks/loss_timing.py --losses nt_xent --sizes 8192 --only ours PyTorch --out timings.json
"""

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
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from contrapose.child_processes import process_context
from contrapose.lab.training.records.files import environment, write_json_atomically
from contrapose.losses import align_uniform, balanced, cacr, clip, dcl, hard_negative, nt_xent, siglip
from contrapose.pairs import cross, two_views
from contrapose.pairs.negatives import hardest
from contrapose.reduce import path
from contrapose.temperature import LearnedNumber, LearnedTemperature, cosine, learned, learned_number
from contrapose.validate import check_choice, check_known, check_number

LossFunction = Callable[[Tensor, Tensor], Tensor]  # from two views, or two modalities, to a scalar

LOSSES: dict[str, Callable[..., Tensor]] = {
    "nt_xent": partial(nt_xent, temperature=0.1),
    "dystress": partial(nt_xent, temperature=cosine(0.07, 0.2)),
    "dcl": partial(dcl, temperature=0.1),
    "balanced": partial(balanced, alpha=4.0, weight=2.0),
    "hard_negative": partial(hard_negative, temperature=0.5),
    "cacr": cacr,
    "align_uniform": align_uniform,
    "hardest": partial(nt_xent, temperature=0.3, negatives=hardest(0.0819)),
    "cross": partial(nt_xent, temperature=0.1),  # one direction of CLIP's loss: n anchors against n others
    "clip": clip,  # both directions of n against n others, with a learned temperature
    "siglip": siglip,  # with a learned temperature and a learned bias
}
BETWEEN_TOWERS = ("cross", "clip", "siglip")
PATHS = ("ours", "dense", "blocks", "fused", "tiled")
PEERS = ("PyTorch", "torch.compile", "lightly", "inf-cl", "siglip-kernel")
WITHOUT_MATRIX = ("ours", "blocks", "fused", "tiled", "inf-cl", "siglip-kernel")  # the others store the n × n matrix


@dataclass(frozen=True)
class Timing:
    """The result of one implementation at one size: forward and backward passes with n anchors."""

    loss: str
    who: str  # name of the implementation
    n: int
    d: int
    dtype: str
    ms: float | None = None  # median
    mib: float | None = None  # peak memory, without the embeddings
    tflops: float | None = None  # counts 6 n² d for a step, whatever was computed
    share: float | None = None  # fraction of the rate that was measured for a matrix product
    note: str = ""  # why there is no measurement


def implementations(loss: str) -> dict[str, LossFunction]:
    """Return all implementations of a loss by name: each path of contrapose, and the installed peers."""
    check_known("losses", loss, LOSSES)
    functions: dict[str, LossFunction] = {path_name: partial(_contrapose_loss, loss, path_name) for path_name in PATHS}
    if loss == "nt_xent":
        functions |= {"PyTorch": plain_nt_xent, "torch.compile": torch.compile(plain_nt_xent)}
        if _installed("lightly"):
            functions["lightly"] = _lightly
    if loss in BETWEEN_TOWERS:
        plain = {"cross": plain_cross, "clip": plain_clip, "siglip": plain_siglip}[loss]
        functions |= {"PyTorch": plain, "torch.compile": torch.compile(plain)}
    if loss in ("cross", "clip") and _installed("inf_cl"):
        functions["inf-cl"] = _inf_cl if loss == "cross" else _inf_cl_both
    if loss in ("cross", "siglip") and _installed("siglip_kernel"):
        functions["siglip-kernel"] = _siglip_kernel
    return functions


@lru_cache
def _learned(device: torch.device) -> tuple[LearnedTemperature, LearnedNumber]:
    """Return a temperature and a bias that are learned, the same for all implementations."""
    return learned(0.07, low=0.01).to(device), learned_number(-10.0).to(device)


def _installed(name: str) -> bool:
    return importlib.util.find_spec(name) is not None


def _contrapose_loss(loss: str, path_name: str, a: Tensor, b: Tensor) -> Tensor:
    if path_name == "ours":  # the path that is selected automatically
        return _call(loss, a, b)
    with path(path_name):
        return _call(loss, a, b)


def _call(loss: str, a: Tensor, b: Tensor) -> Tensor:
    if loss not in ("clip", "siglip"):
        return LOSSES[loss](cross(a, b) if loss == "cross" else two_views(a, b))
    temperature, bias = _learned(a.device)
    return LOSSES[loss](a, b, temperature=temperature, **({"bias": bias} if loss == "siglip" else {}))


def plain_nt_xent(z1: Tensor, z2: Tensor) -> Tensor:
    """NT-Xent as it is usually written: the full matrix and a cross-entropy, at τ = 0.1."""
    z = torch.nn.functional.normalize(torch.cat([z1, z2]).float(), dim=1)
    with _autocast_like(z1):
        logits = (z @ z.T).float() / 0.1
    target = torch.arange(len(z), device=z.device).roll(len(z1))
    return torch.nn.functional.cross_entropy(logits.fill_diagonal_(-torch.inf), target)


def plain_cross(a: Tensor, b: Tensor) -> Tensor:
    """One direction of CLIP's loss as it is usually written: the full matrix and a cross-entropy, at τ = 0.1."""
    unit_a, unit_b = (torch.nn.functional.normalize(x.float(), dim=1) for x in (a, b))
    with _autocast_like(a):
        logits = (unit_a @ unit_b.T).float() / 0.1
    return torch.nn.functional.cross_entropy(logits, torch.arange(len(a), device=a.device))


def plain_clip(a: Tensor, b: Tensor) -> Tensor:
    """CLIP's loss as it is usually written: the full matrix, and a cross-entropy of its rows and of its columns."""
    temperature, _ = _learned(a.device)
    unit_a, unit_b = (torch.nn.functional.normalize(x.float(), dim=1) for x in (a, b))
    with _autocast_like(a):
        logits = (unit_a @ unit_b.T).float() / temperature()
    target = torch.arange(len(a), device=a.device)
    cross_entropy = torch.nn.functional.cross_entropy
    return (cross_entropy(logits, target) + cross_entropy(logits.T, target)) / 2


def plain_siglip(a: Tensor, b: Tensor) -> Tensor:
    """SigLIP's loss as it is usually written: the full matrix, and a sigmoid of each entry."""
    temperature, bias = _learned(a.device)
    unit_a, unit_b = (torch.nn.functional.normalize(x.float(), dim=1) for x in (a, b))
    with _autocast_like(a):
        logits = (unit_a @ unit_b.T).float() / temperature() + bias()
    sign = 2 * torch.eye(len(a), device=a.device) - 1
    return -torch.nn.functional.logsigmoid(sign * logits).sum() / len(a)


def _autocast_like(z: Tensor) -> torch.autocast:
    """Return a context that computes matrix products in bf16 if the embeddings are bf16, as contrapose does."""
    return torch.autocast(z.device.type, torch.bfloat16, enabled=z.dtype == torch.bfloat16)


def _lightly(a: Tensor, b: Tensor) -> Tensor:
    from lightly.loss import NTXentLoss

    with _autocast_like(a):
        value: Tensor = NTXentLoss(temperature=0.1)(a, b)
    return value


def _inf_cl(a: Tensor, b: Tensor) -> Tensor:
    from inf_cl import cal_flash_loss

    a, b = (torch.nn.functional.normalize(x.float(), dim=1) for x in (a, b))
    value: Tensor = cal_flash_loss(a, b, scale=10.0, head_dim=a.shape[1]).mean()
    return value


def _inf_cl_both(a: Tensor, b: Tensor) -> Tensor:
    return (_inf_cl(a, b) + _inf_cl(b, a)) / 2


def _siglip_kernel(a: Tensor, b: Tensor) -> Tensor:
    """SigLIP's loss, a sigmoid for each pair; under `cross` it stands for another loss over the same matrix product."""
    from siglip_kernel import fused_siglip_loss

    dtype = a.dtype
    a, b = (torch.nn.functional.normalize(x.float(), dim=1).to(dtype) for x in (a, b))
    value: Tensor = fused_siglip_loss(a, b, a.new_tensor(2.3), a.new_tensor(-10.0))
    return value


def make_step(loss: str, implementation: str, *, n: int, d: int, dtype: str, device: str) -> Callable[[], None]:
    """Return a function that runs one forward and backward pass on its own random embeddings."""
    generator = torch.Generator().manual_seed(n)
    rows = n if loss in BETWEEN_TOWERS else n // 2
    first = torch.randn(rows, d, generator=generator)
    second = first + 0.5 * torch.randn(rows, d, generator=generator)
    a, b = (x.to(device, getattr(torch, dtype)).requires_grad_() for x in (first, second))
    loss_function = implementations(loss)[implementation]

    def step() -> None:
        a.grad = b.grad = None
        loss_function(a, b).backward()

    return step


def peak_memory(loss: str, implementation: str, *, n: int, d: int, dtype: str, device: str) -> float:
    """Return the peak memory of a step in MiB, without the embeddings and, on a GPU, without their gradients."""
    return step_memory(make_step(loss, implementation, n=n, d=d, dtype=dtype, device=device), device)


def step_memory(step: Callable[[], None], device: str) -> float:
    """Return the peak memory of a step in MiB, beyond what is in use before it."""
    step()  # libraries are loaded and kernels compiled once; that is not part of a step
    if device == "cpu":
        before = _peak_resident_mib(reset=True)
        step()
        return _peak_resident_mib() - before
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before_bytes = torch.cuda.memory_allocated()
    step()
    return (torch.cuda.max_memory_allocated() - before_bytes) / 2**20


def _peak_resident_mib(*, reset: bool = False) -> float:
    """Return the peak resident memory of this process in MiB, since its start or, on Linux, since the last reset."""
    status = Path("/proc/self/status")
    if not status.exists():  # not Linux; ru_maxrss is in bytes on macOS and in KiB elsewhere
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == "darwin" else 1024)
    if reset:
        Path("/proc/self/clear_refs").write_text("5")  # 5 resets VmHWM to the current value (man 5 proc)
    line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) / 1024


def median_times(
    steps: dict[str, Callable[[], None]], device: str, seconds: float, *, least: int = 5
) -> dict[str, float]:
    """Return the median time of each step in milliseconds, from `least` to 200 repetitions in about `seconds` per step.

    Steps take turns, so that a change in the clock rate or the load of the machine affects all of them.
    """
    times: dict[str, list[float]] = {name: [] for name in steps}
    for step in (*steps.values(), *steps.values()):  # two warm-up rounds
        step()
    stop = time.perf_counter() + seconds * len(steps)
    while time.perf_counter() < stop or any(len(values) < least for values in times.values()):
        for name, step in steps.items():
            times[name].append(_milliseconds(step, device))
        if all(len(values) >= 200 for values in times.values()):
            break
    return {name: statistics.median(values) for name, values in times.items()}


def _milliseconds(step: Callable[[], None], device: str) -> float:
    if device == "cpu":
        start = time.perf_counter()
        step()
        return 1e3 * (time.perf_counter() - start)
    # Events are recorded by the device itself, so the time of the synchronisation is not measured.
    before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    before.record()
    step()
    after.record()
    torch.cuda.synchronize()
    return float(before.elapsed_time(after))


def _total_memory(device: str) -> float:
    """Return the total memory of the device, or of the machine, in bytes."""
    if device != "cpu":
        return float(torch.cuda.get_device_properties(device).total_memory)
    return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))


def matmul_rate(device: str, dtype: str) -> float:
    """Return the rate of a large square matrix product in TFLOP/s, the upper bound for any loss."""
    size = 8192 if device != "cpu" else 2048
    x = torch.randn(size, size, device=device, dtype=getattr(torch, dtype))

    def step() -> None:
        torch.mm(x, x)

    return 2 * size**3 / median_times({"": step}, device, 0.5)[""] / 1e9


def compare(
    losses: Sequence[str],
    sizes: Sequence[int],
    *,
    d: int,
    dtype: str,
    device: str,
    rate: float,
    seconds: float = 1.0,
    only: Sequence[str] = (),
) -> Iterator[Timing]:
    """Measure each implementation of each loss at each size, or `only` the implementations with these names.

    `rate` is the result of `matmul_rate`.
    """
    for loss in losses:
        names = [name for name in implementations(loss) if not only or name in only]
        for n in sizes:
            yield from _compare_at(loss, n, names, d=d, dtype=dtype, device=device, rate=rate, seconds=seconds)


def _compare_at(
    loss: str, n: int, names: Sequence[str], *, d: int, dtype: str, device: str, rate: float, seconds: float
) -> Iterator[Timing]:
    steps: dict[str, Callable[[], None]] = {}
    memory: dict[str, float] = {}
    shape: dict[str, Any] = {"n": n, "d": d, "dtype": dtype, "device": device}
    for name in names:
        row = partial(Timing, loss, name, n, d, dtype)
        if name in ("fused", "tiled") and device == "cpu":
            continue  # Triton only has an interpreter there, which is for tests
        # Forward and backward together hold about four float32 matrices.
        if name not in WITHOUT_MATRIX and 16 * n * n > 0.6 * _total_memory(device):
            yield row(note=f"not run: needs several matrices of {4 * n * n / 2**30:.0f} GiB")
            continue
        try:
            if device == "cpu":
                # In a process of its own: the allocator of this one may reuse memory of the previous measurement.
                with ProcessPoolExecutor(1, mp_context=process_context()) as pool:
                    memory[name] = pool.submit(peak_memory, loss, name, **shape).result()
            else:
                torch.cuda.empty_cache()
                memory[name] = peak_memory(loss, name, **shape)
            steps[name] = make_step(loss, name, **shape)
        except Exception as error:  # a peer may fail in any way, and the others are still measured
            steps.pop(name, None)
            yield row(note=f"failed: {(str(error).strip() or type(error).__name__).splitlines()[0][:160]}")
    for name, ms in median_times(steps, device, seconds).items():
        tflops = 6 * n * n * d / ms / 1e9
        yield Timing(
            loss=loss,
            who=name,
            n=n,
            d=d,
            dtype=dtype,
            ms=round(ms, 4),
            mib=round(memory[name], 2),
            tflops=round(tflops, 2),
            share=round(tflops / rate, 4),
        )


def as_record(timing: Timing) -> dict[str, Any]:
    """Return a timing as a dictionary for JSON, without the fields that were not measured."""
    return {key: value for key, value in asdict(timing).items() if value not in (None, "")}


@dataclass(frozen=True)
class TimeLosses:
    """Time forward and backward passes of losses on this machine, next to other implementations.

    The others are plain PyTorch with the whole similarity matrix, the same with torch.compile and, if installed, lightly,
    inf-cl and siglip-kernel.
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
    """Time only these implementations, such as ours, dense, blocks, PyTorch or lightly."""
    out: Path | None = None
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


if __name__ == "__main__":
    import tyro

    tyro.cli(TimeLosses)()
