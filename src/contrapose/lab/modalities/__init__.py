"""Kinds of data by name. A new one is a folder with a subclass of `Modality`, and one line here."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from contrapose.lab.modalities.captions.settings import CaptionSettings
from contrapose.lab.modalities.modality import DataSettings, Modality, Settings
from contrapose.lab.modalities.source import AUGMENTATIONS, Reader, Source, Split, ViewMaker
from contrapose.validate import check_known

__all__ = [
    "AUGMENTATIONS",
    "MODALITIES",
    "CaptionSettings",
    "DataSettings",
    "Modality",
    "Reader",
    "Source",
    "Split",
    "ViewMaker",
    "modality",
    "presets",
    "recognise",
    "trained_elsewhere",
]

# Imported when they are used: each has dependencies of its own.
MODALITIES: dict[str, str | Modality[Any]] = {
    "images": "contrapose.lab.modalities.images.modality:IMAGES",
    "text": "contrapose.lab.modalities.text.modality:TEXT",
    "captions": "contrapose.lab.modalities.captions.modality:CAPTIONS",
}


def modality(name: str) -> Modality[Any]:
    """Return a modality by name."""
    check_known("modality", name, MODALITIES)
    known = MODALITIES[name]
    if isinstance(known, str):  # "module:object"; a test may register the object itself
        module, _, attribute = known.partition(":")
        loaded: Modality[Any] = getattr(import_module(module), attribute)
        return loaded
    return known


def presets() -> dict[str, Settings]:
    """Return the papers' settings of all modalities by name: `PRESETS` of presets.py in their folders, where there is one."""
    modules = [
        known.partition(":")[0].rpartition(".")[0] + ".presets"
        for known in MODALITIES.values()
        if isinstance(known, str)
    ]
    tables = [import_module(module).PRESETS for module in modules if find_spec(module)]
    return {name: settings for table in tables for name, settings in table.items()}


def recognise(data: str) -> str:
    """Return the name of the modality of a data set, by its name or its files; that of images if no other knows it."""
    # The last one first: a file of captions may have the ending of a file of texts.
    return next((name for name in reversed(MODALITIES) if modality(name).recognises(data)), next(iter(MODALITIES)))


def trained_elsewhere(name: str) -> tuple[Modality[Any], Path] | None:
    """Return the modality and the folder of a model that was trained elsewhere, such as hf:FOLDER; None for other names."""
    prefixes = {kind.prefix: kind for kind in map(modality, MODALITIES) if kind.prefix}
    known = next((prefix for prefix in prefixes if name.startswith(prefix)), "")
    return (prefixes[known], Path(name.removeprefix(known)).expanduser()) if known else None
