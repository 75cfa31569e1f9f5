"""Any objective in the shape of lightly's losses: `criterion(out0, out1)`.

>>> import torch
>>> from contrapose.integrations.lightly import NTXentLoss
>>> criterion = NTXentLoss(temperature=0.1)
>>> loss = criterion(torch.randn(8, 16), torch.randn(8, 16))
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from contrapose.distributed import gather
from contrapose.integrations.criterion import Objective, check_guide, make_criterion
from contrapose.losses import nt_xent
from contrapose.pairs import Pairs, guide_targets, queue, two_views, unit


class NTXentLoss(nn.Module):
    """`lightly.loss.NTXentLoss` with any objective, temperature and choice of negatives; lightly itself is not needed.

    temperature         any contrapose temperature, such as cosine(0.07, 0.2); default: 0.5 for NT-Xent, or the objective's own
    memory_bank_size    (rows, width) of a memory bank of earlier `out1`, which is then the only source of negatives (MoCo);
                        0 for negatives from the batch (SimCLR)
    gather_distributed  whether negatives, or rows for the memory bank, come from all processes
    objective           a function of pairs, a method of `CATALOGUE`, or text such as "dystress"; "soft_nt_xent" takes a guide's
                        similarities as soft targets: call it with `guide=(g0, g1)`
    guide_temperature   of the softmax that makes soft targets from the guide's similarities
    settings            further settings of the objective: negatives=hardest(64)

    Values and gradients equal lightly's. There are two differences. With `gather_distributed`, each process returns the loss
    of the whole batch instead of its own part (the gradients after DistributedDataParallel are the same). The memory bank
    is in `state_dict`, so that a run resumes exactly.
    """

    bank: Tensor
    bank_ptr: Tensor

    def __init__(
        self,
        temperature: Any = None,
        memory_bank_size: int | Sequence[int] = 0,
        gather_distributed: bool = False,
        *,
        objective: Objective = nt_xent,
        guide_temperature: float = 0.1,
        **settings: Any,
    ) -> None:
        super().__init__()
        self.criterion = make_criterion(objective, settings, temperature=temperature, provided=("targets",))
        self.guide_temperature = guide_temperature
        self.gather_distributed = gather_distributed
        size = _bank_size(memory_bank_size)
        self.register_buffer("bank", unit(torch.randn(size)) if size else None)
        self.register_buffer("bank_ptr", torch.zeros(1, dtype=torch.long) if size else None)

    def forward(
        self,
        out0: Tensor,
        out1: Tensor,
        *,
        ids: Tensor | None = None,
        guide: tuple[Tensor, Tensor] | None = None,
    ) -> Tensor:
        """Return the loss of two views, (m, d) each; rows with equal `ids` (m,) are never negatives of each other.

        `guide` holds another model's embeddings of the same two views, of any width, for an objective with soft targets.
        """
        check_guide(self.criterion, guide, name="guide")
        settings = {}
        if guide is not None:
            settings["targets"] = guide_targets(self._of_guide(*guide, ids), temperature=self.guide_temperature)
        loss: Tensor = self.criterion(self._pairs(out0, out1, ids), **settings)
        # As in lightly, the bank is not updated while the loss is only evaluated.
        if self.bank is not None and out0.requires_grad:
            self._enqueue(out1.detach())
        return loss

    def _pairs(self, out0: Tensor, out1: Tensor, ids: Tensor | None) -> Pairs:
        if self.bank is not None:
            pairs = queue(out0, out1, self.bank, ids=ids)
            # `queue` detaches keys, as for a momentum encoder; in lightly, out1 gets a gradient if it requires one.
            positive = unit(out1)[:, None].to(pairs.anchor.dtype)
            return replace(pairs, positive_rows=positive, detached=not out1.requires_grad)
        return self._views(out0, out1, ids)

    def _of_guide(self, g0: Tensor, g1: Tensor, ids: Tensor | None) -> Pairs:
        if self.bank is not None:
            raise ValueError("guide: expected None with a memory bank, whose samples the guide has not embedded")
        return self._views(g0, g1, ids)

    def _views(self, out0: Tensor, out1: Tensor, ids: Tensor | None) -> Pairs:
        if not self.gather_distributed:
            return two_views(out0, out1, ids=ids)
        ids = ids if ids is None else gather(ids)
        return two_views(gather(out0), gather(out1), ids=ids).sharded()

    @torch.no_grad()
    def _enqueue(self, keys: Tensor) -> None:
        keys = unit(gather(keys) if self.gather_distributed else keys).to(self.bank)
        start = int(self.bank_ptr)
        # Rows that do not fit before the end are dropped, and the next batch starts at the beginning, as in lightly.
        kept = keys[: len(self.bank) - start]
        self.bank[start : start + len(kept)] = kept
        self.bank_ptr.fill_((start + len(kept)) % len(self.bank))


def _bank_size(size: int | Sequence[int]) -> tuple[int, int] | None:
    if size == 0:
        return None
    if isinstance(size, int) or len(size) != 2 or min(size) < 1:
        raise ValueError(f"memory_bank_size: expected 0 or (rows, width) such as (4096, 128), got {size!r}")
    rows, width = size
    return rows, width
