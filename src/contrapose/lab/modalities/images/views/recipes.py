"""The papers' augmentations by name. Views alternate between the recipes in a tuple."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from contrapose.lab.modalities.images.views.recipe import Recipe

CIFAR10: dict[str, Any] = {"mean": (0.4914, 0.4822, 0.4465), "std": (0.2023, 0.1994, 0.2010)}
CIFAR100: dict[str, Any] = {"mean": (0.5071, 0.4867, 0.4408), "std": (0.2675, 0.2565, 0.2761)}
STL10: dict[str, Any] = {"mean": (0.4409, 0.4279, 0.3868), "std": (0.2683, 0.2610, 0.2687)}
CLIP: dict[str, Any] = {"mean": (0.4815, 0.4578, 0.4082), "std": (0.2686, 0.2613, 0.2758)}
TENSORFLOW: dict[str, Any] = {"mean": (0.5, 0.5, 0.5), "std": (0.5, 0.5, 0.5)}  # pixels between -1 and 1
IMAGENET: dict[str, Any] = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}

_SIMCLR = Recipe(32, scale=(0.08, 1.0), **CIFAR10)
_INSDIS = Recipe(32, jitter=(0.4, 0.4, 0.4, 0.4), jitter_chance=1.0, **CIFAR10)
_MOCO = Recipe(224, blur=0.5, **IMAGENET)
_BYOL = replace(_MOCO, scale=(0.08, 1.0), jitter=(0.4, 0.4, 0.2, 0.1))
_MOCO_V3 = replace(_BYOL, scale=(0.2, 1.0))
# SwAV's global crops. For a ResNet, DINO has the same shares of the area, and BYOL's colours.
_SWAV = Recipe(224, scale=(0.14, 1.0), jitter=(0.8, 0.8, 0.8, 0.2), blur=0.5, **IMAGENET)
_DINO = replace(_BYOL, scale=(0.14, 1.0), cubic=True)
_CAPTIONS = Recipe(224, scale=(0.5, 1.0), jitter=None, gray=0.0, **IMAGENET)
_BYOL_CIFAR = replace(_BYOL, size=32, blur=0.0, **CIFAR10)
_DINO_CIFAR = Recipe(32, scale=(0.4, 1.0), cubic=True, jitter=(0.4, 0.4, 0.2, 0.1), **CIFAR10)
# The built-in digits. The encoder should ignore colours, background and polarity (hence jitter, gray and invert), but a mirrored
# digit is not the same digit (hence no flip).
_DIGITS = Recipe(
    32,
    scale=(0.6, 1.0),
    flip=0.0,
    jitter=(0.4, 0.4, 0.4, 0.4),
    gray=0.5,
    invert=0.5,
    rotate=0.5,
    degrees=15.0,
    mean=(0.5, 0.5, 0.5),
    std=(0.25, 0.25, 0.25),
)

RECIPES: Mapping[str, tuple[Recipe, ...]] = {
    "insdis": (_INSDIS,),  # Wang & Liu on CIFAR; with the paper's flip, which their code lacks
    "insdis-svhn": (replace(_INSDIS, flip=0.0),),  # a mirrored digit is not a digit
    "simclr-cifar": (_SIMCLR,),  # DySTreSS
    "simclr-64": (replace(_SIMCLR, size=64),),  # DySTreSS, Tiny-ImageNet
    "simclr-cifar-imagenet-norm": (replace(_SIMCLR, **IMAGENET),),  # Lee, CIFAR-10
    "simclr": (
        Recipe(224, scale=(0.08, 1.0), jitter=(0.8, 0.8, 0.8, 0.2), blur=0.5, **IMAGENET),
    ),  # DySTreSS, ImageNet
    "moco-v2": (_MOCO,),  # Wang & Liu, CACR and Lee on ImageNet
    "align-uniform": (_INSDIS,),  # CACR, CIFAR-10
    "align-uniform-cifar100": (replace(_INSDIS, **CIFAR100),),
    "align-uniform-stl": (replace(_INSDIS, size=64, scale=(0.08, 1.0), shorter=70, **STL10),),  # CACR, STL-10
    "byol": (replace(_BYOL, blur=1.0), replace(_BYOL, blur=0.1, solarize=0.2)),  # BYOL; MoCo v3 with a ViT
    "moco-v3": (replace(_MOCO_V3, blur=1.0), replace(_MOCO_V3, blur=0.1, solarize=0.2)),  # with a ResNet; Barlow Twins
    "swav": (_SWAV,),
    # Without blur, as in lightly's benchmark on CIFAR-10
    "byol-cifar": (_BYOL_CIFAR, replace(_BYOL_CIFAR, solarize=0.2)),  # Barlow Twins too
    "simsiam-cifar": (replace(_SIMCLR, scale=(0.2, 1.0)),),
    "swav-cifar": (replace(_SIMCLR, scale=(0.14, 1.0)),),
    "dino": (replace(_DINO, blur=1.0), replace(_DINO, blur=0.1, solarize=0.2)),  # with a ResNet
    "dino-cifar": (_DINO_CIFAR, replace(_DINO_CIFAR, solarize=0.2)),
    "vicreg": (replace(_BYOL, solarize=0.1),),  # both views alike
    "w-mse": (replace(_MOCO, gray=0.1),),  # Ermolov et al., as in lightly
    "w-mse-cifar": (replace(_SIMCLR, scale=(0.2, 1.0), gray=0.1, cubic=True),),
    # Without colour changes, since a caption may name colours
    "clip": (Recipe(224, scale=(0.9, 1.0), cubic=True, flip=0.0, jitter=None, gray=0.0, **CLIP),),  # open_clip
    "captions": (_CAPTIONS,),  # for few images
    "captions-tf": (replace(_CAPTIONS, **TENSORFLOW),),  # for --encoder efficientnet-lite0
    "kukleva": (Recipe(32, scale=(0.1, 1.0), cubic=True),),  # Kukleva et al., long-tailed runs; not normalised
    "kukleva-imagenet": (Recipe(224, scale=(0.1, 1.0), cubic=True),),
    # Lee, §5.2: the effect of removing or adding an operation
    "moco-v2-no-blur": (replace(_MOCO, blur=0.0),),
    "moco-v2-no-colour": (replace(_MOCO, jitter=None, gray=0.0),),
    "moco-v2-cutout": (replace(_MOCO, cutout=0.5),),
    "moco-v2-rotation": (replace(_MOCO, rotate=0.5),),
    "moco-v2-noise": (replace(_MOCO, noise=0.5),),
    "digits": (_DIGITS,),
    # Nearly the whole image: the digits' position and size vary little, so small crops would only slow down training
    "digits16": (replace(_DIGITS, size=16, scale=(0.9, 1.0)),),
}

# How a recipe's local crops differ from its first view, in addition to their size: DINO's crops for a ViT, unless noted.
LOCAL: Mapping[str, Mapping[str, Any]] = {
    "": {"scale": (0.05, 0.4)},
    "swav": {"scale": (0.05, 0.14)},
    "swav-cifar": {"scale": (0.05, 0.14)},
    "dino": {"scale": (0.05, 0.14), "blur": 0.5},
}
