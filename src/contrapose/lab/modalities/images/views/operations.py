"""Batched image operations with one set of parameters per image.

Images are (B, 3, H, W) in [0, 1]; parameters are (B,). Results equal torchvision's for the same parameters.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn.functional import interpolate

NO_OPERATION = 4  # in an order of colour operations; 0 to 3 are brightness, contrast, saturation and hue
_GRAY = (0.2989, 0.587, 0.114)  # ITU-R 601-2 luma, with torchvision's rounding


def where(chosen: Tensor, operation: Callable[..., Tensor], images: Tensor, *parameters: Tensor) -> Tensor:
    """Apply an operation to the chosen images in a batch and leave the others unchanged."""
    # On a GPU the operation is computed for all images, since counting the chosen images would need a synchronisation.
    if images.device.type != "cpu":
        return torch.where(chosen[:, None, None, None], operation(images, *parameters), images)
    if not bool(chosen.any()):
        return images
    index = chosen.nonzero()[:, 0]
    changed = operation(images[index], *(parameter[index] for parameter in parameters))
    return images.index_copy(0, index, changed)


# --- geometry -------------------------------------------------------------------------------------------------------


def _triangle(x: Tensor) -> Tensor:
    """Evaluate the kernel of bilinear interpolation."""
    return (1 - x.abs()).clamp(min=0)


def _cubic(x: Tensor) -> Tensor:
    """Evaluate the kernel of bicubic interpolation (Keys)."""
    # a = -1/2, as in Pillow and in torch's antialiased mode; torch's mode without antialiasing has a = -3/4.
    x = x.abs()
    near = (1.5 * x - 2.5) * x * x + 1
    far = ((-0.5 * x + 2.5) * x - 4) * x + 2
    return torch.where(x < 1, near, torch.where(x < 2, far, torch.zeros_like(x)))


def _resampling(start: Tensor, length: Tensor, full: int, size: int, cubic: bool) -> Tensor:
    """Return the weights (B, size, full) that resample the crop [start, start + length) of `full` pixels to `size`."""
    scale = length / size
    centre = start[:, None] + (torch.arange(size, device=start.device) + 0.5) * scale[:, None]  # (B, size)
    pixel = torch.arange(full, device=start.device) + 0.5
    # Antialiasing: the kernel widens with the scale when the crop is larger than the result.
    distance = (pixel - centre[:, :, None]) / scale.clamp(min=1)[:, None, None]
    weight = _cubic(distance) if cubic else _triangle(distance)
    # Pixels outside the crop get no weight, as if the image had been cropped before resizing.
    inside = (pixel > start[:, None]) & (pixel < (start + length)[:, None])
    weight = weight * inside[:, None]
    return weight / weight.sum(-1, keepdim=True)


def crop_resize(
    images: Tensor,
    top: Tensor,
    left: Tensor,
    height: Tensor,
    width: Tensor,
    flip: Tensor,
    size: int,
    *,
    cubic: bool = False,
) -> Tensor:
    """Crop each image to its box, resize it to size × size with antialiasing and mirror it where `flip` is true."""
    # Resampling is linear and separable, so two batched matrix products replace a loop over images.
    rows = _resampling(top, height, images.shape[2], size, cubic)
    columns = _resampling(left, width, images.shape[3], size, cubic)
    columns = torch.where(flip[:, None, None], columns.flip(1), columns)
    resized = rows[:, None] @ images @ columns.transpose(1, 2)[:, None]
    return resized.clamp(0, 1) if cubic else resized  # a cubic kernel overshoots


def resize_one(box: Tensor, size: int, *, flip: bool, cubic: bool = False) -> Tensor:
    """Resize one image, uint8 (3, H, W), to float (3, size, size) with antialiasing, and mirror it if `flip` is true."""
    mode = "bicubic" if cubic else "bilinear"
    resized = interpolate(box[None].float() / 255, (size, size), mode=mode, antialias=True, align_corners=False)[0]
    resized = resized.clamp(0, 1) if cubic else resized
    return resized.flip(2) if flip else resized


def rotate(images: Tensor, degrees: Tensor) -> Tensor:
    """Rotate around the centre with bilinear interpolation; pixels from outside the image are black."""
    angle = degrees * (math.pi / 180)
    cos, sin, zero = torch.cos(angle), torch.sin(angle), torch.zeros_like(angle)
    h, w = images.shape[2:]
    # affine_grid has coordinates in [-1, 1] on both axes, so rotating a rectangle must account for its aspect ratio.
    matrix = torch.stack([torch.stack([cos, -sin * (h / w), zero], 1), torch.stack([sin * (w / h), cos, zero], 1)], 1)
    grid = torch.nn.functional.affine_grid(matrix, list(images.shape), align_corners=False)
    return torch.nn.functional.grid_sample(images, grid, align_corners=False)


def cutout(images: Tensor, top: Tensor, left: Tensor, share: float = 0.25) -> Tensor:
    """Blacken a square whose side is `share` of the image's; `top` and `left` in [0, 1) set its position."""
    h, w = images.shape[2:]
    side_h, side_w = max(1, round(h * share)), max(1, round(w * share))
    first_row, first_column = (top * (h - side_h + 1)).floor(), (left * (w - side_w + 1)).floor()
    row = torch.arange(h, device=images.device)[None] - first_row[:, None]
    column = torch.arange(w, device=images.device)[None] - first_column[:, None]
    # One mask serves all images: slices at different positions would need a loop.
    inside = ((row >= 0) & (row < side_h))[:, :, None] & ((column >= 0) & (column < side_w))[:, None, :]
    return images.masked_fill(inside[:, None], 0.0)


def resized_shape(height: int, width: int, shorter: int) -> tuple[int, int]:
    """Return height and width of an image whose shorter side is resized to `shorter`, with torchvision's rounding."""
    longer = int(shorter * max(height, width) / min(height, width))
    return (shorter, longer) if height <= width else (longer, shorter)


def centre_start(full: int, size: int) -> int:
    """Return the first pixel of a centre crop of `size` out of `full` pixels, with torchvision's rounding."""
    return round((full - size) / 2)


def centre_crop(images: Tensor, size: int, shorter: int) -> Tensor:
    """Resize the shorter side to `shorter`, unless it already has this length, and crop the centre to size × size."""
    height, width = images.shape[2:]
    if min(height, width) != shorter:
        height, width = resized_shape(height, width, shorter)
        images = interpolate(images, (height, width), mode="bilinear", antialias=True, align_corners=False)
    top, left = centre_start(height, size), centre_start(width, size)
    return images[:, :, top : top + size, left : left + size]


# --- colour ---------------------------------------------------------------------------------------------------------


def _luminance(images: Tensor) -> Tensor:
    """Return the luminance (B, 1, H, W)."""
    r, g, b = images.unbind(1)
    return (_GRAY[0] * r + _GRAY[1] * g + _GRAY[2] * b)[:, None]


def _blend(images: Tensor, other: Tensor | float, factor: Tensor) -> Tensor:
    """Interpolate from `other` (factor 0) to `images` (factor 1) and beyond."""
    factor = factor[:, None, None, None]
    return (factor * images + (1 - factor) * other).clamp(0, 1)


def grayscale(images: Tensor) -> Tensor:
    """Replace all three channels by the luminance."""
    return _luminance(images).expand_as(images)


def brightness(images: Tensor, factor: Tensor) -> Tensor:
    """Blend with black."""
    return (images * factor[:, None, None, None]).clamp(0, 1)


def contrast(images: Tensor, factor: Tensor) -> Tensor:
    """Blend with each image's mean luminance."""
    return _blend(images, _luminance(images).mean((1, 2, 3), keepdim=True), factor)


def saturation(images: Tensor, factor: Tensor) -> Tensor:
    """Blend with the gray image."""
    return _blend(images, _luminance(images), factor)


def hue(images: Tensor, shift: Tensor) -> Tensor:
    """Rotate the hue by `shift` of a full turn, in HSV."""
    r, g, b = images.unbind(1)
    value, low = images.amax(1), images.amin(1)
    chroma = value - low
    # Gray pixels have no hue; dividing by 1 instead of by their chroma of 0 leaves them unchanged.
    gray = chroma == 0
    divisor = torch.where(gray, torch.ones_like(chroma), chroma)
    rc, gc, bc = (value - r) / divisor, (value - g) / divisor, (value - b) / divisor
    turn = torch.where(value == r, bc - gc, torch.where(value == g, 2 + rc - bc, 4 + gc - rc))
    turn = (turn / 6 + 1) % 1 + shift[:, None, None]
    s = chroma / torch.where(gray, torch.ones_like(value), value)
    # The closed form of HSV to RGB: each channel equals the value, minus up to the chroma if the hue is far from the channel.
    sector = (turn % 1) * 6
    channels = []
    for offset in (5.0, 3.0, 1.0):
        k = (offset + sector) % 6
        channels.append(value - value * s * torch.minimum(k, 4 - k).clamp(0, 1))
    return torch.stack(channels, 1)


def jitter(images: Tensor, order: Sequence[Tensor], factors: Sequence[Tensor], used: Sequence[bool]) -> Tensor:
    """Apply brightness, contrast, saturation and hue in each image's order.

    order     for each position, the number of the operation (B,), or `NO_OPERATION`
    factors   the parameter of each operation (B,)
    used      whether each operation is used at all
    """
    for operations in order:
        # At every position, each operation applies to some of the images.
        for number, operation in enumerate((brightness, contrast, saturation, hue)):
            if used[number]:
                images = where(operations == number, operation, images, factors[number])
    return images


def solarize(images: Tensor) -> Tensor:
    """Invert all values of at least one half."""
    return torch.where(images >= 0.5, 1 - images, images)


def invert(images: Tensor) -> Tensor:
    """Return the negative of each image."""
    return 1 - images


def blur(images: Tensor, sigma: Tensor, kernel: int) -> Tensor:
    """Apply a Gaussian blur with one sigma per image, a kernel of odd width and reflection at the border."""
    half = kernel // 2
    x = torch.arange(-half, half + 1, device=images.device, dtype=images.dtype)
    weight = torch.exp(-0.5 * (x / sigma[:, None]) ** 2)
    weight = weight / weight.sum(1, keepdim=True)  # (B, kernel)
    # All images become channels of one image, so that a grouped convolution blurs each image with its own kernel.
    b, c, h, w = images.shape
    padded = torch.nn.functional.pad(images, (half,) * 4, mode="reflect").reshape(1, b * c, h + 2 * half, w + 2 * half)
    kernels = weight.repeat_interleave(c, 0)
    blurred_rows = torch.nn.functional.conv2d(padded, kernels[:, None, None, :], groups=b * c)
    return torch.nn.functional.conv2d(blurred_rows, kernels[:, None, :, None], groups=b * c).reshape(b, c, h, w)


def normalize(images: Tensor, mean: tuple[float, ...], std: tuple[float, ...]) -> Tensor:
    """Return (x - mean) / std for each channel."""
    # Channel by channel with Python numbers: a tensor of means would be copied from the host, which a CUDA graph forbids.
    return torch.stack([(x - m) / s for x, m, s in zip(images.unbind(1), mean, std, strict=True)], 1)
