"""The image modality, an implementation of `Modality`: data sets, augmented views and encoders."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import adaptive_avg_pool2d

from contrapose.lab.counts import count_of
from contrapose.lab.modalities.evaluations import SampleEmbedder
from contrapose.lab.modalities.images.decoding import ENDINGS
from contrapose.lab.modalities.images.digits import DRAWINGS
from contrapose.lab.modalities.images.encoders import (
    check_encoder,
    check_installed_weights,
    check_sizes,
    encoder,
    has_installed_weights,
    load_installed_weights,
)
from contrapose.lab.modalities.images.image_shards import write_shards
from contrapose.lab.modalities.images.images import Images
from contrapose.lab.modalities.images.imbalance import by_rule, check_rule
from contrapose.lab.modalities.images.inputs import InputDescription, decode
from contrapose.lab.modalities.images.inspection import describe_files
from contrapose.lab.modalities.images.layout import NO_SCORE
from contrapose.lab.modalities.images.load import NAMED, can_stream, check_name, class_list, list_named, load
from contrapose.lab.modalities.images.mining import check_labelled, mine_labelled
from contrapose.lab.modalities.images.pack_cache import load_cached, pack_to_cache
from contrapose.lab.modalities.images.packed import ENDING, check_packed, check_packed_path, pack
from contrapose.lab.modalities.images.previews import image_collection, previews, thumbnail
from contrapose.lab.modalities.images.sheet import contact_sheet, thumbnails
from contrapose.lab.modalities.images.stream import Files, with_limit, without_broken
from contrapose.lab.modalities.images.suggest import suggest
from contrapose.lab.modalities.images.usage import usage
from contrapose.lab.modalities.images.views import Views
from contrapose.lab.modalities.images.voc import load_voc
from contrapose.lab.modalities.mining import MiningTask
from contrapose.lab.modalities.modality import DataSettings, Modality, NetworkSettings, Settings, Suggestion
from contrapose.lab.modalities.previews import Collection, Preview
from contrapose.lab.modalities.source import Reader, Source, Split
from contrapose.lab.networks.encoder import Encoder
from contrapose.validate import check_directory


class ImageModality(Modality[Views]):
    """Images in memory or on disk, augmented views, and convolutional networks or vision transformers."""

    noun = "images"
    baseline = "raw pixels"
    expected_data = "a folder with train/ and test/ (or val/), class folders inside, or an .npz file"
    unscored = (
        "has no labelled training and test images to score with; a folder needs a folder for each class (and --hold-out above "
        "0, or train/ and test/), see `contrapose data check PATH`"
    )
    searchable = "images"
    expected_query = "an image file"

    def check_data(self, name: str, argument: str = "data") -> None:
        """Refuse a name that is neither a known data set nor a path."""
        check_name(name, argument)

    def check_settings(self, settings: DataSettings) -> None:
        """Refuse columns, which images do not have, and an unknown imbalance rule."""
        if settings.columns:
            raise ValueError(
                f"columns: they are for texts and captions, and the data is images, got {settings.columns!r}"
            )
        if settings.imbalance:
            check_rule(settings.imbalance)

    def check_files(self, settings: DataSettings) -> None:
        """Refuse an unusable list of classes or of images."""
        if class_list(settings.classes) and not Path(settings.data).is_dir():
            raise ValueError(
                f"classes: only a folder with one subfolder per class has a choice of classes, got {settings.data}"
            )
        rule, _, file = settings.imbalance.partition(":")
        if rule == "index" and not Path(file).is_file():
            raise ValueError(f"imbalance: expected a file of indices after 'index:', but {file} is not a file")

    def has_data(self, name: str, root: Path | None) -> bool:
        """Return whether this is the name of a built-in set, or of a data set that torchvision reads and can download."""
        if name in NAMED and name not in DRAWINGS:
            load(name, root=root)
        return name in NAMED

    def list_data(self) -> Sequence[str]:
        """Return the name, the number of classes and the origin of each data set that can be loaded by name."""
        return list_named()

    def inspect(self, settings: DataSettings) -> Iterator[str]:
        """Read every image; yield lines about splits, classes, sizes, kinds of images, duplicates, broken files and mistakes."""
        if Path(settings.data).suffix == ENDING:
            yield from check_packed(Path(settings.data))
        split = with_limit(load(settings.data, classes=settings.classes), settings.max_megapixels)
        yield from describe_files(split, settings.data)

    def load_task(self, name: str, data: str) -> Split | None:
        """Load PASCAL VOC, whose images have several classes."""
        return load_voc(Path(data)) if name == "voc2007" else None

    def contact_sheet(self, source: Source, views: Views, *, seed: int = 0) -> bytes:
        """Return a PNG with some images in the first row and two views of each in the rows below."""
        return contact_sheet(source, views, seed=seed)

    def thumbnails(self, inputs: Tensor, views: Views) -> list[bytes]:
        """Return inputs (B, 3, H, W) as PNG files of one size."""
        return thumbnails(inputs, views)

    def baseline_features(self, sources: Sequence[Source], read: Callable[[Source], Reader]) -> list[Tensor]:
        """Return pixels, resized to at most 16 × 16 per channel: more would take gigabytes."""
        return [
            torch.cat(
                [adaptive_avg_pool2d(batch, min(16, batch.shape[-1])).flatten(1) for batch in read(source).plain()]
            )
            for source in sources
        ]

    def previews(self, source: Source, views: Views, *, side: int = 240) -> list[Preview]:
        """Return each image as a JPEG file: whole if it is a file, or else as it is in memory."""
        return previews(source, side=side)

    def collection(self, settings: DataSettings, root: Path | None, views: Views, *, encoder: str) -> Collection:
        """List all images of a data set, or all images in a folder and its subfolders."""
        check_name(settings.data)
        return image_collection(settings, root)

    def query(self, text: str) -> Path | None:
        """Return the path of an image file; None for a text without the ending of one."""
        path = Path(text)
        if path.suffix.lower() not in ENDINGS:
            return None
        # Searching for the words "photo.jpg" is not what the user meant.
        if not os.path.isfile(path):
            raise ValueError(f"queries: {text} is not a file; give the path of an image")
        return path

    def find_sample(self, sample: Path, source: Source) -> list[int]:
        """Return the index of an image file in a data set of files."""
        files = ((number, path) for number, path in enumerate(source.paths) if isinstance(path, Path))
        return [number for number, path in files if path.name == sample.name and path.samefile(sample)]

    def preview(self, sample: Path) -> Preview:
        """Return an image file as a small JPEG file."""
        return Preview(thumbnail(sample))

    def without_broken(self, source: Source, views: Views) -> tuple[Source, Sequence[str]]:
        """Decode all files once, and leave out those that cannot be read."""
        readable = without_broken(Split(source, None, None), views.recipes[0])
        return readable.train, readable.notes

    def mining_task(
        self,
        settings: DataSettings,
        root: Path | None,
        views: Views,
        *,
        towers: Mapping[str, SampleEmbedder],
        corpus: str,
    ) -> MiningTask:
        """Return the labelled training images of a data set, embedded by a run's encoder."""
        if corpus:
            raise ValueError(
                "corpus: a file of texts is for pairs of texts and for captions; leave --corpus out for images"
            )
        split = self.load(settings, root, views)
        check_labelled(split.train)
        (embedder,) = towers.values()
        return mine_labelled(split.train, embedder.features(split.train), split.notes)

    def pack(self, settings: DataSettings, out: Path, *, views: str, size: int, device: torch.device) -> Iterator[str]:
        """Write all images of a folder as squares for these views to one file; `views` may be auto, as in `train`."""
        if not Path(settings.data).is_dir():
            raise ValueError(f"path: expected a folder of images, but {settings.data} is not a folder")
        check_packed_path(out)
        if views == "auto":
            chosen = suggest(settings, {"size": size} if size else {}, device).settings
            views, size = chosen["views"], size or chosen["size"]
        split = pack(settings, Views.named(views, size=size), out)
        yield from split.notes
        count = len(split.train) + (0 if split.test is None else len(split.test))
        yield f"{count:,} images in {out}, {out.stat().st_size / 1e6:,.1f} MB"
        yield f"train with: {shlex.join(['contrapose', 'train', '--data', str(out), '--views', views, '--size', str(size)])}"

    def pack_to_cache(self, settings: DataSettings, views: Views) -> Iterator[str]:
        """Write a packed copy of a folder to the user's cache folder, where `load` then finds it."""
        return pack_to_cache(settings, views)

    def convert(self, path: Path, out: Path, *, to: str, samples_per_file: int) -> Iterator[str]:
        """Copy the images of a folder to WebDataset's tars or LitData's chunks, without decoding them."""
        if not path.is_dir():
            raise ValueError(f"path: expected a folder of images, but {path} is not a folder")
        if out.exists() and any(out.iterdir()):
            raise ValueError(f"out: {out} is not empty; choose a new folder")
        check_directory("out", out)
        shards = write_shards(path, out, images_per_file=samples_per_file, to=to)
        yield f"{count_of(shards, 'chunk' if to == 'litdata' else 'tar')} in {out}"
        yield f"train with: {shlex.join(['contrapose', 'train', '--data', str(out), '--stream'])}"

    def can_stream(self, name: str) -> bool:
        """Return whether the images are files, in a folder or in a torchvision data set."""
        return can_stream(name)

    def load(self, settings: DataSettings, root: Path | None, views: Views, *, encoder: str = "") -> Split:
        """Load a data set by name, from a folder or an .npz file; apply the limit and the class imbalance."""
        if settings.stream and not self.can_stream(settings.data):
            raise ValueError(f"stream: only a folder of images can be streamed, got {settings.data}")
        split = load_cached(settings, root, views)
        if settings.eval_data:
            check_name(settings.eval_data, "eval_data")
            other = load(settings.eval_data, root=root, hold_out=settings.hold_out)
            split = _evaluated_on(split, other, settings.eval_data)
        split = with_limit(split, settings.max_megapixels)
        if settings.skip_broken:
            split = without_broken(split, views.recipes[0])
        if not settings.stream:
            split = split.map(lambda source: source.in_memory(views))
        if not settings.imbalance:
            return split
        assert isinstance(split.train, Images | Files)
        train = by_rule(split.train, settings.imbalance)
        # The probe's data stays balanced by default: the probe measures the encoder, not a classifier with few tail images.
        probe = train if settings.probe == "train" and split.probe is not None else split.probe
        return replace(split, train=train, probe=probe)

    def views(self, name: str, count: int, *, size: int = 0, length: int = 0, folder: Path | None = None) -> Views:
        """Return `count` views by the name of an augmentation recipe, at the recipe's own size if `size` is 0."""
        return Views.named(name, count, size=size or None)

    def suggest(self, settings: DataSettings, chosen: Settings, device: torch.device) -> Suggestion:
        """Choose views, size, encoder and batch for the device and for the images, of which a sample is read."""
        return suggest(settings, chosen, device)

    def check_encoder(self, name: str) -> None:
        """Raise ValueError if no encoder has this name."""
        check_encoder(name)

    def encoders(self, settings: NetworkSettings, views: Views) -> dict[str, Encoder]:
        """Build a run's encoder."""
        return {"images": self.encoder(settings.encoder, views)}

    def encoder(self, name: str, views: Views) -> Encoder:
        """Build an encoder; raise ValueError if it cannot take the size of these views."""
        sizes = list(dict.fromkeys(recipe.size for recipe in views.recipes))
        check_sizes(name, sizes)
        return encoder(name, sizes[0])

    def check_initial_weights(self, encoder: str, init: str) -> None:
        """Refuse an encoder whose pretrained weights come from a package that is not installed."""
        if not init:
            check_installed_weights(encoder)

    def load_initial_weights(self, settings: NetworkSettings, encoders: Mapping[str, Encoder]) -> None:
        """Load pretrained weights from an installed package, if the encoder has such a package."""
        load_installed_weights(settings.encoder, encoders["images"])

    def is_pretrained(self, encoder: str) -> bool:
        """Return whether the encoder's initial weights come from an installed package."""
        return has_installed_weights(encoder)

    def prepare(self, network: nn.Module) -> nn.Module:
        """Convert weights to channels last, the layout in which convolutions run fastest."""
        return network.to(memory_format=torch.channels_last)

    def decode(self, samples: Tensor | Sequence[Any], views: Views) -> Tensor:
        """Return uint8 images (B, 3, H, W) from a tensor of this form, or from a list of paths or PIL images."""
        return decode(samples, views)

    def describe_input(self, views: Views) -> dict[str, str]:
        """Describe the resizing, crop and normalisation that the encoder expects."""
        return InputDescription.of(views).metadata()

    def described_views(self, description: Mapping[str, str]) -> Views:
        """Return views for evaluation from their description; raise a ValueError that says what is missing."""
        return InputDescription.read(description).views

    def usage(self, encoder: str, width: int, views: Views, file: str) -> str:
        """Return code with torchvision, timm or onnxruntime that computes the features of image files."""
        return usage(encoder, width, InputDescription.of(views), file)

    def example_input(self, views: Views) -> Tensor:
        """Return two black images with the views' size."""
        return torch.zeros(2, 3, views.recipes[0].size, views.recipes[0].size)


def _evaluated_on(split: Split, other: Split, name: str) -> Split:
    """Return the training images of `split` with the labelled images of `other` to evaluate on."""
    if other.probe is None or other.test is None:
        raise ValueError(f"eval_data: expected labelled training and test images, but {name} has none")
    own_notes = (note for note in split.notes if NO_SCORE not in note)
    return Split(split.train, other.probe, other.test, (*own_notes, *other.notes))


IMAGES = ImageModality()
