"""`Modality`: the interface that loads data sets, makes views of their samples and builds encoders by name."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import torch
from torch import Tensor, nn

from contrapose.lab.modalities.evaluations import (
    DownstreamEvaluation,
    JointEvaluation,
    RecordedEvaluation,
    SampleEmbedder,
)
from contrapose.lab.modalities.mining import MiningTask
from contrapose.lab.modalities.previews import Collection, Preview
from contrapose.lab.modalities.source import Reader, Source, Split, ViewMaker
from contrapose.lab.networks.encoder import Encoder
from contrapose.lab.networks.prefixes import Dense
from contrapose.lab.settings import Rule, setting
from contrapose.lab.settings import Settings as Settings  # re-exported for the modalities

LARGEST_MEGAPIXELS = 178  # Pillow refuses larger images by itself


@dataclass(frozen=True, kw_only=True)
class DataSettings:
    """A run's settings that say what it is trained on."""

    modality: str = "images"
    """The kind of data: images, text, or captions (images with captions). `train` recognises text and captions by their files."""
    data: str = "digits16"
    """A data set's name (digits16, cifar10, …; `contrapose data list` lists all), a folder or WebDataset tars of images, an .npz
    file or a packed copy (`contrapose data pack`); a file of texts, one per line or in columns (.txt, .tsv, .csv, .jsonl,
    .parquet; docs/text.md), or pydoc, neighbouring sentences from Python's own documentation; a folder or tars of images with
    captions (docs/captions.md), or shapes, a generated set."""
    columns: tuple[str, ...] = ()
    """Columns to read from a file of texts, by name, or by number from 1 on: one for sentences, two for pairs, more with
    negatives; by default the columns with usual names (sentence1, anchor, positive, …), or all. For a file of captions: the
    columns of images and captions."""
    stream: bool = False
    """Leave a folder's images on disk, where workers decode and crop them; for data that does not fit in memory."""
    classes: str = ""
    """Use only some class folders, with labels from 0 on: imagenet100, or a text file with one folder name per line; empty:
    all."""
    limit: int = 0
    """Train on only this many images, a fixed sample stratified by class; 0: all (digits16: 2000)."""
    hold_out: float = 0.2
    """Share of each class that is held out for evaluation if a folder of images has no labelled test images; 0: none."""
    skip_broken: bool = False
    """Leave out files that cannot be read. By default, the first unreadable file is an error."""
    max_megapixels: float = setting(100.0, Rule(above=0, most=LARGEST_MEGAPIXELS))
    """Largest image to read, in millions of pixels, up to 178; a larger image counts as broken and is not decoded."""
    imbalance: str = ""
    """Thin out the classes: exponential:100, kukleva:0, pareto, pareto:12205, uniform:12406, cacr-linear, cacr-exponential or
    index:FILE (docs/images.md); empty: keep all images."""
    probe: str = setting("all", Rule(choices=("all", "train")))
    """Training images for the classifier of test images: all labelled ones, or only those that `imbalance` keeps (train)."""
    eval_data: str = setting("", Rule(recorded_as="probe_data"))
    """Evaluate on another data set, by name or path: a classifier fitted to its training images is scored on its test images;
    empty: evaluate on --data."""


@dataclass(frozen=True)
class Suggestion:
    """Settings that suit the data and the device."""

    settings: Settings  # views, size, encoder and batch, without the settings that the user has chosen
    samples: int  # number of training samples
    description: str  # description of the data for messages: "600 images of 240 pixels"


class BrokenFiles(Exception):
    """Some files in a data set cannot be read."""


@dataclass(frozen=True)
class CommonOptions:
    """Options of `contrapose evaluate` that say how to read data."""

    columns: tuple[str, ...] = ()
    root: Path = Path("data")  # directory of downloads
    skip_broken: bool = False
    baselines: bool = True  # whether to measure scores without training


class NetworkSettings(Protocol):
    """A run's settings that name its encoders."""

    @property
    def encoder(self) -> str:
        """Name of the encoder, or of the first of two encoders."""

    @property
    def text_encoder(self) -> str:
        """Name of the caption encoder."""


V = TypeVar("V", bound=ViewMaker)


class Modality(ABC, Generic[V]):
    """A kind of data, with views of type V. The abstract methods are required; all others are capabilities with defaults."""

    noun: ClassVar[str]
    """What samples are called in messages: images."""

    def sample_noun(self, source: Source) -> str:
        """Return what the samples of a data set are called: `noun`, unless it has samples of another kind, such as pairs."""
        return self.noun

    @abstractmethod
    def check_data(self, name: str, argument: str = "data") -> None:
        """Refuse a data set that does not exist, before anything is read; the message starts with `argument`."""

    @abstractmethod
    def load(self, settings: DataSettings, root: Path | None, views: V, *, encoder: str) -> Split:
        """Load a run's data, prepared for these views and the encoder with this name; `root` is the directory of downloads."""

    @abstractmethod
    def views(self, name: str, count: int, *, size: int = 0, length: int = 0, folder: Path | None = None) -> V:
        """Return a view maker by name, for `count` views of this size; 0: the recipe's own size.

        `length` is the length of captions in tokens. `folder` is a trained run's directory, with the files that `keep` wrote.
        """

    @abstractmethod
    def encoders(self, settings: NetworkSettings, views: V) -> Mapping[str, Encoder]:
        """Build a run's encoders, keyed by the kind of their input; refuse an encoder that cannot take these views."""

    @abstractmethod
    def decode(self, samples: Any, views: V) -> Tensor:
        """Return raw samples (B, …): a tensor is checked; files or objects in a list are read as these views need them."""

    # Settings of a run

    settings: ClassVar[Settings] = MappingProxyType({})
    """Default settings for a run on such data."""
    how_to_improve: ClassVar[str] = "use more --epochs, or other --views"
    """What may help a run that has gained nothing, as the end of a sentence."""
    auto_settings: ClassVar[Settings] = MappingProxyType({})
    """Further settings that are chosen for the data and the device, each with the value that means "choose"."""
    chosen_with_views: ClassVar[tuple[str, ...]] = ("size",)
    """Settings that are chosen together with the views if they are at their defaults."""
    catalogue_data: ClassVar[str] = ""
    """The data set whose values in the catalogue a loss uses; empty: the run's own data set."""

    def recognises(self, data: str) -> bool:
        """Return whether a name or a path is data of this kind, judging only by its name or its files."""
        return False

    def suggest(self, settings: DataSettings, chosen: Settings, device: torch.device) -> Suggestion:
        """Choose views, size, encoder and batch for the data, except settings in `chosen`, without loading all of the data."""
        raise ValueError(
            f"views: nothing is chosen for {self.noun}; set --views, --encoder, --epochs, --batch and --lr"
        )

    def check_encoder(self, name: str) -> None:
        """Refuse an encoder that does not exist, before it is built."""
        return

    def check_settings(self, settings: DataSettings) -> None:
        """Refuse settings that contradict the kind of data."""
        return

    def check_files(self, settings: DataSettings) -> None:
        """Before the data is read, refuse settings that name unusable files."""
        return

    def harder_task(self, source: Source, views: V) -> str:
        """Return what to do if untrained networks recognise the views of a sample, as the end of a sentence."""
        return "use views that differ more (--views), or a larger --batch"

    # Data

    needs_run_directory: ClassVar[bool] = False
    """Whether inputs need files that `keep` wrote to a run's directory, such as a tokenizer."""

    def pack(self, settings: DataSettings, out: Path, *, views: str, size: int, device: torch.device) -> Iterator[str]:
        """Write a packed copy of a data set, which is faster to read, and yield lines about it."""
        raise ValueError(f"path: only a folder of images can be packed, got {settings.data}")

    def pack_to_cache(self, settings: DataSettings, views: V) -> Iterator[str]:
        """Write a packed copy of a run's data to the cache folder, where `load` finds it, unless there is one; yield lines."""
        raise ValueError(f"pack: only a folder of images can be packed, got {settings.data}")

    def convert(self, path: Path, out: Path, *, to: str, samples_per_file: int) -> Iterator[str]:
        """Copy a data set to WebDataset's tars or LitData's chunks, and yield lines about them."""
        raise ValueError(f"path: only a folder of images can be converted, got {path}")

    def can_stream(self, name: str) -> bool:
        """Return whether the samples of a data set can stay on disk."""
        return False

    def load_for_evaluation(self, settings: DataSettings, root: Path | None, views: V, *, encoder: str) -> Split:
        """Load data that the run was not trained on, to evaluate its networks."""
        return self.load(settings, root, views, encoder=encoder)

    prefix: ClassVar[str] = ""
    """The prefix that marks a pretrained model's folder, such as "hf:" in hf:FOLDER; empty if no such models can be loaded."""

    def pretrained_folder(self, name: str) -> Path | None:
        """Return the folder of a pretrained model by its name, such as hf:FOLDER; None for the directory of a run."""
        known = self.prefix and name.startswith(self.prefix)
        return Path(name.removeprefix(self.prefix)).expanduser() if known else None

    def embed_elsewhere(self, folder: Path, settings: DataSettings) -> tuple[Tensor, Sequence[str]]:
        """Return the features (N, d) that a pretrained model computes for a data set, and the texts of its samples."""
        raise ValueError(f"run: {folder} cannot embed a data set; expected the directory of a run")

    def sample_ids(self, source: Source) -> Sequence[Any]:
        """Return what identifies each sample in any split of its data set, such as its file; empty if nothing does."""
        return source.paths

    def texts(self, source: Source) -> Sequence[str]:
        """Return the texts of a data set's samples, for display; empty if the samples are not texts."""
        return ()

    def previews(self, source: Source, views: V, *, side: int = 240) -> Sequence[Preview]:
        """Return each sample as a page shows it; the longest side of a picture has at most `side` pixels."""
        return [Preview(texts=(text,)) for text in self.texts(source)] or [Preview()] * len(source)

    expected_data: ClassVar[str] = "a data set"
    """What a path should point to, in messages."""

    def has_data(self, name: str, root: Path | None) -> bool:
        """Return whether a data set is known by its name; if it is missing, it is downloaded to `root`."""
        return False

    def list_data(self) -> Sequence[str]:
        """Return a line about each data set that can be loaded by name."""
        return ()

    def inspect(self, settings: DataSettings) -> Iterator[str]:
        """Read all data; yield lines about its content and likely mistakes; at the end, raise `BrokenFiles` if there are any."""
        raise ValueError(f"path: {settings.data} has {self.noun}, which `contrapose data check` does not read")

    def load_task(self, name: str, data: str) -> Split | None:
        """Load an evaluation's data if it has its own layout; None if it is loaded like any other data."""
        return None

    # Search

    searchable: ClassVar[str] = "samples"
    """What `search` finds, in messages and on its page."""
    expected_query: ClassVar[str] = "a sample"
    """What a query of one tower should be, in messages."""

    def collection(self, settings: DataSettings, root: Path | None, views: V, *, encoder: str) -> Collection:
        """List all samples of a data set for `search`, of all splits; the other arguments are those of `load`."""
        raise ValueError(f"run: {self.noun} cannot be searched")

    def query(self, text: str) -> Any:
        """Return the sample that a query on the command line stands for; None if it is of another kind."""
        return None

    def find_sample(self, sample: Any, source: Source) -> Sequence[int]:
        """Return the indices at which a data set has a query's sample itself, which `search` leaves out."""
        return ()

    def preview(self, sample: Any) -> Preview:
        """Return a query's sample as a page shows it."""
        return Preview(texts=(str(sample),))

    def is_truncated(self, sample: Any, views: V) -> bool:
        """Return whether only the beginning of a query is used."""
        return False

    def without_broken(self, source: Source, views: V) -> tuple[Source, Sequence[str]]:
        """Return the samples whose files can be read, and notes about the others."""
        return source, ()

    # Mining

    def mining_task(
        self,
        settings: DataSettings,
        root: Path | None,
        views: V,
        *,
        towers: Mapping[str, SampleEmbedder],
        corpus: str,
    ) -> MiningTask:
        """Return what `mine` searches: a data set's samples, and those in the file `corpus`, embedded by a run's towers."""
        raise ValueError(f"data: {self.noun} cannot be mined")

    def mining_task_elsewhere(self, folder: Path, settings: DataSettings, *, corpus: str) -> MiningTask:
        """Return the same for a model that was trained elsewhere."""
        raise ValueError(f"run: {folder} cannot embed {self.noun} for mining; expected the directory of a run")

    # Networks

    @property
    def tower_count(self) -> int:
        """Number of encoders; two towers are evaluated together."""
        return 1 if self.joint_evaluation is None else 2

    def check_initial_weights(self, encoder: str, init: str) -> None:
        """Refuse an unusable `init` file, or an encoder whose weights come from a package that is not installed."""
        return

    def load_initial_weights(self, settings: NetworkSettings, encoders: Mapping[str, Encoder]) -> None:
        """Load pretrained weights from installed packages, for encoders that start from such weights."""
        return

    def is_pretrained(self, encoder: str) -> bool:
        """Return whether an encoder with this name starts from pretrained weights."""
        return False

    def prepare(self, network: nn.Module) -> nn.Module:
        """Convert the weights to the memory layout in which this modality's networks run fastest."""
        return network

    def keep(self, folder: Path, encoder: nn.Module, split: Split, views: V) -> None:
        """Write the files that a run's encoder and inputs need in addition to the weights, such as a tokenizer, to its directory.

        `encoder` is the framework's encoder, or a ModuleDict of several encoders keyed by the kind of their input.
        """
        return

    def downstream_views(self, encoder: Encoder, views: V) -> V:
        """Return the views with which an encoder is evaluated on other data."""
        return views

    def tower(self, name: str, views: V) -> tuple[Modality[Any], ViewMaker]:
        """Return the modality and the views of one tower's inputs."""
        return self, views

    def encoder_name(self, settings: NetworkSettings, tower: str) -> str:
        """Return the name of a tower's encoder, as in the run's settings."""
        return settings.encoder

    # Evaluation

    joint_evaluation: ClassVar[JointEvaluation | None] = None
    """How two towers are evaluated together; None if the modality has one tower."""
    recorded: ClassVar[Mapping[str, RecordedEvaluation]] = MappingProxyType({})
    """Measures in `Run.extra_metrics` that only this modality offers, keyed by name."""
    downstream: ClassVar[Mapping[str, DownstreamEvaluation]] = MappingProxyType({})
    """Evaluations of a trained run on other data that only this modality offers, keyed by name."""
    unscored: ClassVar[str] = "has no labelled training and test samples to score with"
    """Why data has no score, and what to do about it, as the end of a sentence that starts with the data's name."""

    evaluation_options: ClassVar[str] = ""
    """Options of `contrapose evaluate` for such data: a dataclass, given as the string "module:class" because its module may
    import higher layers and this module may not."""

    compared_losses: ClassVar[str] = "simclr,dystress,cacr,balanced"
    """Losses that `compare` compares by default."""

    smoke_settings: ClassVar[Settings] = MappingProxyType({})
    """Settings for studies at the smoke scale, with built-in `data`; empty: the settings for the built-in digits."""

    def contact_sheet(self, source: Source, views: V, *, seed: int = 0) -> bytes:
        """Return a PNG of some samples and their views; empty if they cannot be drawn."""
        return b""

    def thumbnails(self, inputs: Tensor, views: V) -> list[bytes]:
        """Return network inputs as PNG files."""
        raise ValueError(f"inputs of {self.noun} cannot be drawn")

    baseline: ClassVar[str] = ""
    """Name of features without a network whose score is a baseline, such as "raw pixels"; empty: there are none."""

    def baseline_features(self, sources: Sequence[Source], read: Callable[[Source], Reader]) -> list[Tensor]:
        """Return features (N, d) of each data set without a network; `read` returns a reader with evaluation inputs."""
        raise ValueError(f"there is no baseline for {self.noun}")

    # Export

    exports_folder: ClassVar[bool] = False
    """Whether `export` writes an encoder as a folder instead of a file of weights."""

    def export(self, folder: Path, encoder: Encoder, views: V, *, last: Dense | None = None) -> str:
        """Write a folder that other libraries can load, with `last` after the encoder; return how a user loads it."""
        raise ValueError(f"encoders of {self.noun} are not exported as folders")

    def describe_input(self, views: V) -> dict[str, str]:
        """Describe how the encoder's inputs are made, as names and values, for the metadata in an exported file."""
        return {}

    def described_views(self, description: Mapping[str, str]) -> V:
        """Return views for evaluation from `describe_input`'s description; raise a ValueError that says what is missing."""
        raise ValueError(f"encoders of {self.noun} are not loaded from files of weights")

    def usage(self, encoder: str, width: int, views: V, file: str) -> str:
        """Return Python code that computes the features of samples with an exported file, without contrapose."""
        raise ValueError(f"encoders of {self.noun} are not exported")

    def example_input(self, views: V) -> Tensor:
        """Return two encoder inputs of zeros, for exporting its graph."""
        raise ValueError(f"encoders of {self.noun} are not exported as graphs")
