"""A second modality in under 60 lines that needs no change elsewhere: noisy vectors as views and an MLP as encoder."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from commands import error_message
from torch import Tensor, nn

import contrapose
from contrapose.lab.cli import main
from contrapose.lab.modalities import MODALITIES, DataSettings, Modality, Split
from contrapose.lab.modalities.modality import NetworkSettings
from contrapose.lab.networks.encoder import Encoder
from contrapose.lab.studies.measures.classifiers import References
from contrapose.lab.studies.measures.measure import Context
from contrapose.lab.training import Model, Run, Trainer, resolve
from contrapose.lab.training.build import prepare
from contrapose.lab.training.options import make_run
from contrapose.randomness import uniform


@dataclass(frozen=True)
class NoisyVectors:
    count: int

    def train(self, raw: Tensor, index: Tensor, *, seed: int | Tensor, epoch: int | Tensor) -> list[Tensor]:
        noise = [uniform(index, raw.shape[1], seed, epoch, view) - 0.5 for view in range(self.count)]
        return [torch.stack([raw + 0.5 * n for n in noise])]

    def draw(self, raw: Tensor, index: Tensor, *, seed: int | Tensor, epoch: int | Tensor) -> Tensor:
        return self.train(raw, index, seed=seed, epoch=epoch)[0][0]

    def plain(self, raw: Tensor) -> Tensor:
        return raw

    def light(self, augment: str = "crops", *, smallest: float | None = 0.2) -> NoisyVectors:
        return NoisyVectors(1)

    def evaluation_batch(self, device: torch.device) -> int:
        return 64


@dataclass(frozen=True, eq=False)
class Vectors:
    resident: Tensor
    labels: Tensor
    views: Any = None
    name, classes, paths, ids, fingerprint = "vectors", (), (), None, "vectors"

    def __len__(self) -> int:
        return len(self.resident)

    def counts(self) -> list[int]:
        return self.labels.bincount().tolist()

    def subset(self, index: Tensor | Sequence[int]) -> Vectors:
        return Vectors(self.resident[index], self.labels[index])

    def in_memory(self, views: Any) -> Vectors:
        return self

    def reader(self, views: Any, device: torch.device, *, workers: int, timeout: float) -> Vectors:
        return replace(self, views=views)

    def train(self, batches: Sequence[list[int]], *, seed: int, epoch: int) -> Iterator[list[Tensor]]:
        for index in map(torch.tensor, batches):
            yield self.views.train(self.resident[index], index, seed=seed, epoch=epoch)

    def plain(self) -> Iterator[Tensor]:
        yield from self.resident.split(64)


class VectorModality(Modality[NoisyVectors]):
    noun = "vectors"

    def check_data(self, name: str, argument: str = "data") -> None:
        assert name == "clusters"

    def load(self, settings: DataSettings, root: Path | None, views: NoisyVectors, *, encoder: str) -> Split:
        centres, label = torch.randn(4, 8, generator=torch.Generator().manual_seed(0)), torch.arange(200) % 4
        rows = centres[label] + 0.1 * torch.randn(200, 8, generator=torch.Generator().manual_seed(1))
        train, test = Vectors(rows[:160], label[:160]), Vectors(rows[160:], label[160:])
        return Split(train, train, test)

    def views(
        self, name: str, count: int, *, size: int = 0, length: int = 0, folder: Path | None = None
    ) -> NoisyVectors:
        return NoisyVectors(count)

    def encoders(self, settings: NetworkSettings, views: NoisyVectors) -> dict[str, Encoder]:
        return {"vectors": Encoder(nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 16)), 16)}

    def decode(self, samples: Any, views: NoisyVectors) -> Tensor:
        return torch.as_tensor(samples)


@pytest.fixture(autouse=True)
def _registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(MODALITIES, "vectors", VectorModality())


@pytest.mark.parametrize("framework", ["simclr", "moco", "moco-v3", "memory-bank"])
def test_vectors_train_resume_and_load(framework: str, tmp_path: Path) -> None:
    run = Run(
        modality="vectors",
        data="clusters",
        views="noisy",
        encoder="mlp",
        lr=0.002,
        framework=framework,
        batch=32,
        epochs=3,
        knn=5,
        queue=64,
        metrics=30,
    )
    cpu = torch.device("cpu")
    trainer = Trainer(run, tmp_path, log=lambda text: None, device=cpu)
    scores = trainer.train()
    assert scores["knn_top1"] > 90
    records = [json.loads(line) for line in (tmp_path / "records.jsonl").read_text().splitlines()]
    assert "uniformity" in records[-1]
    model = contrapose.load(tmp_path, device=cpu)
    assert model.embed(torch.randn(3, 8)).shape == (3, 16)
    assert isinstance(model, Model)
    assert model.run == trainer.run
    assert Trainer(run, tmp_path, log=lambda text: None, device=cpu).train() == scores


def test_what_a_modality_does_not_offer_is_refused() -> None:
    run = Run(modality="vectors", data="clusters", encoder="mlp")
    with pytest.raises(ValueError, match="views: nothing is chosen for vectors; set --views, --encoder"):
        resolve(run, torch.device("cpu"), log=lambda text: None)
    with pytest.raises(ValueError, match="encoders of vectors are not exported as graphs"):
        run.kind.example_input(NoisyVectors(1))
    with pytest.raises(ValueError, match="extra_metrics: expected MEASURE@EPOCHS with linear:PROBE"):
        Run(modality="vectors", data="clusters", encoder="mlp", extra_metrics=("sts:pairs.tsv@1",))


def test_commands_without_the_optional_parts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # No previews, no score without training and no code for an exported encoder.
    settings: dict[str, Any] = {
        "views": "noisy",
        "encoder": "mlp",
        "batch": 32,
        "epochs": 1,
        "lr": 0.002,
        "knn": 5,
        "metrics": 0,
    }
    run = Run(modality="vectors", data="clusters", **settings)
    Trainer(run, tmp_path / "run", log=lambda text: None, device=torch.device("cpu")).train()
    main(["map", str(tmp_path / "run"), "-o", str(tmp_path / "map.html"), "--device", "cpu"])
    assert "<svg" in (tmp_path / "map.html").read_text()
    model, split = contrapose.load(tmp_path / "run", device="cpu"), prepare(run)
    assert isinstance(model, Model)
    assert set(References().evaluate(Context(model, split))[References().key]) == {"untrained"}
    assert "encoders of vectors are not exported" in error_message(
        capsys, "export", str(tmp_path / "run"), "-o", str(tmp_path / "encoder.safetensors")
    )
    assert not (tmp_path / "encoder.safetensors").exists()


def test_the_modality_of_the_data_is_that_of_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(VectorModality, "recognises", lambda self, data: data == "clusters")
    assert make_run({"data": "clusters", "encoder": "mlp"}).modality == "vectors"
    monkeypatch.setattr(VectorModality, "recognises", lambda self, data: True)
    assert make_run({"encoder": "tiny"}).modality == "images"  # without data, nothing is recognised
