"""Settings that the presets of several methods share: `contrapose train --preset byol/cifar10`.

On CIFAR, all methods follow the protocol of lightly's CIFAR-10 benchmark, which encodes views one by one, with lightly's heads,
views and optimisers for the methods in that benchmark. On ImageNet, each method has its authors' settings or those of lightly's
benchmark, which is the source of the numbers in DySTreSS's Tables 1 and 2. On ImageNet-100, the methods in DySTreSS's Table 8
have the settings of Zero-CL and ARB, the source of the numbers in that table. "Our choice" marks values that no source gives.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from contrapose.lab.settings import Settings

CIFAR: dict[str, Any] = {
    "views": "simclr-cifar", "encoder": "resnet18-cifar", "optimiser": "sgd", "lr": 0.06, "schedule": "cosine", "warmup": 0.0,
    "batch": 128, "epochs": 200, "weight_decay": 5e-4, "knn": 200, "norm_views": "each",
    "lr_end": 0.0, "lars_trust": 1e-3,  # the defaults, for studies in which CIFAR-10 replaces ImageNet
}  # fmt: skip
# As in lightly, the learning rate ends at 0.1 % of its peak. bf16 is our choice, because it needs no loss scaling.
IMAGENET: dict[str, Any] = {
    "data": "imagenet", "encoder": "resnet50", "optimiser": "lars", "schedule": "cosine", "warmup": 10.0, "lr_end": 1e-3,
    "lars_trust": 1e-3, "batch": 256, "epochs": 100, "weight_decay": 1e-6, "precision": "bf16", "knn": 200,
}  # fmt: skip
SGD: dict[str, Any] = {"optimiser": "sgd", "weight_decay": 1e-4, "lr_end": 0.0}
# SimCLRv2 and FNC: the learning rate is 0.1 times the square root of the batch size.
SIMCLR_V2: dict[str, Any] = {
    "views": "simclr", "head": "simclr-v2", "batch": 4096, "lr": 0.1 * math.sqrt(4096), "weight_decay": 1e-4, "lr_end": 0.0,
}  # fmt: skip
# 0.3 per 256 images. Zero-CL, ARB and solo-learn encode views one by one, and the trust ratio is 0.02.
TABLE8: dict[str, Any] = {
    "lr": 0.15, "lars_trust": 0.02, "batch": 128, "epochs": 400, "weight_decay": 1e-6, "norm_views": "each",
}  # fmt: skip
# Batch size and epochs are our choice, the same as in dystress/imagenet100.
SMALL_BATCH: dict[str, Any] = {"batch": 256, "epochs": 200, "warmup": 10.0}


def presets_of(method: str, changes: Mapping[str, Settings]) -> dict[str, dict[str, Any]]:
    """Return the presets of a method, keyed by name.

    changes   the method's changes to the CIFAR protocol (cifar), to the ImageNet protocol (imagenet), and to the method's own
              ImageNet settings (imagenet100)

    >>> sorted(presets_of("simclr-v2", {"cifar": {"head": "simclr-v2", "loss": "simclr"}}))
    ['simclr-v2/cifar10', 'simclr-v2/cifar100']
    """
    presets: dict[str, dict[str, Any]] = {}
    if "cifar" in changes:
        presets |= {f"{method}/{data}": {**CIFAR, **changes["cifar"], "data": data} for data in ("cifar10", "cifar100")}
    if "imagenet100" in changes:
        own = {**IMAGENET, **changes["imagenet"], **changes["imagenet100"]}
        presets[f"{method}/imagenet100"] = {**own, "classes": "imagenet100"}
    if "imagenet" in changes:
        presets[f"{method}/imagenet"] = {**IMAGENET, **changes["imagenet"]}
    return presets
