"""Fine-tune a detector and score it, with the schedules of He et al. (MoCo), which CACR follows."""

from __future__ import annotations

import itertools
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from contrapose.lab.evaluation.detection.data import BoxData, DetectionData, Sample, Target
from contrapose.lab.evaluation.detection.detectors import build_detector
from contrapose.lab.evaluation.detection.score import average_precision
from contrapose.lab.modalities import ViewMaker
from contrapose.lab.modalities.images.decoding import quiet_decoders
from contrapose.lab.modalities.images.views import Views
from contrapose.lab.modalities.progress import progress_bar
from contrapose.lab.networks.encoder import Encoder
from contrapose.lab.networks.norms import estimate_statistics
from contrapose.randomness import permutation, uniform

Key = TypeVar("Key")


@dataclass(frozen=True)
class Detection:
    """Fine-tune all layers with SGD (momentum 0.9, weight decay 1e-4) and score the last iteration.

    The defaults are the settings for VOC. Batch norm is trained and normalises over the whole batch, which on one device is
    the same as detectron2's SyncBN.
    """

    iterations: int = 24_000  # batches to train on
    batch: int = 16  # images in a batch
    lr: float | None = None  # learning rate after warm-up; None: 0.02 · batch / 16
    warmup: int = 100  # iterations of linear warm-up
    drops: tuple[float, ...] = (18 / 24, 22 / 24)  # fractions of the iterations after which lr is divided by 10
    sizes: tuple[int, ...] = tuple(range(480, 801, 32))  # lengths of the shorter side in training; tests use the last
    regions: int = 512  # regions per image from which the head learns
    masks: bool = False  # whether to train Mask R-CNN instead of Faster R-CNN
    precise_batches: int = 200  # batches from which the statistics of batch norm are computed after training

    def __post_init__(self) -> None:
        for name in ("iterations", "batch", "regions"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: expected at least 1, got {getattr(self, name)}")
        if self.lr is not None and not self.lr > 0:
            raise ValueError(f"lr: expected a number above 0, got {self.lr}")

    def at_size(self, size: int) -> Detection:
        """Return the same settings for another image size; `size` is the length of the shorter side in tests."""
        if size < 32:
            raise ValueError(f"size: expected at least 32 pixels, got {size}")
        return replace(self, sizes=tuple(dict.fromkeys(round(side * size / self.sizes[-1]) for side in self.sizes)))

    def __call__(
        self,
        encoder: Encoder,
        data: DetectionData,
        *,
        views: ViewMaker,
        device: torch.device | str = "cpu",
        seed: int = 0,
    ) -> dict[str, float]:
        """Fine-tune a detector; return AP, AP50 and AP75 of boxes in per cent and, with masks, mask_AP, mask_AP50 and mask_AP75.

        encoder   network whose stages are copied into backbone and head; it is not changed
        data      images to train and to test on
        views     views that say how the encoder's inputs were normalised
        device    device to compute on
        seed      random seed of the new weights, the order of images, flips, sizes and regions
        """
        if not isinstance(views, Views):
            raise ValueError("run: detection needs an encoder of images")
        device, recipe = torch.device(device), views.recipes[0]
        # torchvision draws from torch's global generators, whose state is restored afterwards.
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []), quiet_decoders():
            torch.manual_seed(seed)
            detector = build_detector(
                encoder,
                len(data.classes),
                masks=self.masks,
                sizes=self.sizes,
                regions=self.regions,
                mean=recipe.mean,
                std=recipe.std,
            ).to(device)
            self.train(detector, data.train, device=device, seed=seed)
            return self.score(detector, data.test, device=device)

    def train(self, detector: nn.Module, data: BoxData, *, device: torch.device, seed: int = 0) -> None:
        """Train a detector in place, then recompute the statistics of its batch norms.

        detector   a detector from `build_detector`, on the device
        data       images to train on
        device     device to compute on
        seed       random seed of the order of images and of flips
        """
        optimiser = torch.optim.SGD(_parameter_groups(detector), lr=self._rate(0), momentum=0.9)
        detector.train()
        with progress_bar("training the detector", self.iterations) as advance:
            for step, samples in enumerate(_batches(data, self.iterations, self.batch, seed=seed)):
                for group in optimiser.param_groups:
                    group["lr"] = self._rate(step)
                loss = torch.stack(list(detector(*_to_device(samples, device)).values())).sum()
                if not loss.isfinite():
                    raise ValueError(f"lr: the loss is {loss.item()} after {step} iterations; use a smaller --lr")
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
                advance()
        batches = _batches(data, min(self.precise_batches, self.iterations), self.batch, seed=seed + 1)
        estimate_statistics(detector, (_to_device(samples, device) for samples in batches))

    @torch.no_grad()
    def score(self, detector: nn.Module, data: BoxData, *, device: torch.device) -> dict[str, float]:
        """Return the average precisions of a detector.

        detector   a detector from `build_detector`, on the device
        data       images to test on
        device     device to compute on
        """
        detector.eval()

        def detections() -> Iterator[tuple[Target, Target]]:
            with progress_bar("detecting in the test images", len(data)) as advance:
                for position, (image, _) in enumerate(_prefetch(data.__getitem__, range(len(data)))):
                    yield detector([image.to(device)])[0], data.annotated(position)
                    advance()

        return average_precision(detections(), masks=self.masks)

    def _rate(self, step: int) -> float:
        """Return the learning rate of an iteration, counted from 0."""
        peak = self.lr if self.lr is not None else 0.02 * self.batch / 16
        drops = sum(step >= drop * self.iterations for drop in self.drops)
        start = 0.001  # fraction of the peak, as in detectron2
        warmup = min(self.warmup, self.iterations // 5)  # even a short run must reach its peak
        warmed = min(1.0, start + (1 - start) * step / warmup) if warmup else 1.0
        return peak * warmed * 0.1**drops


# The schedules of CACR's Table 7: VOC as in He et al., COCO with detectron2's 1× schedule.
PROTOCOLS = {
    "voc": Detection(),
    "coco": Detection(
        masks=True, iterations=90_000, warmup=1000, drops=(60 / 90, 80 / 90), sizes=tuple(range(640, 801, 32))
    ),
}


def _parameter_groups(detector: nn.Module) -> list[dict[str, Any]]:
    """Return the parameters in two groups: batch norm parameters have no weight decay, as in detectron2."""
    norms = {id(p) for module in detector.modules() if isinstance(module, _BatchNorm) for p in module.parameters()}
    parameters = list(detector.parameters())
    return [
        {"params": [p for p in parameters if id(p) not in norms], "weight_decay": 1e-4},
        {"params": [p for p in parameters if id(p) in norms], "weight_decay": 0.0},
    ]


def _batches(data: BoxData, count: int, size: int, *, seed: int) -> Iterator[list[Sample]]:
    """Yield `count` batches of random images, half of them mirrored. No image is repeated before all images have been seen."""

    def read(key: tuple[int, int]) -> Sample:
        epoch, position = key
        mirrored = bool(uniform(torch.tensor([position]), 1, seed, epoch) < 0.5)
        return _mirror(*data[position]) if mirrored else data[position]

    keys = ((epoch, p) for epoch in itertools.count() for p in permutation(len(data), seed, epoch).tolist())
    samples = _prefetch(read, itertools.islice(keys, count * size))
    for _ in range(count):
        yield list(itertools.islice(samples, size))


def _prefetch(read: Callable[[Key], Sample], keys: Iterable[Key]) -> Iterator[Sample]:
    """Yield the result of `read` for each key while threads decode the next images: Pillow releases the interpreter's lock."""
    threads = min(8, os.cpu_count() or 1)
    pending: deque[Future[Sample]] = deque()
    with ThreadPoolExecutor(threads) as pool:
        try:
            for key in keys:
                pending.append(pool.submit(read, key))
                if len(pending) > 4 * threads:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        finally:
            for future in pending:  # after an error or a signal, stop decoding
                future.cancel()


def _mirror(image: Tensor, target: Target) -> Sample:
    """Return an image and its target, flipped horizontally."""
    flipped = dict(target)
    left, top, right, bottom = target["boxes"].unbind(1)
    width = image.shape[2]
    flipped["boxes"] = torch.stack((width - right, top, width - left, bottom), dim=1)
    if "masks" in target:
        flipped["masks"] = target["masks"].flip(-1)
    return image.flip(-1), flipped


def _to_device(samples: Sequence[Sample], device: torch.device) -> tuple[list[Tensor], list[Target]]:
    images = [image.to(device) for image, _ in samples]
    return images, [{name: tensor.to(device) for name, tensor in target.items()} for _, target in samples]
