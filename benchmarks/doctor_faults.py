"""Planted faults and healthy runs under the eyes of `contrapose.Doctor`, on real data.

python benchmarks/doctor_faults.py                          # digits only
python benchmarks/doctor_faults.py --data DATA              # and what DATA has of the four below
python benchmarks/doctor_faults.py --healthy --out FILE     # healthy runs only: how far the limits are from them
python benchmarks/doctor_faults.py --data DATA --half 2     # what was written after the doctor was finished

DATA may have cifar10.npz (train_images, train_labels), tiny_imagenet/train/CLASS/*.JPEG, flickr8k/ (captions.tsv, images/) and
sts.tsv (dataset, subset, split, score, sentence 1, sentence 2). A run is 400 steps on the CPU. The exit code is 1 if a fault is
not named, or a healthy run has a finding.
"""

from __future__ import annotations

import json
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import tyro
from doctor_data import BagOfWords, Images, batches, cifar10, digits, flickr8k, sts, tiny_imagenet
from doctor_further import further_faults
from doctor_further_healthy import further_healthy_runs
from doctor_hosts import Function, fit, fit_sentences
from doctor_loops import EVERY, Fault, Result, healthy_runs
from torch import Tensor
from torch.nn.functional import cosine_similarity, cross_entropy, normalize

from contrapose import Doctor, Loss, clip, learned, nt_xent
from contrapose.lab.training.records.files import environment, write_json_atomically

MakeLoss = Callable[..., Tensor]


@dataclass(frozen=True)
class Plain:
    """A loop in plain PyTorch; a fault changes one of its pieces."""

    data: Images
    loss: MakeLoss
    second: Callable[[Tensor], Tensor] = lambda z: z  # what becomes of the second embedding
    same_view: bool = False

    def __call__(self, steps: int) -> Doctor:
        torch.manual_seed(0)
        encoder = self.data.encoder
        doctor = Doctor(self.loss, every=EVERY, model=encoder)
        optimiser = torch.optim.Adam(encoder.parameters(), lr=1e-3)
        for index in batches(len(self.data.images), 128, steps):
            x = self.data.images[index]
            first = self.data.augment(x)
            z1, z2 = encoder(first), self.second(encoder(first if self.same_view else self.data.augment(x)))
            doctor.see(z1, z2)
            value = self.loss(z1, z2)
            optimiser.zero_grad()
            value.backward()
            optimiser.step()
        return doctor


def dot_products(z1: Tensor, z2: Tensor) -> Tensor:
    """InfoNCE that forgets to normalise."""
    return cross_entropy(z1 @ z2.T / 0.5, torch.arange(len(z1)))


def detached_positives(z1: Tensor, z2: Tensor) -> Tensor:
    """InfoNCE whose positives were detached together with a mask."""
    s = normalize(z1) @ normalize(z2).T / 0.2
    own = torch.eye(len(s), dtype=torch.bool)
    return torch.where(own, s.detach(), s).logsumexp(1).mean() - s.diagonal().detach().mean()


def class_loss(data: Images, steps: int) -> Doctor:
    """SupCon of pytorch-metric-learning with indices in place of classes."""
    from pytorch_metric_learning.losses import SupConLoss

    torch.manual_seed(0)
    encoder, loss = data.encoder, SupConLoss()
    doctor = Doctor(loss, every=EVERY, model=encoder)
    doctor.watch()
    optimiser = torch.optim.Adam(encoder.parameters(), lr=1e-3)
    for index in batches(len(data.images), 128, steps):
        value = loss(encoder(data.augment(data.images[index])), index)
        optimiser.zero_grad()
        value.backward()
        optimiser.step()
    return doctor


def locked_text_tower(data: Path, steps: int) -> Doctor:
    """CLIP whose optimiser has the parameters of the image tower only."""
    torch.manual_seed(0)
    captions = flickr8k(data)
    image = Images("", captions.images, captions.images, lambda x: x).encoder
    text = BagOfWords.of(captions.texts)
    loss = Loss(clip, temperature=learned(0.07, low=0.01))
    doctor = Doctor(loss, every=EVERY, model={"image": image, "text": text})
    optimiser = torch.optim.Adam([*image.parameters(), *loss.parameters()], lr=1e-3)
    for index in batches(len(captions.texts), 128, steps):
        z1, z2 = image(captions.images[index]), text([captions.texts[i] for i in index])
        doctor.see(z1, z2)
        value = loss(z1, z2)
        optimiser.zero_grad()
        value.backward()
        optimiser.step()
    return doctor


def lightning_run(
    data: Images,
    function: MakeLoss,
    steps: int,
    *,
    after: Callable[[Tensor], Tensor] = lambda z: z,
    is_sorted: bool = False,
) -> Doctor:
    """Train on two views of images with Lightning."""
    torch.manual_seed(0)
    encoder = data.encoder
    images = data.images[data.labels.argsort()] if is_sorted else data.images
    dataset = torch.utils.data.TensorDataset(images)
    loader = torch.utils.data.DataLoader(dataset, batch_size=128, shuffle=not is_sorted, drop_last=True)

    def inputs(batch: list[Tensor]) -> tuple[Tensor, Tensor]:
        (x,) = batch
        return after(encoder(data.augment(x))), after(encoder(data.augment(x)))

    return fit(encoder, Function(function), inputs, loader, steps)


def without_stop_gradient(z1: Tensor, z2: Tensor) -> Tensor:
    """A loss that only pulls, with a gradient on both sides."""
    return -cosine_similarity(z1, z2).mean()


def repeated_pairs(data: Path, steps: int) -> Doctor:
    """Train on the first 64 pairs, again and again."""
    return fit_sentences(sts(data).pairs[:64] * 40, steps)


def faults(data: Path | None) -> Iterator[Fault]:
    """Yield the faults that the data at hand allow."""
    nt = partial(Loss, nt_xent)
    yield Fault(
        "pairs in another order",
        "plain",
        "nothing learned",
        Plain(digits(), nt(temperature=0.5), lambda z: z.roll(1, 0)),
    )
    yield Fault("temperature 0.001", "plain", "temperature too low", Plain(digits(), nt(temperature=0.001)))
    yield Fault("indices as labels", "plain", "labels all different", partial(class_loss, digits()))
    yield Fault("no stop-gradient", "Lightning", "collapse", partial(lightning_run, digits(), without_stop_gradient))
    along_batch = partial(normalize, dim=0)
    yield Fault(
        "normalize(z, dim=0)", "Lightning", "normalised along the batch",
        partial(lightning_run, digits(), nt(temperature=0.5), after=along_batch),
    )  # fmt: skip
    yield Fault(
        "sorted by class", "Lightning", "data not shuffled",
        partial(lightning_run, digits(), nt(temperature=0.2), is_sorted=True),
    )  # fmt: skip
    if data is None:
        return
    if (data / "cifar10.npz").is_file():
        images = cifar10(data)
        yield Fault(
            "one view used twice", "plain", "identical views", Plain(images, nt(temperature=0.5), same_view=True)
        )
        yield Fault(
            "positives detached",
            "Lightning",
            "no pull on positives",
            partial(lightning_run, images, detached_positives),
        )
    if (data / "tiny_imagenet").is_dir():
        yield Fault("not normalised", "plain", "embeddings not normalised", Plain(tiny_imagenet(data), dot_products))
    if (data / "flickr8k").is_dir():
        yield Fault("text tower not optimised", "plain", "frozen part", partial(locked_text_tower, data))
    if (data / "sts.tsv").is_file():
        loop = "sentence-transformers"
        yield Fault(
            "temperature as scale", loop, "temperature too high", partial(fit_sentences, sts(data).pairs, scale=0.05)
        )
        yield Fault("pairs repeated", loop, "duplicates", partial(repeated_pairs, data))


def record(name: str, half: int, doctor: Doctor | Result, seconds: float) -> dict[str, Any]:
    """Return what the results file keeps of a run."""
    return {
        "name": name,
        "half": half,
        "seconds": round(seconds, 1),
        "findings": [finding.as_json() for finding in doctor.findings],
        "left_out": doctor.left_out,
        "looks": [look.as_json() for look in doctor.looks],
    }


@dataclass(frozen=True)
class DoctorFaults:
    """Plant faults in training loops, and train healthy ones; print what the doctor finds."""

    data: Path | None = None
    """Folder of data sets; without it, runs on digits only."""
    steps: int = 400
    """Steps of each run."""
    healthy: bool = False
    """Only the healthy runs."""
    half: int | None = None
    """Only the first half, or the second, which was written after the doctor was finished."""
    only: tuple[str, ...] = ()
    """Only runs whose name contains one of these."""
    out: Path | None = None
    """Write findings and numbers to this JSON file."""
    lines: Path | None = None
    """Append a line of JSON per run to this file, without the numbers of each look."""

    def __call__(self) -> int:
        torch.set_num_threads(1)
        warnings.simplefilter("ignore")  # of the host libraries
        results: dict[str, list[dict[str, Any]]] = {"faults": [], "healthy": []}
        for fault in [] if self.healthy else [*faults(self.data), *further_faults(self.data)]:
            if self._is_chosen(fault.name, fault.half):
                row = self._run(fault.name, fault.half, fault.run)
                found = [finding["name"] for finding in row["findings"]]
                row |= {"loop": fault.loop, "expected": fault.expected, "named": fault.expected in found}
                self._keep(results["faults"], row)
                mark = "named " if row["named"] else "MISSED"
                print(
                    f"{mark} {fault.half} {fault.name:26} {fault.loop:22} {', '.join(found) or 'nothing'}", flush=True
                )
        halves = ((1, healthy_runs(self.data)), (2, further_healthy_runs(self.data)))
        for half, run in ((half, run) for half, runs in halves for run in runs):
            if self._is_chosen(run.name, half):
                row = self._run(run.name, half, run.run)
                found = [f"{finding['name']} ({finding['severity']})" for finding in row["findings"]]
                self._keep(results["healthy"], row)
                print(f"{'ALARM ' if found else 'quiet '} {half} {run.name:49} {', '.join(found)}", flush=True)
        counts = "; ".join(_counts(results, half) for half in (1, 2))
        print(counts)
        if self.out is not None:
            write_json_atomically(self.out, {"counts": counts, "machine": environment(torch.device("cpu")), **results})
        return int(
            any(not row["named"] for row in results["faults"]) or any(row["findings"] for row in results["healthy"])
        )

    def _is_chosen(self, name: str, half: int) -> bool:
        return self.half in (None, half) and (not self.only or any(part in name for part in self.only))

    def _run(self, name: str, half: int, run: Callable[[int], Doctor | Result]) -> dict[str, Any]:
        start = time.perf_counter()
        doctor = run(self.steps)
        return record(name, half, doctor, time.perf_counter() - start)

    def _keep(self, rows: list[dict[str, Any]], row: dict[str, Any]) -> None:
        rows.append(row)
        if self.lines is not None:
            kind = "fault" if "expected" in row else "healthy run"
            line = {"kind": kind, "steps": self.steps, **{k: v for k, v in row.items() if k != "looks"}}
            line |= {"machine": environment(torch.device("cpu"))}
            with open(self.lines, "a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")


def _counts(results: dict[str, list[dict[str, Any]]], half: int) -> str:
    faults, healthy = ([row for row in results[kind] if row["half"] == half] for kind in ("faults", "healthy"))
    named, alarms = sum(row["named"] for row in faults), sum(bool(row["findings"]) for row in healthy)
    return f"half {half}: {named} of {len(faults)} faults named, {alarms} of {len(healthy)} healthy runs with findings"


if __name__ == "__main__":
    sys.exit(tyro.cli(DoctorFaults)())
