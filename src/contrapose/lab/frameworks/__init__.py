"""Frameworks by name: where positives and negatives come from.

Each framework returns `Embeddings` and declares what they offer an objective: pairs, embeddings or assignments to prototypes. To
add a framework, add a file with `ROWS` to this folder; no list of files has to be edited. A row has a summary, a dataclass of
settings (which become settings of `Run`), the losses that need the framework, and its presets.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Collection, Iterable, Mapping
from dataclasses import field, fields, make_dataclass
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


def frameworks_with(setting: str, rows: Iterable[FrameworkRow] = FRAMEWORKS.values()) -> list[str]:
    """Return the names of the frameworks that use a setting."""
    return [row.name for row in rows if row.uses(setting)]


def used_settings(settings: Settings, framework: str) -> Settings:
    """Return settings without those of other frameworks, for presets whose framework the user or a loss has changed.

    >>> used_settings({"lr": 0.1, "norm_views": "each"}, "byol")
    {'lr': 0.1}
    """
    own = FRAMEWORKS.get(framework)
    if own is None:
        return settings
    others = {setting.name for setting in fields(FrameworkSettings) if not rule_of(setting).ignored_elsewhere}
    return {name: value for name, value in settings.items() if name not in others or own.uses(name)}


def merge_settings(rows: Collection[FrameworkRow]) -> list[tuple[str, Any, Any]]:
    """Return the settings of all frameworks in the form that `make_dataclass` takes.

    Raise TypeError if several frameworks declare a setting of the same name differently.
    """
    merged: dict[str, tuple[str, Any, Any]] = {}
    for row in rows:
        texts = help_texts(row.settings)
        for own in fields(row.settings):
            names = frameworks_with(own.name, rows)
            text = f"{', '.join(names)}: {texts[own.name][:1].lower()}{texts[own.name][1:]}"
            known: Any = field(default=own.default, metadata={"rule": rule_of(own), "help": text})
            _, annotation, other = merged.setdefault(own.name, (own.name, own.type, known))
            if (own.type, own.default, known.metadata) != (annotation, other.default, other.metadata):
                raise TypeError(f"{own.name}: {' and '.join(names)} declare it differently; let them inherit one class")
    return list(merged.values())


def settings_classes(rows: Iterable[FrameworkRow]) -> tuple[type, ...]:
    """Return the frameworks' settings dataclasses in reverse order, without the classes that others inherit from."""
    owners = tuple(dict.fromkeys(row.settings for row in rows))
    # In reverse order, because a dataclass lists the fields of its last base class first.
    return tuple(
        cls for cls in reversed(owners) if not any(issubclass(other, cls) for other in owners if other is not cls)
    )


if TYPE_CHECKING:
    # A type checker cannot see the registry. If typed code uses a new framework's settings, add their class here.
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
    FrameworkSettings = make_dataclass(
        "FrameworkSettings",
        merge_settings(FRAMEWORKS.values()),
        bases=settings_classes(FRAMEWORKS.values()),
        frozen=True,
        kw_only=True,
    )

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
    "frameworks_with",
    "merge_settings",
    "used_settings",
]
