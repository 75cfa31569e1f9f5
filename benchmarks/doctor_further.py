"""The second half of the planted faults, written after the doctor was finished and without knowledge of its limits."""

from __future__ import annotations

import pickle
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from doctor_data import BagOfWords, Images, batches, cifar10, digits, flickr8k, sts, tiny_imagenet
from doctor_hosts import Function, fit, fit_sentences, shuffled
from doctor_loops import EVERY, Fault, Result, autocast_run, captions_run
from torch import Tensor, nn
from torch.multiprocessing.spawn import start_processes
from torch.nn.functional import cross_entropy, normalize
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

from contrapose import CATALOGUE, Doctor, Loss, nt_xent

PROCESSES = 2


class ScaleWithoutLogarithm(nn.Module):
    """CLIP's loss with a parameter that starts at the scale, not at its logarithm, and has no bound."""

    def __init__(self) -> None:
        super().__init__()
        self.logit_scale = nn.Parameter(torch.tensor(1 / 0.07))

    def forward(self, z1: Tensor, z2: Tensor) -> Tensor:
        logits = self.logit_scale.exp() * normalize(z1) @ normalize(z2).T
        own = torch.arange(len(z1))
        return (cross_entropy(logits, own) + cross_entropy(logits.T, own)) / 2


def unbounded_scale(data: Path, steps: int) -> Doctor:
    """Train with a logit scale of exp(1 / 0.07), which is 1.6 million."""
    torch.manual_seed(0)
    pairs, loss = sts(data).pairs, ScaleWithoutLogarithm()
    encoder = BagOfWords.of(tuple(text for pair in pairs for text in pair))
    doctor = Doctor(loss, every=EVERY, model=encoder)
    optimiser = torch.optim.Adam([*encoder.parameters(), *loss.parameters()], lr=1e-3)
    for index in batches(len(pairs), 128, steps):
        chosen = [pairs[i] for i in index.tolist()]
        z1, z2 = encoder([a for a, _ in chosen]), encoder([b for _, b in chosen])
        doctor.see(z1, z2)
        value = loss(z1, z2)
        optimiser.zero_grad()
        value.backward()
        optimiser.step()
    return doctor


def shifted_captions(data: Path, steps: int) -> Doctor:
    """Train CLIP with a column of captions that is shifted by one row."""
    captions = flickr8k(data)
    return captions_run(replace(captions, texts=(captions.texts[-1], *captions.texts[:-1])), "clip", steps)


def temperature_twice(z1: Tensor, z2: Tensor) -> Tensor:
    """Divide by the temperature where the similarities are computed, and again in the loss."""
    similarities = normalize(z1) @ normalize(z2).T / 0.07
    return cross_entropy(similarities / 0.07, torch.arange(len(z1)))


def pairs_in_lightning(data: Images, function: Callable[..., Tensor], steps: int) -> Doctor:
    """Train on two views of images with Lightning."""
    torch.manual_seed(0)
    encoder = data.encoder
    loader = shuffled(data.images)

    def inputs(x: Tensor) -> tuple[Tensor, Tensor]:
        return encoder(data.augment(x)), encoder(data.augment(x))

    return fit(encoder, Function(function), inputs, loader, steps)


def unshuffled_classes(data: Images, steps: int) -> Doctor:
    """Train SupCon of pytorch-metric-learning on a folder with one subfolder per class, without shuffling."""
    from pytorch_metric_learning.losses import SupConLoss

    torch.manual_seed(0)
    encoder, order = data.encoder, data.labels.argsort()
    loader = DataLoader(TensorDataset(data.images[order], data.labels[order]), batch_size=128, drop_last=True)

    def inputs(batch: list[Tensor]) -> tuple[Tensor, Tensor]:
        x, labels = batch
        return torch.cat([encoder(data.augment(x)), encoder(data.augment(x))]), labels.repeat(2)

    return fit(encoder, SupConLoss(), inputs, loader, steps)


def labels_of_other_images(data: Images, steps: int) -> Doctor:
    """Train SupCon with images and labels from two loaders that shuffle on their own."""
    torch.manual_seed(0)
    encoder, loss = data.encoder, Loss(CATALOGUE["supcon"])
    loaders = [shuffled(data.images), shuffled(data.labels)]

    def inputs(batch: list[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        x, labels = batch
        return encoder(data.augment(x)), encoder(data.augment(x)), labels

    return fit(encoder, Function(lambda z1, z2, labels: loss(z1, z2, labels=labels)), inputs, loaders, steps)


def repeated_by_collate(data: Images, steps: int) -> Doctor:
    """Repeat each image in `collate_fn`, which was written for one view each, and make two views of each copy."""
    torch.manual_seed(0)
    encoder = data.encoder

    def collate(rows: list[Tensor]) -> Tensor:
        return torch.stack(rows).repeat(2, 1, 1, 1)

    loader = shuffled(data.images, 64, collate_fn=collate)

    def inputs(x: Tensor) -> tuple[Tensor, Tensor]:
        return encoder(data.augment(x)), encoder(data.augment(x))

    return fit(encoder, Function(Loss(nt_xent, temperature=0.2)), inputs, loader, steps)


def local_loss(z1: Tensor, z2: Tensor, *, temperature: float = 0.2) -> Tensor:
    """InfoNCE of the rows of this process against those of all, gathered without a gradient."""
    gathered = [torch.empty_like(z2) for _ in range(PROCESSES)]
    dist.all_gather(gathered, z2.detach())
    gathered[dist.get_rank()] = z2
    own = torch.arange(len(z1)) + dist.get_rank() * len(z1)
    return cross_entropy(normalize(z1) @ normalize(torch.cat(gathered)).T / temperature, own)


def whole_loss(z1: Tensor, z2: Tensor, *, temperature: float = 0.2) -> Tensor:
    """InfoNCE in one process."""
    return cross_entropy(normalize(z1) @ normalize(z2).T / temperature, torch.arange(len(z1)))


@dataclass(frozen=True)
class Processes:
    """A loop in two processes on digits, with DistributedDataParallel."""

    loss: Callable[[Tensor, Tensor], Tensor]
    whole: Callable[[Tensor, Tensor], Tensor] | None = None
    is_divided: bool = True  # whether each process has its own part of the data, as of a DistributedSampler

    def __call__(self, steps: int) -> Result:
        with tempfile.TemporaryDirectory() as folder:
            start_processes(self.work, args=(folder, steps), nprocs=PROCESSES, start_method="spawn")
            result: Result = pickle.loads((Path(folder) / "result").read_bytes())
        return result

    def work(self, rank: int, folder: str, steps: int) -> None:
        """Train as one of the processes; the first writes what the doctor found."""
        torch.set_num_threads(1)
        dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=PROCESSES)
        data = digits()
        torch.manual_seed(0)
        network = DistributedDataParallel(data.encoder)
        torch.manual_seed(rank)  # augmentations differ
        doctor = Doctor(self.loss, every=EVERY, model=network, whole=self.whole)
        optimiser = torch.optim.Adam(network.parameters(), lr=1e-3)
        own = torch.arange(rank, len(data.images), PROCESSES) if self.is_divided else torch.arange(len(data.images))
        for index in batches(len(own), 64, steps):
            x = data.images[own[index]]
            z1, z2 = network(torch.cat([data.augment(x), data.augment(x)])).chunk(2)
            doctor.see(z1, z2)
            value = self.loss(z1, z2)
            optimiser.zero_grad()
            value.backward()
            optimiser.step()
        if rank == 0:
            result = Result(doctor.findings, doctor.left_out, doctor.looks)
            (Path(folder) / "result").write_bytes(pickle.dumps(result))
        dist.destroy_process_group()


def further_faults(data: Path | None) -> Iterator[Fault]:
    """Yield the faults of the second half that the data at hand allow."""
    fault = partial(Fault, half=2)
    lightning, sentences = "Lightning", "sentence-transformers"
    yield fault("no DistributedSampler", "plain", "ranks hold the same batch", Processes(whole_loss, is_divided=False))
    yield fault("gather without gradient", "plain", "gradient differs across ranks", Processes(local_loss, whole_loss))
    yield fault("labels of other images", lightning, "nothing learned", partial(labels_of_other_images, digits()))
    if data is None:
        return
    if (data / "cifar10.npz").is_file():
        images = cifar10(data)
        yield fault(
            "temperature used twice",
            lightning,
            "temperature too low",
            partial(pairs_in_lightning, images, temperature_twice),
        )
        yield fault("classes in order", lightning, "labels all equal", partial(unshuffled_classes, images))
        yield fault("bf16 at temperature 0.005", "plain", "low precision", partial(autocast_run, images, 0.005))
    if (data / "tiny_imagenet").is_dir():
        yield fault(
            "repeated by collate_fn", lightning, "false negatives", partial(repeated_by_collate, tiny_imagenet(data))
        )
    if (data / "flickr8k").is_dir():
        yield fault("captions shifted by a row", "plain", "nothing learned", partial(shifted_captions, data))
    if (data / "sts.tsv").is_file():
        pairs = sts(data).pairs
        yield fault("logit scale without log", "plain", "scale at its bound", partial(unbounded_scale, data))
        yield fault(
            "SimCSE without dropout", sentences, "identical views", partial(fit_sentences, [(a, a) for a, _ in pairs])
        )
        yield fault("texts cut to one word", sentences, "duplicates", partial(fit_sentences, pairs, longest=1))
        yield fault(
            "row number in both texts", sentences, "too easy",
            partial(fit_sentences, [(f"{i} {a}", f"{i} {b}") for i, (a, b) in enumerate(pairs)]),
        )  # fmt: skip
