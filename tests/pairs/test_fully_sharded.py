"""Encoders whose parameters FSDP2 divides among processes get the gradients of one process with the whole batch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from processes import run_in_process_group
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from contrapose import Loss, around_ring, clip, cosine, dcl, gather, hardest, learned, nt_xent, two_views
from contrapose.gradient_cache import large_batch
from contrapose.losses import cacr, siglip
from contrapose.pairs import AnyPairs, cross

SAMPLES, WIDTH = 24, 6  # 24 is divided by 1, 2, 3, 4 and 8
CRITERIA: dict[str, Callable[[], Callable[[AnyPairs], Tensor]]] = {
    "nt_xent": lambda: Loss(nt_xent, temperature=0.2),
    "a profile": lambda: Loss(nt_xent, temperature=cosine(0.07, 0.2)),
    "hardest": lambda: Loss(dcl, temperature=0.3, negatives=hardest(3)),
    "learned": lambda: Loss(nt_xent, temperature=learned(0.2)).double(),
    "cacr": lambda: cacr,
    "clip": lambda: clip,
    "siglip": lambda: siglip,
}


def encoder() -> nn.Sequential:
    torch.manual_seed(0)
    block = nn.Sequential(nn.Linear(5, 9), nn.GELU(), nn.Linear(9, 7))
    return nn.Sequential(block, nn.LayerNorm(7), nn.Linear(7, WIDTH, bias=False)).double()


def inputs() -> Tensor:
    return torch.randn(2, SAMPLES, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def pairs_of(name: str, z1: Tensor, z2: Tensor) -> AnyPairs:
    return cross(z1, z2, symmetric=True) if name in ("clip", "siglip") else two_views(z1, z2)


def gradients(network: nn.Module, criterion: object) -> list[Tensor]:
    own = [*network.parameters(), *(criterion.parameters() if isinstance(criterion, nn.Module) else ())]
    found = [p.grad for p in own]
    assert all(g is not None for g in found)
    return [g.full_tensor() if isinstance(g, DTensor) else g for g in found if g is not None]


def of_one_process(name: str) -> list[Tensor]:
    network, criterion = encoder(), CRITERIA[name]()
    z1, z2 = (network(x) for x in inputs())
    criterion(pairs_of(name, z1, z2)).backward()
    return gradients(network, criterion)


def compare(rank: int, world: int, out: str) -> None:
    """Write the largest difference of each case from one process."""
    mesh, share = init_device_mesh("cpu", (world,)), SAMPLES // world
    own, found = slice(rank * share, rank * share + share), {}
    for name, make in CRITERIA.items():
        expected = of_one_process(name)
        for way in ("gathered", "ring", "GradCache"):
            network, criterion = encoder(), make()
            fully_shard(network[0], mesh=mesh)
            fully_shard(network, mesh=mesh)

            def loss(
                z1: Tensor, z2: Tensor, *, name: str = name, way: str = way, criterion: object = criterion
            ) -> Tensor:
                if way == "ring":
                    pairs: AnyPairs = around_ring(pairs_of(name, z1, z2))  # type: ignore[arg-type]
                else:
                    pairs = pairs_of(name, gather(z1), gather(z2)).sharded()  # type: ignore[union-attr]
                value: Tensor = criterion(pairs)  # type: ignore[operator]
                return value

            x1, x2 = inputs()[:, own]
            z1, z2 = large_batch(network, x1, x2, micro_batch=2) if way == "GradCache" else (network(x1), network(x2))
            loss(z1, z2).backward()
            differences = zip(gradients(network, criterion), expected, strict=True)
            found[f"{name}, {way}"] = max(float((a - b).abs().max()) for a, b in differences)
    if rank == 0:
        torch.save(found, out)


@pytest.mark.parametrize(
    "world",
    [pytest.param(2, marks=pytest.mark.thorough), *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 3, 4, 8))],
)
def test_divided_encoders_have_the_gradient_of_one_process(world: int, tmp_path: Path) -> None:
    run_in_process_group(compare, world, tmp_path / "found")
    found = torch.load(tmp_path / "found", weights_only=True)
    assert len(found) == 3 * len(CRITERIA)
    assert {case: value for case, value in found.items() if not value < 1e-12} == {}
