"""`train --shard`: parameters divided among processes give the steps, records and files of a run with whole ones."""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from captioned import run_of, write_folder
from commands import error_message
from framework_cases import FRAMEWORK_CASES
from processes import run_in_process_group
from run_files import records, steps_saved
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from contrapose.lab.modalities.images.encoders import encoder
from contrapose.lab.networks.recompute import recompute_blocks
from contrapose.lab.training import Run, Trainer, load
from contrapose.lab.training.checkpoints import checkpoint
from contrapose.lab.training.checkpoints.kept import read_kept
from contrapose.lab.training.shards import check_shard, shard

SMALL: dict[str, Any] = {"limit": 96, "batch": 32, "epochs": 2, "knn_every": 2, "knn": 5, "metrics": 20, "threads": 1}
CASES: dict[str, dict[str, Any]] = {
    "kept": {"keep": (1,), "keep_best": "knn_top1", "loss": "nt_xent(temperature=learned(0.2))", "grad_clip": 1.0},
    "sgd, each clipped": {
        "optimiser": "sgd",
        "lr": 0.05,
        "grad_clip": 0.5,
        "grad_clip_each": True,
        "norm_views": "each",
    },
    "lars": {"optimiser": "lars", "lr": 0.5},
    "lars-moco": {"optimiser": "lars-moco", "lr": 0.5},
    "accumulated": {"batch": 16, "accumulate": 2, "grad_cache": True},
    **{name: case for name, case in FRAMEWORK_CASES.items() if name not in ("swav", "dino", "simclr", "simcse")},
}


def runs(folder: Path, names: str) -> dict[str, Run]:
    found = {name: Run(**{**SMALL, **CASES[name]}) for name in names.split("|") if name in CASES}
    return found or {"captions": run_of(folder / "data", epochs=2, batch=4, knn_every=2)}


def trained(run: Run, folder: Path, *, divided: bool, **options: Any) -> Trainer:
    trainer = Trainer(run, folder, log=lambda text: None, shard=divided, **options)
    trainer.train()
    return trainer


def train_both(rank: int, world_size: int, out: str) -> None:
    """Train runs whole and divided, and check that each process has a part of the parameters and of the optimiser's state."""
    os.environ |= {"WORLD_SIZE": str(world_size), "RANK": str(rank)}
    folder = Path(out)
    for name, run in runs(folder, (folder / "names").read_text()).items():
        for divided in (False, True):
            trainer = trained(run, folder / f"{name} {divided}", divided=divided)
            own = list(trainer.context.network.parameters())
            assert all(isinstance(p, DTensor) for p in own) == divided, name
            if divided:
                held = sum(p.to_local().numel() for p in own if isinstance(p, DTensor))
                assert held < 0.6 * sum(p.numel() for p in own)
                state = [t for entries in trainer.context.optimiser.state.values() for t in entries.values()]
                assert any(isinstance(t, DTensor) for t in state)


def close(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> None:
    assert a.keys() == b.keys()
    for name, value in a.items():
        x, y = value.double(), b[name].double()
        # Rounding errors of float32 grow through batch norms and a low temperature; a lost gradient is of the values' size.
        assert (x - y).norm() <= 0.02 * x.norm() + 1e-3 * x.numel() ** 0.5, name


@pytest.mark.thorough
@pytest.mark.parametrize("names", ["|".join([*CASES][:5]), "|".join([*CASES][5:]), "captions"])
def test_divided_parameters_train_as_whole_ones_do(names: str, tmp_path: Path) -> None:
    write_folder(tmp_path / "data")
    (tmp_path / "names").write_text(names)
    run_in_process_group(train_both, 2, tmp_path)
    for name in runs(tmp_path, names):
        whole, divided = (tmp_path / f"{name} {which}" for which in (False, True))
        for a, b in zip(records(whole), records(divided), strict=True):
            assert b.keys() == a.keys()
            assert float(str(b["loss"])) == pytest.approx(float(str(a["loss"])), rel=1e-4, abs=1e-3), name
        saved = [checkpoint.latest(folder / "checkpoints") for folder in (whole, divided)]
        assert saved[0] is not None
        assert saved[1] is not None
        close(saved[0].tensors, saved[1].tensors)
    if "kept" in names:
        kept = [read_kept(tmp_path / f"kept {which}", 1).tensors for which in (False, True)]
        close(*kept)
        # Plain files: one process loads them, and exports them.
        first, second = (load(tmp_path / f"kept {which}", device="cpu") for which in (False, True))
        images = torch.randint(256, (4, 3, 16, 16), dtype=torch.uint8)
        torch.testing.assert_close(first.embed(images), second.embed(images), rtol=1e-3, atol=1e-3)


LONG = Run(**{**SMALL, "epochs": 4, "warmup": 0.5, "metrics": 0, "framework": "moco", "queue": 64})


class StopHere(Exception):
    """Ends training as a kill would, after a checkpoint."""


def train_until(rank: int, world_size: int, out: str) -> None:
    """Continue the run in `out`, with the numbers in the file `part`: the epoch at which to end, and whether to divide."""
    os.environ |= {"WORLD_SIZE": str(world_size), "RANK": str(rank)}
    end, divided = map(int, Path(f"{out}-part").read_text().split())
    trainer = Trainer(LONG, Path(out), log=lambda text: None, shard=bool(divided))
    trainer.saved._seconds = 0.0  # save after each epoch
    evaluate = trainer._evaluate_and_append

    def stop(record: dict[str, Any]) -> dict[str, float]:
        scores = evaluate(record)
        if record["epoch"] == end:
            raise StopHere
        return scores

    trainer._evaluate_and_append = stop  # type: ignore[method-assign]
    with suppress(StopHere):
        trainer.train()


@pytest.mark.thorough
def test_resumed_on_other_numbers_of_processes(tmp_path: Path) -> None:
    """1 -> 2 -> 4 -> 1: the steps of one process throughout."""
    folder = tmp_path / "run"
    trained(LONG, tmp_path / "whole", divided=False)
    for end, (processes, divided) in enumerate([(1, 0), (2, 1), (4, 1), (1, 0)], 1):
        Path(f"{folder}-part").write_text(f"{end} {divided}")
        run_in_process_group(train_until, processes, folder)
        assert max(steps_saved(folder)) == 3 * end
    for a, b in zip(records(tmp_path / "whole"), records(folder), strict=True):
        assert float(str(b["loss"])) == pytest.approx(float(str(a["loss"])), rel=1e-4)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"framework": "swav", "loss": "swav", "prototypes": 20}, "shard: swav reads the weights of its prototypes"),
        ({"precision": "fp16"}, "shard: expected --precision bf16 or fp32, got fp16"),
    ],
)
def test_what_cannot_be_divided(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_shard(Run(**{**SMALL, **changes}))


def divide_large(rank: int, world_size: int, out: str) -> None:
    """Take a step with encoders that have large blocks, some within others, and check their gradients."""
    for name, again in (("resnet50", False), ("vit-b16", False), ("vit-s16-moco", True), ("timm:convnext_tiny", True)):
        torch.manual_seed(0)
        network = nn.ModuleDict({"encoder": encoder(name, 32)})
        plain = copy.deepcopy(network["encoder"])
        if again:
            recompute_blocks(network)
        shard(network, torch.device("cpu"))
        assert sum(isinstance(module, FSDPModule) for module in network.modules()) > 2
        images = torch.randn(2, 3, 32, 32)
        for model in (plain, network["encoder"]):
            model(images).square().sum().backward()
        parameters = dict(network["encoder"].named_parameters())
        for key, p in plain.named_parameters():
            q = parameters[key].grad
            if p.grad is None:  # fixed positions
                assert q is None
                continue
            assert isinstance(q, DTensor)
            full = q.full_tensor()
            assert (full - p.grad).norm() <= 1e-2 * p.grad.norm() + 1e-5, key


@pytest.mark.thorough
def test_large_blocks_of_encoders(tmp_path: Path) -> None:
    run_in_process_group(divide_large, 2, tmp_path)


def test_one_process_has_nothing_to_divide(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines: list[str] = []
    trainer = Trainer(Run(**SMALL), tmp_path / "run", log=lines.append, shard=True)
    assert "shard: one process has nothing to divide; start several with torchrun" in lines
    assert not any(isinstance(p, DTensor) for p in trainer.context.network.parameters())
    assert "limit" in error_message(capsys, "train", "--shard", "--limit", "0.5")
