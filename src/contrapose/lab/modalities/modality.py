"""What a modality is: data sets, views of their samples, and encoders.

    Source     a data set: length, labels, subsets
    Reader     a source on a device, with the views that are made of it
    ViewMaker  random views for training, plain inputs for evaluation
    Modality   loads sources, makes view makers and encoders by name

Everything above this layer (frameworks, training, evaluation) works with these types alone. A batch of inputs is a tensor
whose first dimension counts samples; views of a batch are a list of tensors (V, B, …), one for each shape of input.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import torch
from torch import Tensor, nn

from contrapose.lab.modalities.tars import StoredFile
from contrapose.lab.networks.encoder import Encoder

Settings = Mapping[str, Any]  # fields of Run
AUGMENTATIONS = ("crops", "flips", "colours")  # of supervised training, see `ViewMaker.light`


class ViewMaker(Protocol):
    """How inputs of a network are made from raw samples."""

    @property
    def count(self) -> int:
        """Number of views of a sample."""

    def train(self, raw: Tensor, index: Tensor, *, seed: int | Tensor, epoch: int | Tensor) -> list[Tensor]:
        """Random views of raw samples, decided by (seed, epoch, index, view): tensors (V, B, …), one per shape of input."""

    def draw(self, raw: Tensor, index: Tensor, *, seed: int | Tensor, epoch: int | Tensor) -> Tensor:
        """One random view (B, …), as the first of `train`: for metrics under augmentation."""

    def plain(self, raw: Tensor) -> Tensor:
        """Inputs for evaluation (B, …), without augmentation."""

    def light(self, augment: str = "crops", *, smallest: float | None = 0.2) -> ViewMaker:
        """One view with a mild augmentation of `AUGMENTATIONS`, for fine-tuning and linear probes.

        augment    for images: "crops" crops and flips; "flips" and "colours" leave the image whole
        smallest   smallest share of an image that is cropped; None: as in training
        """

    def evaluation_batch(self, device: torch.device) -> int:
        """Number of samples in a batch of evaluation on this device."""


class Reader(Protocol):
    """A source on a device."""

    @property
    def resident(self) -> Tensor | None:
        """All raw samples on the device; None if they are streamed from disk."""

    def train(self, batches: Sequence[list[int]], *, seed: int, epoch: int) -> Iterator[list[Tensor]]:
        """Views of each batch of indices."""

    def plain(self) -> Iterator[Tensor]:
        """Evaluation inputs of all samples, in order and in batches."""


class Source(Protocol):
    """A data set: samples, with labels if there are any."""

    @property
    def name(self) -> str:
        """For messages."""

    @property
    def labels(self) -> Tensor | None:
        """(N,) int64."""

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes, if they are known."""

    @property
    def paths(self) -> Sequence[Path | StoredFile]:
        """The file of each sample, or its member of a tar, if each has one; else empty."""

    @property
    def ids(self) -> Tensor | None:
        """(N,) numbers below N, equal for samples that are no negatives of each other, such as equal texts; None: all differ."""

    @property
    def fingerprint(self) -> str:
        """Changes when the samples change."""

    def __len__(self) -> int: ...

    def counts(self) -> list[int]:
        """Number of samples of each class."""

    def subset(self, index: Tensor | Sequence[int]) -> Source:
        """The samples at these indices, in this order."""

    def in_memory(self, views: ViewMaker) -> Source:
        """The same samples in memory, prepared for these views."""

    def reader(self, views: ViewMaker, device: torch.device, *, workers: int, timeout: float) -> Reader:
        """The source on a device."""


@dataclass(frozen=True)
class Retrieval:
    """Held-out pairs: document i belongs to query i."""

    queries: Source
    documents: Source
    ids: Tensor  # (n,) equal documents have equal ids: any of them is right


@dataclass(frozen=True)
class Split:
    """What is trained on, and what is evaluated: features of `probe` classify those of `test`, if there are labels."""

    train: Source
    probe: Source | None
    test: Source | None
    notes: tuple[str, ...] = ()  # what a user may not expect of the data, one sentence each
    retrieval: Retrieval | None = None  # pairs to evaluate on

    def map(self, change: Callable[[Source], Source]) -> Split:
        """Change each data set; `probe` stays the same object as `train` if it was."""
        sources = {id(source): source for source in (self.train, self.probe, self.test) if source is not None}
        changed = {key: change(source) for key, source in sources.items()}
        # A source that is in two places is changed once: reading it twice would take twice the time and memory.
        probe, test = changed.get(id(self.probe)), changed.get(id(self.test))
        return replace(self, train=changed[id(self.train)], probe=probe, test=test)

    @property
    def held_out(self) -> Source:
        """The test samples, or the training samples if there are no others."""
        return self.test if self.test is not None else self.train


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
    """Train on so many images only, with the share of each class, always the same ones; 0: all (digits16: 2000)."""
    hold_out: float = 0.2
    """Share of each class that is held out for evaluation if a folder of images has no labelled test images; 0: none."""
    skip_broken: bool = False
    """Leave out files of a folder that cannot be read. By default the first one ends the command."""
    max_megapixels: float = 100.0
    """Largest image file that is read, in millions of pixels, up to 178; a larger one counts as broken and is not decoded."""
    imbalance: str = ""
    """Thin out the classes: exponential:100, kukleva:0, pareto, pareto:12205, uniform:12406, cacr-linear, cacr-exponential or
    index:FILE (docs/images.md); empty: as it is."""
    probe: str = "all"
    """What test images are classified by: all labelled training images, or those left by `imbalance` (train)."""
    probe_data: str = ""
    """Evaluate on another data set, by its name or path: its training images classify its test images; empty: on --data."""


@dataclass(frozen=True)
class Suggestion:
    """Settings that suit the data and the device."""

    settings: Settings  # views, size, encoder and batch, but for those that were chosen
    samples: int  # number of training samples
    description: str  # of the data, for messages: "600 images of 240 pixels"


class NetworkSettings(Protocol):
    """The settings of a run that name its encoders."""

    @property
    def encoder(self) -> str:
        """Name of the encoder, or of the first one of two."""

    @property
    def text_encoder(self) -> str:
        """Name of the encoder of captions."""


class SampleEmbedder(Protocol):
    """A tower of a trained run: what embeds samples, or a whole data set, of one kind of input."""

    def embed(self, samples: Sequence[Any]) -> Tensor:
        """Embed a list of samples, such as texts or files: (n, d)."""

    def features(self, source: Source) -> Tensor:
        """Embed a data set: (N, d)."""


class JointEvaluation(Protocol):
    """Scores of several towers that embed their inputs into one space."""

    def scores(self, towers: Mapping[str, SampleEmbedder], split: Split) -> dict[str, float]:
        """Return the scores on the held-out samples; nothing without any."""

    def metrics(self, towers: Mapping[str, SampleEmbedder], source: Source) -> dict[str, float]:
        """Return the geometry of the embeddings of a data set."""


class RecordedEvaluation(Protocol):
    """A measure of `Run.record` that only one modality has, written NAME:ARGUMENT@EPOCHS."""

    @property
    def argument(self) -> str:
        """What its argument is, in messages: FILE."""

    def check(self, argument: str) -> None:
        """Refuse an argument, such as a file, that cannot be used, before the first epoch."""

    def score(self, argument: str) -> str:
        """Return the name in the records of the value by which losses are compared."""

    def __call__(self, embedder: SampleEmbedder, argument: str) -> dict[str, float]:
        """Return the values of the current weights, by their names in the records."""


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
    presets: ClassVar[Mapping[str, Settings]] = MappingProxyType({})
    """Papers' settings for such data, by name."""
    auto_settings: ClassVar[Settings] = MappingProxyType({})
    """Further settings that are chosen for the data and the device, each with the value that asks for it."""
    chosen_with_views: ClassVar[tuple[str, ...]] = ("size",)
    """Settings that are chosen together with the views if they are at their defaults."""
    catalogue_data: ClassVar[str] = ""
    """The data set whose values of the catalogue a loss has; empty: the run's own."""

    def recognises(self, data: str) -> bool:
        """Return whether a name or a path is data of this kind, by its name or files alone."""
        return False

    def suggest(self, settings: DataSettings, chosen: Settings, device: torch.device) -> Suggestion:
        """Choose views, size, encoder and batch for the data, but for those in `chosen`, without loading all of it."""
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
        """Return what the samples of a data set say, to be shown beside them; nothing if they are no texts."""
        return ()

    # Networks

    def check_initial_weights(self, encoder: str, init: str) -> None:
        """Refuse a file `init` to start from, or an encoder whose weights come from a package that is not installed."""
        return

    def load_initial_weights(self, settings: NetworkSettings, encoders: Mapping[str, Encoder]) -> None:
        """Load the weights of installed packages with which some encoders start."""
        return

    def prepare(self, network: nn.Module) -> nn.Module:
        """Lay out the weights as this modality's networks run fastest."""
        return network

    def keep(self, folder: Path, encoder: nn.Module, split: Split, views: V) -> None:
        """Write to a run's directory what its encoder and inputs need beside the weights, such as a tokenizer.

        `encoder` is that of the framework: one, or a ModuleDict of several by the kind of their input.
        """
        return

    def tower(self, name: str, views: V) -> tuple[Modality[Any], ViewMaker]:
        """Return the modality and the views of one tower's inputs."""
        return self, views

    # Evaluation

    joint_evaluation: ClassVar[JointEvaluation | None] = None
    """How several towers are evaluated together; None for one tower."""
    recorded: ClassVar[Mapping[str, RecordedEvaluation]] = MappingProxyType({})
    """Measures of `Run.record` that no other kind of data has, by name."""
    unscored: ClassVar[str] = "has no labelled training and test samples to score with"
    """What data without a score lacks, and what to do: the end of a sentence that starts with its name."""

    def check_comparison(self, data: str) -> None:
        """Refuse data on which `compare` cannot compare losses."""
        return

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
