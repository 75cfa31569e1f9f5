"""Frameworks by name: where positives and negatives come from.

    simclr        the batch itself, in any number of views
    moco          a momentum encoder's keys and a queue of them (MoCo v2)
    moco-v3       a momentum encoder's keys of the same batch, and a predictor
    byol          the same with other heads, for a loss without negatives: the momentum encoder is the teacher
    simsiam       a predictor, and no teacher: the target is the same network's output, without gradient
    nnclr         nearest neighbours in a queue in place of one view, and a predictor for the other
    swav          prototypes, to which all views of a sample are assigned alike
    dino          prototypes, and a teacher whose assignments are predicted
    fnc           a momentum encoder's keys of the batch and a queue of them, with false negatives among them (FNC)
    two_towers    two encoders, of images and of their captions, in one space (CLIP)
    memory-bank   one stored embedding for every training image (Wu et al., Wang & Liu)

Each yields `Embeddings` and says what these offer an objective: pairs, embeddings or assignments to prototypes. A new framework
is a file in this folder with `ROWS`, which is found here without being listed.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Mapping
from dataclasses import fields
from importlib import import_module
from typing import Any

from contrapose.lab.frameworks.false_negatives import FNC, SupportSettings
from contrapose.lab.frameworks.framework import Embed, Framework, FrameworkRow, Parts
from contrapose.lab.frameworks.memory_bank import MemoryBank
from contrapose.lab.frameworks.momentum import MoCo, MomentumSettings
from contrapose.lab.frameworks.predictors import NNCLR, MomentumPredictor, PredictorSettings, SimSiam
from contrapose.lab.frameworks.prototypes import DINO, PrototypeSettings, SwAV
from contrapose.lab.frameworks.simclr import SimCLR
from contrapose.lab.frameworks.two_towers import TwoTowers
from contrapose.lab.modalities import CaptionSettings

_ROWS = [
    row
    for module in pkgutil.iter_modules(__path__)
    for row in getattr(import_module(f"{__name__}.{module.name}"), "ROWS", ())
]
FRAMEWORKS: Mapping[str, FrameworkRow] = {row.name: row for row in sorted(_ROWS, key=lambda row: row.name != "simclr")}
# The settings of a run that belong to frameworks, and their defaults.
FRAMEWORK_DEFAULTS: Mapping[str, Any] = {
    setting.name: setting.default
    for owner in (MomentumSettings, PredictorSettings, PrototypeSettings, SupportSettings, CaptionSettings)
    for setting in fields(owner)
}

__all__ = [
    "DINO",
    "FNC",
    "FRAMEWORKS",
    "FRAMEWORK_DEFAULTS",
    "NNCLR",
    "Embed",
    "Framework",
    "FrameworkRow",
    "MemoryBank",
    "MoCo",
    "MomentumPredictor",
    "Parts",
    "SimCLR",
    "SimSiam",
    "SwAV",
    "TwoTowers",
]
