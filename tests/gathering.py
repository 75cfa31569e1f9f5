"""Criteria for several processes with faults that the conformance checks must find.

In a module of their own, because other processes import them: this one imports little.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.functional import normalize

from contrapose.conformance.measure import Criterion
from contrapose.conformance.references import info_nce
from contrapose.losses import nt_xent
from contrapose.pairs import two_views


def make_info_nce(temperature: float) -> Criterion:
    return lambda a, b: info_nce(a, b, temperature)


def gather_own(z: Tensor) -> Tensor:
    """Return the rows of all processes, of which only this process's have a gradient."""
    rows = [torch.zeros_like(z) for _ in range(dist.get_world_size())]
    dist.all_gather(rows, z.detach())
    rows[dist.get_rank()] = z
    return torch.cat(rows)


def make_local_anchors(temperature: float) -> Criterion:
    """Own anchors against all rows, gathered without gradient: the fault that many repositories have."""

    def criterion(a: Tensor, b: Tensor) -> Tensor:
        logits = normalize(a, dim=1) @ normalize(gather_own(b), dim=1).T / temperature
        return -logits.log_softmax(1)[torch.arange(len(a)), torch.arange(len(a)) + dist.get_rank() * len(a)].mean()

    return criterion


def make_own_rows(temperature: float) -> Criterion:
    """The whole loss in each process, with a gradient for its own rows only: exact, but divided by the world size."""
    return lambda a, b: info_nce(gather_own(a), gather_own(b), temperature)


def make_ring_of_one(temperature: float) -> Criterion:
    """Own rows against own rows: a ring whose candidates do not travel."""

    def criterion(z1: Tensor, z2: Tensor, ids: Tensor) -> Tensor:
        return nt_xent(two_views(z1, z2, ids=ids), temperature=temperature)

    return criterion


def make_failing_on_one_rank(temperature: float) -> Criterion:
    def criterion(a: Tensor, b: Tensor) -> Tensor:
        if dist.get_rank() == 1:
            raise ZeroDivisionError("rank 1 fails")
        return info_nce(gather_own(a), gather_own(b), temperature)

    return criterion
