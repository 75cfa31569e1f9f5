"""Dropout as an augmentation: masks that are a function of keys, so that a view of a sentence can be reproduced.

SimCSE's two views of a sentence differ only in dropout. torch draws dropout masks from a device's generator, so its masks
depend on the batch and on earlier draws. Here each token has a key, a function of (seed, epoch, index, view), and each layer
mixes the key with the layer's number. A resumed run, or a run on another number of processes, therefore has the same masks.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from contrapose.lab.networks.recompute import PassInput
from contrapose.randomness import bits

ATTENTION = "contrapose"  # name of `seeded_attention` in transformers
_LEVELS = 2**16  # a mask compares 16 random bits; a hash of 64 bits gives four such numbers


class DropoutKeys(PassInput):
    """The keys (B, T) of the tokens that are passing through a network; None: no dropout."""


class SampleDropout(nn.Module):
    """Dropout determined by the tokens' keys, in training and in evaluation; without keys, nothing is dropped."""

    def __init__(self, p: float, layer: int, keys: DropoutKeys) -> None:
        super().__init__()
        self.p, self.layer, self.keys = p, layer, keys

    def extra_repr(self) -> str:
        """Return the settings, for printing."""
        return f"p={self.p}, layer={self.layer}"

    def forward(self, states: Tensor) -> Tensor:
        """Drop elements of token states (B, T, d), or of attention weights (B, H, T, T)."""
        if states.ndim == 4:  # attention weights, from a model that does not use `seeded_attention`
            return self.attention(states)
        mask = self.mask(states.shape[-1])
        return states if mask is None else states * mask.to(states.dtype)

    def attention(self, weights: Tensor) -> Tensor:
        """Drop elements of attention weights (B, H, T, T), by the keys of the tokens that attend."""
        _, heads, _, width = weights.shape
        mask = self.mask(width * heads)
        if mask is None:
            return weights
        # Positions come before heads, so that a longer batch appends numbers and changes none.
        factors: Tensor = mask.unflatten(-1, (width, heads)).permute(0, 3, 1, 2)
        return weights * factors.to(weights.dtype)

    def mask(self, count: int) -> Tensor | None:
        """Return the elements' factors (B, T, count): 0 with probability p, else 1 / (1 - p); None: nothing is dropped."""
        keys, dropped = self.keys.value, round(self.p * _LEVELS)
        if keys is None or not dropped:
            return None
        slots = torch.arange(math.ceil(count / 4), device=keys.device)
        random = bits(bits(keys, self.layer)[..., None] + slots).view(torch.int16)[..., :count]
        return (random >= dropped - _LEVELS // 2).float() * (_LEVELS / (_LEVELS - dropped))


def seed_dropout(network: nn.Module) -> DropoutKeys:
    """Replace each dropout layer in a network by one that reads keys; return the object that holds these keys."""
    keys = DropoutKeys()
    found = [(name, module) for name, module in network.named_modules() if isinstance(module, nn.Dropout)]
    for number, (name, module) in enumerate(found):
        network.set_submodule(name, SampleDropout(module.p, number, keys))
    return keys


def register_attention() -> None:
    """Register `seeded_attention` with transformers, under the name `ATTENTION`."""
    from transformers.masking_utils import AttentionMaskInterface, sdpa_mask
    from transformers.modeling_utils import AttentionInterface

    def mask(*sizes: int, **options: Any) -> Tensor | None:
        # Omitting the mask for batches without padding would require reading the padding back from the GPU.
        made: Tensor | None = sdpa_mask(
            *sizes, **options | {"allow_is_bidirectional_skip": False, "allow_is_causal_skip": False}
        )
        return made

    AttentionInterface.register(ATTENTION, seeded_attention)
    AttentionMaskInterface.register(ATTENTION, mask)


def seeded_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:
    """Compute attention with dropout by keys; the arguments (B, H, T, d) are the same as in transformers' functions."""
    drop = getattr(module, "dropout", None)
    if dropout and not isinstance(drop, SampleDropout):
        raise ValueError(
            f"encoder: the dropout of {type(module).__name__} cannot be a function of the sample; set it to 0"
        )
    if isinstance(drop, SampleDropout) and drop.keys.value is not None and drop.p:
        scores = query @ key.transpose(-1, -2) * (scaling or query.shape[-1] ** -0.5)
        if attention_mask is not None:
            scores = scores.masked_fill(~attention_mask, torch.finfo(scores.dtype).min)
        attended = drop.attention(scores.softmax(-1, dtype=torch.float32).to(value.dtype)) @ value
    else:
        attended = nn.functional.scaled_dot_product_attention(
            query, key, value, attn_mask=attention_mask, scale=scaling
        )
    return attended.transpose(1, 2).contiguous(), None
