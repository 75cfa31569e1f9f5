"""What a modality is: it loads data sets, and makes views of their samples and encoders by name."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import torch
from torch import Tensor, nn

from contrapose.lab.modalities.evaluations import DownstreamEvaluation, JointEvaluation, RecordedEvaluation
from contrapose.lab.modalities.source import Source, Split, ViewMaker
from contrapose.lab.networks.encoder import Encoder
from contrapose.lab.settings import Rule, setting
from contrapose.lab.settings import Settings as Settings  # re-exported for the modalities

LARGEST_MEGAPIXELS = 178  # Pillow refuses larger images by itself


@dataclass(frozen=True, kw_only=True)
class DataSettings:
    """The settings of a run that say what it is trained on."""

    modality: str = "images"
    """The kind of data: images, text, or captions (images with captions). `train` recognises the latter two by their files."""
    data: str = "digits16"
    """A data set's name (digits16, cifar10, …; `contrapose data list` lists all), a folder of images or an .npz file; a file of
    texts, one per line or in columns (.txt, .tsv, .csv, .jsonl, .parquet; docs/text.md), or pydoc, neighbouring sentences
    of Python's own documentation; a folder or tars of images with captions (docs/captions.md), or shapes, drawn ones."""
    columns: tuple[str, ...] = ()
    """Columns of a file of texts, by name, or by number from 1 on: one of sentences, two of pairs, more with negatives; by
    default those with usual names (sentence1, anchor, positive, …), or all. Of a file of captions: the image and its caption."""
    stream: bool = False
    """Leave a folder's images on disk: workers decode and crop them. For data that does not fit in memory."""
    classes: str = ""
    """Use some of the class folders, with labels from 0 on: imagenet100, or a text file with one name per line; empty: all."""
    limit: int = 0
    """Train on this many images only, a fixed sample stratified by class; 0: all (digits16: 2000)."""
    hold_out: float = 0.2
    """Share of each class that is held out for evaluation if a folder of images has no labelled test images; 0: none."""
    skip_broken: bool = False
    """Leave out files of a folder that cannot be read. By default the first one is an error."""
    max_megapixels: float = setting(100.0, Rule(above=0, most=LARGEST_MEGAPIXELS))
    """Largest image file that is read, in millions of pixels, up to 178; a larger one counts as broken and is not decoded."""
    imbalance: str = ""
    """Thin out the classes: exponential:100, kukleva:0, pareto, pareto:12205, uniform:12406, cacr-linear, cacr-exponential or
    index:FILE (docs/images.md); empty: as it is."""
    probe: str = setting("all", Rule(choices=("all", "train")))
    """What test images are classified by: all labelled training images, or those left by `imbalance` (train)."""
    eval_data: str = setting("", Rule(recorded_as="probe_data"))
    """Evaluate on another data set, by its name or path: its training images classify its test images; empty: on --data."""


@dataclass(frozen=True)
class Suggestion:
    """Settings that suit the data and the device."""

    settings: Settings  # views, size, encoder and batch, except those that the user set
    samples: int  # number of training samples
    description: str  # of the data, for messages: "600 images of 240 pixels"


class BrokenFiles(Exception):
    """Some files of a data set cannot be read."""


@dataclass(frozen=True)
class CommonOptions:
    """Options of `contrapose evaluate` that say how data is read."""

    columns: tuple[str, ...] = ()
    root: Path = Path("data")  # directory of downloads
    skip_broken: bool = False


class NetworkSettings(Protocol):
    """The settings of a run that name its encoders."""

    @property
    def encoder(self) -> str:
        """Name of the encoder, or of the first one of two."""

    @property
    def text_encoder(self) -> str:
        """Name of the encoder of captions."""


V = TypeVar("V", bound=ViewMaker)


class Modality(ABC, Generic[V]):
    """A kind of data, with views of type V. The abstract methods are required; all others are capabilities with defaults."""

    noun: ClassVar[str]
    """What samples are called in messages: images."""

    @abstractmethod
    def check_data(self, name: str, argument: str = "data") -> None:
        """Refuse a data set that does not exist, before anything is read; `argument` is what the message names."""

    @abstractmethod
    def load(self, settings: DataSettings, root: Path | None, views: V, *, encoder: str) -> Split:
        """Load a run's data, prepared for these views and the encoder of this name; `root` is where downloads go."""

    @abstractmethod
    def views(self, name: str, count: int, *, size: int = 0, length: int = 0, folder: Path | None = None) -> V:
        """Make a view maker by name, with so many views of this size; 0: the size that belongs to the name.

        `length` is that of captions, in tokens. `folder` is the directory of a trained run, with what `keep` wrote.
        """

    @abstractmethod
    def encoders(self, settings: NetworkSettings, views: V) -> Mapping[str, Encoder]:
        """Build the encoders of a run, by the kind of their input; refuse one that cannot take what these views make."""

    @abstractmethod
    def decode(self, samples: Any, views: V) -> Tensor:
        """Return raw samples (B, …): a tensor is checked, a list of files or objects is read as for these views."""

    # Settings of a run

    settings: ClassVar[Settings] = MappingProxyType({})
    """Settings of a run on such data, unless the user chooses others."""
    auto_settings: ClassVar[Settings] = MappingProxyType({})
    """Further settings that are chosen for the data and the device, each with the value that means "choose"."""
    chosen_with_views: ClassVar[tuple[str, ...]] = ("size",)
    """Settings that are chosen together with the views if they are at their defaults."""
    catalogue_data: ClassVar[str] = ""
    """The data set whose values of the catalogue a loss has; empty: the run's own."""

    def recognises(self, data: str) -> bool:
        """Return whether a name or a path is data of this kind, by its name or files alone."""
        return False

    def suggest(self, settings: DataSettings, chosen: Settings, device: torch.device) -> Suggestion:
        """Choose views, size, encoder and batch for the data, except those in `chosen`, without loading all of it."""
        raise ValueError(
            f"views: nothing is chosen for {self.noun}; set --views, --encoder, --epochs, --batch and --lr"
        )

    def check_encoder(self, name: str) -> None:
        """Refuse an encoder that does not exist, before one is built."""
        return

    def check_settings(self, settings: DataSettings) -> None:
        """Refuse settings of a run that contradict the kind of data."""
        return

    def check_files(self, settings: DataSettings) -> None:
        """Refuse settings that name files which cannot be used, before the data is read."""
        return

    # Data

    needs_run_directory: ClassVar[bool] = False
    """Whether inputs need what `keep` wrote to the directory of a run, such as a tokenizer."""

    def can_stream(self, name: str) -> bool:
        """Return whether the samples of a data set can stay on disk."""
        return False

    def load_for_evaluation(self, settings: DataSettings, root: Path | None, views: V, *, encoder: str) -> Split:
        """Load other data than a run was trained on, to evaluate its networks."""
        return self.load(settings, root, views, encoder=encoder)

    prefix: ClassVar[str] = ""
    """Marks the folder of a model that was trained elsewhere: "hf:" of hf:FOLDER; empty if none can be loaded."""

    def embed_elsewhere(self, folder: Path, settings: DataSettings) -> tuple[Tensor, Sequence[str]]:
        """Return the features of a data set (N, d) by a model that was trained elsewhere, and the texts of its samples."""
        raise ValueError(f"run: {folder} cannot embed a data set; expected the directory of a run")

    def texts(self, source: Source) -> Sequence[str]:
        """Return the texts of a data set's samples, for display; empty if the samples are not texts."""
        return ()

    expected_data: ClassVar[str] = "a data set"
    """What a path should point to, in messages."""

    def has_data(self, name: str, root: Path | None) -> bool:
        """Return whether a data set is known by its name; one that is missing is downloaded to `root`."""
        return False

    def list_data(self) -> Sequence[str]:
        """Return a line about each data set that is known by its name."""
        return ()

    def inspect(self, settings: DataSettings) -> Iterator[str]:
        """Read all of the data; yield lines about what it contains and what looks wrong; raise `BrokenFiles` at the end."""
        raise ValueError(f"path: {settings.data} has {self.noun}, which `contrapose data check` does not read")

    def load_task(self, name: str, data: str) -> Split | None:
        """Load the data of an evaluation that has its own layout; None if it is loaded like any other data."""
        return None

    # Networks

    @property
    def tower_count(self) -> int:
        """Number of encoders: two towers are evaluated together."""
        return 1 if self.joint_evaluation is None else 2

    def check_initial_weights(self, encoder: str, init: str) -> None:
        """Refuse a file `init` to start from, or an encoder whose weights come from a package that is not installed."""
        return

    def load_initial_weights(self, settings: NetworkSettings, encoders: Mapping[str, Encoder]) -> None:
        """Load the weights of installed packages with which some encoders start."""
        return

    def prepare(self, network: nn.Module) -> nn.Module:
        """Convert the weights to the memory layout in which this modality's networks run fastest."""
        return network

    def keep(self, folder: Path, encoder: nn.Module, split: Split, views: V) -> None:
        """Write to a run's directory what its encoder and inputs need beside the weights, such as a tokenizer.

        `encoder` is that of the framework: one, or a ModuleDict of several by the kind of their input.
        """
        return

    def downstream_views(self, encoder: Encoder, views: V) -> V:
        """Return the views with which an encoder is evaluated on other data."""
        return views

    def tower(self, name: str, views: V) -> tuple[Modality[Any], ViewMaker]:
        """Return the modality and the views of one tower's inputs."""
        return self, views

    # Evaluation

    joint_evaluation: ClassVar[JointEvaluation | None] = None
    """How two towers are evaluated together; None if the modality has one tower."""
    recorded: ClassVar[Mapping[str, RecordedEvaluation]] = MappingProxyType({})
    """Measures of `Run.extra_metrics` that no other kind of data has, by name."""
    downstream: ClassVar[Mapping[str, DownstreamEvaluation]] = MappingProxyType({})
    """Evaluations of a trained run on other data that no other kind of data has, by name."""
    unscored: ClassVar[str] = "has no labelled training and test samples to score with"
    """Why data has no score, and what to do about it: the end of a sentence that starts with the data's name."""

    evaluation_options: ClassVar[str] = ""
    """Options of `contrapose evaluate` for such data, a dataclass as "module:class": it may import higher layers, which this one
    may not."""

    def check_comparison(self, data: str) -> None:
        """Refuse data on which `compare` cannot compare losses."""
        return

    smoke_settings: ClassVar[Settings] = MappingProxyType({})
    """Settings of studies at the smoke scale, with `data` that is built in; empty: those of the built-in digits."""

    def contact_sheet(self, source: Source, views: V, *, seed: int = 0) -> bytes:
        """Return a PNG of some samples and their views; empty if they cannot be drawn."""
        return b""

    def thumbnails(self, inputs: Tensor, views: V) -> list[bytes]:
        """Return inputs of the network as PNG files."""
        raise ValueError(f"inputs of {self.noun} cannot be drawn")

    def count_words(self, *sources: Source) -> list[Tensor]:
        """Return how often each word occurs in each sample, (N, words): features without a network, as a baseline."""
        raise ValueError(f"there are no words in {self.noun}")

    # Export

    exports_folder: ClassVar[bool] = False
    """Whether an encoder is exported as a folder, by `export`, in place of a file of weights."""

    def export(self, folder: Path, encoder: Encoder, views: V) -> str:
        """Write a folder that other libraries load; return how to load it, for the user."""
        raise ValueError(f"encoders of {self.noun} are not exported as folders")

    def describe_input(self, views: V) -> dict[str, str]:
        """Describe how the encoder's inputs are made, by names and values, for the metadata of an exported file."""
        return {}

    def described_views(self, description: Mapping[str, str]) -> V:
        """Return views for evaluation by `describe_input`; raise ValueError that says what is missing."""
        raise ValueError(f"encoders of {self.noun} are not loaded from files of weights")

    def usage(self, encoder: str, width: int, views: V, file: str) -> str:
        """Return Python code that computes the features of samples with an exported file, without contrapose."""
        raise ValueError(f"encoders of {self.noun} are not exported")

    def example_input(self, views: V) -> Tensor:
        """Return two samples of zeros, as the encoder takes them: for exporting its graph."""
        raise ValueError(f"encoders of {self.noun} are not exported as graphs")
