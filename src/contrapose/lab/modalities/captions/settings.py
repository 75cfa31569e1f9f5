"""Additional settings for runs on images with captions, and their default settings."""

from __future__ import annotations

from dataclasses import dataclass

from contrapose.lab.modalities.modality import Settings
from contrapose.lab.modalities.text.encoders import EncoderName
from contrapose.lab.modalities.text.views import DEFAULT_LENGTH

TOWERS = ("images", "text")
# Defaults: CLIP, with open_clip's weight decay.
CAPTION_SETTINGS: Settings = {
    "modality": "captions",
    "framework": "two_towers",
    "head": "clip",
    "loss": "clip",
    "weight_decay": 0.1,
}
# Takes seconds on a CPU: a few of the built-in shapes.
SMOKE_CAPTIONS: Settings = {
    "data": "shapes", "limit": 128, "stream": False, "views": "captions", "size": 32, "encoder": "tiny", "text_encoder": "tiny",
    "text_length": 16, "width": 64, "optimiser": "adamw", "lr": 1e-3, "schedule": "cosine", "warmup": 0.0, "weight_decay": 0.1,
    "epochs": 2, "batch": 32, "precision": "fp32", "knn_every": 2, "metrics": 48,
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class CaptionSettings:
    """The caption encoder, and which of the two encoders is trained."""

    text_encoder: str = ""
    """Caption encoder: clip-small, clip, tiny, small, medium, minilm or hf:FOLDER; empty: chosen for the device."""
    text_length: int = 0
    """Number of tokens after which a caption is truncated; 0: 32."""
    frozen_tower: str = ""
    """images or text: this encoder keeps its initial weights (LiT), and only its projection is trained; empty: both encoders
    are trained."""


def check_caption_settings(settings: CaptionSettings) -> None:
    """Refuse a text encoder or a tower that does not exist, and captions without room for a word."""
    if settings.text_encoder:
        EncoderName.parse(settings.text_encoder, argument="text_encoder")
    if settings.text_length in (1, 2):
        raise ValueError(
            f"text_length: expected at least 3 tokens, of which two mark start and end, or 0 for {DEFAULT_LENGTH}, got "
            f"{settings.text_length}"
        )
    if settings.frozen_tower not in ("", *TOWERS):
        raise ValueError(
            f"frozen_tower: expected {' or '.join(TOWERS)}, or nothing to train both, got {settings.frozen_tower!r}"
        )
