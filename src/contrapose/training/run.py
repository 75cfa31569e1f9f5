"""A run: a frozen, typed description of one training, from data to evaluation."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from contrapose.losses import tau
from contrapose.losses.parse import parse
from contrapose.modalities.images.encoders import NETWORKS
from contrapose.modalities.images.views import Views
from contrapose.networks.heads import HEADS
from contrapose.pairs.negatives import Hardest

CHOICES: dict[str, tuple[str, ...]] = {
    "framework": ("simclr", "moco", "moco-v3", "memory-bank"),
    "head": tuple(HEADS),
    "optimiser": ("sgd", "adam", "adamw", "lars", "lars-moco"),
    "schedule": ("cosine", "step", "constant"),
    "precision": ("fp32", "bf16", "fp16"),
    "probe": ("all", "train"),
}
# Settings that came after the first runs, with what they were for those. At that they are not said, so that names stay.
ADDED: dict[str, Any] = {"symmetric": False, "batch_negatives": False, "rising": False}


@dataclass(frozen=True)
class Run:
    """Everything that decides the outcome of a training. Two equal runs give equal weights on one machine."""

    data: str = "digits"
    """A data set's name (digits, cifar10, cifar100, svhn, stl10), a folder of images or an .npz file."""
    stream: bool = False
    """Leave a folder's images on disk: workers decode and crop them. For what does not fit in memory."""
    classes: str = ""
    """Keep some class folders: imagenet100, or a text file with a name in each line; empty: all."""
    limit: int = 0
    """Train on the first so many images only; 0: all (for digits: 5000)."""
    imbalance: str = ""
    """Thin out the classes: exponential:100, cacr-linear, cacr-exponential or index:FILE; empty: as it is."""
    probe: str = "all"
    """What test images are classified by: all labelled training images, or those left by `imbalance` (train)."""
    views: str = "digits"
    """Recipe of augmentation: digits, simclr-cifar, simclr, moco-v2, byol, insdis, … (`--views ?` names all); `a+local8`
    adds eight local crops."""
    view_count: int = 2
    """Views of each image."""
    encoder: str = "tiny"
    """tiny, resnet18-cifar, resnet50-cifar, resnet50, resnet50-zero, alexnet, vit-b16 or timm:NAME."""
    init: str = ""
    """Weights to start the encoder from: a .safetensors file of `export` or `import`."""
    head: str = "simclr"
    """Projector: simclr, hcl, balanced, balanced-cifar, moco-v2, moco-v3, linear or alexnet."""
    width: int = 0
    """Dimensions of the embedding, the projector's output; 0: the projector's own. 3 can be drawn on a sphere."""
    framework: str = "simclr"
    """Where negatives come from: simclr, moco, moco-v3 or memory-bank."""
    queue: int = 4096
    """Rows of MoCo's queue."""
    norm_splits: int = 1
    """MoCo: batch norms over this many parts of the batch, as on that many GPUs, keys shuffled between them."""
    symmetric: bool = False
    """MoCo: both views are queries, each with the other's key. Otherwise the first is, with the second's key; of more than two
    views always all are."""
    batch_negatives: bool = False
    """MoCo: the other queries of the batch are negatives too, beside the queue."""
    momentum: float = 0.99
    """Of MoCo's key encoder; the memory bank's own is 0.5."""
    rising: bool = False
    """MoCo v3: the momentum rises to 1 over the training, by half a cosine."""
    loss: str = "simclr(temperature=0.2)"
    """A method of the catalogue or an objective, with settings: nt_xent(temperature=cosine(0.07, 0.2))."""
    optimiser: str = "adamw"
    """sgd, adam, adamw, lars (as in lightly) or lars-moco."""
    lr: float = 0.004
    """Peak learning rate."""
    weight_decay: float = 1e-4
    """Weight decay."""
    schedule: str = "cosine"
    """cosine to zero, step (× gamma at milestones) or constant."""
    warmup: float = 1.0
    """Epochs of linear warm-up."""
    milestones: tuple[int, ...] = ()
    """Epochs at which the step schedule drops."""
    gamma: float = 0.1
    """Factor of each drop."""
    epochs: int = 16
    """Passes over the data."""
    batch: int = 128
    """Images in a batch."""
    accumulate: int = 1
    """Batches whose gradients are averaged into one step. It adds no negatives: each batch is contrasted by itself."""
    precision: str = "fp32"
    """fp32, bf16 or fp16 autocast in the encoder. Losses are computed in fp32; on a GPU the similarities of bf16 embeddings
    are bf16 products, added up in fp32."""
    clip: float = 0.0
    """Largest norm of the gradient; 0: not clipped."""
    knn: int = 20
    """Neighbours in the kNN evaluation."""
    knn_every: int = 4
    """Epochs between evaluations; the last epoch is always evaluated."""
    metrics: int = 1000
    """Images on which each evaluation measures the embedding (uniformity, tolerance and the others); 0: none."""
    seed: int = 0
    """Decides weights, order and augmentation."""

    def __post_init__(self) -> None:
        if not self.data:
            raise ValueError("data: expected a name or a path, got nothing")
        object.__setattr__(self, "data", str(Path(self.data)))  # one way to write it: my-images/ is my-images
        for field, allowed in CHOICES.items():
            if getattr(self, field) not in allowed:
                raise ValueError(f"{field}: expected one of {', '.join(allowed)}, got {getattr(self, field)!r}")
        for field, least in (("limit", 0), ("view_count", 1), ("queue", 1), ("width", 0), ("epochs", 1), ("batch", 2), ("knn", 1),
                             ("knn_every", 1), ("metrics", 0), ("accumulate", 1), ("norm_splits", 1), ("seed", 0)):  # fmt: skip
            value = getattr(self, field)
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise ValueError(f"{field}: expected a whole number of at least {least}, got {value!r}")
        for field in ("lr", "weight_decay", "warmup", "clip", "gamma", "momentum"):
            value = getattr(self, field)
            if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value) or value < 0:
                raise ValueError(f"{field}: expected a number of at least 0, got {value!r}")
        if not self.encoder.startswith("timm:") and self.encoder not in NETWORKS:
            raise ValueError(f"encoder: expected one of {', '.join(NETWORKS)} or timm:NAME, got {self.encoder!r}")
        if self.schedule == "step" and not self.milestones:
            raise ValueError(
                "milestones: a step schedule drops at some epochs (--milestones 120 160); or --schedule constant"
            )
        if self.batch % self.norm_splits:
            raise ValueError(
                f"norm_splits: a batch of {self.batch} cannot be split into {self.norm_splits} equal parts"
            )
        if self.view_count < 2 and self.framework != "memory-bank":
            raise ValueError(
                f"view_count: {self.framework} needs at least two views of each image, got {self.view_count}"
            )
        for field, owner in (("symmetric", "moco"), ("batch_negatives", "moco"), ("rising", "moco-v3")):
            if getattr(self, field) and self.framework != owner:
                raise ValueError(f"{field}: it is for {owner}; the framework is {self.framework}")
        views = len(Views.named(self.views, self.view_count).recipes)
        others = (1 if self.framework == "moco" and views == 2 and not self.symmetric else views) * (self.batch - 1)
        negatives = {"moco": self.queue + self.batch_negatives * others, "memory-bank": 0}.get(self.framework, others)
        if negatives:
            self.check_hardest(negatives)
        if self.init and not Path(self.init).is_file():
            raise ValueError(f"init: {self.init} is not a file")
        if parse(self.loss).func is tau:
            raise ValueError("loss: tau needs an encoder that gives its uncertainty, and no framework here has one")

    def check_hardest(self, negatives: int) -> None:
        """Refuse a loss that wants more of an anchor's hardest negatives than the framework gives it."""
        chosen = parse(self.loss, self.data).keywords.get("negatives")
        for choice in chosen if isinstance(chosen, tuple) else (chosen,):
            if isinstance(choice, Hardest) and choice.k is not None and choice.k > negatives:
                raise ValueError(
                    f"loss: {choice!r} asks for more than the {negatives} negatives that {self.framework} has"
                )

    @classmethod
    def read(cls, said: Mapping[str, Any]) -> Run:
        """A run from what `describe` said of it, now or before some settings came."""
        settings: dict[str, Any] = {**ADDED, **said}
        return cls(**settings | {"milestones": tuple(settings["milestones"])})

    @classmethod
    def load(cls, path: Path) -> Run:
        """A run from its run.json."""
        try:
            return cls.read(json.loads(path.read_text()))
        except (json.JSONDecodeError, TypeError, KeyError) as error:
            raise ValueError(f"run: {path} does not describe a run: {error}") from error

    def describe(self) -> dict[str, Any]:
        """The settings as JSON knows them."""
        said = {name: value for name, value in vars(self).items() if name not in ADDED or value != ADDED[name]}
        return json.loads(json.dumps(said))  # type: ignore[no-any-return]

    @property
    def name(self) -> str:
        """Named by its content: the same settings, the same name."""
        text = json.dumps(self.describe(), sort_keys=True)
        method = self.loss.split("(")[0]
        return f"{self.data.strip('/').split('/')[-1]}-{method}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"
