"""The recipes of methods that lightly has are those of its transforms, operation by operation."""

from __future__ import annotations

from typing import Any

import pytest
from lightly.transforms import (
    BYOLTransform,
    DINOTransform,
    SimCLRTransform,
    SimSiamTransform,
    SwaVTransform,
    VICRegTransform,
    WMSETransform,
)
from lightly.transforms.byol_transform import BYOLView1Transform, BYOLView2Transform
from lightly.transforms.gaussian_blur import GaussianBlur
from lightly.transforms.solarize import RandomSolarization
from torchvision.transforms import v2

from contrapose.lab.modalities.images.views import Recipe, Views

# No blur on CIFAR, as in lightly's benchmark; its colours are half as strong as SimCLR's on ImageNet.
TRANSFORMS: dict[str, Any] = {
    "simclr": SimCLRTransform(),
    "simclr-cifar": SimCLRTransform(input_size=32, cj_strength=0.5, gaussian_blur=0),
    "byol": BYOLTransform(),
    "vicreg": VICRegTransform(),
    "w-mse": WMSETransform(),
    "swav+local6": SwaVTransform(),
    "byol-cifar": BYOLTransform(
        BYOLView1Transform(input_size=32, gaussian_blur=0), BYOLView2Transform(input_size=32, gaussian_blur=0)
    ),
    "simsiam-cifar": SimSiamTransform(input_size=32, gaussian_blur=0),
    "swav-cifar": SwaVTransform((32,), (2,), (0.14,), (1.0,), cj_strength=0.5, gaussian_blur=0),
    "dino+local6": DINOTransform(global_crop_scale=(0.14, 1), local_crop_scale=(0.05, 0.14)),
    "dino-cifar": DINOTransform(global_crop_size=32, n_local_views=0, gaussian_blur=(0, 0, 0)),
}


def of_lightly(transform: Any) -> dict[str, Any]:
    """Return the strengths and probabilities of a view of lightly."""
    found: dict[str, Any] = {"solarize": 0.0, "blur": 0.0}
    waiting = [transform]
    while waiting:
        step = waiting.pop(0)
        match step:
            case v2.RandomResizedCrop():
                found |= {"size": step.size[0], "scale": tuple(map(float, step.scale))}
            case v2.RandomHorizontalFlip():
                found["flip"] = step.p
            case v2.RandomApply() if isinstance(step.transforms[0], v2.ColorJitter):
                jitter = step.transforms[0]
                upper = (jitter.brightness[1] - 1, jitter.contrast[1] - 1, jitter.saturation[1] - 1, jitter.hue[1])
                found |= {"jitter": tuple(round(value, 6) for value in upper), "jitter_chance": step.p}
            case v2.RandomGrayscale():
                found["gray"] = step.p
            case GaussianBlur():
                found["blur"] = step.prob
            case RandomSolarization():
                found["solarize"] = step.prob
            case _:
                inner = getattr(step, "transforms", None) or [getattr(step, "transform", None)]
                waiting = [part for part in inner if part is not None] + waiting
    return found


def of_recipe(recipe: Recipe) -> dict[str, Any]:
    """Return the same of a recipe of ours."""
    names = ("size", "scale", "flip", "jitter", "jitter_chance", "gray", "blur", "solarize")
    return {name: getattr(recipe, name) for name in names}


@pytest.mark.parametrize("name", sorted(TRANSFORMS))
def test_recipes_are_those_of_lightly(name: str) -> None:
    transforms = TRANSFORMS[name].transforms[: 2 + 6 * ("+" in name)]
    recipes = Views.named(name).recipes
    assert [of_recipe(recipe) for recipe in recipes] == [of_lightly(transform) for transform in transforms]


def test_other_recipes_keep_the_local_crops_of_dino_for_a_vit() -> None:
    assert Views.named("moco-v3+local8").recipes[-1].scale == (0.05, 0.4)
