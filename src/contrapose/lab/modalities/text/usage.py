"""Code that uses an exported text encoder."""

from __future__ import annotations


def usage(folder: str) -> str:
    """Return Python code that embeds texts with an exported folder, without contrapose."""
    return f"""\
from sentence_transformers import SentenceTransformer

model = SentenceTransformer({folder!r})
features = model.encode(["A sentence.", "Another one."])"""
