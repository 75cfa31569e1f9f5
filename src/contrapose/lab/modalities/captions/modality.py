"""The modality of images with captions, behind the `Modality` protocol: those of images and of text, side by side."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from contrapose.lab.modalities.captions.captions import Captions
from contrapose.lab.modalities.captions.files import is_captions
from contrapose.lab.modalities.captions.load import list_captions, load
from contrapose.lab.modalities.captions.shapes import is_shapes
from contrapose.lab.modalities.captions.suggest import suggest
from contrapose.lab.modalities.captions.views import CaptionViews
from contrapose.lab.modalities.images.modality import IMAGES
from contrapose.lab.modalities.modality import DataSettings, Split, Suggestion, ViewMaker
from contrapose.lab.modalities.text.encoders import VOCABULARY, EncoderName
from contrapose.lab.modalities.text.load import learn_tokenizer
from contrapose.lab.modalities.text.modality import TEXT
from contrapose.lab.modalities.text.pretrained import load_tokenizer
from contrapose.lab.modalities.text.views import DEFAULT_LENGTH
from contrapose.lab.networks.encoder import Encoder


@dataclass(frozen=True)
class CaptionModality:
    """Images with captions: two kinds of input, and an encoder for each."""

    noun: str = "captioned images"

    def check_data(self, name: str, argument: str = "data") -> None:
        """Refuse a path without captions."""
        if not is_captions(Path(name)):
            missing = (
                "" if Path(name).exists() else ", which does not exist (relative paths start at the working directory)"
            )
            raise ValueError(
                f"{argument}: expected a folder with captions.tsv, .csv or .jsonl and images, tars of both, or shapes, the "
                f"built-in set (docs/captions.md), got {name!r}{missing}"
            )

    def can_stream(self, name: str) -> bool:
        """Return True: images are files, or members of tars."""
        return True

    def load(self, settings: DataSettings, root: Path | None, views: ViewMaker, *, encoder: str) -> Split:
        """Load images and captions; tokens are those of the text encoder and are cached in `root`."""
        assert isinstance(views, CaptionViews)
        # Before the captions are read, which takes long: the weights may not be installed.
        folder = views.texts.kept or self._text_folder(settings)
        listed = list_captions(settings)
        tokenizer = load_tokenizer(folder) if folder else learn_tokenizer(listed.training_texts(), size=VOCABULARY)
        # Captions of the built-in set are tokenised in less time than it takes to look for their tokens.
        cache = None if is_shapes(Path(settings.data)) else (root or Path("data")) / "tokens"
        return load(settings, listed, tokenizer, views, cache=cache)

    def _text_folder(self, settings: Any) -> Path | None:
        """Return the folder of the text encoder; None for one made from scratch, whose tokens are learned from the captions."""
        return EncoderName.parse(settings.text_encoder).folder

    def views(
        self, name: str, count: int, *, size: int = 0, length: int = 0, folder: Path | None = None
    ) -> CaptionViews:
        """Return a view of each image by the name of a recipe, and captions of at most `length` tokens."""
        texts = TEXT.views("dropout", 1, size=length or DEFAULT_LENGTH, folder=folder)
        return CaptionViews(IMAGES.views(name, 1, size=size), texts)

    def suggest(self, settings: DataSettings, chosen: Mapping[str, Any], device: torch.device) -> Suggestion:
        """Choose views, size, encoders and batch for the images and the device."""
        return suggest(settings, chosen, device)

    def check_encoder(self, name: str) -> None:
        """Raise ValueError if no encoder of images has this name."""
        IMAGES.check_encoder(name)

    def encoders(self, settings: Any, views: ViewMaker) -> dict[str, Encoder]:
        """Build the encoder of images and that of captions."""
        assert isinstance(views, CaptionViews)
        return {
            "images": IMAGES.encoder(settings.encoder, views.images),
            "text": TEXT.encoder(settings.text_encoder, views.texts),
        }

    def prepare(self, network: nn.Module) -> nn.Module:
        """Convert weights of convolutions to channels last."""
        return IMAGES.prepare(network)

    def keep(self, folder: Path, encoder: Any, split: Split, views: ViewMaker) -> None:
        """Write tokenizer and configuration of the text encoder to a run's directory."""
        assert isinstance(split.train, Captions)
        assert isinstance(views, CaptionViews)
        TEXT.keep_tokenizer(folder, encoder["text"], split.train.texts.tokenizer, views.texts)

    def decode(self, samples: Any, views: ViewMaker) -> Tensor:
        """Raise ValueError: a sample is embedded by one of the two towers."""
        raise ValueError("samples: use model.images.embed(…) for images, and model.text.embed(…) for texts")

    def describe_input(self, views: ViewMaker) -> dict[str, str]:
        """Describe the inputs of both encoders."""
        assert isinstance(views, CaptionViews)
        return IMAGES.describe_input(views.images) | {"length": str(views.texts.length)}

    def described_views(self, description: Mapping[str, str]) -> ViewMaker:
        """Raise ValueError: the two encoders are exported one by one."""
        raise ValueError("a file of weights has one encoder, and images with captions need two")

    def usage(self, encoder: str, width: int, views: ViewMaker, file: str) -> str:
        """Raise ValueError: the two encoders are exported one by one."""
        raise ValueError("the two encoders of images with captions are exported one by one")

    def example_input(self, views: ViewMaker) -> Any:
        """Raise ValueError: the two encoders are exported one by one."""
        raise ValueError("the two encoders of images with captions are exported one by one")


CAPTIONS = CaptionModality()
