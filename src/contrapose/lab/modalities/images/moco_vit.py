"""MoCo v3's ViT: torchvision's ViT with fixed positions and a fixed patch projection. Imported only when used."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate
from torchvision.models import VisionTransformer

PATCH = 16  # pixels


class MoCoVisionTransformer(VisionTransformer):  # type: ignore[misc]
    """A ViT that does not train its random patch projection, which makes training stable (Chen et al., MoCo v3, §4).

    Positions are sines and cosines of the patch's row and column. Positions and patch projection are parameters without
    gradient, under torchvision's names: they are saved and loaded with the other parameters, and fine-tuning may train them,
    as DeiT's recipe does. For images of a size other than `size`, positions are interpolated, as in CACR's code for local crops.
    """

    def __init__(self, *, size: int, width: int, heads: int, depth: int = 12) -> None:
        super().__init__(size, PATCH, num_layers=depth, num_heads=heads, hidden_dim=width, mlp_dim=4 * width)
        self.heads = nn.Identity()
        for module in self.modules():
            if isinstance(module, nn.MultiheadAttention):
                # Queries, keys and values are separate layers that are stored as one matrix.
                for weight in module.in_proj_weight.detach().chunk(3):
                    nn.init.xavier_uniform_(weight)
                nn.init.zeros_(module.in_proj_bias)
            elif isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                nn.init.zeros_(module.bias)
        nn.init.normal_(self.class_token, std=1e-6)
        # Initialised like a linear layer on a patch's pixels: a convolution's fan-out would count every pixel.
        nn.init.xavier_uniform_(self.conv_proj.weight.detach().flatten(1))
        self.conv_proj.requires_grad_(False)
        with torch.no_grad():
            self.encoder.pos_embedding.copy_(position_embedding(size // PATCH, width))
        self.encoder.pos_embedding.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        """Map images (B, 3, H, W) to the class token's features, (B, width)."""
        if x.shape[2] % PATCH or x.shape[3] % PATCH:
            raise ValueError(f"size: a ViT takes images of a multiple of {PATCH} pixels, got {tuple(x.shape[2:])}")
        patches = self.conv_proj(x)
        tokens = torch.cat([self.class_token.expand(len(x), -1, -1), patches.flatten(2).transpose(1, 2)], 1)
        tokens = tokens + self._positions(patches.shape[2], patches.shape[3])
        features: Tensor = self.encoder.ln(self.encoder.layers(tokens))[:, 0]
        return features

    def _positions(self, rows: int, columns: int) -> Tensor:
        """Return the positional embeddings of the class token and of a grid of patches, (1, 1 + rows · columns, width)."""
        positions: Tensor = self.encoder.pos_embedding
        side = self.image_size // PATCH
        if (rows, columns) == (side, side):
            return positions
        grid = positions[:, 1:].transpose(1, 2).unflatten(2, (side, side))
        grid = interpolate(grid, size=(rows, columns), mode="bicubic")
        return torch.cat([positions[:, :1], grid.flatten(2).transpose(1, 2)], 1)


def position_embedding(side: int, width: int) -> Tensor:
    """Return zeros for the class token, then sines and cosines of row and column for side · side patches, (1, n, width)."""
    frequencies = 10_000.0 ** (-torch.arange(width // 4) / (width // 4))
    angles = torch.arange(side)[:, None] * frequencies  # (side, width / 4)
    waves = torch.cat([angles.sin(), angles.cos()], 1)
    by_row, by_column = waves[:, None].expand(-1, side, -1), waves[None].expand(side, -1, -1)
    patches = torch.cat([by_row, by_column], 2).flatten(0, 1)
    return torch.cat([torch.zeros(1, width), patches])[None]
