"""Planted faults and healthy runs under the eyes of `contrapose.Doctor`, on real data.

python benchmarks/doctor_faults.py                          # digits only
python benchmarks/doctor_faults.py --data DATA              # and what DATA has of the four below
python benchmarks/doctor_faults.py --healthy --out FILE     # healthy runs only: how far the limits are from them

DATA may have cifar10.npz (train_images, train_labels), tiny_imagenet/train/CLASS/*.JPEG, flickr8k/ (captions.tsv, images/) and
sts.tsv (dataset, subset, split, score, sentence 1, sentence 2). A run is 400 steps on the CPU. The exit code is 1 if a fault is
not named, or a healthy run has a finding.
"""

from __future__ import annotations

import sys
import tempfile
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
from doctor_loops import EVERY, healthy_runs
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity, cross_entropy, normalize

from contrapose import Doctor, Loss, clip, learned, nt_xent
from contrapose.lab.training.records.files import environment, write_json_atomically

MakeLoss = Callable[..., Tensor]


@dataclass(frozen=True)
class Fault:
    """A planted fault: what was done to the loop, and the finding that names it."""

    name: str
    loop: str  # plain, Lightning or sentence-transformers
    expected: str
    run: Callable[[int], Doctor]


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


class _Criterion(nn.Module):
    """A function as a criterion of a LightningModule."""

    def __init__(self, function: MakeLoss) -> None:
        super().__init__()
        self.function = function

    def forward(self, z1: Tensor, z2: Tensor) -> Tensor:
        return self.function(z1, z2)


def lightning_run(
    data: Images,
    function: MakeLoss,
    steps: int,
    *,
    after: Callable[[Tensor], Tensor] = lambda z: z,
    is_sorted: bool = False,
) -> Doctor:
    """Train with Lightning and the doctor's callback."""
    import pytorch_lightning as lightning

    from contrapose.integrations.lightning import DoctorCallback

    class Module(lightning.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.encoder, self.criterion = data.encoder, _Criterion(function)

        def training_step(self, batch: list[Tensor], number: int) -> Tensor:
            (x,) = batch
            value: Tensor = self.criterion(*(after(self.encoder(data.augment(x))) for _ in range(2)))
            return value

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.Adam(self.encoder.parameters(), lr=1e-3)

    torch.manual_seed(0)
    images = data.images[data.labels.argsort()] if is_sorted else data.images
    dataset = torch.utils.data.TensorDataset(images)
    loader = torch.utils.data.DataLoader(dataset, batch_size=128, shuffle=not is_sorted, drop_last=True)
    callback = DoctorCallback(every=EVERY, log=None)
    trainer = lightning.Trainer(
        max_steps=steps, callbacks=[callback], accelerator="cpu", logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(Module(), loader)
    assert callback.doctor is not None
    return callback.doctor


def without_stop_gradient(z1: Tensor, z2: Tensor) -> Tensor:
    """A loss that only pulls, with a gradient on both sides."""
    return -cosine_similarity(z1, z2).mean()


def sentences_run(data: Path, steps: int, *, repeated: bool = False, **settings: Any) -> Doctor:
    """Train with sentence-transformers and the doctor's callback."""
    from datasets import Dataset
    from sentence_transformers import (
        SentenceTransformer,
        SentenceTransformerTrainer,
        SentenceTransformerTrainingArguments,
    )
    from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
    from sentence_transformers.sentence_transformer.modules import StaticEmbedding
    from tokenizers import Tokenizer, models, pre_tokenizers

    from contrapose.integrations.trainer import DoctorCallback

    torch.manual_seed(0)
    pairs = sts(data).pairs
    if repeated:  # the first 64 pairs, again and again
        pairs = pairs[:64] * 40
    words = {
        word: i + 1 for i, word in enumerate(sorted({w for pair in sts(data).pairs for t in pair for w in t.split()}))
    }
    tokenizer = Tokenizer(models.WordLevel({"[UNK]": 0, **words}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    model = SentenceTransformer(modules=[StaticEmbedding(tokenizer, embedding_dim=64)], device="cpu")
    loss = MultipleNegativesRankingLoss(model, **settings)
    callback = DoctorCallback(loss, every=EVERY, log=None)
    with tempfile.TemporaryDirectory() as folder:
        arguments = SentenceTransformerTrainingArguments(
            output_dir=folder, max_steps=steps, per_device_train_batch_size=128, learning_rate=1e-2, save_strategy="no",
            report_to="none", disable_tqdm=True, use_cpu=True, logging_strategy="no",
        )  # fmt: skip
        dataset = Dataset.from_dict({"anchor": [a for a, _ in pairs], "positive": [b for _, b in pairs]})
        SentenceTransformerTrainer(
            model=model, args=arguments, train_dataset=dataset, loss=loss, callbacks=[callback]
        ).train()
    return callback.doctor


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
        yield Fault("temperature as scale", loop, "temperature too high", partial(sentences_run, data, scale=0.05))
        yield Fault("pairs repeated", loop, "duplicates", partial(sentences_run, data, repeated=True))


def record(name: str, doctor: Doctor, seconds: float) -> dict[str, Any]:
    """Return what the results file keeps of a run."""
    return {
        "name": name,
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
    only: tuple[str, ...] = ()
    """Only runs whose name contains one of these."""
    out: Path | None = None
    """Write findings and numbers to this JSON file."""

    def __call__(self) -> int:
        torch.set_num_threads(1)
        warnings.simplefilter("ignore")  # of the host libraries
        results: dict[str, list[dict[str, Any]]] = {"faults": [], "healthy": []}
        named = alarms = 0
        for fault in [] if self.healthy else [*faults(self.data)]:
            if self._is_chosen(fault.name):
                doctor, seconds = self._run(fault.run)
                found = [finding.name for finding in doctor.findings]
                named += fault.expected in found
                row = {"loop": fault.loop, "expected": fault.expected, "named": fault.expected in found}
                results["faults"].append(record(fault.name, doctor, seconds) | row)
                mark = "named " if fault.expected in found else "MISSED"
                print(f"{mark} {fault.name:26} {fault.loop:22} {', '.join(found) or 'nothing'}", flush=True)
        for run in healthy_runs(self.data):
            if self._is_chosen(run.name):
                doctor, seconds = self._run(run.run)
                found = [f"{finding.name} ({finding.severity})" for finding in doctor.findings]
                alarms += bool(found)
                results["healthy"].append(record(run.name, doctor, seconds))
                print(f"{'ALARM ' if found else 'quiet '} {run.name:49} {', '.join(found)}", flush=True)
        counts = f"{named} of {len(results['faults'])} faults named, "
        counts += f"{alarms} of {len(results['healthy'])} healthy runs with findings"
        print(counts)
        if self.out is not None:
            write_json_atomically(self.out, {"counts": counts, "machine": environment(torch.device("cpu")), **results})
        return int(named < len(results["faults"]) or alarms > 0)

    def _is_chosen(self, name: str) -> bool:
        return not self.only or any(part in name for part in self.only)

    def _run(self, run: Callable[[int], Doctor]) -> tuple[Doctor, float]:
        start = time.perf_counter()
        return run(self.steps), time.perf_counter() - start


if __name__ == "__main__":
    sys.exit(tyro.cli(DoctorFaults)())
