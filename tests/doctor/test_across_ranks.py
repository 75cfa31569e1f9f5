"""The doctor in two processes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from processes import run_in_process_group
from torch import Tensor
from torch.nn.functional import cross_entropy, normalize

from contrapose import Doctor, clip, cross, gather

COUNT, WIDTH = 16, 8


def whole(z1: Tensor, z2: Tensor) -> Tensor:
    return clip(cross(z1, z2, symmetric=True), temperature=0.2)


def exact(z1: Tensor, z2: Tensor) -> Tensor:
    return whole(gather(z1), gather(z2))


def gather_without_gradient(z: Tensor, *, own: bool) -> Tensor:
    parts = [torch.empty_like(z) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, z.detach().contiguous())
    if own:
        parts[dist.get_rank()] = z
    return torch.cat(parts)


def own_rows_only(z1: Tensor, z2: Tensor) -> Tensor:
    """Each process's rows against keys of all processes that have no gradient."""
    keys = gather_without_gradient(z2, own=False)
    logits = normalize(z1) @ normalize(keys).T / 0.2
    return cross_entropy(logits, torch.arange(len(z1)) + dist.get_rank() * len(z1))


def without_factor(z1: Tensor, z2: Tensor) -> Tensor:
    """The loss of the whole batch in each process, with the gradient of its own rows: half of what it should be."""
    return whole(gather_without_gradient(z1, own=True), gather_without_gradient(z2, own=True))


CASES: dict[str, tuple[Callable[..., Tensor], list[str]]] = {
    "exact": (exact, []),
    "own rows only": (own_rows_only, ["gradient differs across ranks"]),
    "without factor": (without_factor, ["gradient off by a factor"]),
}


def look(rank: int, world_size: int, out: str) -> None:
    results: dict[str, Any] = {}
    for name, (criterion, _) in CASES.items():
        results[name] = _look(criterion, seed=rank)
    results["same batch"] = _look(exact, seed=0)
    results["no whole"] = _look(exact, seed=rank, whole=None)
    torch.save(results, f"{out}.{rank}")


def _look(criterion: Callable[..., Tensor], *, seed: int, **settings: Any) -> Any:
    doctor = Doctor(criterion, every=1, **{"whole": whole, **settings})
    generator = torch.Generator().manual_seed(seed)
    for _ in range(3):
        z = torch.randn(COUNT, WIDTH, generator=generator)
        # The augmentation differs between processes, even if the samples do not.
        z1, z2 = (z + 0.3 * torch.randn(COUNT, WIDTH) for _ in range(2))
        doctor.see(z1.requires_grad_(), z2.requires_grad_())
    return [finding.name for finding in doctor.findings], doctor.left_out, doctor.looks[-1].ranks


@pytest.mark.thorough
def test_two_processes(tmp_path: Path) -> None:
    run_in_process_group(look, 2, tmp_path / "result")
    for rank in range(2):
        results = torch.load(f"{tmp_path / 'result'}.{rank}", weights_only=False)
        for name, (_, expected) in CASES.items():
            found, left_out, _ = results[name]
            assert (found, left_out) == (expected, {}), name
        assert abs(results["exact"][2]["factor"] - 1) < 1e-5
        assert abs(results["without factor"][2]["factor"] - 0.5) < 1e-5
        assert "ranks hold the same batch" in results["same batch"][0]
        found, left_out, _ = results["no whole"]
        assert found == []
        assert "pass whole=" in left_out["checks of the gradient"]
