"""Tiny models of images and texts with random weights, saved as transformers and open_clip save them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from sentences import SPECIAL, tokenizer
from transformers import (
    CLIPConfig,
    CLIPImageProcessor,
    CLIPModel,
    PreTrainedTokenizerFast,
    SiglipConfig,
    SiglipImageProcessor,
    SiglipModel,
)

WORDS = ["a", "photo", "of", "the", "dog", "cat", "checks", "discs", "horizontal", "vertical", "."]
LENGTH, SIZE, WIDTH = 12, 16, 8


def save_clip(folder: Path, kind: str = "clip") -> Any:
    """Write a CLIP or SigLIP of transformers with its tokenizer and image settings; return the model."""
    torch.manual_seed(0)
    layers = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    text = layers | {"vocab_size": len(SPECIAL + WORDS), "max_position_embeddings": LENGTH}
    text |= {"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3}
    vision = layers | {"image_size": SIZE, "patch_size": 8}
    if kind == "clip":
        model = CLIPModel(CLIPConfig(text_config=text, vision_config=vision, projection_dim=WIDTH))
        CLIPImageProcessor(size={"shortest_edge": SIZE}, crop_size=SIZE).save_pretrained(folder)
    else:
        model = SiglipModel(SiglipConfig(text_config=text, vision_config=vision))
        SiglipImageProcessor(size={"height": SIZE, "width": SIZE}).save_pretrained(folder)
    names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    PreTrainedTokenizerFast(tokenizer_object=tokenizer(WORDS), **names).save_pretrained(folder)
    model.save_pretrained(folder)
    return model.eval()


def save_open_clip(folder: Path) -> Any:
    """Write a CLIP of open_clip, with its own vocabulary; return the model."""
    from open_clip.model import CLIP

    torch.manual_seed(0)
    settings = {
        "embed_dim": WIDTH,
        "vision_cfg": {"image_size": SIZE, "layers": 1, "width": 16, "head_width": 8, "patch_size": 8},
        "text_cfg": {"context_length": 77, "vocab_size": 49408, "width": 16, "heads": 2, "layers": 1},
    }
    model = CLIP(**settings).eval()
    folder.mkdir(parents=True)
    preprocess = {"mean": [0.5, 0.5, 0.5], "std": [0.25, 0.25, 0.25]}
    (folder / "open_clip_config.json").write_text(json.dumps({"model_cfg": settings, "preprocess_cfg": preprocess}))
    save_file(model.state_dict(), folder / "open_clip_model.safetensors")
    return model
