"""Frameworks by name: where positives and negatives come from.

    simclr        the batch itself, in any number of views
    moco          a momentum encoder's keys and a queue of them (MoCo v2)
    moco-v3       a momentum encoder's keys of the same batch, and a predictor
    memory-bank   one stored embedding for every training image (Wu et al., Wang & Liu)

Each yields `Pairs`, so any objective runs on any of them.
"""

from contrapose.frameworks.framework import Framework
from contrapose.frameworks.memory_bank import MemoryBank
from contrapose.frameworks.moco import MoCo, MoCoV3
from contrapose.frameworks.simclr import SimCLR

__all__ = ["Framework", "MemoryBank", "MoCo", "MoCoV3", "SimCLR"]
