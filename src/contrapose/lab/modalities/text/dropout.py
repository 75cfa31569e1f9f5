"""Dropout as an augmentation: masks that are a function of keys, so that a view of a sentence can be reproduced.

SimCSE's two views of a sentence differ in dropout alone. torch draws dropout masks from the generator of a device, so that they
depend on the batch and on what was drawn before. Here each token has a key, a function of (seed, epoch, index, view), and each
layer mixes it with its number: a resumed run, or one with another number of processes, has the same masks.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from contrapose.randomness import bits

ATTENTION = "contrapose"  # name of `seeded_attention` in transformers
_LEVELS = 2**16  # a mask compares 16 random bits, of which a hash of 64 has four


class DropoutKeys:
    """The keys of the tokens (B, T) that pass through a network now; None: without dropout."""

    def __init__(self) -> None:
        self.tokens: Tensor | None = None


class SampleDropout(nn.Module):
    """Dropout by the keys of tokens, in training and in evaluation; without keys it does nothing."""

    def __init__(self, p: float, layer: int, keys: DropoutKeys) -> None:
        super().__init__()
        self.p, self.layer, self.keys = p, layer, keys

    def extra_repr(self) -> str:
        """Return the settings, for printing."""
        return f"p={self.p}, layer={self.layer}"

    def forward(self, states: Tensor) -> Tensor:
        """Drop elements of the states (B, T, d) of tokens, or of attention weights (B, H, T, T)."""
        if states.ndim == 4:  # of a model that computes its attention itself
            return self.attention(states)
        mask = self.mask(states.shape[-1])
        return states if mask is None else states * mask.to(states.dtype)

    def attention(self, weights: Tensor) -> Tensor:
        """Drop elements of attention weights (B, H, T, T), by the keys of the tokens that attend."""
        _, heads, _, width = weights.shape
        mask = self.mask(width * heads)
        if mask is None:
            return weights
        # Positions before heads: in a longer batch, numbers are appended and none changes.
        factors: Tensor = mask.unflatten(-1, (width, heads)).permute(0, 3, 1, 2)
        return weights * factors.to(weights.dtype)

    def mask(self, count: int) -> Tensor | None:
        """Return the factors (B, T, count) of elements: 0 with probability p, else 1 / (1 - p); None: nothing is dropped."""
        keys, dropped = self.keys.tokens, round(self.p * _LEVELS)
        if keys is None or not dropped:
            return None
        slots = torch.arange(math.ceil(count / 4), device=keys.device)
        random = bits(bits(keys, self.layer)[..., None] + slots).view(torch.int16)[..., :count]
        return (random >= dropped - _LEVELS // 2).float() * (_LEVELS / (_LEVELS - dropped))


def seed_dropout(network: nn.Module) -> DropoutKeys:
    """Replace each dropout of a network by one that reads the keys which are returned."""
    keys = DropoutKeys()
    found = [(name, module) for name, module in network.named_modules() if isinstance(module, nn.Dropout)]
    for number, (name, module) in enumerate(found):
        network.set_submodule(name, SampleDropout(module.p, number, keys))
    return keys


def register_attention() -> None:
    """Offer `seeded_attention` to the models of transformers, under the name `ATTENTION`."""
    from transformers.masking_utils import AttentionMaskInterface, sdpa_mask
    from transformers.modeling_utils import AttentionInterface

    def mask(*sizes: int, **options: Any) -> Tensor | None:
        # To leave out the mask where there is no padding, the padding would have to be read back from the GPU.
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
    """Attend with dropout by keys. The arguments (B, H, T, d) are those of transformers' attention functions."""
    drop = getattr(module, "dropout", None)
    if dropout and not isinstance(drop, SampleDropout):
        raise ValueError(
            f"encoder: the dropout of {type(module).__name__} cannot be a function of the sample; set it to 0"
        )
    if isinstance(drop, SampleDropout) and drop.keys.tokens is not None and drop.p:
        scores = query @ key.transpose(-1, -2) * (scaling or query.shape[-1] ** -0.5)
        if attention_mask is not None:
            scores = scores.masked_fill(~attention_mask, torch.finfo(scores.dtype).min)
        attended = drop.attention(scores.softmax(-1, dtype=torch.float32).to(value.dtype)) @ value
    else:
        attended = nn.functional.scaled_dot_product_attention(
            query, key, value, attn_mask=attention_mask, scale=scaling
        )
    return attended.transpose(1, 2).contiguous(), None
