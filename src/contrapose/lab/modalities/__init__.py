"""Kinds of data by name. A new modality needs a folder with a subclass of `Modality`, and one line here."""

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

# Modalities are imported when they are used, since each has its own dependencies.
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
    """Return the papers' settings for all modalities, keyed by name: `PRESETS` in each modality's presets.py, if it exists."""
    modules = [
        known.partition(":")[0].rpartition(".")[0] + ".presets"
        for known in MODALITIES.values()
        if isinstance(known, str)
    ]
    tables = [import_module(module).PRESETS for module in modules if find_spec(module)]
    return {name: settings for table in tables for name, settings in table.items()}


def recognise(data: str) -> str:
    """Return the name of a data set's modality, judging by its name or its files; images if no other modality matches."""
    # The last modality is asked first: a file of captions may have the same ending as a file of texts.
    names = reversed(MODALITIES) if data else ()
    return next((name for name in names if modality(name).recognises(data)), next(iter(MODALITIES)))


def trained_elsewhere(name: str) -> tuple[Modality[Any], Path] | None:
    """Return the modality and the folder of a pretrained model, such as hf:FOLDER or minilm; None for other names."""
    kinds = list(map(modality, MODALITIES))
    return next(((kind, folder) for kind in kinds if (folder := kind.pretrained_folder(name)) is not None), None)
