"""Measure what `contrapose.Doctor` costs in a training step.

python benchmarks/doctor.py                                     # a small encoder on the CPU
python benchmarks/doctor.py --device cuda --width 128           # ResNet-50 on a GPU, in bf16
python benchmarks/doctor.py --out benchmarks/doctor-cpu.jsonl   # append the line to a file

The cost per step is the cost of a look divided by the number of steps per look, plus that of a step without a look.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import torch
from torch import Tensor, nn

from contrapose import CATALOGUE, Doctor, Loss
from contrapose.lab.training.records.files import environment


def encoder(device: torch.device, size: int, width: int) -> nn.Module:
    """A ResNet-50 on a GPU, a ResNet-18 on a CPU, with a projector."""
    from torchvision.models import resnet18, resnet50

    network = resnet50() if device.type == "cuda" else resnet18()
    if size <= 64:  # the stem for small images
        network.conv1, network.maxpool = nn.Conv2d(3, 64, 3, padding=1, bias=False), nn.Identity()
    network.fc = nn.Sequential(nn.Linear(network.fc.in_features, 512), nn.ReLU(), nn.Linear(512, width))
    placed: nn.Module = network.to(device)
    return placed


def seconds(work: Callable[[], object], device: torch.device, repeats: int) -> float:
    """Return the median duration of a call."""
    durations = []
    for _ in range(repeats + 2):
        start = time.perf_counter()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize()
        durations.append(time.perf_counter() - start)
    return statistics.median(durations[2:])  # the first two warm up


@dataclass(frozen=True)
class DoctorCost:
    """Print the cost of the doctor beside that of a training step, as one line of JSON."""

    device: str = "cuda" if torch.cuda.is_available() else "cpu"
    """cpu or cuda."""
    loss: str = "simclr"
    """A method of the catalogue."""
    batch: int = 256
    """Images per step, each in two views."""
    size: int = 32
    """Height and width of the images."""
    width: int = 128
    """Dimensions of the embeddings."""
    every: int = 50
    """Steps per look."""
    repeats: int = 10
    """Calls that are timed; the median counts."""
    out: Path | None = None
    """Append the line to this file."""

    def __call__(self) -> None:
        device = torch.device(self.device)
        torch.manual_seed(0)
        network, loss = encoder(device, self.size, self.width), Loss(CATALOGUE[self.loss]).to(device)
        optimiser = torch.optim.SGD(network.parameters(), lr=0.01)
        x = torch.rand(2 * self.batch, 3, self.size, self.size, device=device)
        doctor = Doctor(loss, every=self.every, model=network)

        def embed() -> tuple[Tensor, Tensor]:
            with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
                z1, z2 = network(x).float().chunk(2)
            return z1, z2

        def step() -> None:
            optimiser.zero_grad()
            loss(*embed()).backward()
            optimiser.step()

        z1, z2 = (z.detach().requires_grad_() for z in embed())

        def look() -> None:
            doctor.step = self.every - 1  # the next step is looked at
            doctor.see(z1, z2)

        def pass_by() -> None:
            for _ in range(100):
                doctor.step = 64 * self.every  # the next step is not looked at
                doctor.see(z1, z2)

        figures = {
            "step_ms": 1e3 * seconds(step, device, self.repeats),
            "look_ms": 1e3 * seconds(look, device, self.repeats),
            "other_step_us": 1e4 * seconds(pass_by, device, self.repeats),
        }
        per_step = figures["look_ms"] / self.every + figures["other_step_us"] / 1e3
        figures |= {"cost_percent": 100 * per_step / figures["step_ms"]}
        assert doctor.left_out == {}, doctor.left_out
        settings = {k: v for k, v in asdict(self).items() if k not in ("out", "repeats")}
        line = {**settings, **{k: round(v, 3) for k, v in figures.items()}, "machine": environment(device)}
        print(json.dumps(line))
        if self.out is not None:
            with open(self.out, "a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")


def main() -> None:
    """Read the options and measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for field in fields(DoctorCost):
        kind = Path if field.name == "out" else type(field.default)
        parser.add_argument(f"--{field.name}", type=kind, default=field.default)
    DoctorCost(**vars(parser.parse_args()))()


if __name__ == "__main__":
    main()
