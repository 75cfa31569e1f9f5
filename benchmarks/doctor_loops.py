"""Healthy training loops under the eyes of `contrapose.Doctor`: all methods of the catalogue, and other data."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from doctor_data import BagOfWords, Captions, Images, batches, cifar10, digits, flickr8k, sts, tiny_imagenet
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize

from contrapose import CATALOGUE, Doctor, Loss, MovingAverage, byol, clip, learned, simsiam, views
from contrapose.doctor.finding import Finding
from contrapose.doctor.look import Look

EVERY = 25
# Methods whose criterion takes more than two embeddings, or none: only their embeddings are checked.
EMBEDDINGS_ONLY = {"swav", "dino", "tau", "byol", "simsiam"}


@dataclass(frozen=True)
class Result:
    """What a doctor of another process has found."""

    findings: list[Finding]
    left_out: dict[str, str]
    looks: list[Look]


@dataclass(frozen=True)
class Fault:
    """A planted fault: what was done to the loop, and the finding that names it."""

    name: str
    loop: str  # plain, Lightning or sentence-transformers
    expected: str
    run: Callable[[int], Doctor | Result]  # maps a number of steps to what was found in training
    half: int = 1  # 2 if it was written after the doctor was finished


@dataclass(frozen=True)
class Healthy:
    """A healthy run."""

    name: str
    run: Callable[[int], Doctor | Result]  # maps a number of steps to what was found in training


def criterion_of(method: str, samples: int) -> nn.Module:
    """Return the criterion of a method of the catalogue, with the values of the paper."""
    found = CATALOGUE[method]
    loss = Loss(found, state=None if found.state is None else found.state(samples))
    loss.epoch = 1
    return loss


def autocast_run(data: Images, temperature: float, steps: int) -> Doctor:
    """Train in bf16, the loss included, as a loop does that puts everything into autocast."""
    torch.manual_seed(0)
    encoder = data.encoder

    def loss(z1: Tensor, z2: Tensor) -> Tensor:
        return cross_entropy(normalize(z1) @ normalize(z2).T / temperature, torch.arange(len(z1)))

    doctor = Doctor(loss, every=EVERY, model=encoder)
    optimiser = torch.optim.Adam(encoder.parameters(), lr=1e-3)
    for index in batches(len(data.images), 128, steps):
        x = data.images[index]
        with torch.autocast("cpu", torch.bfloat16):
            z1, z2 = encoder(data.augment(x)), encoder(data.augment(x))
            doctor.see(z1, z2)
            value = loss(z1, z2)
        optimiser.zero_grad()
        value.backward()
        optimiser.step()
    return doctor


def images_run(data: Images, method: str, steps: int, *, batch: int = 128) -> Doctor:
    """Train on two views of images with a method of the catalogue."""
    torch.manual_seed(0)
    encoder, only = data.encoder, method in EMBEDDINGS_ONLY
    predictor = nn.Sequential(nn.Linear(32, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 32))
    loss = None if only else criterion_of(method, len(data.images))
    doctor = Doctor(loss, every=EVERY, model={"backbone": encoder[0], "projector": encoder[1]})
    own = [] if loss is None else list(loss.parameters())
    # With its hardest negatives, the triplet loss collapses at 1e-3: the nearest row is then a positive no more than by chance.
    rate = 1e-4 if method == "triplet" else 1e-3
    optimiser = torch.optim.Adam([*encoder.parameters(), *predictor.parameters(), *own], lr=rate)
    for index in batches(len(data.images), batch, steps):
        x = data.images[index]
        z1, z2 = encoder(data.augment(x)), encoder(data.augment(x))
        more: dict[str, Any] = {}
        if method in ("isogclr", "fastclip"):
            more["ids"] = index
        if method in ("supcon",):
            more["labels"] = data.labels[index]
        if loss is None:
            doctor.see(z1, z2)
            value = _without(method, z1, z2, predictor)
        else:
            doctor.see(z1, z2, **more)
            value = loss(z1, z2, **more)
        optimiser.zero_grad()
        value.backward()
        optimiser.step()
    return doctor


def _without(method: str, z1: Tensor, z2: Tensor, predictor: nn.Module) -> Tensor:
    """Return the loss of a method whose criterion is not asked."""
    if method in ("byol", "simsiam"):
        function = byol if method == "byol" else simsiam
        return function(views([predictor(z1), predictor(z2)], keys=[z1.detach(), z2.detach()]))
    return CATALOGUE["simclr"]()(views([z1, z2]))


def sentences_run(data: Path, method: str, steps: int) -> Doctor:
    """Train on pairs of sentences that mean the same."""
    torch.manual_seed(0)
    pairs = sts(data).pairs
    encoder = BagOfWords.of(tuple(text for pair in pairs for text in pair))
    loss = criterion_of(method, len(pairs))
    doctor = Doctor(loss, every=EVERY, model=encoder)
    doctor.watch()
    optimiser = torch.optim.Adam([*encoder.parameters(), *loss.parameters()], lr=1e-3)
    for index in batches(len(pairs), 128, steps):
        chosen = [pairs[i] for i in index.tolist()]
        value = loss(encoder([a for a, _ in chosen]), encoder([b for _, b in chosen]))
        optimiser.zero_grad()
        value.backward()
        optimiser.step()
    return doctor


def captions_run(captions: Captions, objective: str, steps: int) -> Doctor:
    """Train an image tower and a text tower on photographs and captions."""
    torch.manual_seed(0)
    towers = {"image": Images("", captions.images, captions.images, partial(torch.add, other=0)).encoder}
    towers["text"] = BagOfWords.of(captions.texts)  # type: ignore[assignment]
    loss = {
        "clip": lambda: Loss(clip, temperature=learned(0.07, low=0.01)),
        "siglip": lambda: Loss(CATALOGUE["siglip"]),
        "fastclip": lambda: Loss(CATALOGUE["fastclip"], state=MovingAverage(len(captions.texts))),
    }[objective]()
    doctor = Doctor(loss, every=EVERY, model=towers)
    optimiser = torch.optim.Adam(
        [*towers["image"].parameters(), *towers["text"].parameters(), *loss.parameters()], lr=1e-3
    )
    for index in batches(len(captions.texts), 128, steps):
        images, texts = towers["image"](captions.images[index]), towers["text"]([captions.texts[i] for i in index])
        more = {"ids": index} if objective == "fastclip" else {}
        doctor.see(images, texts, **more)
        value = loss(images, texts, **more)
        optimiser.zero_grad()
        value.backward()
        optimiser.step()
    return doctor


def healthy_runs(data: Path | None) -> Iterator[Healthy]:
    """Yield all healthy runs that the data at hand allow."""
    for method in CATALOGUE:
        yield Healthy(f"digits {method}", partial(images_run, digits(), method))
    for temperature in (0.1, 0.5):
        yield Healthy(f"digits bf16, temperature {temperature}", partial(autocast_run, digits(), temperature))
    if data is None:
        return
    for method in ("simclr", "dystress", "siglip", "supcon"):
        if (data / "cifar10.npz").is_file():
            yield Healthy(f"CIFAR-10 {method}", partial(images_run, cifar10(data), method))
    for method in ("simclr", "contrastive", "cacr"):
        if (data / "tiny_imagenet").is_dir():
            yield Healthy(f"Tiny-ImageNet {method}", partial(images_run, tiny_imagenet(data), method))
    for method in ("simclr", "dystress", "dcl", "clip"):
        if (data / "sts.tsv").is_file():
            yield Healthy(f"STS {method}", partial(sentences_run, data, method))
    for objective in ("clip", "siglip", "fastclip"):
        if (data / "flickr8k").is_dir():
            yield Healthy(f"Flickr8k {objective}", partial(captions_run, flickr8k(data), objective))
