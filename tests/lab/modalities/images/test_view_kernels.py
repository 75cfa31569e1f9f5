"""Kernels of augmentation equal torch's operations; boxes are the same, image by image and in batches."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

from contrapose.lab.modalities.images.views import Views
from contrapose.lab.modalities.images.views.recipe import Recipe

KERNELS = """
import torch
from contrapose.lab.modalities.images.views import Views, kernels, operations
from contrapose.lab.modalities.images.views.recipe import Recipe

torch.manual_seed(0)
shapes = [(40, 52), (31, 30), (60, 44)]
images = [torch.randint(0, 256, (3, *shape), dtype=torch.uint8) for shape in shapes]
index = [5, 9, 2]
for cubic in (False, True):
    views = Views((Recipe(20, scale=(0.08, 1.0), cubic=cubic), Recipe(12, scale=(0.5, 1.0), cubic=cubic)))
    crops = views.crop_each(images, index, seed=1, epoch=2)
    for place, image in enumerate(images):
        for ours, one in zip(crops, views.crop_one(image, index[place], seed=1, epoch=2), strict=True):
            torch.testing.assert_close(ours[place], one, rtol=0, atol=5e-6)
plain = views.plain_each(images)
for ours, image in zip(plain, images, strict=True):
    torch.testing.assert_close(ours, views.plain(image[None])[0], rtol=0, atol=5e-6)
x, index = torch.rand(4, 3, 21, 21), torch.arange(4)
x[0] = x[0].mean(0)
recipes = [Recipe(21, jitter=(0.8, 0.8, 0.8, 0.2), gray=0.4, blur=0.5, solarize=0.3), Recipe(21, jitter=None), Recipe(21, jitter_chance=1.0)]
expected = [recipe.finish(x, index, 3, epoch) for epoch in range(2) for recipe in recipes]
raw = torch.randint(0, 256, (4, 3, 50, 41), dtype=torch.uint8)
whole = recipes[0](raw, index, 3, 4)
Recipe.kernels = lambda self, device: kernels
for value, (epoch, recipe) in zip(expected, [(e, r) for e in range(2) for r in recipes], strict=True):
    torch.testing.assert_close(recipe.finish(x, index, 3, epoch), value, rtol=0, atol=5e-6)
torch.testing.assert_close(recipes[0](raw, index, 3, 4), whole, rtol=0, atol=5e-6)
print("equal")
"""


@pytest.mark.thorough
def test_kernels_equal_the_operations() -> None:
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONWARNINGS": "ignore"}
    assert "equal" in subprocess.check_output([sys.executable, "-c", KERNELS], text=True, env=environment)


@pytest.mark.parametrize("recipe", [Recipe(224, scale=(0.08, 1.0)), Recipe(32, ratio=(1.0, 1.0), scale=(0.9, 1.0))])
def test_boxes_of_a_batch_are_those_of_its_images(recipe: Recipe) -> None:
    """To the bit, since a GPU crops batches and a worker crops single images."""
    generator, count = torch.Generator().manual_seed(0), 300
    shapes, index = torch.randint(20, 3000, (count, 2), generator=generator), torch.arange(count) * 7
    together = torch.stack([part.float() for part in recipe.boxes(index, 1, 2, shape=shapes)], 1)
    for place in range(count):
        one = recipe.boxes(index[place : place + 1], 1, 2, shape=shapes[place].tolist())
        assert torch.equal(torch.stack([part.float() for part in one], 1)[0], together[place])


@pytest.mark.parametrize("name", ["simclr", "dino", "byol"])
def test_one_image_is_cropped_like_a_batch(name: str) -> None:
    views = Views.named(name, size=96)
    image = torch.randint(0, 256, (3, 150, 120), dtype=torch.uint8)
    batched = views.crop(image[None], torch.tensor([4]), seed=0, epoch=3)
    for one, expected in zip(views.crop_one(image, 4, seed=0, epoch=3), batched, strict=True):
        torch.testing.assert_close(one, expected[0], rtol=0, atol=2e-5)
