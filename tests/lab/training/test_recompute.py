"""`train --recompute`: fewer activations are kept, and every weight, score and random number stays the same."""

from __future__ import annotations

import copy
import os
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from captioned import run_of, write_folder
from commands import error_message
from processes import run_in_process_group
from run_files import records
from torch import nn

from contrapose.lab.modalities.images.encoders import encoder
from contrapose.lab.networks.recompute import recompute_blocks
from contrapose.lab.training import Run, Trainer
from contrapose.lab.training.checkpoints import checkpoint

SMALL: dict[str, Any] = {"limit": 32, "batch": 16, "epochs": 1, "knn_every": 1, "knn": 5, "metrics": 0, "threads": 1}
IMAGES: dict[str, Any] = {"encoder": "vit-s16-moco", "size": 32, "batch": 8}
TEXT: dict[str, Any] = {"data": "pydoc", "modality": "text", "framework": "simcse", "head": "none", "encoder": "small"}
CASES: dict[str, dict[str, Any]] = {
    "images": IMAGES,
    "a teacher": IMAGES | {"framework": "byol", "loss": "byol"},
    # Views of a sentence differ in dropout, whose masks must be drawn alike in both passes
    "dropout": TEXT | {"views": "dropout"},
    "dropout, encoded twice": TEXT | {"views": "dropout", "grad_cache": True, "accumulate": 2, "batch": 8},
}


def trained(run: Run, folder: Path, **options: Any) -> checkpoint.Checkpoint:
    Trainer(run, folder, log=lambda text: None, **options).train()
    saved = checkpoint.latest(folder / "checkpoints")
    assert saved is not None
    return saved


def equal(folder: Path, plain: checkpoint.Checkpoint, again: checkpoint.Checkpoint) -> None:
    assert plain.tensors.keys() == again.tensors.keys()
    for name, value in plain.tensors.items():
        assert torch.equal(value, again.tensors[name]), name
    timed = ("seconds", "images_per_second", "doctor")
    first, second = (
        [
            {k: v for k, v in record.items() if k not in timed and "seconds" not in k}
            for record in records(folder / which)
        ]
        for which in ("plain", "again")
    )
    assert first == second


@pytest.mark.thorough
@pytest.mark.parametrize("name", CASES)
def test_same_bits(name: str, tmp_path: Path) -> None:
    run = Run(**{**SMALL, **CASES[name]})
    equal(tmp_path, trained(run, tmp_path / "plain"), trained(run, tmp_path / "again", recompute=True))


@pytest.mark.thorough
def test_same_bits_of_two_towers(tmp_path: Path) -> None:
    write_folder(tmp_path / "data")
    run = run_of(tmp_path / "data", epochs=1, batch=4, knn_every=1, text_encoder="clip-small")
    equal(tmp_path, trained(run, tmp_path / "plain"), trained(run, tmp_path / "again", recompute=True))


def train_divided(rank: int, world_size: int, out: str) -> None:
    os.environ |= {"WORLD_SIZE": str(world_size), "RANK": str(rank)}
    run = Run(**{**SMALL, **CASES["dropout"]})
    for which in ("plain", "again"):
        Trainer(run, Path(out, which), log=lambda text: None, shard=True, recompute=which == "again").train()


@pytest.mark.slow
def test_same_bits_of_divided_parameters(tmp_path: Path) -> None:
    run_in_process_group(train_divided, 2, tmp_path)
    plain, again = (checkpoint.latest(tmp_path / which / "checkpoints") for which in ("plain", "again"))
    assert plain is not None
    assert again is not None
    equal(tmp_path, plain, again)


def kept_elements(network: nn.Module, images: torch.Tensor) -> int:
    """Return how many different elements the forward pass keeps for the backward pass, without the parameters."""
    kept: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.numel()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        z = network(images)
    z.sum().backward()
    own = {p.untyped_storage().data_ptr() for p in network.parameters()}
    return sum(count for place, count in kept.items() if place not in own)


def test_fewer_activations_are_kept() -> None:
    network = encoder("vit-s16-moco", 32)
    images = torch.randn(4, 3, 32, 32)
    again = copy.deepcopy(network)
    assert recompute_blocks(again) == 12
    assert kept_elements(again, images) < 0.2 * kept_elements(network, images)
    for p, q in zip(network.parameters(), again.parameters(), strict=True):
        assert (p.grad is None) == (q.grad is None)
        assert p.grad is None or torch.equal(p.grad, q.grad)  # type: ignore[arg-type]


def test_changed_networks_can_be_copied() -> None:
    network = encoder("vit-s16-moco", 32)
    recompute_blocks(network)
    images = torch.randn(2, 3, 32, 32)
    expected = network(images)
    for other in (copy.deepcopy(network), pickle.loads(pickle.dumps(network))):
        for parameter in network.parameters():
            nn.init.zeros_(parameter)
        assert torch.equal(other(images), expected)


@pytest.mark.thorough
def test_networks_without_such_blocks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("resnet18", "tiny", "alexnet"):
        with pytest.raises(ValueError, match="recompute: the encoder has no equal blocks in a row without batch norms"):
            recompute_blocks(encoder(name))
    out = tmp_path / "run"
    message = error_message(capsys, "train", "--recompute", "--data", "digits", "--epochs", "1", "--out", str(out))
    assert "recompute: the encoder has no equal blocks" in message
    assert not out.exists()
