"""Images in LitData's chunks, listed once and read in place; the package litdata is needed only to write chunks.

index.json names the chunks and the format of each leaf of a sample, such as an image and its class. A chunk is, in uint32, the
number N of samples and N + 1 offsets, then the samples; a sample is the size of each leaf, in uint32, then the leaves.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from contrapose.extras import needs_extra
from contrapose.lab.modalities.images.stream import Files
from contrapose.lab.modalities.shards import SPLITS
from contrapose.lab.modalities.stored_files import ShardMember

_FILES = frozenset(
    {"jpeg", "image", "tiff", "tifffile", "file", "bytes"}
)  # formats that store a file's bytes unchanged
_IMAGE_NAMES = frozenset({"image", "img", "jpg", "jpeg", "png", "picture", "photo"})
_LABEL_NAMES = frozenset({"label", "class", "cls", "target", "class_id", "class_index"})
_DICTIONARIES = ("builtins.dict", "collections.OrderedDict")
_WRITE_AGAIN = "write the samples again as (bytes of the image file, class number), uncompressed, with litdata.optimize"


class SampleLayout(NamedTuple):
    """The leaves of a sample: their number, and which of them are the image and its class, if it has one."""

    leaves: int
    image: int
    label: int | None


def litdata_folders(path: Path) -> list[Path]:
    """Return a folder if it has chunks; else its subfolders for training, validation and test, if one of them has chunks."""
    if not path.is_dir() or _has_chunks(path):
        return [path] if path.is_dir() else []
    with os.scandir(path) as entries:
        splits = sorted(Path(entry) for entry in entries if entry.name.lower() in SPLITS and entry.is_dir())
    return splits if any(map(_has_chunks, splits)) else []


def _has_chunks(folder: Path) -> bool:
    return next(folder.glob("chunk-*.bin"), None) is not None


def find_chunks(path: Path) -> dict[Path, SampleLayout]:
    """Return the chunks in LitData folders, each with the layout of its samples; empty for other data."""
    return {chunk: layout for folder in litdata_folders(path) for chunk, layout in _read_index(folder).items()}


def _read_index(folder: Path) -> dict[Path, SampleLayout]:
    file = folder / "index.json"
    if not file.is_file():
        raise ValueError(f"data: {folder} has no index.json, which LitData writes last; write or copy the folder again")
    try:
        index = json.loads(file.read_bytes())
        config, chunks = dict(index["config"]), [folder / Path(chunk["filename"]).name for chunk in index["chunks"]]
        formats = [str(name) for name in config["data_format"] or ()]
        names = _leaf_names(json.loads(config["data_spec"])[1]) if formats else []
        if len(names) != len(formats):
            raise ValueError(f"{len(formats)} formats for {len(names)} leaves")
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise ValueError(f"data: {file} is not an index of LitData, or is damaged ({error}); copy it again") from None
    for reason, how in (("compression", "compressed"), ("encryption", "encrypted")):
        if config.get(reason):
            raise ValueError(
                f"data: the chunks of {folder} are {how}, so images cannot be read in place; {_WRITE_AGAIN}"
            )
    if config.get("item_loader") not in (None, "PyTreeLoader"):
        raise ValueError(f"data: {file} is for {config['item_loader']!r}, expected images; {_WRITE_AGAIN}")
    for chunk in chunks:
        if not chunk.is_file():
            raise ValueError(f"data: {chunk.name!r}, which {file} lists, does not exist; copy or download it again")
    return dict.fromkeys(chunks, _layout(formats, names, file))


def _leaf_names(spec: dict[str, Any], name: str = "") -> list[str]:
    """Return the key of each leaf in a tree of dictionaries and tuples; empty for a leaf that is in no dictionary."""
    if spec["type"] is None:
        return [name]
    children = spec["children_spec"]
    keys = json.loads(spec["context"]) if spec["type"] in _DICTIONARIES else [name] * len(children)
    return [leaf for key, child in zip(keys, children, strict=True) for leaf in _leaf_names(child, str(key).lower())]


def _layout(formats: Sequence[str], names: Sequence[str], file: Path) -> SampleLayout:
    """Choose the image and its class by the formats of the leaves, and by their names if there are several."""
    files = [leaf for leaf, name in enumerate(formats) if name.split(":")[0] in _FILES]
    images = _named(files, names, _IMAGE_NAMES) or files
    # In a dictionary, a number under another name, such as a width, is not a class.
    labels = _named(range(len(names)), names, _LABEL_NAMES)
    labels = labels or [leaf for leaf, name in enumerate(names) if not name and formats[leaf] == "int"]
    if len(images) == 1 and len(labels) < 2 and all(formats[leaf] == "int" for leaf in labels):
        return SampleLayout(len(formats), images[0], labels[0] if labels else None)
    stored = ", ".join(f"{name} ({kind})" if name else kind for name, kind in zip(names, formats, strict=True))
    raise ValueError(
        f"data: by {file}, a sample is {stored or 'empty'}; expected one image as a file (image, jpeg, file or bytes; pil is raw "
        f"pixels), and at most one class as an int, or one of each that is named image or label; {_WRITE_AGAIN}"
    )


def _named(leaves: Sequence[int], names: Sequence[str], usual: Collection[str]) -> list[int]:
    return [leaf for leaf in leaves if names[leaf] in usual]


def list_chunk(chunk: Path, layout: SampleLayout) -> tuple[list[ShardMember], list[int]]:
    """Return the images in a chunk and their labels; no labels if the samples have none."""
    import numpy as np

    size, sizes_end = chunk.stat().st_size, 4 * layout.leaves
    damaged = ValueError(f"data: {chunk} is cut off or damaged; copy or download it again")
    if size < 8:
        raise damaged
    content = np.memmap(chunk, np.uint8, "r")
    # Nothing is allocated before it is known to be in the file: a damaged number may be as large as four billion.
    header = 4 * (int(content[:4].view("<u4")[0]) + 2)
    if header > size:
        raise damaged
    offsets = content[4:header].view("<u4").astype(np.int64)
    lengths = np.diff(offsets)
    if bytes(content[-8:]).startswith(b"LDARW") and not lengths.any():
        raise ValueError(
            f"data: {chunk} has dictionaries of bytes, which LitData stores as Arrow tables; {_WRITE_AGAIN}"
        )
    if offsets[0] != header or offsets[-1] > size or (lengths < sizes_end).any():
        raise damaged
    starts = offsets[:-1, None]
    sizes = content[starts + np.arange(sizes_end)].view("<u4").astype(np.int64)
    starts = starts + sizes_end + sizes.cumsum(1) - sizes
    if (sizes.sum(1) + sizes_end != lengths).any() or (
        layout.label is not None and (sizes[:, layout.label] != 8).any()
    ):
        raise damaged
    places = zip(starts[:, layout.image].tolist(), sizes[:, layout.image].tolist(), strict=True)
    images = [ShardMember(chunk, start, length, str(number)) for number, (start, length) in enumerate(places)]
    if layout.label is None:
        return images, []
    return images, content[starts[:, layout.label, None] + np.arange(8)].view("<i8")[:, 0].tolist()


def write_chunks(
    source: Files, order: Sequence[int], folder: Path, *, images_per_chunk: int, advance: Callable[[], None]
) -> int:
    """Copy image files and their classes to chunks, in this order, and return the number of chunks."""
    with needs_extra("writing LitData's chunks", "litdata", {"litdata"}):
        from litdata.streaming.writer import BinaryWriter
    files = [Path(str(source.paths[index])) for index in order]
    starts = range(0, len(files), images_per_chunk)
    for start in starts:
        size = sum(file.stat().st_size for file in files[start : start + images_per_chunk])
        if size + 20 * (images_per_chunk + 1) >= 2**32:
            raise ValueError(
                f"images_per_file: {images_per_chunk:,} of these images are {size / 1e9:.1f} GB, and a chunk is smaller than "
                "4.29 GB; choose a smaller --images-per-file"
            )
    writer = BinaryWriter(str(folder), chunk_size=images_per_chunk)
    for number, (index, file) in enumerate(zip(order, files, strict=True)):
        content = file.read_bytes()
        writer.add_item(number, content if source.labels is None else (content, int(source.labels[index])))
        advance()
    writer.done()
    writer.merge()
    return len(starts)
