"""A memory bank: one stored embedding for every training image."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from contrapose.distributed import gather
from contrapose.frameworks.framework import Framework
from contrapose.networks.encoder import Encoder
from contrapose.pairs import Pairs, bank, unit


class MemoryBank(Framework):
    """Wu et al., as Wang & Liu use it: the positive is the image's own row, the negatives are all other rows.

    After each batch b_n ← normalise(½ b_n + ½ z_n) for the images that were seen; with several views z is their mean.
    """

    rows: Tensor

    def __init__(self, encoder: Encoder, projector: nn.Module, *, width: int, size: int, momentum: float = 0.5) -> None:
        super().__init__(encoder, projector)
        if not 0 <= momentum <= 1:
            raise ValueError(f"momentum: expected a number from 0 to 1, got {momentum!r}")
        self.momentum = momentum
        # Uniform coordinates of the length of a unit vector; a row becomes one when its image is first seen.
        bound = (3 / width) ** 0.5
        self.register_buffer("rows", torch.empty(size, width).uniform_(-bound, bound))
        self._latest: tuple[Tensor, Tensor] | None = None

    def forward(self, views_of: list[Tensor], index: Tensor) -> Pairs:
        """Each view against the bank."""
        z, index = gather(self.embed(views_of), 1), gather(index)
        self._latest = index, unit(z.detach()).mean(0)
        return bank(z, index, self.rows.clone()).sharded()

    @torch.no_grad()
    def after_batch(self) -> None:
        """Move the rows of the images that were seen."""
        if self._latest is not None:
            index, z = self._latest
            self.rows[index] = unit(self.momentum * self.rows[index] + (1 - self.momentum) * z.to(self.rows.dtype))
            self._latest = None
