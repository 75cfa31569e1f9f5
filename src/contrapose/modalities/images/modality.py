"""The image modality: data sets, augmented views and encoders behind the `Modality` protocol."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from contrapose.modalities.images.encoders import check_encoder, check_sizes, encoder
from contrapose.modalities.images.images import Images
from contrapose.modalities.images.imbalance import by_rule
from contrapose.modalities.images.load import check_name, load
from contrapose.modalities.images.stream import Files
from contrapose.modalities.images.suggest import suggest
from contrapose.modalities.images.views import Views
from contrapose.modalities.modality import DataSettings, Split, Suggestion, ViewMaker
from contrapose.networks.encoder import Encoder

SMALLEST, LARGEST = 8, 1024  # pixels; a mistyped size would otherwise show as an error of torch, or of memory


@dataclass(frozen=True)
class ImageModality:
    """Images in memory or on disk, augmented views, and convolutional networks or vision transformers."""

    def check_data(self, name: str) -> None:
        """Refuse a name that is neither a known data set nor a path."""
        check_name(name)

    def load(self, settings: DataSettings, root: Path | None, views: ViewMaker) -> Split:
        """Load a data set by name, from a folder or an .npz file; apply the limit and the class imbalance."""
        split = load(settings.data, limit=settings.limit, root=root, stream=settings.stream, classes=settings.classes)
        if not settings.imbalance:
            return split
        assert isinstance(split.train, Images | Files)
        train = by_rule(split.train, settings.imbalance)
        # The probe stays balanced by default: it measures the encoder, not a classifier trained on few tail images.
        return Split(train, train if settings.probe == "train" and split.probe is not None else split.probe, split.test)

    def views(self, name: str, count: int, *, size: int = 0) -> Views:
        """Return `count` views by the name of an augmentation recipe, at its own size unless `size` is another."""
        if size and not SMALLEST <= size <= LARGEST:
            raise ValueError(
                f"size: expected {SMALLEST} to {LARGEST} pixels, or 0 for the recipe's own size, got {size}"
            )
        return Views.named(name, count, size=size or None)

    def suggest(self, settings: DataSettings, chosen: Mapping[str, Any], device: torch.device) -> Suggestion:
        """Choose views, size, encoder and batch for the images and the device, looking at a sample of the images."""
        return suggest(settings, chosen, device)

    def check_encoder(self, name: str) -> None:
        """Raise ValueError if no encoder has this name."""
        check_encoder(name)

    def encoder(self, name: str, views: ViewMaker) -> Encoder:
        """Build an encoder; raise ValueError if it cannot take the size of these views."""
        assert isinstance(views, Views)
        sizes = list(dict.fromkeys(recipe.size for recipe in views.recipes))
        check_sizes(name, sizes)
        return encoder(name, sizes[0])

    def prepare(self, network: nn.Module) -> nn.Module:
        """Convert weights to channels last, the layout in which convolutions run fastest."""
        return network.to(memory_format=torch.channels_last)

    def describe_input(self, views: ViewMaker) -> str:
        """Describe the size and normalisation of the images that the encoder expects."""
        assert isinstance(views, Views)
        recipe = views.recipes[0]
        return (
            f"it takes images of {recipe.size} × {recipe.size} pixels with values in [0, 1], "
            f"normalised with mean {recipe.mean} and standard deviation {recipe.std}"
        )

    def example_input(self, views: ViewMaker) -> Tensor:
        """Return two black images of the size of the views."""
        assert isinstance(views, Views)
        return torch.zeros(2, 3, views.recipes[0].size, views.recipes[0].size)


IMAGES = ImageModality()
