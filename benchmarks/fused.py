"""Check the fused kernels on a GPU, then time them against blocks, dense forms and peers. Prints JSON lines.

    python benchmarks/fused.py > benchmarks/fused-h200.jsonl

Three checks come first: value and gradient against float64 on bf16-rounded embeddings near convergence; a step captured in
a CUDA graph against the eager step; a compiled loss against the eager loss. Then follow the measurements of
loss_timing.py for many sizes, and steps replayed from a CUDA graph, which measure only the device. inf-cl and siglip-kernel
compute one direction of n against n.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from loss_timing import as_record, compare, make_step, matmul_rate, median_times
from torch import Tensor

from contrapose.losses import cacr, hard_negative, nt_xent
from contrapose.pairs import hardest, same_view, two_views
from contrapose.reduce import path
from contrapose.temperature import cosine

CHECKED: dict[str, Callable[..., Tensor]] = {
    "nt_xent": partial(nt_xent, temperature=0.07),
    "dystress": partial(nt_xent, temperature=cosine(0.07, 0.2)),
    "hard_negative": partial(hard_negative, temperature=0.5),
    "cacr": partial(cacr, negatives=same_view()),
    "hardest": partial(nt_xent, temperature=0.07, negatives=hardest(0.1)),
}


def write_record(**record: Any) -> None:
    print(json.dumps(record), flush=True)


def dense_bf16(name: str, z1: Tensor, z2: Tensor) -> Tensor:
    """Return NT-Xent or DySTreSS of the whole matrix with bf16 products under autocast, as peers compute it."""
    z = torch.nn.functional.normalize(torch.cat([z1, z2]), dim=1)
    with torch.autocast("cuda", torch.bfloat16):
        s = (z @ z.T).float()
    tau = cosine(0.07, 0.2)(s) if name == "dystress" else 0.07
    target = torch.arange(len(z), device=z.device).roll(len(z1))
    return torch.nn.functional.cross_entropy((s / tau).fill_diagonal_(-torch.inf), target)


def check_gradients(n: int = 2048, width: int = 128) -> None:
    """Report the error of each path's value and gradient against float64."""
    for spread in (1.0, 0.3, 0.1):  # the closer the views, the lower the loss, as near convergence
        torch.manual_seed(0)
        base = torch.randn(n // 2, width, device="cuda")
        raw = [(base + spread * torch.randn_like(base)).bfloat16() for _ in range(2)]
        for name, loss in CHECKED.items():
            results: dict[str, tuple[float, Tensor]] = {}  # value and gradient by path
            for label in ("true", "fused bf16", "fused tf32", "fused tf32x3", "dense float32", "dense bf16"):
                dtype = torch.float64 if label == "true" else torch.float32
                embeddings = [z.to(dtype).requires_grad_() for z in raw]
                if label == "dense bf16":
                    if name not in ("nt_xent", "dystress"):
                        continue
                    value = dense_bf16(name, *embeddings)
                else:
                    chosen_path, precision = (
                        ("fused", label.split()[1]) if label.startswith("fused") else ("dense", None)
                    )
                    with path(chosen_path, precision=precision):
                        value = loss(two_views(*embeddings))
                value.backward()
                gradients = [z.grad for z in embeddings if z.grad is not None]
                results[label] = float(value.detach()), torch.cat(gradients).double()
            true_value, true_gradient = results.pop("true")
            for label, (computed, gradient) in results.items():
                error = float((gradient - true_gradient).norm() / true_gradient.norm())
                write_record(check="error", loss=name, path=label, n=n, spread=spread, value=true_value,
                             value_error=abs(computed - true_value), gradient_error=error)  # fmt: skip


def captured(step: Callable[[], None]) -> Callable[[], None]:
    """Return a function that replays the step as one CUDA graph."""
    side = torch.cuda.Stream()  # a capture needs warm-up steps outside the default stream
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    replay: Callable[[], None] = graph.replay
    return replay


def check_capture_and_compile(n: int = 1600) -> None:
    """Report how much a captured and a compiled step differ from the eager step."""
    for name, loss in CHECKED.items():
        results = []  # value and gradients of each mode
        for mode in ("eager", "graph", "compile"):
            torch.manual_seed(0)
            z1, z2 = (torch.randn(n // 2, 128, device="cuda", requires_grad=True) for _ in range(2))
            run = torch.compile(loss_of_views) if mode == "compile" else loss_of_views
            values: list[Tensor] = []

            # Defaults bind this iteration's variables, which the loop replaces.
            def step(
                z1: Tensor = z1, z2: Tensor = z2, values: list[Tensor] = values, run: Any = run, loss: Any = loss
            ) -> None:
                value = run(loss, z1, z2)
                values[:] = [value.detach(), *torch.autograd.grad(value, (z1, z2))]

            (captured(step) if mode == "graph" else step)()
            torch.cuda.synchronize()
            results.append(values)
        eager, *others = results
        graph, compiled = (
            max(float((a - b).abs().max() / b.abs().max()) for a, b in zip(other, eager, strict=True))
            for other in others
        )
        write_record(check="capture and compile", loss=name, n=n, graph_difference=graph, compile_difference=compiled)


def loss_of_views(loss: Callable[..., Tensor], z1: Tensor, z2: Tensor) -> Tensor:
    return loss(two_views(z1, z2))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[2**k for k in (8, 10, 11, 12, 13, 14, 15, 16, 17, 18)])
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--seconds", type=float, default=0.2)
    options = parser.parse_args()
    rate = matmul_rate("cuda", "bfloat16")
    import triton

    write_record(
        device=torch.cuda.get_device_name(),
        torch=torch.__version__,
        triton=triton.__version__,
        matmul_tflops=round(rate, 1),
    )
    check_gradients()
    check_capture_and_compile()
    run = partial(compare, d=options.width, dtype="bfloat16", device="cuda", rate=rate, seconds=options.seconds)
    large = [n for n in options.sizes if n == 2**16]
    some = [n for n in options.sizes if n in (256, 2**11, 2**13, 2**14)]
    for rows in (
        run(["nt_xent"], options.sizes, only=("ours", "dense", "PyTorch")),
        run(["nt_xent"], some, only=("ours", "torch.compile", "lightly")),
        run(["nt_xent"], [2**14, *large], only=("ours", "blocks")),
        run(["dystress", "hard_negative", "cacr", "align_uniform"], [2**14, *large], only=("ours",)),
        run(["hardest"], [2**14, *large], only=("ours",), seconds=0.1),
        run(["cross"], [2**11, 2**14, *large], only=("ours", "inf-cl", "siglip-kernel")),
        run(["nt_xent"], [2**14, *large], dtype="float32", only=("ours", "blocks")),
    ):
        for timing in rows:
            write_record(**as_record(timing))
    time_replayed(
        "nt_xent",
        [n for n in options.sizes if n <= 2**14],
        options.width,
        ("ours", "dense", "PyTorch", "torch.compile"),
    )
    time_replayed("cross", [2**11, 2**14], options.width, ("ours", "inf-cl", "siglip-kernel"))


def time_replayed(loss: str, sizes: Sequence[int], width: int, contestants: Sequence[str]) -> None:
    """Report the time of steps replayed from a CUDA graph, or why a peer cannot be captured."""
    for n in sizes:
        row: dict[str, Any] = {"loss": loss, "n": n, "d": width, "dtype": "bfloat16"}
        steps = {}
        for who in contestants:
            try:
                steps[who] = captured(make_step(loss, who, n=n, d=width, dtype="bfloat16", device="cuda"))
            except Exception as error:
                write_record(**row, who=f"{who}, captured", note=f"failed: {str(error).strip().splitlines()[0][:160]}")
        for who, ms in median_times(steps, "cuda", 0.1).items():
            write_record(**row, who=f"{who}, captured", ms=round(ms, 4))


if __name__ == "__main__":
    main()
