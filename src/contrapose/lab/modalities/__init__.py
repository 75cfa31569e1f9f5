"""Kinds of data by name. A new one is a folder that implements `Modality`, and one line here."""

from __future__ import annotations

from importlib import import_module

from contrapose.lab.modalities.modality import AUGMENTATIONS, Modality, Reader, Source, Split, ViewMaker
from contrapose.validate import check_known

__all__ = ["AUGMENTATIONS", "MODALITIES", "Modality", "Reader", "Source", "Split", "ViewMaker", "modality"]

# Imported when they are used: each has dependencies of its own.
MODALITIES: dict[str, str | Modality] = {
    "images": "contrapose.lab.modalities.images.modality:IMAGES",
    "text": "contrapose.lab.modalities.text.modality:TEXT",
    "captions": "contrapose.lab.modalities.captions.modality:CAPTIONS",
}


def modality(name: str) -> Modality:
    """Return a modality by name."""
    check_known("modality", name, MODALITIES)
    known = MODALITIES[name]
    if isinstance(known, str):  # "module:object"; a test may register the object itself
        module, _, attribute = known.partition(":")
        loaded: Modality = getattr(import_module(module), attribute)
        return loaded
    return known
