"""The interactive page of `contrapose map`: zoom, points that show their image or text, and a filter by class."""

from __future__ import annotations

import html
import io
import math
from collections import Counter
from collections.abc import Mapping, Sequence

from torch import Tensor

from contrapose.lab.modalities.previews import Preview
from contrapose.lab.report.embedding import NamedEmbedding
from contrapose.lab.report.page import image_element, json_element, page, script
from contrapose.lab.report.style import COLOURS

PREVIEW_SIDE = 64  # pixels: the largest thumbnail
_SHEET_PIXELS = 1_600_000  # of all thumbnails of a page together: about half a megabyte
_EXTENT = 10_000  # of a map's longer side, in whole numbers, which are short in the page and still exact at any zoom
_SHAPES = (
    "M-1 0A1 1 0 1 0 1 0A1 1 0 1 0-1 0",
    "M-.9-.9H.9V.9H-.9Z",
    "M0-1.2 1.1.8H-1.1Z",
    "M0-1.3 1.1 0 0 1.3-1.1 0Z",
    "M0 1.2 1.1-.8H-1.1Z",
)
_ZOOM = "".join(
    f'<button type="button" value="{factor}" aria-label="{name}">{sign}</button> '
    for factor, name, sign in (("2", "Zoom in", "+"), ("0.5", "Zoom out", "−"), ("0", "Show the whole map", "reset"))
)


def map_page(title: str, embeddings: Sequence[NamedEmbedding], points: Sequence[Tensor]) -> str:
    """Return an HTML page with one map per embedding.

    title        what is drawn: the projection, the output, and the number of samples
    embeddings   embeddings with previews of their samples
    points       (n, 2) each, from `map_points`
    """
    # Runs on the same data show the same samples, which are stored once.
    samples = list(dict.fromkeys(embedding.previews for embedding in embeddings))
    names = list(dict.fromkeys(name for embedding in embeddings for name in _present_classes(embedding)))
    sheets = [_sheet(previews, total=sum(map(len, samples))) for previews in samples]
    data = {
        "shapes": _SHAPES,
        "colour": COLOURS[0],
        "classes": [
            {"name": name, "colour": _colour(index), "shape": _shape(index)} for index, name in enumerate(names)
        ],
        "samples": [
            {"columns": columns, "texts": [preview.texts[0] for preview in previews] if previews[0].texts else None}
            for previews, (_, columns) in zip(samples, sheets, strict=True)
        ],
        "maps": [
            _map_data(embedding, rows, names, samples.index(embedding.previews))
            for embedding, rows in zip(embeddings, points, strict=True)
        ],
    }
    counts = Counter(name for embedding in embeddings for name in _class_names(embedding))
    hint = "Point at a sample, or tap it, to see it. Zoom with the wheel or two fingers, and drag to move the map."
    parts = [
        f"<p>{hint} Only the distances between near points have a meaning, not the axes.</p>",
        _legend({name: counts[name] for name in names}),
        '<p class="muted" id="count" aria-live="polite"></p>',
        f'<div class="maps">{"".join(map(_figure, embeddings))}</div><div id="tip" hidden></div>',
        *(f"<div hidden>{image_element(jpeg, '', f'sheet-{i}')}</div>" for i, (jpeg, _) in enumerate(sheets) if jpeg),
        json_element(data, ' id="points"'),
        script("map.js"),
    ]
    return page(title, parts)


def _class_names(embedding: NamedEmbedding) -> list[str]:
    """Return the name of each point's class; empty names without labels."""
    if embedding.labels is None:
        return [""] * len(embedding.z)
    return [embedding.class_name(label) for label in embedding.labels.tolist()]


def _present_classes(embedding: NamedEmbedding) -> list[str]:
    """Return the names of the classes that have points, in the order of the labels."""
    labels = [] if embedding.labels is None else embedding.labels.unique().tolist()
    return [embedding.class_name(label) for label in labels]


def _legend(counts: Mapping[str, int]) -> str:
    """Return a checkbox for each class with its number of points, and buttons for all and for none."""
    boxes = "".join(
        f'<label><input type="checkbox" checked autocomplete="off"><svg viewBox="-1.4 -1.4 2.8 2.8" aria-hidden="true"><path '
        f'd="{_SHAPES[_shape(index)]}" fill="{_colour(index)}"/></svg>{html.escape(name)} <small>({count:,})</small></label>'
        for index, (name, count) in enumerate(counts.items())
    )
    buttons = "".join(f'<button type="button" value="{which}">{which}</button>' for which in ("all", "none"))
    return f'<fieldset class="key" aria-label="Classes">{buttons}{boxes}</fieldset>' if counts else ""


def _colour(index: int) -> str:
    return COLOURS[index % len(COLOURS)]


def _shape(index: int) -> int:
    # The shapes shift by one each time the colours repeat, so that the first 50 classes differ in colour or shape.
    return (index + index // len(COLOURS)) % len(_SHAPES)


def _map_data(embedding: NamedEmbedding, points: Tensor, names: Sequence[str], samples: int) -> dict[str, object]:
    """Return the points of a map: positions from the top left corner, indices of classes, and which samples they show."""
    low, high = points.min(0).values, points.max(0).values
    extent = float((high - low).max()) or 1.0
    margin = (1 - (high - low) / extent) / 2  # centres the shorter side
    x, y = (((points - low) / extent + margin) * _EXTENT).round().int().T
    index = {name: number for number, name in enumerate(names)}
    return {
        "x": x.tolist(),
        "y": (_EXTENT - y).tolist(),
        "label": [index.get(name, -1) for name in _class_names(embedding)],
        "samples": samples,
        "count": len(embedding.previews),  # with two towers, all samples occur twice
    }


def _figure(embedding: NamedEmbedding) -> str:
    caption = html.escape(embedding.caption)
    return (
        f'<figure><figcaption>{caption}</figcaption><canvas role="img" aria-label="A map of {len(embedding.z):,} points. '
        f'{caption}"></canvas>{_ZOOM}</figure>'
    )


def _sheet(previews: Sequence[Preview], *, total: int) -> tuple[bytes, int]:
    """Return the images of all samples in one JPEG file, row by row, and the number of its columns; 0 without images.

    One file has less overhead than one per image. The thumbnails are smaller if there are many.
    """
    if not any(preview.image for preview in previews):
        return b"", 0
    from PIL import Image, ImageOps

    side = max(16, min(PREVIEW_SIDE, int(math.sqrt(_SHEET_PIXELS / total))))
    columns = math.ceil(math.sqrt(len(previews)))
    rows = math.ceil(len(previews) / columns)
    sheet = Image.new("RGB", (columns * side, rows * side), "white")
    for number, preview in enumerate(previews):
        if preview.image:
            with Image.open(io.BytesIO(preview.image)) as image:
                cell = ImageOps.pad(image.convert("RGB"), (side, side), color="white")
            sheet.paste(cell, (number % columns * side, number // columns * side))
    buffer = io.BytesIO()
    sheet.save(buffer, "JPEG", quality=70)
    return buffer.getvalue(), columns
