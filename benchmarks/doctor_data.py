"""Small real data sets and encoders for the loops of `doctor_faults.py`."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

View = Callable[[Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class Images:
    """Images with labels, and the augmentation that makes a view."""

    name: str
    images: Tensor  # (n, c, h, w), values from 0 to 1
    labels: Tensor  # (n,)
    augment: View

    @property
    def encoder(self) -> nn.Sequential:
        """A new encoder with a projector."""
        channels = self.images.shape[1]
        layers: list[nn.Module] = []
        for inside, outside in ((channels, 16), (16, 32), (32, 64)):
            layers += [nn.Conv2d(inside, outside, 3, stride=2, padding=1), nn.BatchNorm2d(outside), nn.ReLU()]
        backbone = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())
        return nn.Sequential(
            backbone, nn.Sequential(nn.Linear(64, 128), nn.BatchNorm1d(128), nn.ReLU(), nn.Linear(128, 32))
        )


def augment(x: Tensor, *, shift: int, noise: float) -> Tensor:
    """Scale and shift each image by its own random amount, change its brightness, and add noise."""
    n, _, h, w = x.shape
    theta = torch.eye(2, 3).repeat(n, 1, 1)
    theta[:, 0, 0] = theta[:, 1, 1] = 0.7 + 0.4 * torch.rand(n)
    theta[:, :, 2] = (2 * torch.rand(n, 2) - 1) * 2 * shift / h
    grid = nn.functional.affine_grid(theta, [n, x.shape[1], h, w], align_corners=False)
    moved = nn.functional.grid_sample(x, grid, align_corners=False)
    return moved * (0.7 + 0.6 * torch.rand(n, 1, 1, 1)) + noise * torch.randn_like(x)


@cache
def digits() -> Images:
    from sklearn.datasets import load_digits

    found = load_digits()
    images = torch.tensor(found.images, dtype=torch.float32)[:, None] / 16
    return Images("digits", images, torch.tensor(found.target), partial(augment, shift=1, noise=0.1))


@cache
def cifar10(data: Path) -> Images:
    found = np.load(data / "cifar10.npz")
    images = torch.tensor(found["train_images"][:6000]).permute(0, 3, 1, 2) / 255
    return Images(
        "CIFAR-10",
        images,
        torch.tensor(found["train_labels"][:6000]).long().flatten(),
        partial(augment, shift=4, noise=0.05),
    )


@cache
def tiny_imagenet(data: Path) -> Images:
    """The first ten classes, at half their size."""
    folders = sorted((data / "tiny_imagenet" / "train").iterdir())[:10]
    files = [(path, number) for number, folder in enumerate(folders) for path in sorted(folder.glob("*.JPEG"))]
    images = torch.stack([_picture(path, 32) for path, _ in files])
    return Images("Tiny-ImageNet", images, torch.tensor([n for _, n in files]), partial(augment, shift=4, noise=0.05))


def _picture(path: Path, size: int) -> Tensor:
    image = Image.open(path).convert("RGB").resize((size, size))
    return torch.from_numpy(np.array(image)).permute(2, 0, 1) / 255


@dataclass(frozen=True, eq=False)
class Texts:
    """Pairs of texts that mean the same."""

    name: str
    pairs: tuple[tuple[str, str], ...]


@cache
def sts(data: Path) -> Texts:
    """Pairs of sentences with a similarity of at least 4 of 5."""
    with open(data / "sts.tsv", encoding="utf-8") as file:
        rows = list(csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    pairs: dict[str, str] = {}
    for row in rows[1:]:
        a, b = row[4].strip(), row[5].strip()
        if float(row[3]) >= 4 and a != b:
            pairs.setdefault(a, b)
    return Texts("STS", tuple(pairs.items())[:6000])


@dataclass(frozen=True, eq=False)
class Captions:
    """Photographs with one caption each."""

    images: Tensor  # (n, 3, 32, 32)
    texts: tuple[str, ...]


@cache
def flickr8k(data: Path) -> Captions:
    folder = data / "flickr8k"
    with open(folder / "captions.tsv", encoding="utf-8") as file:
        rows = [line.rstrip("\n").split("\t") for line in file]
    first = [(name, text) for name, number, text in rows if number == "0"][:3000]
    return Captions(
        torch.stack([_picture(folder / "images" / name, 32) for name, _ in first]), tuple(t for _, t in first)
    )


class BagOfWords(nn.Module):
    """The mean of word vectors, with dropout on the words, and a projector."""

    def __init__(self, words: dict[str, int], width: int = 32) -> None:
        super().__init__()
        self.words, self.table = words, nn.EmbeddingBag(len(words) + 1, 128)
        self.head = nn.Sequential(nn.Linear(128, 128), nn.ReLU(), nn.Dropout(0.1), nn.Linear(128, width))

    @classmethod
    def of(cls, texts: tuple[str, ...]) -> BagOfWords:
        return cls({word: i + 1 for i, word in enumerate(sorted({w for text in texts for w in split(text)}))})

    def forward(self, texts: list[str]) -> Tensor:
        tokens = [[self.words.get(w, 0) for w in split(text)] or [0] for text in texts]
        flat = torch.tensor([token for text in tokens for token in text])
        offsets = torch.tensor([0, *(len(text) for text in tokens[:-1])]).cumsum(0)
        result: Tensor = self.head(self.table(flat, offsets))
        return result


def split(text: str) -> list[str]:
    return text.lower().replace(".", " ").replace(",", " ").split()


def batches(count: int, size: int, steps: int, *, seed: int = 0) -> Iterator[Tensor]:
    """Yield indices of `steps` batches in a new random order in each epoch."""
    generator = torch.Generator().manual_seed(seed)
    order = torch.empty(0, dtype=torch.long)
    for _ in range(steps):
        if len(order) < size:
            order = torch.randperm(count, generator=generator)
        yield order[:size]
        order = order[size:]
