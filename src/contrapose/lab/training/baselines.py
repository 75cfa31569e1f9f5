"""Settings of the methods that the papers' tables compare with: `contrapose train --preset byol/cifar10`.

For CIFAR, one protocol for all: that of lightly's benchmark on CIFAR-10, whose heads, views and optimisers are used for the
methods it has. For ImageNet, each has its authors' settings or those of lightly's benchmark, which DySTreSS's Tables 1 and 2
take their numbers from. For ImageNet-100, the methods of DySTreSS's Table 8 have the settings of Zero-CL and ARB, where its
numbers come from. "Our choice" marks what no source gives.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

Settings = dict[str, Any]

_CIFAR: Settings = {
    "views": "simclr-cifar", "encoder": "resnet18-cifar", "optimiser": "sgd", "lr": 0.06, "schedule": "cosine", "warmup": 0.0,
    "batch": 128, "epochs": 200, "weight_decay": 5e-4, "knn": 200,
}  # fmt: skip
# What each method changes of it. The authors of Zero-CL and ARB train for 1,000 epochs with a LARS whose biases and norms have
# a learning rate of their own, which ours does not have: SGD is our choice, as for VICReg, FNC and SimCLRv2.
_ON_CIFAR: Mapping[str, Settings] = {
    # lightly averages the negative cosines of both directions, which is SimSiam's loss: a quarter of BYOL's gradient.
    "byol": {
        "framework": "byol", "head": "byol-cifar", "predictor": 1024, "momentum": 0.99, "loss": "simsiam",
        "views": "byol-cifar"},
    "simsiam": {
        "framework": "simsiam", "head": "simsiam-cifar", "predictor": 512, "loss": "simsiam", "views": "simsiam-cifar"},
    "barlow-twins": {"head": "barlow-twins-cifar", "loss": "barlow_twins", "views": "byol-cifar"},
    # Weights of 25 make its gradient large: at 0.06 without warm-up the loss is not finite after three steps. Its authors warm
    # up for ten epochs.
    "vicreg": {"head": "barlow-twins-cifar", "loss": "vicreg", "lr": 0.02, "warmup": 10.0},
    "swav": {
        "framework": "swav", "head": "swav-cifar", "prototypes": 512, "frozen_epochs": 0, "loss": "swav",
        "views": "swav-cifar", "optimiser": "adam", "lr": 1e-3, "weight_decay": 1e-6},
    # lightly's loss keeps the teacher's temperature at 0.04.
    "dino": {
        "framework": "dino", "head": "dino-cifar", "prototypes": 2048, "frozen_epochs": 0, "momentum": 0.99,
        "loss": "dino(teacher_temperature=0.04)", "views": "dino-cifar"},
    # Ermolov et al. for 1,000 epochs in batches of 512: Adam, 500 steps of warm-up, drops by 0.2 with 50 and 25 epochs to go.
    # Batch and epochs are those of DySTreSS's Table 9; 500 of its steps are 1.28 epochs.
    "w-mse": {
        "head": "w-mse", "loss": "w_mse(size=128)", "views": "w-mse-cifar", "optimiser": "adam", "lr": 3e-3,
        "weight_decay": 1e-6, "schedule": "step", "milestones": (150, 175), "gamma": 0.2, "warmup": 1.28},
    "zero-cl": {"head": "zero-cl", "loss": "zero_cl"},
    "zero-fcl": {"head": "zero-cl", "loss": "zero_fcl"},
    "zero-icl": {"head": "zero-cl", "loss": "zero_icl"},
    "arb": {"head": "zero-cl", "width": 256, "loss": "arb"},  # the authors' width on CIFAR
    # lightly's NT-Xent has a temperature of 0.5 unless another is given; the paper's is 0.1.
    "nnclr": {"framework": "nnclr", "head": "nnclr-cifar", "queue": 4096, "loss": "nnclr(temperature=0.5)"},
    # Our choice, as in the paper apart from two support views in place of eight: a queue of 16 batches
    "fnc": {"framework": "fnc", "head": "simclr", "queue": 2048, "momentum": 0.99, "view_count": 4, "loss": "fnc"},
    "simclr-v2": {"head": "simclr-v2", "loss": "simclr"},
}  # fmt: skip

# bf16 is our choice: it needs no scaling of the loss.
_IMAGENET: Settings = {
    "data": "imagenet", "encoder": "resnet50", "optimiser": "lars", "schedule": "cosine", "warmup": 10.0, "batch": 256,
    "epochs": 100, "weight_decay": 1e-6, "precision": "bf16", "knn": 200,
}  # fmt: skip
_SGD: Settings = {"optimiser": "sgd", "weight_decay": 1e-4}
_ZERO_CL: Settings = {"views": "byol", "encoder": "resnet50-zero", "head": "zero-cl", "lr": 0.3}
# SimCLRv2 and FNC: 0.1 times the root of the batch size
_SIMCLR_V2: Settings = {
    "views": "simclr", "head": "simclr-v2", "batch": 4096, "lr": 0.1 * math.sqrt(4096), "weight_decay": 1e-4,
}  # fmt: skip
_ON_IMAGENET: Mapping[str, Settings] = {
    # lightly, with the authors' values for 100 epochs: 0.45 per 256 images, momentum from 0.99 to 1
    "byol": {
        "framework": "byol", "head": "byol", "momentum": 0.99, "rising": True, "loss": "byol", "views": "byol", "lr": 0.45},
    # The authors': 0.05 per 256 images, no warm-up, and a predictor whose learning rate does not fall
    "simsiam": _SGD | {
        "framework": "simsiam", "head": "simsiam", "predictor": 512, "constant_predictor_lr": True, "loss": "simsiam",
        "views": "moco-v2", "encoder": "resnet50-zero", "lr": 0.1, "warmup": 0.0, "batch": 512},
    # lightly: 0.2 per 256 images; biases and norms have no learning rate of their own here. The crops are BYOL's in lightly
    # and in the authors' code.
    "barlow-twins": {
        "head": "barlow-twins", "loss": "barlow_twins", "views": "byol", "lr": 0.2, "weight_decay": 1.5e-6},
    # lightly, by the paper's appendix C.4: 0.5 per 256 images in batches of 256 for 100 epochs
    "vicreg": {"head": "vicreg", "loss": "vicreg", "views": "vicreg", "lr": 0.5},
    # The authors' script for batches of 256. Their epoch 15, counted from 0, is the 16th.
    "swav": {
        "framework": "swav", "head": "swav", "prototypes": 3000, "frozen_epochs": 1, "queue": 3840, "queue_start": 16,
        "loss": "swav", "views": "swav+local6", "lr": 0.6, "warmup": 0.0, "epochs": 200},
    # The authors' command for a ResNet-50: 0.03 per 256 images, eight local crops. They also clip the gradient of each
    # parameter at 3, which --clip does to all of them together.
    "dino": _SGD | {
        "framework": "dino", "head": "dino", "prototypes": 65536, "frozen_epochs": 1, "momentum": 0.996, "rising": True,
        "loss": "dino(teacher_temperature=0.04)", "views": "dino+local8", "lr": 0.03},
    # lightly: four views and 0.1 times the root of the batch size; its head has a third layer
    "w-mse": {"head": "w-mse", "loss": "w_mse(size=128)", "views": "w-mse", "view_count": 4, "lr": 0.1 * math.sqrt(256)},
    "zero-cl": _ZERO_CL | {"loss": "zero_cl"},
    "zero-fcl": _ZERO_CL | {"loss": "zero_fcl"},
    "zero-icl": _ZERO_CL | {"loss": "zero_icl"},
    "arb": _ZERO_CL | {"loss": "arb", "lr": 0.2},  # the authors' code for ImageNet: 0.2 per 256 images
    # Dwibedi et al.: SimCLR's 0.3 per 256 images in batches of 4,096; the views are those of lightly's example
    "nnclr": {
        "framework": "nnclr", "head": "nnclr", "queue": 98304, "loss": "nnclr(temperature=0.1)", "views": "simclr",
        "batch": 4096, "lr": 4.8, "epochs": 1000},
    # Huynh et al., as in their code: ten views, all of them anchors, and a memory of 16 batches, ten of which are the current one
    "fnc": _SIMCLR_V2 | {
        "framework": "fnc", "queue": 6 * 4096, "momentum": 0.999, "view_count": 10, "anchor_views": 0, "loss": "fnc"},
    # Chen et al.: 800 epochs, of which the first 5 % warm up
    "simclr-v2": _SIMCLR_V2 | {"loss": "simclr(temperature=0.1)", "epochs": 800, "warmup": 40.0},
}  # fmt: skip

_TABLE8: Settings = {"lr": 0.15, "batch": 128, "epochs": 400, "weight_decay": 1e-6}  # 0.3 per 256 images
# Batch and epochs are our choice: dystress/imagenet100 has the same.
_SMALL_BATCH: Settings = {"batch": 256, "epochs": 200, "warmup": 10.0}
# What each method changes of its settings for ImageNet. Table 8 prints the widths.
_ON_IMAGENET100: Mapping[str, Settings] = {
    "byol": _TABLE8,
    "simsiam": {"epochs": 200},
    "barlow-twins": _TABLE8 | {"head": "zero-cl"},
    "vicreg": _TABLE8 | {"head": "zero-cl"},
    "swav": {"epochs": 200},
    "dino": {"lr": 0.015, "batch": 128, "epochs": 400},
    # As in solo-learn, whose number Table 8 prints: Adam, two views
    "w-mse": {"optimiser": "adam", "lr": 2e-3, "view_count": 2, "batch": 128, "epochs": 400},
    "zero-cl": _TABLE8,
    "zero-fcl": _TABLE8,
    "zero-icl": _TABLE8 | {"width": 256},
    "arb": _TABLE8,
    "nnclr": _SMALL_BATCH | {"lr": 0.3, "queue": 65536},
    "fnc": _SMALL_BATCH | {"lr": 0.1 * math.sqrt(256), "queue": 6 * 256},
    "simclr-v2": _SMALL_BATCH | {"lr": 0.1 * math.sqrt(256)},
}

BASELINES: Mapping[str, Settings] = {
    f"{method}/{data}": settings
    for method in _ON_CIFAR
    for data, settings in {
        "cifar10": _CIFAR | _ON_CIFAR[method] | {"data": "cifar10"},
        "cifar100": _CIFAR | _ON_CIFAR[method] | {"data": "cifar100"},
        "imagenet100": _IMAGENET | _ON_IMAGENET[method] | _ON_IMAGENET100[method] | {"classes": "imagenet100"},
        "imagenet": _IMAGENET | _ON_IMAGENET[method],
    }.items()
}
