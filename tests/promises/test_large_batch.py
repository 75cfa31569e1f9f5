"""`large_batch` on 1, 2 and 4 processes equals ordinary encoding on one, and reduces gradients once in a step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from conftest import Promise
from processes import run_in_process_group
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from contrapose import Loss, gather, large_batch, learned, nt_xent

STEPS, BATCH, WIDTH = 3, 16, 6


def network() -> nn.Module:
    torch.manual_seed(2)
    return nn.Sequential(nn.Linear(WIDTH, 9), nn.Tanh(), nn.Linear(9, 4)).double()


def two_inputs() -> Tensor:
    return torch.randn(2, BATCH, WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(3))


def train(encoder: nn.Module, rank: int, world: int, size: int) -> dict[str, Tensor]:
    """Train on this process's share of the batches; `size` is that of a micro-batch, 0 for ordinary encoding."""
    own = slice(rank * BATCH // world, (rank + 1) * BATCH // world)
    criterion = Loss(nt_xent, temperature=learned(0.2)).double()
    optimiser = torch.optim.SGD(encoder.parameters(), lr=0.1)
    record: dict[str, Tensor] = {}
    for step in range(STEPS):
        x1, x2 = (x[own] + step for x in two_inputs())
        z1, z2 = large_batch(encoder, x1, x2, micro_batch=size) if size else (encoder(x1), encoder(x2))
        loss = criterion(gather(z1), gather(z2))
        optimiser.zero_grad()
        loss.backward()
        record |= {
            f"gradient {i} {step}": p.grad.clone() for i, p in enumerate(encoder.parameters()) if p.grad is not None
        }
        record[f"loss {step}"] = loss.detach()
        optimiser.step()
    (temperature,) = criterion.parameters()
    assert temperature.grad is not None
    return record | {"temperature": temperature.grad}


def work(rank: int, world: int, out: str) -> None:
    reductions: list[int] = []

    def count(state: None, bucket: Any) -> torch.futures.Future[Tensor]:
        from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

        reductions.append(1)
        assert dist.group.WORLD is not None
        return allreduce_hook(dist.group.WORLD, bucket)

    count.__annotations__.clear()  # DistributedDataParallel expects types there, not strings
    encoder = DistributedDataParallel(network())
    encoder.register_comm_hook(None, count)
    record = train(encoder, rank, world, 3)
    record["reductions"] = torch.tensor(len(reductions))
    # Under no_sync() nothing is reduced; the backward pass after it adds what was accumulated.
    with encoder.no_sync():
        z = large_batch(encoder, two_inputs()[0] + rank, micro_batch=3)
    encoder.zero_grad()
    z.square().sum().backward()
    record["after no_sync"] = torch.tensor(len(reductions))
    large_batch(encoder, two_inputs()[1] + rank, micro_batch=3).square().sum().backward()
    gradient = next(encoder.parameters()).grad
    assert gradient is not None
    record["accumulated"] = gradient
    if rank == 0:
        torch.save(record, out)


@pytest.mark.thorough
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("world", [1, 2, pytest.param(4, marks=pytest.mark.slow)])
def test_several_processes_equal_one(world: int, tmp_path: Path, promise: Promise) -> None:
    run_in_process_group(work, world, tmp_path / "record")
    record = torch.load(tmp_path / "record", weights_only=True)
    reference = network()
    for what, expected in train(reference, 0, 1, 0).items():
        promise.case(float((record[what] - expected).abs().max()))
        assert promise.worst <= 1e-10, what
    assert int(record["reductions"]) == STEPS  # one bucket, once in each step
    assert int(record["after no_sync"]) == STEPS
    reference.zero_grad()
    for rank in range(world):
        (sum((reference(x + rank).square().sum() for x in two_inputs()), torch.tensor(0.0)) / world).backward()
    torch.testing.assert_close(record["accumulated"], next(reference.parameters()).grad, rtol=0, atol=1e-10)
