"""The family of losses: pure functions of `Pairs`, and their named catalogue.

>>> import torch
>>> from contrapose.losses import nt_xent
>>> from contrapose.pairs import two_views
>>> loss = nt_xent(two_views(torch.randn(8, 16), torch.randn(8, 16)), temperature=0.5)
"""

from contrapose.losses.align_uniform import align_uniform
from contrapose.losses.cacr import cacr
from contrapose.losses.catalogue import CATALOGUE, Method
from contrapose.losses.module import Loss
from contrapose.losses.similarity import simple, triplet
from contrapose.losses.softmax import (
    balanced,
    cmc,
    dcl,
    dclw,
    generalized_nt_xent,
    hard_negative,
    macl,
    moco_v3,
    nt_xent,
    tau,
)
from contrapose.losses.sogclr import isogclr, sogclr

__all__ = [
    "CATALOGUE",
    "Loss",
    "Method",
    "align_uniform",
    "balanced",
    "cacr",
    "cmc",
    "dcl",
    "dclw",
    "generalized_nt_xent",
    "hard_negative",
    "isogclr",
    "macl",
    "moco_v3",
    "nt_xent",
    "simple",
    "sogclr",
    "tau",
    "triplet",
]
