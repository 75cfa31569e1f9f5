# mypy: disable-error-code="no-untyped-def,untyped-decorator"
"""Triton kernels of image augmentation: crops out of images of any sizes, colours, and blur. Imported only when used.

Each computes what a function in operations.py computes, with one program for a block of an image's pixels.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from contrapose.reduce.hardware import on_device

_BLOCK = 1024  # pixels of a program


@triton.jit
def _kernel_weight(distance, CUBIC: tl.constexpr):
    x = tl.abs(distance)
    if CUBIC:
        near = (1.5 * x - 2.5) * x * x + 1
        far = ((-0.5 * x + 2.5) * x - 4) * x + 2
        return tl.where(x < 1, near, tl.where(x < 2, far, 0.0))
    return tl.maximum(1 - x, 0.0)


@triton.jit
def _crop_kernel(
    pixels, images, boxes, out, count, size, CUBIC: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    item = tl.program_id(0).to(tl.int64)
    image, box = images + item % count * 3, boxes + item * 9
    start, image_height, image_width = tl.load(image), tl.load(image + 1), tl.load(image + 2)
    top, left, height, width = tl.load(box), tl.load(box + 1), tl.load(box + 2), tl.load(box + 3)
    step_y, step_x = height / tl.load(box + 4), width / tl.load(box + 5)
    place = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = place < size * size
    row, column = place // size, place % size
    column = tl.where(tl.load(box + 8) > 0, size - 1 - column, column)
    # Antialiasing: the kernel widens with the step when the crop is larger than the result.
    wide_y, wide_x = tl.maximum(step_y, 1.0), tl.maximum(step_x, 1.0)
    reach: tl.constexpr = 2.0 if CUBIC else 1.0
    centre_y = top + (row + tl.load(box + 6) + 0.5) * step_y
    centre_x = left + (column + tl.load(box + 7) + 0.5) * step_x
    first_y, first_x = tl.ceil(centre_y - reach * wide_y - 0.5), tl.ceil(centre_x - reach * wide_x - 0.5)
    count_y, count_x = (2 * reach * wide_y).to(tl.int32) + 1, (2 * reach * wide_x).to(tl.int32) + 1
    plane = image_height * image_width
    red, green, blue = tl.zeros([BLOCK], tl.float32), tl.zeros([BLOCK], tl.float32), tl.zeros([BLOCK], tl.float32)
    total_y, total_x = tl.zeros([BLOCK], tl.float32), tl.zeros([BLOCK], tl.float32)
    for i in range(count_y):
        y = first_y + i
        inside_y = (y >= top) & (y < top + height)
        weight_y = tl.where(inside_y, _kernel_weight((y + 0.5 - centre_y) / wide_y, CUBIC), 0.0)
        total_y += weight_y
        line = start + y.to(tl.int64) * image_width
        for j in range(count_x):
            x = first_x + j
            inside_x = (x >= left) & (x < left + width)
            weight_x = tl.where(inside_x, _kernel_weight((x + 0.5 - centre_x) / wide_x, CUBIC), 0.0)
            total_x += tl.where(i == 0, weight_x, 0.0)
            source = pixels + line + x.to(tl.int64)
            used, weight = inside & inside_y & inside_x, weight_y * weight_x
            red += weight * tl.load(source, used, 0).to(tl.float32)
            green += weight * tl.load(source + plane, used, 0).to(tl.float32)
            blue += weight * tl.load(source + 2 * plane, used, 0).to(tl.float32)
    scale = 1 / (total_y * total_x * 255)
    result, area = out + item * 3 * size * size + place, size * size
    red, green, blue = red * scale, green * scale, blue * scale
    if CUBIC:  # overshoots
        red, green, blue = _clamp(red), _clamp(green), _clamp(blue)
    tl.store(result, red, inside)
    tl.store(result + area, green, inside)
    tl.store(result + 2 * area, blue, inside)


@triton.jit
def _clamp(x):
    return tl.minimum(tl.maximum(x, 0.0), 1.0)


@triton.jit
def _luminance(red, green, blue):
    return 0.2989 * red + 0.587 * green + 0.114 * blue


@triton.jit
def _channel(value, chroma, sector, OFFSET: tl.constexpr):
    """Return one channel of the colour with this value, chroma and hue."""
    k = OFFSET + sector
    k = k - 6 * tl.floor(k / 6)
    return value - chroma * _clamp(tl.minimum(k, 4 - k))


@triton.jit
def _colour(red, green, blue, operation, factor, mean):
    """Apply one operation of a colour jitter."""
    if operation == 3:
        value, low = tl.maximum(red, tl.maximum(green, blue)), tl.minimum(red, tl.minimum(green, blue))
        chroma = value - low
        divisor = tl.where(chroma == 0, 1.0, chroma)  # gray pixels have no hue
        far_red, far_green, far_blue = (value - red) / divisor, (value - green) / divisor, (value - blue) / divisor
        turn = tl.where(
            value == red,
            far_blue - far_green,
            tl.where(value == green, 2 + far_red - far_blue, 4 + far_green - far_red),
        )
        turn = turn / 6 + 1
        turn = turn - tl.floor(turn) + factor
        sector = (turn - tl.floor(turn)) * 6
        red, green, blue = (
            _channel(value, chroma, sector, 5.0),
            _channel(value, chroma, sector, 3.0),
            _channel(value, chroma, sector, 1.0),
        )
    elif operation < 3:
        other = tl.zeros_like(red)
        if operation == 1:
            other += mean
        elif operation == 2:
            other = _luminance(red, green, blue)
        other = (1 - factor) * other
        red, green, blue = (
            _clamp(factor * red + other),
            _clamp(factor * green + other),
            _clamp(factor * blue + other),
        )
    return red, green, blue


@triton.jit
def _load_pixels(x, item, area, place, inside):
    source = x + item * 3 * area + place
    return (
        tl.load(source, inside, 0.0),
        tl.load(source + area, inside, 0.0),
        tl.load(source + 2 * area, inside, 0.0),
    )


@triton.jit
def _mean_kernel(x, colours, sums, area, BLOCK: tl.constexpr):
    """Sum the luminance of a block of pixels as it is just before the contrast changes."""
    item = tl.program_id(0).to(tl.int64)
    place = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = place < area
    red, green, blue = _load_pixels(x, item, area, place, inside)
    before = True
    for position in tl.static_range(4):
        operation = tl.load(colours + item * 9 + position).to(tl.int32)
        before = before & (operation != 1)
        if before:
            factor = tl.load(colours + item * 9 + 4 + operation % 4)
            red, green, blue = _colour(red, green, blue, operation, factor, 0.0)
    light = tl.where(inside, _luminance(red, green, blue), 0.0)
    tl.store(sums + item * tl.num_programs(1) + tl.program_id(1), tl.sum(light, 0))


@triton.jit
def _colour_kernel(x, colours, means, out, area, BLOCK: tl.constexpr):
    item = tl.program_id(0).to(tl.int64)
    place = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = place < area
    red, green, blue = _load_pixels(x, item, area, place, inside)
    mean = tl.load(means + item)
    for position in tl.static_range(4):
        operation = tl.load(colours + item * 9 + position).to(tl.int32)
        factor = tl.load(colours + item * 9 + 4 + operation % 4)
        red, green, blue = _colour(red, green, blue, operation, factor, mean)
    if tl.load(colours + item * 9 + 8) > 0:  # grayscale
        red = _luminance(red, green, blue)
        green, blue = red, red
    result = out + item * 3 * area + place
    tl.store(result, red, inside)
    tl.store(result + area, green, inside)
    tl.store(result + 2 * area, blue, inside)


@triton.jit
def _blur_kernel(x, sigmas, out, size, TAPS: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """Blur along rows or columns with reflection at the border; an image with a sigma of 0 is copied."""
    item = tl.program_id(0).to(tl.int64)
    place = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = place < 3 * size * size
    source, sigma = x + item * 3 * size * size, tl.load(sigmas + item)
    if sigma > 0:
        position = place % size if ROWS else place // size % size
        line = place - position if ROWS else place - position * size
        blurred, total = tl.zeros([BLOCK], tl.float32), 0.0
        for tap in range(TAPS):
            distance = (tap - TAPS // 2) / sigma
            weight = tl.exp(-0.5 * distance * distance)
            other = tl.abs(position + tap - TAPS // 2)
            other = tl.minimum(other, 2 * (size - 1) - other)
            blurred += weight * tl.load(source + line + (other if ROWS else other * size), inside, 0.0)
            total += weight
        blurred = blurred / total
    else:
        blurred = tl.load(source + place, inside, 0.0)
    tl.store(out + item * 3 * size * size + place, blurred, inside)


def places_among(images: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Return the `pixels` and `places` of contiguous images (3, H, W) of different sizes on a GPU, as `crop` takes them.

    Nothing is copied: places are distances in memory from the first image, and may be negative. Keep the images until the
    crops are queued.
    """
    assert all(image.is_contiguous() for image in images)
    start = images[0].data_ptr()
    places = [[image.data_ptr() - start, *image.shape[1:]] for image in images]
    return images[0], torch.tensor(places).to(images[0].device)


def places_of(images: Tensor) -> Tensor:
    """Return, for images (B, 3, H, W) of one size, the place of each image's first value, its height and its width (B, 3)."""
    count, channels, height, width = images.shape
    place = torch.arange(count, device=images.device) * (channels * height * width)
    return torch.stack([place, torch.full_like(place, height), torch.full_like(place, width)], 1)


def crop(pixels: Tensor, places: Tensor, boxes: Sequence[Tensor], size: int, *, cubic: bool = False) -> Tensor:
    """Crop like `operations.crop_resize`, but images of any sizes; return float32 (n, 3, size, size) in [0, 1].

    pixels   uint8, all images one after the other
    places   int64 (B, 3): the place of each image's first value in `pixels`, its height and its width
    boxes    top, left, height and width of each crop (n,) and whether it is mirrored; crop i is of image i % B
    """
    *box, flip = boxes
    full, zero = torch.full_like(box[0], size), torch.zeros_like(box[0])
    return resample(pixels, places, torch.stack([*box, full, full, zero, zero, flip.float()], 1), size, cubic=cubic)


def resample(pixels: Tensor, places: Tensor, boxes: Tensor, size: int, *, cubic: bool = False) -> Tensor:
    """Crop and resize, and return the window of size × size pixels of the resized box, float32 (n, 3, size, size).

    boxes   float32 (n, 9): top, left, height and width of the box; height and width to which it is resized; first row and column
            of the window; 1 if it is mirrored
    """
    out = torch.empty((len(boxes), 3, size, size), device=pixels.device)
    grid = (len(boxes), triton.cdiv(size * size, _BLOCK))
    with on_device(pixels):
        _crop_kernel[grid](pixels, places, boxes, out, len(places), size, CUBIC=cubic, BLOCK=_BLOCK)
    return out


def jitter(images: Tensor, order: Sequence[Tensor], factors: Sequence[Tensor], gray: Tensor) -> Tensor:
    """Apply `operations.jitter` and, where `gray` is true, `operations.grayscale`."""
    colours = torch.stack([*(numbers.float() for numbers in order), *factors, gray.float()], 1)
    area, out = images.shape[2] * images.shape[3], torch.empty_like(images)
    grid = (len(images), triton.cdiv(area, _BLOCK))
    with on_device(images):
        sums = torch.empty(grid, device=images.device)
        _mean_kernel[grid](images, colours, sums, area, BLOCK=_BLOCK)
        _colour_kernel[grid](images, colours, sums.sum(1) / area, out, area, BLOCK=_BLOCK)
    return out


def blur(images: Tensor, sigma: Tensor, taps: int) -> Tensor:
    """Apply `operations.blur` to square images (B, 3, size, size), except to those with a sigma of 0."""
    size, rows, out = images.shape[3], torch.empty_like(images), torch.empty_like(images)
    grid = (len(images), triton.cdiv(3 * size * size, _BLOCK))
    with on_device(images):
        _blur_kernel[grid](images, sigma, rows, size, TAPS=taps, ROWS=True, BLOCK=_BLOCK)
        _blur_kernel[grid](rows, sigma, out, size, TAPS=taps, ROWS=False, BLOCK=_BLOCK)
    return out
