"""Pictures of a network's inputs: a contact sheet of a data set with its training views, and thumbnails."""

from __future__ import annotations

import io

import torch
from torch import Tensor
from torch.nn.functional import interpolate, pad

from contrapose.lab.modalities.images.views import Views
from contrapose.lab.modalities.source import Source

_CELL, _GAP = 64, 4  # pixels


def contact_sheet(images: Source, views: Views, *, count: int = 10, seed: int = 0) -> bytes:
    """Return a PNG with `count` images in the first row and two views of each in the rows below, as in the first epoch."""
    from PIL import Image

    # Images are taken at even distances, because folders are sorted by class.
    index = torch.linspace(0, len(images) - 1, min(count, len(images))).long()
    sample = images.subset(index).in_memory(views)
    raw = sample.reader(views, torch.device("cpu"), workers=0, timeout=0.0).resident
    assert raw is not None
    rows = [views.plain(raw), *views.train(raw, index, seed=seed, epoch=0)[0][:2]]
    cells = torch.stack([_cells(row, views) for row in rows])  # (rows, count, 3, cell, cell)
    pixels = cells.permute(0, 3, 1, 4, 2).flatten(2, 3).flatten(0, 1)  # (height, width, 3)
    buffer = io.BytesIO()
    Image.fromarray(pixels[:-_GAP, :-_GAP].contiguous().numpy()).save(buffer, "PNG")
    return buffer.getvalue()


def thumbnails(inputs: Tensor, views: Views) -> list[bytes]:
    """Return network inputs (B, 3, H, W) as PNG files of one size."""
    from PIL import Image

    files = []
    for pixels in (_pixels(inputs.cpu(), views) * 255).round().to(torch.uint8).permute(0, 2, 3, 1):
        buffer = io.BytesIO()
        Image.fromarray(pixels.contiguous().numpy()).save(buffer, "PNG")
        files.append(buffer.getvalue())
    return files


def _cells(inputs: Tensor, views: Views) -> Tensor:
    """Return network inputs as uint8 images of one size, with a white gap on the right and below."""
    return (pad(_pixels(inputs, views), (0, _GAP, 0, _GAP), value=1.0) * 255).round().to(torch.uint8)


def _pixels(inputs: Tensor, views: Views) -> Tensor:
    """Return network inputs as images of one size, with values from 0 to 1."""
    recipe = views.recipes[0]
    mean, std = (torch.tensor(values)[:, None, None] for values in (recipe.mean, recipe.std))
    # Enlarged without interpolation, to show the pixels as they are.
    mode = "nearest" if inputs.shape[-1] <= _CELL else "area"
    return interpolate((inputs * std + mean).clamp(0, 1), size=(_CELL, _CELL), mode=mode)
