"""Settings for CACR's Table 19, CLIP and CACR on images with captions: `contrapose train --preset clip/cc3m --data PATH`.

The paper gives batch size, epochs, learning rate and schedule. Other settings are CLIP's, except for the image encoder, which
is the usual ResNet-50. `--batch 256 --accumulate 8 --grad-cache` contrasts as many images with the memory for only 256.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from contrapose.lab.modalities.captions.settings import CAPTION_SETTINGS
from contrapose.lab.modalities.modality import Settings

_CC3M: dict[str, Any] = {
    **CAPTION_SETTINGS, "data": "cc3m", "stream": True, "views": "clip", "encoder": "resnet50", "text_encoder": "clip",
    "text_length": 77, "width": 1024, "optimiser": "adamw", "lr": 5e-4, "schedule": "cosine", "warmup": 1.0,
    "weight_decay": 0.1, "batch": 2048, "epochs": 32, "precision": "bf16",
}  # fmt: skip

PRESETS: Mapping[str, Settings] = {
    "clip/cc3m": _CC3M | {"loss": "clip"},
    "cacr/cc3m": _CC3M | {"loss": "cacr(t_pos=1.0, t_neg=2.0)"},
}
