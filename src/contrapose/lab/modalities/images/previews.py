"""Images as small JPEG files, for pages."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import torch

from contrapose.lab.modalities.images.decoding import ENDINGS, ImagePath, as_rgb, open_image, quiet_decoders
from contrapose.lab.modalities.images.folder import all_images
from contrapose.lab.modalities.images.image_shards import is_image_shards
from contrapose.lab.modalities.images.images import Images
from contrapose.lab.modalities.images.load import load
from contrapose.lab.modalities.images.stream import Files
from contrapose.lab.modalities.input_files import as_text
from contrapose.lab.modalities.modality import DataSettings
from contrapose.lab.modalities.previews import Collection, Preview
from contrapose.lab.modalities.source import Source

if TYPE_CHECKING:
    from PIL.Image import Image

# A decoded image, or the place where an image is stored
Picture: TypeAlias = "ImagePath | Image"

_ENLARGED = 64  # pixels: smaller images are enlarged to about this size


def thumbnail(image: Picture, *, side: int = 240) -> bytes:
    """Return an image as a JPEG file whose longest side has at most `side` pixels.

    The file has no metadata: a page must not reveal where a photograph was taken.
    """
    from PIL import Image

    with quiet_decoders():
        if isinstance(image, Image.Image):
            small = as_rgb(image)
        else:
            with open_image(image) as file:
                file.draft("RGB", (2 * side, 2 * side))  # decoding a JPEG at a fraction of its size is faster
                small = as_rgb(file)
        small.thumbnail((side, side))
    buffer = io.BytesIO()
    small.save(buffer, "JPEG", quality=80)
    return buffer.getvalue()


def previews(source: Source, *, side: int) -> list[Preview]:
    """Return each image as a JPEG file whose longest side has at most `side` pixels; nothing for a file that is gone."""
    from PIL import Image

    if not isinstance(source, Images):
        return [_file_preview(path, side) for path in source.paths]
    # Enlarged without interpolation, to show the pixels of small images as they are.
    factor = max(1, min(_ENLARGED, side) // max(source.pixels.shape[2:]))
    pixels = source.pixels.repeat_interleave(factor, 2).repeat_interleave(factor, 3).permute(0, 2, 3, 1)
    return [Preview(thumbnail(Image.fromarray(image.numpy()), side=side)) for image in pixels.contiguous()]


def _file_preview(path: ImagePath, side: int) -> Preview:
    # Embeddings of many images take minutes, in which files may be moved; a page without one of them is still of use.
    try:
        return Preview(thumbnail(path, side=side))
    except (OSError, ValueError):
        return Preview()


def image_collection(settings: DataSettings, root: Path | None) -> Collection:
    """List all images of a data set; the class of an image in a folder is the name of the folder that it is in."""
    folder = Path(settings.data)
    if folder.is_dir() and not is_image_shards(folder):
        return Collection(_all_in(folder, settings))
    split = load(settings.data, limit=settings.limit, root=root, hold_out=0)
    sources = [split.train] if split.test is None else [split.train, split.test]
    return Collection(_concatenate(sources), notes=split.notes)


def _all_in(folder: Path, settings: DataSettings) -> Files:
    paths = tuple(all_images(folder))
    if not paths:
        raise ValueError(f"data: no images under {folder} (looked for {', '.join(sorted(ENDINGS))})")
    names = [as_text(path.parent.name) if path.parent != folder else "" for path in paths]
    classes = tuple(sorted(set(names)))
    labels = torch.tensor([classes.index(name) for name in names]) if len(classes) > 1 else None
    return Files(folder.resolve().name, paths, labels, classes, max_megapixels=settings.max_megapixels)


def _concatenate(sources: Sequence[Source]) -> Source:
    """Return the training and test images as one data set, without labels unless both have them."""
    first = sources[0]
    known = [source.labels for source in sources if source.labels is not None]
    labels = torch.cat(known) if len(known) == len(sources) else None
    if isinstance(first, Files):
        paths = tuple(path for source in sources if isinstance(source, Files) for path in source.paths)
        return Files(first.name, paths, labels, first.classes)
    pixels = [source.pixels for source in sources if isinstance(source, Images)]
    if len({images.shape[1:] for images in pixels}) > 1:  # test images of another size cannot be in the same tensor
        return first
    return Images(first.name, torch.cat(pixels), labels, first.classes)
