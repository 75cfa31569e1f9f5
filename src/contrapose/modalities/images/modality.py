"""Images as a modality: everything that training and evaluation ask of them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from contrapose.modalities.images.encoders import check_encoder, encoder
from contrapose.modalities.images.images import Images
from contrapose.modalities.images.imbalance import by_rule
from contrapose.modalities.images.load import load
from contrapose.modalities.images.stream import Files
from contrapose.modalities.images.views import Views
from contrapose.modalities.modality import DataSettings, Split, ViewMaker
from contrapose.networks.encoder import Encoder


@dataclass(frozen=True)
class ImageModality:
    """Images in memory or in files, augmented views of them, and convolutional networks or vision transformers."""

    def load(self, settings: DataSettings, root: Path | None) -> Split:
        """Load a data set by name, from a folder or an .npz file; cut it to its limit and thin out its classes."""
        split = load(settings.data, limit=settings.limit, root=root, stream=settings.stream, classes=settings.classes)
        if not settings.imbalance:
            return split
        assert isinstance(split.train, Images | Files)
        thin = by_rule(split.train, settings.imbalance)
        return Split(thin, thin if settings.probe == "train" and split.probe is not None else split.probe, split.test)

    def views(self, name: str, count: int) -> Views:
        """Make views by a recipe of augmentation."""
        return Views.named(name, count)

    def check_encoder(self, name: str) -> None:
        """Refuse an encoder that does not exist."""
        check_encoder(name)

    def encoder(self, name: str, views: ViewMaker) -> Encoder:
        """Build an encoder; some take images of one size only."""
        assert isinstance(views, Views)
        body = encoder(name)
        wanted = getattr(body.network, "image_size", None)
        other = [recipe.size for recipe in views.recipes if wanted not in (None, recipe.size)]
        if other:
            raise ValueError(
                f"views: {name} takes images of {wanted} pixels, and these views have {other[0]} (--views simclr makes 224)"
            )
        return body

    def prepare(self, network: nn.Module) -> nn.Module:
        """Lay out weights with channels last, as convolutions run fastest."""
        return network.to(memory_format=torch.channels_last)

    def describe_input(self, views: ViewMaker) -> str:
        """Size and normalisation of images."""
        assert isinstance(views, Views)
        recipe = views.recipes[0]
        return f"it takes images from 0 to 1 of {recipe.size} pixels, less {recipe.mean}, divided by {recipe.std}"

    def example_input(self, views: ViewMaker) -> Tensor:
        """Two black images of the size that the views make."""
        assert isinstance(views, Views)
        return torch.zeros(2, 3, views.recipes[0].size, views.recipes[0].size)


IMAGES = ImageModality()
