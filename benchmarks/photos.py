"""Train on photographs with one GPU and compare the ways to load them: images per second, and shares of the compiled limit.

    python benchmarks/photos.py --out photos-h200.json

The benchmark makes its own JPEG files of about 450 × 400 pixels. A step is SimCLR's at 224 pixels: two views, NT-Xent, SGD, bf16.
The limits are the same step on views that are ready on the GPU. All ways train the same networks, one after the other.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import interpolate
from torch.utils.data import DataLoader
from torchvision import transforms
from torchvision.datasets import ImageFolder
from torchvision.io import ImageReadMode, decode_jpeg, encode_jpeg

from contrapose.lab.modalities import Reader
from contrapose.lab.modalities.images.image_shards import list_shards, write_shards
from contrapose.lab.modalities.images.images import Images
from contrapose.lab.modalities.images.packed import MappedImages
from contrapose.lab.modalities.images.stream import Files, StreamedImages
from contrapose.lab.modalities.images.views import Views
from contrapose.lab.training import Run, Trainer
from contrapose.lab.training.eager import EagerSteps
from contrapose.lab.training.graphed import GraphedSteps
from contrapose.lab.training.trainer import drain

SIZE = 224


def make_photographs(folder: Path, first: int, count: int) -> None:
    """Write JPEG files with large and small structure, whose content depends on their number alone."""
    torch.set_num_threads(1)
    for number in range(first, first + count):
        generator = torch.Generator().manual_seed(number)
        height, width = 400 + int(torch.randint(-60, 61, (), generator=generator)), 450 + number % 61 - 30
        image = torch.full((1, 3, height, width), 128.0)
        for side, contrast in ((4, 50.0), (16, 30.0), (64, 15.0), (256, 8.0)):
            noise = torch.randn(1, 3, side, side, generator=generator)
            image += contrast * interpolate(noise, (height, width), mode="bilinear")
        path = folder / str(number % 10) / f"{number:06d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encode_jpeg(image[0].clamp(0, 255).to(torch.uint8), quality=85).numpy().tobytes())


def timed(work: Callable[[], Any], *, repeats: int = 2) -> float:
    """Return the seconds of the fastest of some repetitions."""
    seconds = []
    for _ in range(repeats):
        torch.cuda.synchronize()
        start = time.perf_counter()
        work()
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    return min(seconds)


class Bench:
    """One encoder: its trainer, and the images per second of a trained epoch with different readers."""

    def __init__(self, encoder: str, folder: Path, batch: int) -> None:
        run = Run(
            data=str(folder), encoder=encoder, batch=batch, epochs=4, precision="bf16", views="simclr", size=SIZE,
            stream=True, hold_out=0.0, lr=0.03,
        )  # fmt: skip
        self.workers = len(os.sched_getaffinity(0))
        self.trainer = Trainer(run, Path(tempfile.mkdtemp()), log=print, workers=self.workers)
        self.context = self.trainer.context
        self.images = self.context.steps_per_epoch * batch
        self.compiled = False

    def graphed(self, reader: Reader, *, ready: bool = False) -> float:
        """Return images per second of graphed steps; `ready`: on views that are made once."""
        self.context.reader, self.context.latest = reader, None
        steps = GraphedSteps(self.context)
        if ready:
            views = [torch.randn(2, self.context.run.batch, 3, SIZE, SIZE, device="cuda")]
            steps.step.views = lambda *batch, **keys: views
        if self.compiled:  # four epochs are too few to be compiled otherwise
            steps.compile()
        epoch = partial(steps.epoch, first=0, on_step=lambda *progress: None)
        start = time.perf_counter()
        drain(epoch(0))
        if steps.one.graph is None:
            raise RuntimeError("the step could not be captured in a CUDA graph")
        print(f"  first epoch {time.perf_counter() - start:.1f} s", flush=True)
        return self.images / timed(lambda: drain(epoch(1)))

    def eager_limit(self) -> float:
        """Return images per second of eager steps on views that are made once."""
        views = [torch.randn(2, self.context.run.batch, 3, SIZE, SIZE, device="cuda")]
        index = torch.arange(self.context.run.batch, device="cuda")
        steps = EagerSteps(self.context)
        for step in range(4):
            steps.step([(index, views)], 0, step)
        count = 15
        return count * len(index) / timed(lambda: [steps.step([(index, views)], 0, step) for step in range(count)])

    def usual_loop(self, folder: Path) -> float:
        """Return images per second with torchvision's transforms in workers, as in most training loops."""
        jitter = transforms.ColorJitter(0.8, 0.8, 0.8, 0.2)
        transform = transforms.Compose([
            transforms.RandomResizedCrop(SIZE, (0.08, 1.0)), transforms.RandomHorizontalFlip(),
            transforms.RandomApply([jitter], 0.8), transforms.RandomGrayscale(0.2),
            transforms.RandomApply([transforms.GaussianBlur(23, (0.1, 2.0))], 0.5), transforms.ToTensor(),
            transforms.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
        ])  # fmt: skip
        batch = self.context.run.batch
        images = ImageFolder(str(folder), lambda image: (transform(image), transform(image)))
        loader = DataLoader(images, batch, shuffle=True, num_workers=self.workers, pin_memory=True, drop_last=True)
        steps, seen, start = EagerSteps(self.context), 0, 0.0
        index = torch.arange(batch, device="cuda")
        for number, (pair, _) in enumerate(loader):
            views = [torch.stack([view.cuda(non_blocking=True) for view in pair])]
            steps.step([(index, views)], 0, number)
            if number == 1:  # the first batches wait for the workers to start
                torch.cuda.synchronize()
                start = time.perf_counter()
            seen += batch if number > 1 else 0
            if number == 9:
                break
        torch.cuda.synchronize()
        return seen / (time.perf_counter() - start)


def decoding_rate(folder: Path, batch: int) -> float:
    """Return the images per second that the GPU alone decodes."""
    files = [
        torch.frombuffer(bytearray(path.read_bytes()), dtype=torch.uint8)
        for path in sorted(folder.rglob("*.jpg"))[:2048]
    ]
    parts = [files[first : first + batch] for first in range(0, len(files), batch)]
    return len(files) / timed(lambda: [decode_jpeg(part, ImageReadMode.RGB, device="cuda") for part in parts])


def measure(encoder: str, folder: Path, tars: Path, squares: Images, batch: int, *, usual: bool) -> dict[str, float]:
    """Return images per second for each way to load photographs."""
    bench, rates = Bench(encoder, folder, batch), dict[str, float]()
    views, device, workers = bench.context.views, bench.context.device, bench.workers
    options: dict[str, Any] = {"workers": workers, "timeout": 300.0}
    files = bench.trainer.split.train
    assert isinstance(files, Files)
    assert isinstance(views, Views)
    streamed = files.reader(views, device, **options)
    readers: dict[str, Callable[[], Reader]] = {
        "in memory": lambda: squares.reader(views, device, **options),
        "streamed from files": lambda: streamed,
        "streamed from tars": lambda: list_shards(tars, hold_out=0.0).train.reader(views, device, **options),
        "packed, read in batches": lambda: MappedImages(squares.pixels, views, device),
    }
    rates["limit, eager"] = bench.eager_limit()
    for bench.compiled in (False, True):
        how = "compiled" if bench.compiled else "one CUDA graph"
        rates[f"limit, {how}"] = bench.graphed(readers["in memory"](), ready=True)
        for name, make in readers.items():
            if bench.compiled or name == "in memory":
                rates[f"{name}, {how}"] = bench.graphed(make())
        print(encoder, {name: round(rate) for name, rate in rates.items()}, flush=True)
    if usual:
        by_workers = StreamedImages(files, views, device, workers, 300.0)
        rates["streamed, decoded by workers, compiled"] = bench.graphed(by_workers)
        rates["usual loop"] = bench.usual_loop(folder)
    return rates


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--photos", type=int, default=10_240)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--encoders", nargs="+", default=["resnet50", "resnet18", "vit-s16-moco"])
    parser.add_argument(
        "--usual",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="with the first encoder, also measure decoding in workers and a usual loop",
    )
    parser.add_argument("--out", type=Path, help="also write the figures to this JSON file")
    options = parser.parse_args()
    place = Path(tempfile.mkdtemp())
    folder, tars, cores = place / "photographs", place / "tars", len(os.sched_getaffinity(0))
    each = -(-options.photos // cores)
    with ProcessPoolExecutor(cores) as processes:
        parts = [(first, min(each, options.photos - first)) for first in range(0, options.photos, each)]
        list(processes.map(partial(make_photographs, folder), *zip(*parts, strict=True)))
    size = sum(path.stat().st_size for path in folder.rglob("*.jpg"))
    print(f"{options.photos} photographs of {size / options.photos / 1000:.0f} kB", flush=True)
    write_shards(folder, tars, images_per_file=1000)
    squares = Files.of(folder).in_memory(Views.named("simclr", size=SIZE))
    figures: dict[str, Any] = {
        "machine": f"{torch.cuda.get_device_name()}, {cores} cores, torch {torch.__version__}",
        "photographs": options.photos, "batch": options.batch, "pixels": SIZE,
        "decoding alone": decoding_rate(folder, options.batch),
    }  # fmt: skip
    print(f"decoding alone: {figures['decoding alone']:,.0f} images/s", flush=True)
    for number, encoder in enumerate(options.encoders):
        rates = measure(encoder, folder, tars, squares, options.batch, usual=options.usual and number == 0)
        figures[encoder] = rates
        limit = max(rate for name, rate in rates.items() if name.startswith("limit"))
        print(f"\n{encoder:44}{'images/s':>10}{'share':>8}")
        for name, rate in rates.items():
            print(f"  {name:42}{rate:10,.0f}{rate / limit:8.0%}", flush=True)
        if options.out:
            options.out.write_text(json.dumps(figures, indent=1) + "\n")
    shutil.rmtree(place)


if __name__ == "__main__":
    main()
