"""Frameworks by name: where positives and negatives come from.

    simclr        the batch itself, in any number of views
    moco          a momentum encoder's keys and a queue of them (MoCo v2)
    moco-v3       a momentum encoder's keys of the same batch, and a predictor
    fnc           a momentum encoder's keys of the batch and a queue of them, with false negatives among them (FNC)
    memory-bank   one stored embedding for every training image (Wu et al., Wang & Liu)

Each yields `Embeddings`, so any objective of pairs runs on any of them; objectives of embeddings run on simclr. A new framework
is a file in this folder with `ROWS`, which is found here without being listed.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Mapping
from importlib import import_module

from contrapose.frameworks.false_negatives import FNC
from contrapose.frameworks.framework import Embed, Framework, FrameworkRow, Parts
from contrapose.frameworks.memory_bank import MemoryBank
from contrapose.frameworks.momentum import MoCo, MoCoV3
from contrapose.frameworks.simclr import SimCLR

_ROWS = [
    row
    for module in pkgutil.iter_modules(__path__)
    for row in getattr(import_module(f"{__name__}.{module.name}"), "ROWS", ())
]
FRAMEWORKS: Mapping[str, FrameworkRow] = {row.name: row for row in sorted(_ROWS, key=lambda row: row.name != "simclr")}

__all__ = ["FNC", "FRAMEWORKS", "Embed", "Framework", "FrameworkRow", "MemoryBank", "MoCo", "MoCoV3", "Parts", "SimCLR"]
