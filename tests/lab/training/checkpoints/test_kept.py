"""Weights that are kept after named epochs."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from commands import error_message

import contrapose
from contrapose.lab.cli import main
from contrapose.lab.training import Run, Trainer, load

RUN = Run(limit=96, batch=32, epochs=3, knn_every=3, knn=5, metrics=0, keep=(1, 3))


def quiet(text: str) -> None:
    pass


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "kept"
    Trainer(RUN, folder, log=quiet).train()
    return folder


def weights(folder: Path, epoch: int | None = None) -> dict[str, torch.Tensor]:
    return dict(load(folder, epoch=epoch).state_dict())


@pytest.mark.thorough
def test_weights_of_an_epoch_are_those_of_a_run_that_ended_there(trained: Path, tmp_path: Path) -> None:
    run = replace(RUN, epochs=1, schedule="constant", keep=(), knn_every=1)
    longer = replace(run, epochs=2, keep=(1, 2))
    Trainer(run, tmp_path / "one", log=quiet).train()
    Trainer(longer, tmp_path / "two", log=quiet).train()
    first, second, newest = weights(tmp_path / "two", 1), weights(tmp_path / "two", 2), weights(tmp_path / "two")
    assert all(torch.equal(tensor, first[name]) for name, tensor in weights(tmp_path / "one").items())
    assert all(torch.equal(tensor, second[name]) for name, tensor in newest.items())
    assert not all(torch.equal(tensor, second[name]) for name, tensor in first.items())
    assert load(tmp_path / "two", epoch=1).step == 3
    assert torch.equal(load(trained).at_epoch(1).encoder(torch.ones(1, 3, 32, 32)),
                       load(trained, epoch=1).encoder(torch.ones(1, 3, 32, 32)))  # fmt: skip


def test_only_encoder_and_projector_are_kept(trained: Path) -> None:
    from safetensors.torch import load_file

    names = load_file(trained / "kept" / "epoch-1" / "tensors.safetensors")
    assert {name.split(".")[2] for name in names} == {"encoder", "projector"}


def test_an_epoch_that_was_not_kept(trained: Path, tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match=r"epoch: expected an epoch whose weights were kept, got 2; .* has kept epochs 1, 3"
    ):
        contrapose.load(trained, epoch=2)
    shutil.copytree(trained, tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "kept")
    with pytest.raises(ValueError, match=r"has kept none \(see `train --keep`\)"):
        load(tmp_path / "run", epoch=1)


def test_damaged_weights_are_refused(trained: Path, tmp_path: Path) -> None:
    shutil.copytree(trained, tmp_path / "run")
    path = tmp_path / "run" / "kept" / "epoch-1" / "tensors.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(ValueError, match="epoch-1 is damaged"):
        load(tmp_path / "run", epoch=1)
    (tmp_path / "run" / "kept" / "epoch-3").rename(tmp_path / "run" / "kept" / "epoch-2")  # not the epoch it says
    with pytest.raises(ValueError, match="epoch-2 is damaged"):
        load(tmp_path / "run", epoch=2)


def test_a_resumed_run_says_which_weights_are_gone(tmp_path: Path) -> None:
    steps = Trainer(RUN, tmp_path, log=quiet).training(Trainer(RUN, tmp_path / "other", log=quiet).requests)
    next(steps)  # an epoch, with its weights and a checkpoint
    steps.close()
    assert (tmp_path / "kept" / "epoch-1").is_dir()
    shutil.rmtree(tmp_path / "kept" / "epoch-1")
    messages: list[str] = []
    Trainer(RUN, tmp_path, log=messages.append).train()
    (message,) = [message for message in messages if "missing" in message]
    assert "kept/epoch-1 is missing or damaged, and epoch 1 has passed" in message
    assert (tmp_path / "kept" / "epoch-3").is_dir()


@pytest.mark.parametrize("epochs", [(0,), (4,)])
def test_epochs_that_do_not_exist_are_refused(epochs: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="keep: expected epochs from 1 to 3, got"):
        replace(RUN, keep=epochs)


def test_commands_use_kept_weights(trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["evaluate", str(trained), "--epoch", "1"])
    assert json.loads(capsys.readouterr().out)["step"] == 3
    for epoch in ("1", "3"):
        main(["export", str(trained), "--epoch", epoch, "-o", str(tmp_path / f"{epoch}.safetensors")])
    first, last = (contrapose.load(tmp_path / f"{epoch}.safetensors").state_dict() for epoch in ("1", "3"))
    assert any(not torch.equal(first[name], last[name]) for name in first)
    message = error_message(capsys, "embed", str(trained), "digits", "--epoch", "2", "-o", str(tmp_path / "f.npz"))
    assert "has kept epochs 1, 3" in message
    with pytest.raises(ValueError, match=r"epoch: .* is an exported file"):
        contrapose.load(tmp_path / "1.safetensors", epoch=1)
