"""Settings of a run that images with captions add to those of images."""

from __future__ import annotations

from dataclasses import dataclass

TOWERS = ("images", "text")


@dataclass(frozen=True, kw_only=True)
class CaptionSettings:
    """The encoder of captions, and which of the two encoders is trained."""

    text_encoder: str = ""
    """Captions: their encoder: clip-small, clip, tiny, small, medium, minilm or hf:FOLDER; empty: chosen for the device."""
    text_length: int = 0
    """Captions: tokens after which one is cut; 0: 32."""
    frozen_tower: str = ""
    """Captions: images or text: this encoder keeps the weights that it starts with (LiT), and its projection is trained; empty:
    both are trained."""


def check_tower(name: str) -> None:
    """Refuse a tower to freeze that does not exist."""
    if name not in ("", *TOWERS):
        raise ValueError(f"frozen_tower: expected {' or '.join(TOWERS)}, or nothing to train both, got {name!r}")
