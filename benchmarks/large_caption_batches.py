"""Measure a step on a large batch of images with captions: in micro-batches through GradCache, and as one batch.

    python benchmarks/large_caption_batches.py [--batch 8192] [--micro-batch 256] [--encoder resnet50] [--text-encoder clip]

Prints JSON lines: the machine, then seconds per step and peak memory for both ways. The images are plain colours, each with one
caption: apart from decoding, a step takes as long as on photographs. A batch that does not fit into GPU memory is reported as
such. On a CPU, peak memory is measured for the whole process, including earlier measurements.

Use `--batch 8 --micro-batch 2 --encoder tiny --text-encoder tiny --size 32 --steps 1 --precision fp32` for a trial on a CPU.
"""

from __future__ import annotations

import argparse
import gc
import json
import platform
import resource
import sys
import tempfile
import time
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from contrapose.lab.modalities.captions.settings import CAPTION_SETTINGS
from contrapose.lab.training import Run, Trainer
from contrapose.lab.training.eager import EagerSteps

_SIDE = 8  # size of the image files in pixels; images are enlarged when they are read


def write_captions(folder: Path, count: int) -> Path:
    """Write images of different colours, each with a caption of ten words."""
    (folder / "images").mkdir(parents=True)
    rows = ["image\tcaption\tsplit"]
    for number in range(count):
        colour = (number % 256, number // 256 % 256, number * 37 % 256)
        Image.new("RGB", (_SIDE, _SIDE), colour).save(folder / "images" / f"{number}.png")
        rows.append(
            f"{number}.png\ta photograph of the colour {' '.join(map(str, colour))} with number {number}\ttrain"
        )
    (folder / "captions.tsv").write_text("\n".join(rows) + "\n")
    return folder


def measure(run: Run, folder: Path, steps: int) -> dict[str, Any]:
    """Return seconds per step after the first one, the peak memory in GB, and the loss of the first step."""
    trainer = Trainer(run, folder, log=lambda text: None, data_root=folder.parent)
    is_cuda = trainer.context.device.type == "cuda"
    if is_cuda:
        torch.cuda.reset_peak_memory_stats()
    taken, losses, seconds = EagerSteps(trainer.context), list[float](), list[float]()
    for epoch in range(steps + 1):  # the batch is the whole data set, so that an epoch is one step
        start = time.perf_counter()
        losses.append(taken.step(islice(taken.batches(epoch, 0), run.accumulate), epoch, 0))
        if is_cuda:
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    return {
        "seconds": sum(seconds[1:]) / steps,
        "first_step_seconds": seconds[0],
        "memory_gb": peak_memory(is_cuda) / 1e9,
        "loss": losses[0],
    }


def peak_memory(is_cuda: bool) -> int:
    """Return the peak in bytes: of tensors on the GPU since the last reset, or of this process."""
    if is_cuda:
        return torch.cuda.max_memory_allocated()
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def attempt(run: Run, folder: Path, steps: int) -> dict[str, Any]:
    """Measure a run; if the GPU has too little memory, say so."""
    try:
        return {"fits": True, **measure(run, folder, steps)}
    except torch.OutOfMemoryError:
        return {"fits": False}
    finally:
        gc.collect()  # a trainer refers to itself; the next measurement must not find its tensors
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def describe_machine() -> str:
    """Return the name of the GPU, or of the processor."""
    return torch.cuda.get_device_name() if torch.cuda.is_available() else platform.processor() or platform.machine()


def main() -> None:
    """Measure both ways of taking the same step."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=8192)
    parser.add_argument("--micro-batch", type=int, default=256)
    parser.add_argument("--encoder", default="resnet50")
    parser.add_argument("--text-encoder", default="clip")
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--loss", default="clip")
    parser.add_argument("--precision", default="bf16")
    parser.add_argument("--steps", type=int, default=3)
    options = parser.parse_args()
    if options.batch % options.micro_batch or options.batch == options.micro_batch:
        parser.error(f"--batch: expected a multiple of --micro-batch {options.micro_batch}, got {options.batch}")
    if options.steps < 1:
        parser.error(f"--steps: expected at least 1, got {options.steps}")
    print(json.dumps({"machine": describe_machine(), "torch": torch.__version__, **vars(options)}), flush=True)
    settings: dict[str, Any] = {**CAPTION_SETTINGS, "views": "clip", "lr": 5e-4, "warmup": 0.0, "metrics": 0}
    settings |= {name: getattr(options, name) for name in ("encoder", "text_encoder", "size", "loss", "precision")}
    settings |= {"epochs": options.steps + 1}
    parts = options.batch // options.micro_batch
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        data = str(write_captions(folder / "data", options.batch))
        ways = {  # the way that needs less memory comes first, since the peak memory of a process never falls
            "micro-batches": {"batch": options.micro_batch, "accumulate": parts, "grad_cache": True},
            "one batch": {"batch": options.batch},
        }
        for name, way in ways.items():
            run = Run(data=data, **{**settings, **way})
            print(json.dumps({"way": name, **attempt(run, folder / name, options.steps)}), flush=True)


if __name__ == "__main__":
    main()
