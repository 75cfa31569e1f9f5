"""Frameworks with batch norm take the same steps on 1, 2 and 4 processes, up to rounding, in float64."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import Promise
from framework_cases import FRAMEWORK_CASES
from processes import run_in_process_group
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from contrapose.gradient_cache import MicroBatch, encode_twice
from contrapose.lab.frameworks import Embed
from contrapose.lab.training import Run
from contrapose.lab.training.build import build, build_loss
from contrapose.lab.training.processes import synchronise_batch_norms
from contrapose.losses import dclw

IMAGES, STEPS = 16, 3
# Weights of dclw, false negatives of fnc, codes of SwAV and the center of DINO are of the whole batch.
RUNS: dict[str, dict[str, Any]] = {
    **FRAMEWORK_CASES,
    "moco one query": {"framework": "moco"},
    "swav with a queue": {
        "framework": "swav", "loss": "swav", "prototypes": 10, "frozen_epochs": 0, "queue_start": 1},
    "dino from the start": {"framework": "dino", "loss": "dino", "prototypes": 10, "frozen_epochs": 0},
}  # fmt: skip


def train(name: str, rank: int, world: int) -> list[torch.Tensor]:
    run = Run(**{"loss": "dclw", **RUNS[name], "queue": 24})
    network, criterion = build(run, IMAGES).double(), build_loss(run, IMAGES)
    network.begin_epoch(0, step=0, steps=STEPS)
    learner: nn.Module = network
    if world > 1:
        synchronise_batch_norms(network, torch.device("cpu"))
        learner = DistributedDataParallel(network, broadcast_buffers=False)
    optimiser = torch.optim.SGD(network.parameters(), 0.01, momentum=0.9)
    for step in range(STEPS):
        x = torch.randn(4, IMAGES, 3, 32, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(step))
        x = x[: run.view_count]
        own = torch.arange(IMAGES).view(world, -1)[rank]
        embeddings = learner([x[:, own]], own)
        loss = criterion(embeddings)
        optimiser.zero_grad()
        loss.backward()
        network.update(embeddings)
        optimiser.step()
        network.after_step()
    state = network.state_dict()
    return [state[name] for name in sorted(state)]


def train_whole(rank: int, world: int) -> list[torch.Tensor]:
    """Train on steps of two batches that are contrasted as a whole; batch norms have the statistics of each batch."""
    network = build(Run(), IMAGES).double()
    learner: nn.Module = Embed(network)
    if world > 1:
        synchronise_batch_norms(network, torch.device("cpu"))
        learner = DistributedDataParallel(learner, broadcast_buffers=False)
    optimiser = torch.optim.SGD(network.parameters(), 0.01, momentum=0.9)
    for step in range(STEPS):
        x = torch.randn(2, IMAGES, 3, 32, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(step))
        own = torch.arange(IMAGES).view(2, world, -1)[:, rank]
        parts = encode_twice([MicroBatch(learner, [x[:, batch]]) for batch in own])
        optimiser.zero_grad()
        dclw(network.compare(torch.cat(parts, 1), own.flatten()).pairs).backward()
        optimiser.step()
    state = network.state_dict()
    return [state[name] for name in sorted(state)]


def work(rank: int, world: int, out: str) -> None:
    records = {name: train(name, rank, world) for name in RUNS}
    records["whole"] = train_whole(rank, world)
    if rank == world - 1:  # the last rank: its queue and bank must hold the rows of all ranks
        torch.save(records, out)


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("world", [2, pytest.param(4, marks=pytest.mark.slow)])
@pytest.mark.slow
def test_several_processes_take_the_same_steps(world: int, tmp_path: Path, promise: Promise) -> None:
    run_in_process_group(work, world, tmp_path / "out")
    records = torch.load(tmp_path / "out", weights_only=True)
    for name in (*RUNS, "whole"):
        alone = train_whole(0, 1) if name == "whole" else train(name, 0, 1)
        for ours, expected in zip(records[name], alone, strict=True):
            # Empty where a method keeps nothing: SwAV without a queue
            ours, expected = ours.double(), expected.double()
            # Relative for values above 1: without normalisation, variances reach 1e6.
            difference = (ours - expected).abs() / expected.abs().clamp(min=1)
            promise.case(max(difference.flatten().tolist(), default=0.0))
            assert promise.worst <= 1e-10, name
