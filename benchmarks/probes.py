"""Compare the time per epoch of a linear probe on augmented images and on features of plain images. Prints JSON lines.

    python benchmarks/probes.py [--images 50000] [--encoder resnet18-cifar] [--probe cacr] [--precision bf16] [--epochs 3]

Images are random, 32 × 32. A plain probe encodes all images once; an augmented one encodes them in each epoch. The time of
an epoch is the difference between a probe with 1 + E epochs and a probe with 1 epoch, divided by E. An uncounted probe runs
first. So the encoding of test images, the capture of the CUDA graph and other start-up costs are left out.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from dataclasses import replace

import torch

from contrapose.lab.devices import own_device
from contrapose.lab.evaluation import PROBES, Probe
from contrapose.lab.modalities import Split
from contrapose.lab.modalities.images.images import Images
from contrapose.lab.training import Model, Run
from contrapose.lab.training.build import build


def random_images(count: int, seed: int) -> Images:
    """Return images of random pixels with ten classes."""
    pixels = torch.randint(0, 256, (count, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))
    return Images("random", pixels, torch.arange(count) % 10)


def seconds(model: Model, split: Split, probe: Probe) -> float:
    """Return how long a probe takes. Its scores are read at the end, which waits for the device."""
    start = time.perf_counter()
    model.linear_probe(split, probe)
    return time.perf_counter() - start


def main() -> None:
    """Print one line for the plain probe and one for each augmentation."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=50_000)
    parser.add_argument("--encoder", default="resnet18-cifar")
    parser.add_argument("--probe", default="cacr")
    parser.add_argument("--precision", default="bf16")
    parser.add_argument("--epochs", type=int, default=3)
    options = parser.parse_args()
    device = own_device()
    run = Run(data="cifar10", views="align-uniform", encoder=options.encoder, precision=options.precision)
    train, test = random_images(options.images, 0), random_images(max(10, options.images // 5), 1)
    network = build(run, len(train)).to(device)
    model = Model(run, network.encoder, network.projector, device)
    run.kind.prepare(model)
    split = Split(train, train, test)
    machine = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine()
    settings = {**vars(options), "device": machine, "torch": torch.__version__}
    for augment in ("", "crops", "flips", "colours"):
        probe = replace(PROBES[options.probe], augment=augment)
        seconds(model, split, probe.shortened(1))
        start = seconds(model, split, probe.shortened(1))
        epoch = (seconds(model, split, probe.shortened(1 + options.epochs)) - start) / options.epochs
        result = {"augment": augment or "none", "seconds_per_epoch": epoch, "images_per_second": options.images / epoch}
        print(json.dumps(result | {"seconds_of_one_epoch_from_the_start": start} | settings), flush=True)


if __name__ == "__main__":
    main()
