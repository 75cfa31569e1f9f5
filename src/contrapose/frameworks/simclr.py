"""SimCLR: every view of the batch is an anchor, and all the other images are its negatives."""

from __future__ import annotations

from torch import Tensor

from contrapose.distributed import gather
from contrapose.frameworks.framework import Framework
from contrapose.pairs import Pairs, views


class SimCLR(Framework):
    """One network for all views; on several processes the negatives of all of them."""

    def forward(self, views_of: list[Tensor], index: Tensor) -> Pairs:
        """Both (or all) views as anchors."""
        return views(gather(self.embed(views_of), 1), ids=gather(index)).sharded()
