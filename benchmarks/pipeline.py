"""Compare contrapose's augmentation with torchvision's on the CPU, alone and in a training step: images per second.

    python benchmarks/pipeline.py

The recipe is SimCLR's for CIFAR (crop, flip, jitter, grayscale, normalise), two views per image, one process. The contestants
are torchvision on PIL images (as in most pipelines), torchvision's v2 transforms on uint8 tensors, and contrapose on the whole
batch. A step consists of views, the tiny encoder, its head, NT-Xent, backward pass and SGD.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import torch
from torch import Tensor
from torchvision import transforms
from torchvision.transforms import v2
from torchvision.transforms.functional import to_pil_image

from contrapose.lab.frameworks import SimCLR
from contrapose.lab.modalities.images.digits import digits
from contrapose.lab.modalities.images.encoders import encoder
from contrapose.lab.modalities.images.views import RECIPES, Views
from contrapose.lab.networks.heads import head
from contrapose.losses import nt_xent

RECIPE = RECIPES["simclr-cifar"][0]


def pil_pipeline(pixels: Tensor) -> Callable[[Tensor], Tensor]:
    """Return a function from indices (B,) to two views (2, B, 3, 32, 32), by torchvision on PIL images."""
    pictures = [to_pil_image(x) for x in pixels]
    transform = transforms.Compose([
        transforms.RandomResizedCrop(32, RECIPE.scale), transforms.RandomHorizontalFlip(),
        transforms.RandomApply([transforms.ColorJitter(0.4, 0.4, 0.4, 0.1)], 0.8), transforms.RandomGrayscale(0.2),
        transforms.ToTensor(), transforms.Normalize(RECIPE.mean, RECIPE.std),
    ])  # fmt: skip
    return lambda index: torch.stack([torch.stack([transform(pictures[i]) for i in index.tolist()]) for _ in range(2)])


def v2_pipeline(pixels: Tensor) -> Callable[[Tensor], Tensor]:
    """Return the same function, by torchvision's v2 transforms on uint8 tensors, one image at a time."""
    transform = v2.Compose([
        v2.RandomResizedCrop(32, RECIPE.scale, antialias=True), v2.RandomHorizontalFlip(),
        v2.RandomApply([v2.ColorJitter(0.4, 0.4, 0.4, 0.1)], 0.8), v2.RandomGrayscale(0.2),
        v2.ToDtype(torch.float32, scale=True), v2.Normalize(RECIPE.mean, RECIPE.std),
    ])  # fmt: skip
    return lambda index: torch.stack([torch.stack([transform(pixels[i]) for i in index]) for _ in range(2)])


def our_pipeline(pixels: Tensor) -> Callable[[Tensor], Tensor]:
    """Return the same function, by contrapose on the whole batch."""
    views = Views((RECIPE, RECIPE))
    return lambda index: views.train(pixels[index], index, seed=0, epoch=0)[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--out", type=Path, help="also write the figures to this JSON file")
    options = parser.parse_args()
    pixels = digits(options.batch * 2).pixels
    index = torch.arange(options.batch)
    pipelines = {
        "torchvision, PIL": pil_pipeline(pixels),
        "torchvision, v2": v2_pipeline(pixels),
        "contrapose": our_pipeline(pixels),
    }
    body = encoder("tiny")
    network = SimCLR(body, head("simclr", body.width))
    optimiser = torch.optim.SGD(network.parameters(), 0.01)

    def step(two_views: Tensor) -> None:
        optimiser.zero_grad()
        nt_xent(network([two_views], index), temperature=0.2).backward()
        optimiser.step()

    seconds: dict[str, dict[str, list[float]]] = {name: {"views": [], "step": []} for name in pipelines}
    for _ in range(options.rounds + 1):  # the first round warms up and does not count
        for name, pipeline in pipelines.items():
            start = time.perf_counter()
            two_views = pipeline(index)
            views_ready = time.perf_counter()
            step(two_views)
            seconds[name]["views"].append(views_ready - start)
            seconds[name]["step"].append(time.perf_counter() - start)
    print(f"{'pipeline':20}{'views: images/s':>18}{'ratio':>8}{'step: images/s':>18}{'ratio':>8}")
    rates = {
        name: {part: options.batch / median(times[1:]) for part, times in parts.items()}
        for name, parts in seconds.items()
    }
    for name, parts in rates.items():
        ratios = {part: rates["contrapose"][part] / rate for part, rate in parts.items()}
        columns = "".join(f"{parts[part]:18,.0f}{ratios[part]:8.2f}" for part in ("views", "step"))
        print(f"{name:20}{columns}")
    if options.out:
        machine = f"{platform.machine()}, {os.cpu_count()} cores, torch {torch.__version__}"
        figures = {"machine": machine, "batch": options.batch, "images_per_second": rates}
        options.out.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
