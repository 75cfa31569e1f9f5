"""Reference losses for criteria: dense, in float64, from the formula, and independent of `contrapose.losses`.

Each takes embeddings z1 and z2 (m, d), not normalised, and the temperature.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

Reference = Callable[[Tensor, Tensor, float], Tensor]
SIGLIP_BIAS = -10.0  # SigLIP's bias at the start of training


def nt_xent(z1: Tensor, z2: Tensor, temperature: float) -> Tensor:
    """SimCLR's loss: all 2m views are anchors, the other view is the positive, 2m - 2 views are negatives."""
    z = torch.cat([z1, z2])
    itself = torch.eye(len(z), dtype=torch.bool)
    logits = _logits(z, z, temperature).masked_fill(itself, -torch.inf)
    positive = torch.arange(len(z)).roll(len(z1))
    return -logits.log_softmax(1)[torch.arange(len(z)), positive].mean()


def info_nce(z1: Tensor, z2: Tensor, temperature: float) -> Tensor:
    """InfoNCE in one direction: row i of z2 is the positive of row i of z1, and the other rows of z2 are negatives."""
    return -_logits(z1, z2, temperature).log_softmax(1).diagonal().mean()


def clip(z1: Tensor, z2: Tensor, temperature: float) -> Tensor:
    """CLIP's loss: the mean of both directions of `info_nce`."""
    return (info_nce(z1, z2, temperature) + info_nce(z2, z1, temperature)) / 2


def siglip(z1: Tensor, z2: Tensor, temperature: float) -> Tensor:
    """SigLIP's loss, a sigmoid for each pair, with the scale 1 / temperature and the bias -10."""
    sign = 2 * torch.eye(len(z1), dtype=z1.dtype) - 1
    logits = _logits(z1, z2, temperature) + SIGLIP_BIAS
    return -torch.nn.functional.logsigmoid(sign * logits).sum() / len(z1)


def _logits(a: Tensor, b: Tensor, temperature: float) -> Tensor:
    unit_a, unit_b = (z / torch.linalg.vector_norm(z, dim=1, keepdim=True) for z in (a, b))
    logits: Tensor = unit_a @ unit_b.T / temperature
    return logits


REFERENCES: dict[str, Reference] = {"nt_xent": nt_xent, "info_nce": info_nce, "clip": clip, "siglip": siglip}
