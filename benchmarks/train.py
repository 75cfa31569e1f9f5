"""Time a training step on a GPU: as one CUDA graph, eager, and in a pipeline like lightly's examples. Prints JSON lines.

    python benchmarks/train.py --data cifar10 [--frameworks simclr moco memory-bank] [--batches 128 256 512]

Times are measured in the steady state: device events around many steps, after the steps that compile and capture. The
lightly-style pipeline has torchvision's transforms on PIL images in 16 workers, eager steps, and fp16 with a gradient scaler.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from loss_timing import plain_nt_xent
from torch import Tensor

from contrapose.lab.cuda.graphs import WARMUP_STEPS
from contrapose.lab.training import Run, Trainer
from contrapose.lab.training.eager import EagerSteps
from contrapose.lab.training.graphed import GraphedSteps

CIFAR: dict[str, Any] = {
    "views": "simclr-cifar", "encoder": "resnet18-cifar", "optimiser": "sgd", "lr": 0.06, "weight_decay": 5e-4,
    "epochs": 200, "precision": "bf16", "knn": 200, "knn_every": 200, "metrics": 0,
}  # fmt: skip


def write_record(**record: Any) -> None:
    print(json.dumps(record), flush=True)


class Clock:
    """Measure the time of a stream by device events, from construction on. The host does not wait until `each`."""

    def __init__(self, stream: torch.cuda.Stream | None = None) -> None:
        self.stream = stream
        self.start, self.end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        self.start.record(stream)

    def each(self, steps: int) -> float:
        """Wait for the stream and return milliseconds per step."""
        self.end.record(self.stream)
        self.end.synchronize()
        return float(self.start.elapsed_time(self.end)) / steps


def trainer(data: str, framework: str, batch: int, **more: Any) -> Trainer:
    """Return a trainer with the CIFAR settings above, in a temporary directory."""
    run = Run(data=data, framework=framework, batch=batch, **CIFAR | more)
    return Trainer(run, Path(tempfile.mkdtemp()), log=lambda text: None)


def graph(data: str, framework: str, batch: int, steps: int, compiled: bool) -> dict[str, float]:
    """Return milliseconds per replayed step, and the seconds until the first step is ready."""
    training = trainer(data, framework, batch)
    # All steps are within one epoch, since the graph reads the order of its images from tensors that hold one epoch.
    steps = min(steps, training.steps_per_epoch - 6)
    start = time.perf_counter()
    captured = GraphedSteps(training.context)
    if compiled:
        captured.compile()
    captured.begin(0, 0)
    for _ in range(WARMUP_STEPS):
        captured.one()
    if captured.one.graph is None:
        raise RuntimeError("the step could not be captured in a CUDA graph")
    torch.cuda.synchronize()
    ready = time.perf_counter() - start
    captured.one()
    clock = Clock(captured.one.stream)
    for _ in range(steps):
        captured.one()
    return {"ms": clock.each(steps), "ready_s": ready, "loss": float(captured.step.losses[steps])}


def eager(data: str, framework: str, batch: int, steps: int) -> dict[str, float]:
    """Return milliseconds per step of the eager loop."""
    training = trainer(data, framework, batch)
    steps = min(steps, training.steps_per_epoch - 5)
    plain = EagerSteps(training.context)
    batches = plain.batches(0, 0)
    for step in range(5):
        plain.step([next(batches)], 0, step)
    clock = Clock()
    for step in range(steps):
        plain.step([next(batches)], 0, step)
    return {"ms": clock.each(steps)}


def lightly_style(data: str, batch: int, steps: int, workers: int) -> dict[str, float]:
    """Return milliseconds per step of SimCLR with torchvision's transforms in a `DataLoader`, as in lightly's examples."""
    from PIL import Image
    from torchvision import transforms as T

    training = trainer(data, "simclr", batch)
    steps = min(steps, training.steps_per_epoch - 10)
    raw = training.context.reader.resident
    assert raw is not None
    images = [Image.fromarray(x) for x in raw.permute(0, 2, 3, 1).cpu().numpy()]
    jitter = T.RandomApply([T.ColorJitter(0.4, 0.4, 0.4, 0.1)], 0.8)
    transform = T.Compose([
        T.RandomResizedCrop(32, (0.2, 1.0)), T.RandomHorizontalFlip(), jitter, T.RandomGrayscale(0.2), T.ToTensor(),
        T.Normalize((0.4914, 0.4822, 0.4465), (0.247, 0.2435, 0.2616)),
    ])  # fmt: skip

    class Pairs(torch.utils.data.Dataset[tuple[Tensor, Tensor]]):
        def __len__(self) -> int:
            return len(images)

        def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
            return transform(images[index]), transform(images[index])

    loader = torch.utils.data.DataLoader(
        Pairs(), batch, shuffle=True, drop_last=True, num_workers=workers, pin_memory=True
    )
    network = torch.nn.Sequential(training.model.encoder, training.model.projector).train()
    optimiser = torch.optim.SGD(network.parameters(), 0.06, momentum=0.9, weight_decay=5e-4)
    scaler = torch.amp.GradScaler("cuda")
    clock = Clock()
    for step, (x0, x1) in enumerate(loader):
        if step == 10:  # the first steps include the start of the workers
            clock = Clock()
        optimiser.zero_grad()
        with torch.autocast("cuda", torch.float16):
            z0, z1 = (network(x.cuda(non_blocking=True)) for x in (x0, x1))
        loss = plain_nt_xent(z0.float(), z1.float())
        scaler.scale(loss).backward()
        scaler.step(optimiser)
        scaler.update()
        loss.item()  # waits for the device, as a loop does that logs the loss of every step
        if step + 1 == 10 + steps:
            break
    return {"ms": clock.each(steps)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="cifar10")
    parser.add_argument("--frameworks", nargs="+", default=["simclr", "moco", "memory-bank"])
    parser.add_argument("--batches", type=int, nargs="+", default=[128, 256, 512])
    parser.add_argument("--pipelines", nargs="+", default=["compiled", "graph", "eager", "lightly-style"])
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--workers", type=int, default=16)
    options = parser.parse_args()
    write_record(device=torch.cuda.get_device_name(), torch=torch.__version__)
    for framework in options.frameworks:
        for batch in options.batches:
            for pipeline in options.pipelines:
                if pipeline == "lightly-style" and framework != "simclr":
                    continue
                if pipeline == "eager":
                    figures = eager(options.data, framework, batch, options.steps)
                elif pipeline == "lightly-style":
                    figures = lightly_style(options.data, batch, options.steps, options.workers)
                else:
                    figures = graph(options.data, framework, batch, options.steps, pipeline == "compiled")
                seconds = figures["ms"] * (50_000 // batch) / 1e3
                rounded = {key: round(value, 3) for key, value in figures.items()}
                write_record(framework=framework, batch=batch, pipeline=pipeline, epoch_s=round(seconds, 3), **rounded)


if __name__ == "__main__":
    main()
