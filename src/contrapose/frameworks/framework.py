"""What a framework is: views in, pairs out."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn

from contrapose.networks.encoder import Encoder
from contrapose.pairs import Pairs


class Framework(nn.Module, ABC):
    """An encoder, a projector and whatever state a method keeps between steps (all of it in `state_dict`)."""

    def __init__(self, encoder: Encoder, projector: nn.Module) -> None:
        super().__init__()
        self.encoder, self.projector = encoder, projector

    @abstractmethod
    def forward(self, views: list[Tensor], index: Tensor) -> Pairs:
        """Views, (V, B, 3, H, W) for each image size, of the images `index` -> the comparison to be learned."""

    def begin(self, share: float) -> None:
        """Before an epoch, with the share of the training that is done: what is scheduled takes its value."""
        return

    def after_batch(self) -> None:
        """Once a batch's loss is known: queues and banks take its embeddings."""
        return

    def after_step(self) -> None:
        """Once the optimiser has moved: a momentum encoder follows."""
        return

    def compile_encoders(self) -> None:
        """Let the compiler make kernels for the networks that views pass through."""
        self.encoder.compile(dynamic=False)

    def features(self, images: Tensor) -> Tensor:
        """What evaluation sees: the encoder's output, before the projector."""
        features: Tensor = self.encoder(images)
        return features

    def embed(self, views: list[Tensor]) -> Tensor:
        """(V, B, d): all views through encoder and projector, one pass for each image size."""
        return encode(nn.Sequential(self.encoder, self.projector), views)


def encode(network: nn.Module, views: list[Tensor]) -> Tensor:
    """(V, B, d): each tensor of views in one pass."""
    return torch.cat([network(_laid_out(group)).unflatten(0, group.shape[:2]) for group in views])


def _laid_out(group: Tensor) -> Tensor:
    """(V, B, …) as one batch; on a GPU channels come last, as its convolutions want them."""
    images = group.flatten(0, 1)
    return images.contiguous(memory_format=torch.channels_last) if images.is_cuda and images.ndim == 4 else images
