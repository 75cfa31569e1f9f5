"""The papers' training settings by name: `contrapose train --preset dystress/cifar10`.

Presets for ImageNet do not include the data: give the path of your copy with `--data PATH`. Presets for ImageNet-100 select their
classes from a folder that contains all of ImageNet. Presets for the papers' baseline methods are in `baselines`, and presets for
text or captions are in their modality.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from contrapose.lab import modalities
from contrapose.lab.training.baselines import BASELINES, Settings
from contrapose.lab.training.run import Run
from contrapose.validate import check_known

_SGD: Settings = {"optimiser": "sgd", "warmup": 0.0, "schedule": "cosine"}
# Their own code encodes the views one by one on CIFAR (smallscale/main.py); on ImageNet it is lightly's, which joins them.
_DYSTRESS: Settings = _SGD | {
    "views": "simclr-cifar", "encoder": "resnet18-cifar", "loss": "dystress", "lr": 0.06, "batch": 128, "epochs": 200,
    "weight_decay": 5e-4, "knn": 200, "norm_views": "each",
    "lr_end": 0.0, "lars_trust": 1e-3,  # the defaults, for studies in which CIFAR-10 replaces ImageNet
}  # fmt: skip
# The long-tail protocol of Kukleva et al., which DySTreSS follows in its Tables 4 and 5.
_KUKLEVA: Settings = _SGD | {
    "views": "kukleva", "encoder": "resnet18-cifar", "loss": "dystress", "lr": 0.5, "warmup": 10.0, "batch": 512,
    "epochs": 2000, "weight_decay": 1e-4, "knn": 10, "lr_end": 1e-6 / 0.5,
}  # fmt: skip
# The linear probe is also trained on the long-tailed training set.
_TAIL: Settings = {"imbalance": "exponential:100", "probe": "train"}
_KUKLEVA_TAIL: Settings = {"imbalance": "kukleva:0", "probe": "train"}
_IMAGENET100: Settings = {"data": "imagenet", "classes": "imagenet100"}
_IMAGENET: Settings = {
    "data": "imagenet", "views": "simclr", "encoder": "resnet50", "loss": "dystress(temperature=cosine(0.1, 0.2))",
    "optimiser": "lars", "lr": 1.2, "warmup": 10.0, "lr_end": 1e-3, "batch": 256, "epochs": 100, "weight_decay": 1e-6,
    "precision": "fp16", "knn": 20,
}  # fmt: skip
# A memory bank contrasts a single view of an image with the stored embeddings, so view_count is 1.
_BEHAVIOUR: Settings = _SGD | {
    "views": "insdis", "view_count": 1, "encoder": "resnet18-cifar", "head": "linear", "framework": "memory-bank",
    "loss": "contrastive", "lr": 0.03, "schedule": "step", "milestones": (160, 190), "batch": 128, "epochs": 200,
    "weight_decay": 5e-4, "knn": 200,
}  # fmt: skip
_CACR: Settings = _SGD | {
    "views": "align-uniform", "encoder": "alexnet", "head": "alexnet", "loss": "cacr", "lr": 0.36, "schedule": "step",
    "milestones": (155, 170, 185), "batch": 768, "epochs": 200, "weight_decay": 1e-4, "knn": 200, "norm_views": "each",
}  # fmt: skip
# Four positives and a query make five views; batch and learning rate shrink by the same factor of six.
_CACR_K4: Settings = _CACR | {"view_count": 5, "batch": 128, "lr": 0.06}
# The ResNet-50 protocol of Robinson et al. (hard negatives), which CACR follows for CIFAR.
_HCL: Settings = {
    "views": "align-uniform", "encoder": "resnet50-cifar", "head": "hcl", "loss": "cacr", "optimiser": "adam", "lr": 1e-3,
    "schedule": "constant", "warmup": 0.0, "batch": 256, "epochs": 400, "weight_decay": 1e-6, "knn": 200, "norm_views": "each",
}  # fmt: skip
_MOCO: Settings = _SGD | {
    "data": "imagenet", "views": "moco-v2", "encoder": "resnet50", "head": "moco-v2", "framework": "moco", "queue": 65536,
    "momentum": 0.999, "norm_splits": 8, "symmetric": True, "batch_negatives": True, "loss": "cacr", "lr": 0.03, "batch": 256,
    "epochs": 200, "weight_decay": 1e-4, "knn": 200,
}  # fmt: skip
# SimCLR's own settings, for the SimCLR rows in CACR's tables: learning rate 0.3 per 256 images.
_SIMCLR: Settings = {
    "data": "imagenet", "views": "simclr", "encoder": "resnet50", "head": "simclr", "loss": "simclr(temperature=0.1)",
    "optimiser": "lars", "lr": 4.8, "warmup": 10.0, "batch": 4096, "epochs": 1000, "weight_decay": 1e-6, "precision": "bf16",
    "knn": 200,
}  # fmt: skip
_MOCO_V3: Settings = {
    "data": "imagenet", "views": "moco-v3", "encoder": "resnet50-zero", "head": "moco-v3", "framework": "moco-v3",
    "momentum_schedule": "cosine", "loss": "moco_v3", "optimiser": "lars-moco", "warmup": 10.0, "batch": 4096,
    "precision": "bf16", "knn": 200,
}  # fmt: skip
# MoCo v3's settings that depend on the number of epochs; the learning rates are 0.6, 0.3 and 0.3 per 256 images.
_MOCO_V3_LENGTHS: Mapping[int, Settings] = {
    100: {"lr": 9.6, "weight_decay": 1e-6, "momentum": 0.99},
    300: {"lr": 4.8, "weight_decay": 1e-6, "momentum": 0.99},
    1000: {"lr": 4.8, "weight_decay": 1.5e-6, "momentum": 0.996},
}
_BALANCED: Settings = _SGD | {
    "views": "simclr-cifar-imagenet-norm", "encoder": "resnet18-cifar", "head": "balanced-cifar", "loss": "balanced",
    "lr": 0.1, "batch": 512, "epochs": 200, "weight_decay": 1e-4, "knn": 1,
}  # fmt: skip


def moco_v3_settings(epochs: int) -> Settings:
    """Return MoCo v3's ResNet-50 settings for a number of epochs; between two published numbers, those for the larger one.

    >>> moco_v3_settings(800)["momentum"]
    0.996
    """
    length = min((known for known in _MOCO_V3_LENGTHS if known >= epochs), default=max(_MOCO_V3_LENGTHS))
    return {"epochs": epochs, **_MOCO_V3_LENGTHS[length]}


PRESETS: Mapping[str, Mapping[str, Any]] = {
    "dystress/cifar10": _DYSTRESS | {"data": "cifar10"},
    "dystress/cifar100": _DYSTRESS | {"data": "cifar100"},
    "dystress/cifar10-lt": _DYSTRESS | {"data": "cifar10", **_TAIL, "epochs": 500, "knn": 10},
    "dystress/cifar100-lt": _DYSTRESS | {"data": "cifar100", **_TAIL, "epochs": 500, "knn": 10},
    "dystress/table4-cifar10-lt": _KUKLEVA | {"data": "cifar10", **_KUKLEVA_TAIL},
    "dystress/table4-cifar100-lt": _KUKLEVA | {"data": "cifar100", **_KUKLEVA_TAIL},
    "dystress/table5-imagenet100-lt": _KUKLEVA | _IMAGENET100 | {
        "imbalance": "pareto:12205", "probe": "train", "views": "kukleva-imagenet", "encoder": "resnet50", "batch": 256,
        "loss": "dystress(temperature=cosine(0.1, 0.2))"},
    "dystress/tiny-imagenet": _DYSTRESS | {"data": "imagenet", "encoder": "resnet50", "views": "simclr-64"},
    "dystress/imagenet100": _IMAGENET | _IMAGENET100 | {"epochs": 200},
    "dystress/imagenet": _IMAGENET,
    "dystress/table8-imagenet100": _IMAGENET | _IMAGENET100 | {
        "head": "balanced", "lr": 0.15, "lars_trust": 0.02, "batch": 128, "epochs": 400},
    "behaviour/cifar10": _BEHAVIOUR | {"data": "cifar10"},
    "behaviour/cifar100": _BEHAVIOUR | {"data": "cifar100", "loss": "contrastive(temperature=0.3)"},
    "behaviour/svhn": _BEHAVIOUR | {"data": "svhn", "views": "insdis-svhn", "loss": "contrastive(temperature=0.3)"},
    "behaviour/imagenet100": _BEHAVIOUR | _IMAGENET100 | {
        "views": "moco-v2", "encoder": "resnet50", "weight_decay": 1e-4},
    "cacr/cifar10": _CACR | {"data": "cifar10"},
    "cacr/cifar100": _CACR | {"data": "cifar100", "views": "align-uniform-cifar100", "loss": "cacr(t_neg=3.0)"},
    "cacr/stl10": _CACR | {
        "data": "stl10", "views": "align-uniform-stl", "encoder": "alexnet-64", "loss": "cacr(t_neg=3.0)"},
    "cacr/cifar10-k4": _CACR_K4 | {"data": "cifar10", "loss": "cacr(t_neg=0.9)"},
    "cacr/cifar100-k4": _CACR_K4 | {"data": "cifar100", "views": "align-uniform-cifar100", "loss": "cacr(t_neg=2.0)"},
    "cacr/stl10-k4": _CACR_K4 | {
        "data": "stl10", "views": "align-uniform-stl", "encoder": "alexnet-64", "loss": "cacr(t_neg=2.0)"},
    "cacr/resnet50-cifar10": _HCL | {"data": "cifar10"},
    "cacr/resnet50-cifar100": _HCL | {"data": "cifar100", "views": "align-uniform-cifar100", "loss": "cacr(t_neg=3.0)"},
    "cacr/moco-imagenet100": _MOCO | _IMAGENET100 | {"batch": 128},
    "cacr/moco-imagenet": _MOCO,
    "cacr/moco-webvision": _MOCO | {"epochs": 100},
    "cacr/moco-imagenet22k": _MOCO | {"epochs": 20},
    "cacr/simclr-imagenet": _SIMCLR,
    "cacr/moco-v3-resnet50-100": _MOCO_V3 | moco_v3_settings(100),
    "cacr/moco-v3-resnet50": _MOCO_V3 | moco_v3_settings(300),
    "cacr/moco-v3-resnet50-1000": _MOCO_V3 | moco_v3_settings(1000),
    "cacr/moco-v3-vit": _MOCO_V3 | moco_v3_settings(300) | {
        "views": "byol", "encoder": "vit-b16-moco", "head": "moco-v3-vit", "loss": "moco_v3(temperature=0.2)",
        "optimiser": "adamw", "lr": 2.4e-3, "warmup": 40.0, "weight_decay": 0.1},
    "balanced/cifar10": _BALANCED | {"data": "cifar10", "loss": "balanced(alpha=2.0, weight=4.0)"},
    "balanced/imagenet": _BALANCED | {
        "data": "imagenet", "views": "moco-v2", "encoder": "resnet50-zero", "head": "balanced", "epochs": 100, "knn": 200},
    **modalities.presets(),
    **BASELINES,
}  # fmt: skip


def preset(name: str) -> Run:
    """Return the run that a preset describes. Use `dataclasses.replace` to change a setting.

    name   a name in `PRESETS`, such as dystress/cifar10
    """
    check_known("preset", name, PRESETS, cutoff=0.4)
    return Run(**PRESETS[name])
