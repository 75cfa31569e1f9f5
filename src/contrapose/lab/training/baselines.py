"""Presets for the baseline methods in the papers' tables: `contrapose train --preset byol/cifar10`.

This file has the presets of losses that use SimCLR's framework. A method with its own framework has its presets in that
framework's file. The protocols that presets build on are in `frameworks/protocols.py`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from contrapose.lab.frameworks import FRAMEWORKS, used_settings
from contrapose.lab.frameworks.protocols import SIMCLR_V2, SMALL_BATCH, TABLE8, presets_of

Settings = dict[str, Any]  # fields of a run, by name; merged with `|`

_ZERO_CL: Settings = {"views": "byol", "encoder": "resnet50-zero", "head": "zero-cl", "lr": 0.3}
# Keyed by method and protocol. The authors of Zero-CL and ARB train for 1,000 epochs with a LARS with a separate learning rate
# for biases and norms. Our LARS does not, so SGD on CIFAR is our choice, as it is for VICReg and SimCLRv2.
_IN_SIMCLR: Mapping[str, Mapping[str, Settings]] = {
    "barlow-twins": {
        "cifar": {"head": "barlow-twins-cifar", "loss": "barlow_twins", "views": "byol-cifar"},
        # As in lightly: learning rate 0.2 per 256 images, but without a separate learning rate for biases and norms. The crops
        # are BYOL's, as in lightly and in the authors' code.
        "imagenet": {
            "head": "barlow-twins", "loss": "barlow_twins", "views": "byol", "lr": 0.2, "weight_decay": 1.5e-6},
        "imagenet100": {**TABLE8, "head": "zero-cl", "weight_decay": 1e-4},  # solo-learn's decay
    },
    "vicreg": {
        # Weights of 25 make VICReg's gradient large: at a learning rate of 0.06 without warm-up, the loss is not finite after
        # three steps. Its authors warm up for ten epochs.
        "cifar": {"head": "barlow-twins-cifar", "loss": "vicreg", "lr": 0.02, "warmup": 10.0},
        # As in lightly, which follows the paper's appendix C.4: 0.5 per 256 images, batches of 256, 100 epochs. Its head has two
        # layers.
        "imagenet": {"head": "vicreg-lightly", "loss": "vicreg", "views": "vicreg", "lr": 0.5},
        "imagenet100": {**TABLE8, "head": "zero-cl", "weight_decay": 1e-4},  # solo-learn's decay
    },
    "w-mse": {
        # Ermolov et al. train for 1,000 epochs in batches of 512: Adam, 500 steps of warm-up, learning rate × 0.2 with 50 and 25
        # epochs left. Batch size and epochs are from DySTreSS's Table 9, where 500 steps are 1.28 epochs.
        "cifar": {
            "head": "w-mse", "loss": "w_mse(size=128)", "views": "w-mse-cifar", "optimiser": "adam", "lr": 3e-3,
            "weight_decay": 1e-6, "schedule": "step", "milestones": (150, 175), "lr_drop": 0.2, "warmup": 1.28},
        # lightly: four views, and a learning rate of 0.1 times the square root of the batch size; its head has a third layer
        "imagenet": {
            "head": "w-mse", "loss": "w_mse(size=128)", "views": "w-mse", "view_count": 4, "lr": 0.1 * math.sqrt(256)},
        # As in solo-learn, the source of the number in Table 8: Adam, two views
        "imagenet100": {
            "optimiser": "adam", "lr": 2e-3, "view_count": 2, "batch": 128, "epochs": 400, "norm_views": "each"},
    },
    "zero-cl": {
        "cifar": {"head": "zero-cl", "loss": "zero_cl"}, "imagenet": {**_ZERO_CL, "loss": "zero_cl"}, "imagenet100": TABLE8},
    "zero-fcl": {
        "cifar": {"head": "zero-cl", "loss": "zero_fcl"}, "imagenet": {**_ZERO_CL, "loss": "zero_fcl"}, "imagenet100": TABLE8},
    "zero-icl": {
        "cifar": {"head": "zero-cl", "loss": "zero_icl"},
        "imagenet": {**_ZERO_CL, "loss": "zero_icl"},
        "imagenet100": {**TABLE8, "width": 256},  # the widths are given in Table 8
    },
    "arb": {
        "cifar": {"head": "zero-cl", "width": 256, "loss": "arb"},  # the authors' width on CIFAR
        "imagenet": {**_ZERO_CL, "loss": "arb", "lr": 0.2},  # the authors' code for ImageNet: 0.2 per 256 images
        "imagenet100": TABLE8,
    },
    "simclr-v2": {
        "cifar": {"head": "simclr-v2", "loss": "simclr"},
        # Chen et al.: 800 epochs, with warm-up during the first 5 %
        "imagenet": {**SIMCLR_V2, "loss": "simclr(temperature=0.1)", "epochs": 800, "warmup": 40.0},
        "imagenet100": {**SMALL_BATCH, "lr": 0.1 * math.sqrt(256)},
    },
}  # fmt: skip

BASELINES: Mapping[str, Settings] = {
    **{
        name: {"framework": row.name, **used_settings(settings, row.name)}
        for row in FRAMEWORKS.values()
        for method, changes in row.presets.items()
        for name, settings in presets_of(method, changes).items()
    },
    **{
        name: dict(used_settings(settings, "simclr"))
        for method, changes in _IN_SIMCLR.items()
        for name, settings in presets_of(method, changes).items()
    },
}
