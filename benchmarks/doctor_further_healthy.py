"""Healthy runs that did not calibrate the limits of the doctor: other seeds, batches, encoders, optimisers and temperatures."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from doctor_data import BagOfWords, Images, batches, cifar10, digits, flickr8k, sts, tiny_imagenet
from doctor_further import Processes, pairs_in_lightning, whole_loss
from doctor_hosts import fit, fit_sentences
from doctor_loops import EVERY, Healthy
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from contrapose import CATALOGUE, Doctor, Loss, clip, gather, learned, nt_xent

MakeLoss = Callable[[], nn.Module]


def method(name: str, **settings: Any) -> MakeLoss:
    """Return what makes the criterion of a method of the catalogue."""
    return lambda: Loss(CATALOGUE[name], **settings)


def mlp(data: Images) -> nn.Module:
    """A perceptron on pixels, with layer norm and 64 dimensions."""
    pixels = data.images[0].numel()
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(pixels, 256),
        nn.LayerNorm(256),
        nn.GELU(),
        nn.Linear(256, 128),
        nn.GELU(),
        nn.Linear(128, 64),
    )


def without_norm(data: Images) -> nn.Module:
    """Two convolutions without normalisation, and a linear head of 128 dimensions."""
    channels = data.images.shape[1]
    return nn.Sequential(
        nn.Conv2d(channels, 32, 3, stride=2, padding=1), nn.ReLU(), nn.Conv2d(32, 64, 3, stride=2, padding=1), nn.ReLU(),
        nn.Flatten(), nn.LazyLinear(128),
    )  # fmt: skip


def images_run(
    data: Images,
    make_loss: MakeLoss,
    steps: int,
    *,
    seed: int = 1,
    batch: int = 128,
    encoder: Callable[[Images], nn.Module] = lambda data: data.encoder,
    sgd: bool = False,
    labels: bool = False,
) -> Doctor:
    """Train on two views of images in plain PyTorch."""
    torch.manual_seed(seed)
    network, loss = encoder(data), make_loss()
    network(data.images[:2])  # makes lazy layers
    doctor = Doctor(loss, every=EVERY, model=network)
    parameters = [*network.parameters(), *loss.parameters()]
    optimiser: torch.optim.Optimizer = torch.optim.AdamW(parameters, lr=5e-4, weight_decay=0.05)
    if sgd:
        optimiser = torch.optim.SGD(parameters, lr=0.05, momentum=0.9, weight_decay=5e-4)
    for index in batches(len(data.images), batch, steps, seed=seed):
        x = data.images[index]
        z1, z2 = network(data.augment(x)), network(data.augment(x))
        more = {"labels": data.labels[index]} if labels else {}
        doctor.see(z1, z2, **more)
        value = loss(z1, z2, **more)
        optimiser.zero_grad()
        value.backward()
        optimiser.step()
    return doctor


def pairs_run(
    sides: tuple[nn.Module, nn.Module],
    rows: tuple[Any, Any],
    make_loss: MakeLoss,
    steps: int,
    *,
    seed: int = 1,
    batch: int = 256,
) -> Doctor:
    """Train one or two towers on pairs of texts, or of images and texts, in plain PyTorch."""
    torch.manual_seed(seed)
    loss = make_loss()
    doctor = Doctor(loss, every=EVERY, model={"first": sides[0], "second": sides[1]})
    parameters = {*sides[0].parameters(), *sides[1].parameters(), *loss.parameters()}
    optimiser = torch.optim.AdamW(parameters, lr=5e-4, weight_decay=0.05)
    for index in batches(len(rows[1]), batch, steps, seed=seed):
        chosen = (
            [rows[0][i] for i in index] if isinstance(rows[0], list) else rows[0][index],
            [rows[1][i] for i in index],
        )
        z1, z2 = sides[0](chosen[0]), sides[1](chosen[1])
        doctor.see(z1, z2)
        value = loss(z1, z2)
        optimiser.zero_grad()
        value.backward()
        optimiser.step()
    return doctor


def sentences_run(data: Path, make_loss: MakeLoss, steps: int, *, is_simcse: bool = False, **settings: Any) -> Doctor:
    """Train on pairs of sentences, or on each sentence twice with two dropout masks (SimCSE)."""
    pairs = sts(data).pairs
    torch.manual_seed(settings.get("seed", 1))
    encoder = BagOfWords.of(tuple(text for pair in pairs for text in pair))
    first = [a for a, _ in pairs]
    return pairs_run(
        (encoder, encoder), (first, first if is_simcse else [b for _, b in pairs]), make_loss, steps, **settings
    )


def captions_run(data: Path, make_loss: MakeLoss, steps: int, **settings: Any) -> Doctor:
    """Train an image tower and a text tower."""
    captions = flickr8k(data)
    torch.manual_seed(settings.get("seed", 1))
    image = Images("", captions.images, captions.images, lambda x: x).encoder
    return pairs_run(
        (image, BagOfWords.of(captions.texts)), (captions.images, list(captions.texts)), make_loss, steps, **settings
    )


def classes_in_lightning(data: Images, steps: int) -> Doctor:
    """Train SupCon of pytorch-metric-learning with Lightning."""
    from pytorch_metric_learning.losses import SupConLoss

    torch.manual_seed(1)
    encoder = data.encoder
    loader = DataLoader(TensorDataset(data.images, data.labels), batch_size=128, shuffle=True, drop_last=True)

    def inputs(batch: list[Tensor]) -> tuple[Tensor, Tensor]:
        x, labels = batch
        return torch.cat([encoder(data.augment(x)), encoder(data.augment(x))]), labels.repeat(2)

    return fit(encoder, SupConLoss(), inputs, loader, steps)


def caption_pairs(data: Path, steps: int) -> Doctor:
    """Train sentence-transformers on two captions of each photograph."""
    texts: dict[str, list[str]] = {}
    with open(data / "flickr8k" / "captions.tsv", encoding="utf-8") as file:
        for line in file:
            name, _, text = line.rstrip("\n").split("\t")
            texts.setdefault(name, []).append(text)
    return fit_sentences([(t[0], t[1]) for t in texts.values() if t[0] != t[1]], steps, seed=1)


def of_views(loss: Loss) -> Callable[[Tensor, Tensor], Tensor]:
    """Return a loss as a function of two embeddings."""
    return lambda z1, z2: loss(z1, z2)


def gathered_loss(z1: Tensor, z2: Tensor) -> Tensor:
    """InfoNCE of the whole batch, with our gather."""
    return whole_loss(gather(z1), gather(z2))


def further_healthy_runs(data: Path | None) -> Iterator[Healthy]:
    """Yield 24 healthy runs, as far as the data at hand allow."""
    run, nt = images_run, partial(method, "simclr")
    some = digits()
    yield Healthy("digits simclr 0.07, batch 512, SGD", partial(run, some, nt(temperature=0.07), batch=512, sgd=True))
    yield Healthy("digits simclr 1.0, MLP", partial(run, some, nt(temperature=1.0), batch=256, encoder=mlp))
    yield Healthy("digits dcl, MLP", partial(run, some, method("dcl"), seed=2, encoder=mlp))
    yield Healthy(
        "digits supcon, no norm", partial(run, some, method("supcon"), batch=256, encoder=without_norm, labels=True)
    )
    yield Healthy("digits vicreg, MLP", partial(run, some, method("vicreg"), seed=3, batch=256, encoder=mlp))
    yield Healthy("digits SupCon of pml, Lightning", partial(classes_in_lightning, some))
    yield Healthy("digits two processes, gather", Processes(gathered_loss, whole_loss))
    if data is None:
        return
    if (data / "cifar10.npz").is_file():
        c = cifar10(data)
        yield Healthy("CIFAR-10 simclr 0.1, SGD", partial(run, c, nt(temperature=0.1), sgd=True))
        yield Healthy("CIFAR-10 simclr 0.5, batch 256", partial(run, c, nt(temperature=0.5), batch=256))
        yield Healthy("CIFAR-10 simclr, learned", partial(run, c, nt(temperature=learned(0.07, low=0.01))))
        yield Healthy("CIFAR-10 barlow_twins", partial(run, c, method("barlow_twins")))
        yield Healthy("CIFAR-10 supcon 0.1", partial(run, c, method("supcon", temperature=0.1), labels=True, sgd=True))
        yield Healthy("CIFAR-10 hard_negative", partial(run, c, method("hard_negative"), seed=2))
        yield Healthy(
            "CIFAR-10 nt_xent 0.2, Lightning", partial(pairs_in_lightning, c, of_views(Loss(nt_xent, temperature=0.2)))
        )
    if (data / "tiny_imagenet").is_dir():
        t = tiny_imagenet(data)
        yield Healthy("Tiny-ImageNet siglip", partial(run, t, method("siglip")))
        yield Healthy("Tiny-ImageNet dhel, no norm", partial(run, t, method("dhel"), encoder=without_norm))
    if (data / "sts.tsv").is_file():
        low = learned(0.07, low=0.01)
        pairs = sts(data).pairs
        yield Healthy(
            "STS clip, batch 512", partial(sentences_run, data, lambda: Loss(clip, temperature=low), batch=512)
        )
        yield Healthy("STS sentence-transformers, scale 20", partial(fit_sentences, pairs, scale=20.0, seed=1))
        yield Healthy(
            "STS sentence-transformers, scale 50", partial(fit_sentences, pairs, scale=50.0, seed=2, batch=256)
        )
        yield Healthy("STS SimCSE 0.05", partial(sentences_run, data, nt(temperature=0.05), is_simcse=True, batch=128))
        yield Healthy("STS siglip, batch 256", partial(sentences_run, data, method("siglip"), seed=2))
    if (data / "flickr8k").is_dir():
        yield Healthy(
            "Flickr8k clip 0.05, batch 256", partial(captions_run, data, lambda: Loss(clip, temperature=0.05))
        )
        yield Healthy("Flickr8k siglip, batch 64", partial(captions_run, data, method("siglip"), seed=2, batch=64))
        yield Healthy("Flickr8k pairs of captions", partial(caption_pairs, data))
