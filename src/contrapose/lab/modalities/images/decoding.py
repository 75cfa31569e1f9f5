"""Decode image files, as an image viewer shows them, at full size or to the square that evaluation uses.

EXIF rotation is applied, transparent pixels are drawn on white, CMYK becomes RGB, and 16 bits are scaled to 8. Only the first
frame of an animation is read. The same rule applies to every image: white is 65,535 for 16-bit and 32-bit integers and 1.0 for
floating-point numbers, and values below 0 or above white are refused.
"""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import torch
from torch import Tensor

from contrapose.lab.modalities.images.jpeg import read_header, upright
from contrapose.lab.modalities.images.views.operations import centre_start, resized_shape
from contrapose.lab.modalities.modality import LARGEST_MEGAPIXELS, DataSettings
from contrapose.lab.modalities.progress import progress_bar
from contrapose.lab.modalities.stored_files import ShardMember, StoredFile, check_regular

if TYPE_CHECKING:
    from PIL.Image import Image

# Pillow recognises a file by its content. With its full list, an EPS file named .png would be run by Ghostscript.
FORMATS = ("PNG", "JPEG", "BMP", "GIF", "TIFF", "PPM", "WEBP")
ENDINGS = frozenset(
    {".png", ".jpg", ".jpeg", ".jpe", ".jfif", ".bmp", ".webp", ".gif", ".tif", ".tiff", ".ppm", ".pgm", ".pbm"}
)
_MAX_PIXELS = 2**27  # most pixels in a resized image before the crop: 384 MiB
_BYTES_PER_PIXEL = 8  # without compression, at four channels of 16 bits
_METADATA = 2**26  # bytes beside the pixels
_ORIENTATION = 0x0112  # tag of EXIF
_TILE_SIDES = (323, 322)  # tags of TIFF: length and width of a tile
_CHUNK = 256  # files submitted to the threads at a time, which bounds the memory for decoded images

T = TypeVar("T")
ImagePath = Path | StoredFile  # where an image is stored: in its own file, or in a shard


@dataclass(frozen=True)
class Problem:
    """A file that cannot be read as an image, and the reason."""

    path: ImagePath
    why: str


class UnreadableImage(ValueError):
    """An image file cannot be decoded; the message contains its path and index."""


def readable(index: int, image: T | Problem) -> T:
    """Return what was read of the image with this index; raise an error if its file is broken."""
    if isinstance(image, Problem):
        raise UnreadableImage(
            f"data: image {index}, {image.path}, cannot be read: {image.why} (--skip-broken leaves such files out, "
            "`contrapose data check` lists them)"
        )
    return image


def open_image(path: ImagePath | BytesIO, *, max_megapixels: float = DataSettings.max_megapixels) -> Image:
    """Open an image file in one of `FORMATS`; its pixels are not decoded yet. Refuse an image with too many pixels."""
    from PIL import Image, UnidentifiedImageError

    if not isinstance(path, BytesIO):
        _check_bytes(path, max_megapixels)
    file = path if isinstance(path, Path | BytesIO) else BytesIO(path.read())
    if (os.path.getsize(file) if isinstance(file, Path) else len(file.getbuffer())) == 0:
        raise ValueError("the file is empty")
    try:
        image = Image.open(file, formats=FORMATS)
    except UnidentifiedImageError:  # Pillow's message would repeat the path
        raise ValueError(f"its content is none of {', '.join(FORMATS)}") from None
    except Image.DecompressionBombError:  # Pillow's own limit, which the setting cannot exceed
        raise ValueError(f"it has more than {LARGEST_MEGAPIXELS} megapixels") from None
    # A file of a few kilobytes can declare gigabytes of pixels, so the size in the header is checked before decoding.
    try:
        check_megapixels(image.height, image.width, max_megapixels)
        if image.format == "TIFF":
            _check_tiles(image, max_megapixels)
    except ValueError:
        image.close()
        raise
    return image


def check_megapixels(height: int, width: int, most: float) -> None:
    """Raise ValueError if an image has more than `most` megapixels."""
    if width * height > most * 1e6:
        size = f"{width} × {height}"
        raise ValueError(f"{size} pixels are more than {most:g} megapixels (the setting max_megapixels)")


def _check_tiles(image: Image, most: float) -> None:
    """Refuse a TIFF with a tile of more than `most` megapixels: libtiff unpacks whole tiles, whatever the size of the image."""
    tags = getattr(image, "tag_v2", {})
    length, width = (tags.get(tag, 0) for tag in _TILE_SIDES)
    if not (isinstance(length, int) and isinstance(width, int)):
        raise ValueError("the size of its tiles is damaged")
    try:
        check_megapixels(length, width, most)
    except ValueError as error:
        raise ValueError(f"its tiles: {error}") from None


def _check_bytes(path: ImagePath, most: float) -> None:
    """Refuse a file that is larger than an image of `most` megapixels can be, before its content is read into memory."""
    size = check_regular(path) if isinstance(path, Path) else path.size if isinstance(path, ShardMember) else 0
    if size > most * 1e6 * _BYTES_PER_PIXEL + _METADATA:
        raise ValueError(
            f"its {size:,} bytes are more than an image of {most:g} megapixels has (the setting max_megapixels)"
        )


def as_rgb(image: Image) -> Image:
    """Decode an image and convert it to 8-bit RGB, upright, on a white background."""
    from PIL import Image, ImageOps

    image.load()
    if image.getexif().get(_ORIENTATION, 1) != 1:  # otherwise Pillow would copy the pixels
        image = ImageOps.exif_transpose(image)
    if image.mode.startswith("I") or image.mode == "F":
        return _eight_bits(image).convert("RGB")
    if image.has_transparency_data:
        image = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", image.size, "white"), image).convert("RGB")
    return image if image.mode == "RGB" else image.convert("RGB")


def _eight_bits(image: Image) -> Image:
    """Scale a gray image with 16-bit, 32-bit or floating-point pixels to 8 bits; refuse pixel values of unknown range."""
    import numpy as np
    from PIL import Image

    # Pillow's own conversion clips at 255, which makes most of a 16-bit image white.
    values = np.asarray(image)
    low, high = float(values.min()), float(values.max())
    kind, white = ("floating-point numbers", 1.0) if image.mode == "F" else ("32-bit integers", 65535.0)
    # Scaling each image by its own maximum would make dark images as bright as others.
    if not 0 <= low <= high <= white:  # NaN fails this check too
        raise ValueError(
            f"expected {kind} from 0 to {white:,g}, got {low:.9g} to {high:.9g}; convert the file to 8 or 16 bits"
        )
    return Image.fromarray((values.astype(np.float32) * (255 / white)).round().astype(np.uint8))


def decode(path: ImagePath | BytesIO, *, max_megapixels: float = DataSettings.max_megapixels) -> Tensor:
    """Decode an image at its own size, as uint8 (3, H, W)."""
    with open_image(path, max_megapixels=max_megapixels) as file:
        return _tensor(as_rgb(file))


def decode_fast(path: ImagePath, *, max_megapixels: float = DataSettings.max_megapixels) -> Tensor:
    """Return what `decode` returns. JPEG files of the usual kinds are decoded by torchvision, in 60 % of Pillow's time."""
    content = read_content(path, max_megapixels=max_megapixels)
    header = read_header(content)
    if header is None:
        return decode(BytesIO(content), max_megapixels=max_megapixels)
    from torchvision.io import ImageReadMode, decode_jpeg  # only now, since it takes a second to import

    check_megapixels(header.height, header.width, max_megapixels)
    try:
        pixels = decode_jpeg(torch.frombuffer(bytearray(content), dtype=torch.uint8), ImageReadMode.RGB)
    except RuntimeError:  # Pillow's message is the one that users know
        return decode(BytesIO(content), max_megapixels=max_megapixels)
    return upright(pixels, header.orientation)


def read_content(path: ImagePath, *, max_megapixels: float) -> bytes:
    """Return the content of an image file; refuse what is not a regular file, or too large."""
    _check_bytes(path, max_megapixels)
    return path.read_bytes() if isinstance(path, Path) else path.read()


def decode_square(
    path: ImagePath, *, size: int, resized: int, max_megapixels: float = DataSettings.max_megapixels
) -> Tensor:
    """Decode an image to the square that evaluation uses, uint8 (3, resized, resized): see `crop_square`."""
    with open_image(path, max_megapixels=max_megapixels) as file:
        return crop_square(as_rgb(file), size=size, resized=resized)


def check_elongation(height: int, width: int, resized: int) -> tuple[int, int]:
    """Return the shape of an image after its shorter side is resized; raise ValueError if it has too many pixels then."""
    shape = resized_shape(height, width, resized)
    if math.prod(shape) > _MAX_PIXELS:
        raise ValueError(f"{width} × {height} pixels are too elongated for a square of {resized}")
    return shape


def crop_square(image: Image, *, size: int, resized: int) -> Tensor:
    """Resize the shorter side of an RGB image to `resized` pixels and crop it to a square, uint8 (3, resized, resized).

    A centre crop of this square to `size` is identical, to the pixel, to the centre crop of the whole resized image, which
    torchvision makes with `Resize(resized)` and `CenterCrop(size)`.
    """
    from PIL import Image

    height, width = check_elongation(image.height, image.width, resized)
    if (image.height, image.width) != (height, width):
        image = image.resize((width, height), Image.Resampling.BILINEAR)
    margin = centre_start(resized, size)
    left, top = centre_start(width, size) - margin, centre_start(height, size) - margin
    return _tensor(image.crop((left, top, left + resized, top + resized)))


def _tensor(image: Image) -> Tensor:
    import numpy as np

    return torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous()


@contextmanager
def quiet_decoders() -> Iterator[None]:
    """Silence Pillow's warnings about large images and damaged metadata in this block; errors are still raised.

    Also silenced is torchvision's advice to use TorchCodec, which replaces its decoders from version 0.29 on.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module=r"PIL\.")
        warnings.filterwarnings("ignore", category=DeprecationWarning, module=r"torchvision\.io")
        yield


def attempt(read: Callable[[ImagePath], T], path: ImagePath) -> T | Problem:
    """Read a file; if it is broken, return the problem."""
    try:
        return read(path)
    except Exception as error:  # decoders raise errors of many types
        why = " ".join(str(error).split())  # on one line
        return Problem(path, why if type(error) is ValueError else f"{type(error).__name__}: {why}")


def read_all(
    paths: Sequence[ImagePath], read: Callable[[ImagePath], T], description: str
) -> Generator[T | Problem, None, None]:
    """Yield the result of `read` for each file in order, or its problem; several threads read at the same time."""
    # Threads are enough, because Pillow decodes and resizes without holding the interpreter's lock. Warnings are silenced
    # here and not in each thread, because all threads share the warning filters.
    threads = ThreadPoolExecutor(min(8, os.cpu_count() or 1))
    with quiet_decoders(), threads, progress_bar(description, len(paths)) as advance:
        for first in range(0, len(paths), _CHUNK):
            for result in threads.map(lambda path: attempt(read, path), paths[first : first + _CHUNK]):
                advance()
                yield result
