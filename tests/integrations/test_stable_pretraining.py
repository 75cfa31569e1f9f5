"""Losses of contrapose in the slots of stable-pretraining, beside its own losses."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from contrapose import Loss, clip, nt_xent
from contrapose.integrations.lightly import NTXentLoss

losses: Any = pytest.importorskip("stable_pretraining.losses")


def value_and_gradients(criterion: Any) -> list[Tensor]:
    views = torch.randn(2, 8, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    loss = criterion(*views)
    return [loss.detach(), *torch.autograd.grad(loss, views)]


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (NTXentLoss(0.2), lambda: losses.NTXEntLoss(temperature=0.2)),
        (Loss(nt_xent, temperature=0.2), lambda: losses.NTXEntLoss(temperature=0.2)),
        (Loss(clip, temperature=0.2), lambda: losses.CLIPLoss(temperature=0.2)),
    ],
    ids=["lightly", "nt_xent", "clip"],
)
def test_value_and_gradients_equal_theirs(ours: Any, theirs: Any) -> None:
    for one, other in zip(value_and_gradients(ours), value_and_gradients(theirs()), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)
