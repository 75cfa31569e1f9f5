"""The modality of images with captions, an implementation of `Modality` that combines the image and text modalities."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn

from contrapose.lab.modalities.captions.captions import Captions
from contrapose.lab.modalities.captions.evaluation import CaptionEvaluation, zero_shot
from contrapose.lab.modalities.captions.files import is_captions, open_captions
from contrapose.lab.modalities.captions.inspection import describe_captions
from contrapose.lab.modalities.captions.load import list_captions, load
from contrapose.lab.modalities.captions.mining import read_captioned
from contrapose.lab.modalities.captions.pretrained import load_image_text_model
from contrapose.lab.modalities.captions.settings import (
    CAPTION_SETTINGS,
    SMOKE_CAPTIONS,
    CaptionSettings,
    check_caption_settings,
)
from contrapose.lab.modalities.captions.shapes import is_shapes
from contrapose.lab.modalities.captions.suggest import suggest
from contrapose.lab.modalities.captions.views import CaptionViews
from contrapose.lab.modalities.evaluations import SampleEmbedder
from contrapose.lab.modalities.images.modality import IMAGES
from contrapose.lab.modalities.images.stream import Files
from contrapose.lab.modalities.mining import MiningTask, embed_texts
from contrapose.lab.modalities.modality import DataSettings, Modality, NetworkSettings, Settings, Suggestion
from contrapose.lab.modalities.previews import Collection, Preview
from contrapose.lab.modalities.source import Source, Split, ViewMaker
from contrapose.lab.modalities.text.encoders import VOCABULARY, EncoderName
from contrapose.lab.modalities.text.load import learn_tokenizer
from contrapose.lab.modalities.text.modality import TEXT
from contrapose.lab.modalities.text.pretrained import load_tokenizer
from contrapose.lab.modalities.text.views import DEFAULT_LENGTH
from contrapose.lab.networks.encoder import Encoder


class CaptionModality(Modality[CaptionViews]):
    """Images with captions: two kinds of input, each with its own encoder."""

    noun = "captioned images"
    settings = CAPTION_SETTINGS
    auto_settings = MappingProxyType({"text_encoder": ""})
    needs_run_directory = True
    expected_data = "a folder with captions.tsv and images, or tars of both (docs/captions.md)"
    smoke_settings = SMOKE_CAPTIONS
    compared_losses = "clip,siglip,dystress,cacr"
    searchable = "images"
    unscored = "has no held-out images to measure retrieval with; set --hold-out above 0"
    prefix = "clip:"
    evaluation_options = "contrapose.lab.modalities.captions.commands.evaluate:ImageTextOptions"
    joint_evaluation = CaptionEvaluation()
    downstream = MappingProxyType({"zero_shot": zero_shot})

    how_to_improve = (
        "use more --epochs, more images, or pretrained encoders (--encoder efficientnet-lite0, --text-encoder minilm)"
    )

    def recognises(self, data: str) -> bool:
        """Return whether a path has captions, or is the built-in set."""
        return bool(data) and is_captions(Path(data))

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

    def has_data(self, name: str, root: Path | None) -> bool:
        """Return whether this is the name of the built-in set."""
        return is_captions(Path(name))

    def inspect(self, settings: DataSettings) -> Iterator[str]:
        """Read every image and caption; yield lines about splits, lengths, duplicates and broken files."""
        return describe_captions(settings)

    def previews(self, source: Source, views: CaptionViews, *, side: int = 240) -> list[Preview]:
        """Return each image with its captions."""
        assert isinstance(source, Captions)
        images = IMAGES.previews(source.images, views.images, side=side)
        return [Preview(image.image, texts) for image, texts in zip(images, source.written, strict=True)]

    def collection(self, settings: DataSettings, root: Path | None, views: CaptionViews, *, encoder: str) -> Collection:
        """List all images with captions, of all splits; or all images in a folder without captions."""
        if not is_captions(Path(settings.data)):
            return IMAGES.collection(settings, root, views.images, encoder=encoder)
        listed = open_captions(Path(settings.data), columns=settings.columns, skip_broken=settings.skip_broken)
        images = Files(listed.name, listed.images, None, max_megapixels=settings.max_megapixels)
        return Collection(images, texts=listed.captions, notes=listed.notes)

    def mining_task(
        self,
        settings: DataSettings,
        root: Path | None,
        views: CaptionViews,
        *,
        towers: Mapping[str, SampleEmbedder],
        corpus: str,
    ) -> MiningTask:
        """Return the images of a data set, their captions and those in a corpus, embedded by a run's towers."""
        data = read_captioned(settings, corpus)
        if settings.skip_broken:
            data = data.readable(views.images)
        images, texts = towers["images"].features(data.images).cpu(), embed_texts(towers["text"], data.texts)
        return data.task(images, texts)

    def mining_task_elsewhere(self, folder: Path, settings: DataSettings, *, corpus: str) -> MiningTask:
        """Return the same, embedded by a model of images and texts in a folder of transformers or open_clip."""
        data = read_captioned(settings, corpus)
        model = load_image_text_model(folder)
        return data.task(model.embed_images(list(data.images.paths)), model.embed_texts(data.texts))

    def can_stream(self, name: str) -> bool:
        """Return True: images are files, or members of tars."""
        return True

    def load(self, settings: DataSettings, root: Path | None, views: CaptionViews, *, encoder: str) -> Split:
        """Load images and captions; captions become tokens for the text encoder, which are kept in the user's cache folder."""
        assert isinstance(settings, CaptionSettings)
        # The tokenizer is loaded first, because the weights may not be installed and reading captions takes long. It is None
        # for an encoder trained from scratch, whose tokens are learned from the captions.
        folder = views.texts.kept or EncoderName.parse(settings.text_encoder).folder
        listed = list_captions(settings)
        tokenizer = load_tokenizer(folder) if folder else learn_tokenizer(listed.training_texts(), size=VOCABULARY)
        # Tokenising the captions of the built-in set is faster than looking for cached tokens.
        return load(settings, listed, tokenizer, views, cached=not is_shapes(Path(settings.data)))

    def views(
        self, name: str, count: int, *, size: int = 0, length: int = 0, folder: Path | None = None
    ) -> CaptionViews:
        """Return views by the name of a recipe: one view per image, and captions of at most `length` tokens."""
        texts = TEXT.views("dropout", 1, size=length or DEFAULT_LENGTH, folder=folder)
        return CaptionViews(IMAGES.views(name, 1, size=size), texts)

    def suggest(self, settings: DataSettings, chosen: Settings, device: torch.device) -> Suggestion:
        """Choose views, size, encoders and batch for the images and the device."""
        return suggest(settings, chosen, device)

    def check_settings(self, settings: DataSettings) -> None:
        """Refuse a text encoder or a tower that does not exist, and captions without room for a word."""
        if isinstance(settings, CaptionSettings):
            check_caption_settings(settings)

    def check_encoder(self, name: str) -> None:
        """Raise ValueError if no image encoder has this name."""
        IMAGES.check_encoder(name)

    def encoders(self, settings: NetworkSettings, views: CaptionViews) -> dict[str, Encoder]:
        """Build the image encoder and the caption encoder."""
        return {
            "images": IMAGES.encoder(settings.encoder, views.images),
            "text": TEXT.encoder(settings.text_encoder, views.texts),
        }

    def check_initial_weights(self, encoder: str, init: str) -> None:
        """Refuse an image encoder whose pretrained weights come from a package that is not installed."""
        IMAGES.check_initial_weights(encoder, init)

    def load_initial_weights(self, settings: NetworkSettings, encoders: Mapping[str, Encoder]) -> None:
        """Load pretrained weights from an installed package, if the image encoder has such a package."""
        IMAGES.load_initial_weights(settings, encoders)

    def tower(self, name: str, views: CaptionViews) -> tuple[Modality[Any], ViewMaker]:
        """Return the image modality and its views, or the text modality and its views."""
        sides: dict[str, tuple[Modality[Any], ViewMaker]] = {
            "images": (IMAGES, views.images),
            "text": (TEXT, views.texts),
        }
        return sides[name]

    def encoder_name(self, settings: NetworkSettings, tower: str) -> str:
        """Return the name of the image encoder or of the caption encoder."""
        return settings.text_encoder if tower == "text" else settings.encoder

    def prepare(self, network: nn.Module) -> nn.Module:
        """Convert convolution weights to channels last."""
        return IMAGES.prepare(network)

    def keep(self, folder: Path, encoder: nn.Module, split: Split, views: CaptionViews) -> None:
        """Write the text encoder's tokenizer and configuration to a run's directory."""
        assert isinstance(split.train, Captions)
        assert isinstance(encoder, nn.ModuleDict)
        TEXT.keep_tokenizer(folder, encoder["text"], split.train.texts.tokenizer, views.texts)

    def decode(self, samples: Any, views: CaptionViews) -> Tensor:
        """Raise ValueError: samples are embedded by one of the two towers."""
        raise ValueError("samples: use model.images.embed(…) for images, and model.text.embed(…) for texts")

    def describe_input(self, views: CaptionViews) -> dict[str, str]:
        """Describe both encoders' inputs."""
        return IMAGES.describe_input(views.images) | {"length": str(views.texts.length)}


CAPTIONS = CaptionModality()
