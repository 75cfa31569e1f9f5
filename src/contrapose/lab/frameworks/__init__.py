"""Frameworks by name: where positives and negatives come from.

Each yields `Embeddings` and says what these offer an objective: pairs, embeddings or assignments to prototypes. A new framework
is a file in this folder with `ROWS`, which is found here without being listed. Its row has a summary, a dataclass of its
settings, which become settings of `Run`, the losses that need it, and its presets.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Mapping
from dataclasses import Field, field, fields, make_dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

from contrapose.lab.frameworks.false_negatives import FNC, FNCSettings
from contrapose.lab.frameworks.framework import Embed, Framework, FrameworkRow, Parts
from contrapose.lab.frameworks.memory_bank import MemoryBank
from contrapose.lab.frameworks.momentum import MoCo, MoCoSettings
from contrapose.lab.frameworks.predictors import (
    NNCLR,
    MomentumPredictor,
    MomentumPredictorSettings,
    NNCLRSettings,
    SimSiam,
)
from contrapose.lab.frameworks.prototypes import DINO, DINOSettings, SwAV, SwAVSettings
from contrapose.lab.frameworks.simclr import SimCLR, SimCLRSettings
from contrapose.lab.frameworks.two_towers import TwoTowers
from contrapose.lab.modalities import CaptionSettings
from contrapose.lab.settings import Settings, help_texts, rule_of

_ROWS: list[FrameworkRow] = [
    row
    for module in pkgutil.iter_modules(__path__)
    for row in getattr(import_module(f"{__name__}.{module.name}"), "ROWS", ())
]
FRAMEWORKS: Mapping[str, FrameworkRow] = {row.name: row for row in sorted(_ROWS, key=lambda row: row.name != "simclr")}


def users(setting: str) -> list[str]:
    """Return the names of the frameworks that use a setting."""
    return [row.name for row in FRAMEWORKS.values() if row.uses(setting)]


def _all_settings() -> list[tuple[str, Any, Any]]:
    """Return the settings of all frameworks as `make_dataclass` takes them; one that several have must be the same in all."""
    known: dict[str, tuple[Field[Any], str]] = {}
    for row in FRAMEWORKS.values():
        texts = help_texts(row.settings)
        for own in fields(row.settings):
            other, _ = known.setdefault(own.name, (own, texts[own.name]))
            if (own.type, own.default, rule_of(own)) != (other.type, other.default, rule_of(other)):
                raise TypeError(f"{own.name}: {row.name} declares it unlike {users(own.name)[0]}; both must inherit it")
    return [
        (name, own.type, field(default=own.default, metadata={**own.metadata, "help": _with_users(name, text)}))
        for name, (own, text) in known.items()
    ]


def _with_users(setting: str, text: str) -> str:
    return f"{', '.join(users(setting))}: {text[:1].lower()}{text[1:]}"


if TYPE_CHECKING:
    # A type checker cannot see the registry. Where typed code should know a new framework's settings, add them here.
    class FrameworkSettings(
        SimCLRSettings,
        MoCoSettings,
        FNCSettings,
        NNCLRSettings,
        MomentumPredictorSettings,
        SwAVSettings,
        DINOSettings,
        CaptionSettings,
    ):
        """The settings of all frameworks."""
else:
    FrameworkSettings = make_dataclass("FrameworkSettings", _all_settings(), frozen=True, kw_only=True)

FRAMEWORK_DEFAULTS: Settings = {setting.name: setting.default for setting in fields(FrameworkSettings)}

__all__ = [
    "DINO",
    "FNC",
    "FRAMEWORKS",
    "FRAMEWORK_DEFAULTS",
    "NNCLR",
    "Embed",
    "Framework",
    "FrameworkRow",
    "FrameworkSettings",
    "MemoryBank",
    "MoCo",
    "MomentumPredictor",
    "Parts",
    "SimCLR",
    "SimSiam",
    "SwAV",
    "TwoTowers",
    "users",
]
