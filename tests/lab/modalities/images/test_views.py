"""Operations equal torchvision's for the same parameters, and the parameters have torchvision's distributions."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from scipy import stats
from torch import Tensor
from torchvision.transforms import InterpolationMode, RandomResizedCrop
from torchvision.transforms import functional as tv

from contrapose.lab.modalities.images.views import RECIPES, Recipe, Views
from contrapose.lab.modalities.images.views import operations as ops
from contrapose.lab.modalities.images.views.recipe import _nth_permutation
from contrapose.randomness import permutation, uniform

IMAGES = torch.rand(12, 3, 32, 32, generator=torch.Generator().manual_seed(0))
TALL = torch.rand(12, 3, 40, 56, generator=torch.Generator().manual_seed(1))
FACTOR = torch.linspace(0.2, 1.8, 12)


def each(operation: object, images: Tensor, *parameters: list[float]) -> Tensor:
    """Apply an operation of torchvision to one image at a time."""
    return torch.stack([operation(x, *p) for x, *p in zip(images, *parameters, strict=True)])  # type: ignore[operator]


@pytest.mark.parametrize("images", [IMAGES, TALL], ids=["square", "tall"])
@pytest.mark.parametrize("size", [16, 32, 48])
@pytest.mark.parametrize("cubic", [False, True])
def test_crops(images: Tensor, size: int, cubic: bool) -> None:
    generator = torch.Generator().manual_seed(size)
    h, w = images.shape[2:]
    height, width = (torch.randint(3, n + 1, (12,), generator=generator) for n in (h, w))
    top = torch.tensor([int(torch.randint(0, h - int(x) + 1, (), generator=generator)) for x in height])
    left = torch.tensor([int(torch.randint(0, w - int(x) + 1, (), generator=generator)) for x in width])
    flip = torch.arange(12) % 2 == 0
    ours = ops.crop_resize(images, top, left, height, width, flip, size, cubic=cubic)
    mode = InterpolationMode.BICUBIC if cubic else InterpolationMode.BILINEAR
    for i in range(12):
        box = (int(top[i]), int(left[i]), int(height[i]), int(width[i]))
        expected = tv.resized_crop(images[i], *box, [size, size], mode, antialias=True).clamp(0, 1)
        torch.testing.assert_close(ours[i], tv.hflip(expected) if flip[i] else expected, rtol=0, atol=5e-6)


def test_colours() -> None:
    for ours, theirs in (
        (ops.brightness, tv.adjust_brightness),
        (ops.contrast, tv.adjust_contrast),
        (ops.saturation, tv.adjust_saturation),
    ):
        torch.testing.assert_close(ours(IMAGES, FACTOR), each(theirs, IMAGES, FACTOR.tolist()), rtol=0, atol=1e-6)
    shift = torch.linspace(-0.5, 0.5, 12)
    torch.testing.assert_close(ops.hue(IMAGES, shift), each(tv.adjust_hue, IMAGES, shift.tolist()), rtol=0, atol=2e-5)
    gray = IMAGES.mean(1, keepdim=True).expand_as(IMAGES)  # gray has no hue and must not change
    torch.testing.assert_close(ops.hue(gray, shift), gray)
    expected = each(lambda x: tv.rgb_to_grayscale(x, 3), IMAGES)
    torch.testing.assert_close(ops.grayscale(IMAGES), expected)
    torch.testing.assert_close(ops.solarize(IMAGES), each(lambda x: tv.solarize(x, 0.5), IMAGES))
    mean, std = (0.4, 0.5, 0.6), (0.2, 0.3, 0.4)
    torch.testing.assert_close(
        ops.normalize(IMAGES, mean, std), each(lambda x: tv.normalize(x, list(mean), list(std)), IMAGES)
    )


def test_blur_and_rotation() -> None:
    sigma = torch.linspace(0.1, 2, 12)
    for kernel in (3, 9):
        expected = each(lambda x, s, k=kernel: tv.gaussian_blur(x, [k, k], [s, s]), IMAGES, sigma.tolist())
        torch.testing.assert_close(ops.blur(IMAGES, sigma, kernel), expected, rtol=0, atol=1e-6)
    degrees = torch.linspace(-30, 30, 12)
    for images in (IMAGES, TALL):
        expected = each(lambda x, d: tv.rotate(x, d, InterpolationMode.BILINEAR), images, degrees.tolist())
        torch.testing.assert_close(ops.rotate(images, degrees), expected, rtol=0, atol=2e-5)


def test_cutout_blackens_one_square_inside() -> None:
    cut = ops.cutout(torch.ones(100, 3, 32, 32), *torch.rand(2, 100))
    assert (cut.sum((1, 2, 3)) == 3 * (32 * 32 - 8 * 8)).all()


def test_where_changes_only_the_chosen_images() -> None:
    chosen = torch.arange(12) % 3 == 0
    out = ops.where(chosen, ops.brightness, IMAGES, FACTOR)
    assert torch.equal(out[~chosen], IMAGES[~chosen])
    torch.testing.assert_close(out[chosen], ops.brightness(IMAGES, FACTOR)[chosen])


@pytest.mark.thorough
@pytest.mark.parametrize("shape", [(32, 32), (40, 100)])
@pytest.mark.parametrize("scale", [(0.08, 1.0), (0.2, 1.0), (0.9, 1.0)])
def test_boxes_are_distributed_as_torchvisions(shape: tuple[int, int], scale: tuple[float, float]) -> None:
    n = 4000
    u = uniform(torch.arange(n), 22, 3)
    ours = Recipe(scale=scale).boxes_from(u[:, :20], u[:, 20], u[:, 21], shape)
    torch.manual_seed(0)
    image = torch.zeros(3, *shape)
    theirs = torch.tensor([RandomResizedCrop.get_params(image, list(scale), [3 / 4, 4 / 3]) for _ in range(n)])
    for drawn, expected in zip(ours, theirs.unbind(1), strict=True):
        assert stats.ks_2samp(drawn.numpy(), expected.float().numpy(), method="asymp").pvalue > 1e-4


def test_uniform_numbers_are_uniform_and_independent() -> None:
    u = uniform(torch.arange(20000), 4, 1, 2)
    for column in u.unbind(1):
        assert stats.kstest(column.numpy(), "uniform").pvalue > 1e-4
    others = [u[:, 1], uniform(torch.arange(20000), 1, 1, 3)[:, 0], uniform(torch.arange(20000), 1, 2, 2)[:, 0],
              uniform(torch.arange(20000) + 1, 1, 1, 2)[:, 0]]  # fmt: skip
    for other in others:
        assert abs(float(torch.corrcoef(torch.stack([u[:, 0], other]))[0, 1])) < 5 / math.sqrt(20000)
    assert (u >= 0).all()
    assert (u < 1).all()


def test_permutations_are_uniform() -> None:
    orders = [tuple(permutation(3, seed).tolist()) for seed in range(1200)]
    counts = [orders.count(order) for order in set(orders)]
    assert len(counts) == 6
    assert stats.chisquare(counts).pvalue > 1e-4


def test_operations_have_their_probabilities() -> None:
    images = torch.randint(0, 256, (3000, 3, 8, 8), dtype=torch.uint8)
    index = torch.arange(3000)
    identity = Recipe(8, scale=(1.0, 1.0), ratio=(1.0, 1.0), flip=0.0, jitter=None, gray=0.0)
    torch.testing.assert_close(identity(images, index, 0), images / 255, rtol=0, atol=1e-6)
    for change, share in (({"gray": 0.2}, 0.2), ({"flip": 0.5}, 0.5), ({"solarize": 0.2}, 0.2), ({"cutout": 0.5}, 0.5),
                          ({"jitter": (0.4, 0.4, 0.4, 0.1)}, 0.8), ({"noise": 0.5}, 0.5)):  # fmt: skip
        out = Recipe(**{**vars(identity), **change})(images, index, 0)
        changed = ((out - images / 255).abs().amax((1, 2, 3)) > 1e-4).float().mean()
        assert abs(float(changed) - share) < 0.04, change


@pytest.mark.parametrize("name", sorted(RECIPES))
def test_views_depend_only_on_seed_epoch_and_index(name: str) -> None:
    images = torch.randint(0, 256, (6, 3, 36, 36), dtype=torch.uint8)
    index = torch.tensor([5, 900, 17, 4, 60000, 8])
    views = Views.named(name, 2, size=24)
    (both,) = views.train(images, index, seed=3, epoch=2)
    assert both.shape == (2, 6, 3, 24, 24)
    assert torch.isfinite(both).all()
    order = torch.tensor([4, 0, 5])
    (some,) = views.train(images[order], index[order], seed=3, epoch=2)
    torch.testing.assert_close(some, both[:, order], rtol=0, atol=1e-5)  # independent of the rest of the batch
    assert not torch.allclose(both[0], both[1])
    assert not torch.allclose(views.train(images, index, seed=3, epoch=3)[0], both)
    assert not torch.allclose(views.train(images, index, seed=4, epoch=2)[0], both)


def test_multi_crop() -> None:
    images = torch.randint(0, 256, (2, 3, 36, 36), dtype=torch.uint8)
    large, small = Views.named("moco-v2+local8", 2).train(images, torch.arange(2), seed=0, epoch=0)
    assert large.shape == (2, 2, 3, 224, 224)
    assert small.shape == (8, 2, 3, 96, 96)


def test_an_unknown_recipe_suggests_the_nearest() -> None:
    with pytest.raises(ValueError, match="got 'simclr-cifr'; did you mean 'simclr-cifar'"):
        Views.named("simclr-cifr")


def test_orders_of_jitter_are_all_permutations() -> None:
    orders = torch.stack(_nth_permutation(torch.arange(24)), 1).tolist()
    assert orders == [list(order) for order in itertools.permutations(range(4))]


def test_a_recipe_may_have_every_operation() -> None:
    recipe = Recipe(size=16, blur=0.5, solarize=0.3, invert=0.3, rotate=0.3, cutout=0.3, noise=0.3)
    assert recipe((IMAGES * 255).byte(), torch.arange(12), 0, 0).isfinite().all()
