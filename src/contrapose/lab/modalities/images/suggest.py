"""Settings that suit a user's images and device: recipe, size, encoder and batch, by the images' size and number."""

from __future__ import annotations

import math
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

from contrapose.lab.modalities.images.archive import read_header
from contrapose.lab.modalities.images.decoding import ImagePath, open_image
from contrapose.lab.modalities.images.digits import DRAWINGS
from contrapose.lab.modalities.images.encoders import encoder
from contrapose.lab.modalities.images.images import Images
from contrapose.lab.modalities.images.load import load
from contrapose.lab.modalities.images.packed import ENDING, packed_facts
from contrapose.lab.modalities.images.views import Views
from contrapose.lab.modalities.modality import DataSettings, Suggestion

# Approximate length of the shorter side in pixels, and number of training images.
_KNOWN = {name: (drawing.side, drawing.training_images) for name, drawing in DRAWINGS.items()} | {
          "cifar10": (32, 50_000), "cifar100": (32, 50_000), "svhn": (32, 73_257),
          "stl10": (96, 105_000), "mnist": (28, 60_000), "caltech101": (200, 6_900), "country211": (300, 31_650),
          "dtd": (450, 3_760), "eurosat": (64, 21_600), "fgvc-aircraft": (650, 6_667), "flowers102": (500, 2_040),
          "food101": (400, 75_750), "gtsrb": (40, 26_640), "oxford-pets": (350, 3_680), "rendered-sst2": (448, 6_920),
          "stanford-cars": (400, 8_144)}  # fmt: skip
_SAMPLED = 200  # files whose headers are read
_MANY = 10_000  # number of images from which a large network at full resolution pays off
_OWN_SIZES = {"alexnet": 32, "alexnet-64": 64}


@dataclass(frozen=True)
class ImageFacts:
    """Number of training images, and the median length of their shorter side in pixels."""

    images: int
    side: int
    view_size: int = 0  # the size of the views for which a packed copy was made


def suggest(settings: DataSettings, chosen: Mapping[str, Any], device: torch.device) -> Suggestion:
    """Choose views, size, encoder and batch; `chosen` holds the user's own choices, with `view_count` and `accumulate`."""
    facts = _look(settings)
    # The number of images that an imbalance rule keeps depends on the classes; it is about a tenth or more.
    fewest = facts.images // (10 if settings.imbalance else 1)
    new = suggest_for(facts, chosen, device, fewest=fewest)
    return Suggestion(new, facts.images, f"{facts.images:,} images of {facts.side} pixels")


def suggest_for(
    facts: ImageFacts, chosen: Mapping[str, Any], device: torch.device, *, fewest: int = 0
) -> dict[str, Any]:
    """Return the settings that the user has not chosen, for images of this number and size.

    fewest   smallest number of images that may be left to train on; by default all
    """
    gpu, picked = device.type != "cpu", dict(chosen)
    # The order matters, since each setting depends on the settings before it.
    if "views" not in picked:
        picked.setdefault("size", facts.view_size or _OWN_SIZES.get(picked.get("encoder", "")) or _size(facts, gpu))
        picked["views"] = _views(picked["size"])
    size = picked.get("size") or Views.named(picked["views"]).recipes[0].size
    picked.setdefault("encoder", _encoder(facts, size, gpu))
    picked.setdefault("batch", _batch(fewest or facts.images, picked, size, device))
    return {name: value for name, value in picked.items() if name not in chosen}


def _look(settings: DataSettings) -> ImageFacts:
    """Return the number and size of a run's training images, reading only headers."""
    path, view_size = Path(settings.data), 0
    if settings.data in _KNOWN:
        side, images = _KNOWN[settings.data]
    elif path.suffix == ".npz":
        side, images = _npz_shape(path)
    elif path.suffix == ENDING:
        images, view_size = packed_facts(path)
        side = view_size
    else:
        skip = settings.skip_broken
        files = load(settings.data, classes=settings.classes, hold_out=settings.hold_out, skip_broken=skip).train
        side, images = median_side(files.paths), len(files)
    return ImageFacts(min(images, settings.limit or images), side, view_size)


def _npz_shape(path: Path) -> tuple[int, int]:
    """Return the shorter side and the number of training images in an .npz file, from the header of their array."""
    try:
        with zipfile.ZipFile(path) as archive:
            shape, _ = read_header(archive, path, "train_images")
            return min(shape[1:3]), shape[0]
    except (zipfile.BadZipFile, NotImplementedError, KeyError, ValueError, OSError):
        images = load(str(path)).train  # its error says what is wrong with the file
        assert isinstance(images, Images)
        return min(images.pixels.shape[2:]), len(images)


def median_side(paths: Sequence[ImagePath]) -> int:
    """Return the median length of the shorter side in a sample of files."""
    sides = []
    for path in paths[:: max(1, len(paths) // _SAMPLED)]:
        try:
            with open_image(path) as image:
                sides.append(min(image.size))
        except Exception:  # loading the data will report an unreadable file
            continue
    return round(median(sides or [64]))


def _size(facts: ImageFacts, gpu: bool) -> int:
    """Return the width of the views: near the images' own width, as far as the device and the number of images allow."""
    if not gpu:  # a step takes four times as long at twice the size; more steps at a small size learn more
        return 32 if facts.side <= 80 else 48
    if facts.side <= 80:
        return 32 if facts.side <= 36 else 48 if facts.side <= 56 else 64
    return min(96 if facts.images < _MANY else 224, facts.side // 32 * 32)


def _views(size: int) -> str:
    """Return SimCLR's recipe; without blur for small images, whose details a blur would remove."""
    return "simclr-cifar" if size <= 64 else "simclr"


def _encoder(facts: ImageFacts, size: int, gpu: bool) -> str:
    if not gpu:
        return "small"
    if size <= 64:
        return "resnet18-cifar"  # its stem keeps the resolution of small images
    return "resnet50" if facts.images >= _MANY and size >= 128 else "resnet18"


def _batch(images: int, picked: Mapping[str, Any], size: int, device: torch.device) -> int:
    """Return a power of two that fits in the device's memory and gives at least four steps per epoch."""
    most = 256 if device.type != "cpu" else 128 if images >= 1000 else 64
    if device.type == "cuda" and torch.cuda.is_available():
        views = Views.named(picked["views"], picked.get("view_count", 2), size=size)
        needed = sum(_activation_bytes(picked["encoder"], recipe.size) for recipe in set(views.recipes)) * views.count
        # Half of the memory is left for weights, the optimiser and fragmentation.
        most = min(most, torch.cuda.get_device_properties(device).total_memory // (2 * needed))
    fitting = min(most, images // (4 * picked.get("accumulate", 1)))
    return int(2 ** math.floor(math.log2(max(2, fitting))))


def _activation_bytes(name: str, size: int) -> int:
    """Estimate the bytes that training stores per image, which are the outputs of the encoder's layers."""
    outputs = 0

    def count(module: nn.Module, inputs: Any, output: Any) -> None:
        nonlocal outputs
        stored = not getattr(module, "inplace", False) and not list(module.children())
        if stored and isinstance(output, Tensor):
            outputs += output.numel()

    with torch.random.fork_rng(devices=[]), torch.device("meta"):
        network = encoder(name, size)
        for module in network.modules():
            module.register_forward_hook(count)
        with torch.no_grad():
            network(torch.zeros(1, 3, size, size))
    return 4 * outputs
