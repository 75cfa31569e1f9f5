"""A packed copy of a folder of images: all images as squares of one size, in one .safetensors file that is memory-mapped.

The squares are those that training keeps in memory without --stream, so that a packed copy gives the same pixels, and a run on
it the same weights. They are read from disk when they are needed, without decoding.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from contrapose.lab.cuda.prefetch import copy_pinned, prepare_ahead
from contrapose.lab.modalities.images.file_list import FileList
from contrapose.lab.modalities.images.images import Images, ResidentImages, fingerprint
from contrapose.lab.modalities.images.layout import split_folder
from contrapose.lab.modalities.images.stream import Files, whole, with_limit, without_broken
from contrapose.lab.modalities.images.views import Recipe, Views
from contrapose.lab.modalities.modality import DataSettings
from contrapose.lab.modalities.source import Reader, Split, ViewMaker, finish_each
from contrapose.validate import check_output_file

ENDING = ".safetensors"
_BATCH = 256  # images decoded at a time
_FORMAT = "contrapose packed images 1"


@dataclass(frozen=True, eq=False)
class PackedImages(Images):
    """Squares in a memory-mapped file."""

    names: FileList = field(default_factory=FileList)  # the files that were packed
    view_size: int = 0  # the size of the views for which the squares were cropped

    @property
    def fingerprint(self) -> str:
        """The checksum of the packed folder's file names, so that a run on the folder can be resumed on its copy."""
        return fingerprint(self.names)

    def subset(self, index: Tensor | Sequence[int]) -> PackedImages:
        """Return the images at these indices, in this order; their pixels are copied to memory."""
        chosen = super().subset(index)
        assert isinstance(chosen, PackedImages)
        return replace(chosen, names=self.names.take(torch.as_tensor(index, dtype=torch.long)))

    def in_memory(self, views: ViewMaker) -> PackedImages:
        """Return the images themselves; raise ValueError if these views need other squares."""
        assert isinstance(views, Views)
        recipe = views.recipes[0]
        if (recipe.size, recipe.resized) != (self.view_size, self.size):
            raise ValueError(
                f"data: {self.name} has squares of {self.size} pixels for views of {self.view_size}, and these views of "
                f"{recipe.size} need squares of {recipe.resized}; use --size {self.view_size}, or pack the folder again with "
                f"--size {recipe.size}"
            )
        return self

    def reader(self, views: ViewMaker, device: torch.device, *, workers: int, timeout: float) -> Reader:
        """Move the images to the device if they fit into half of its free memory; otherwise read each batch from the file."""
        if device.type == "cpu" or self.pixels.nbytes < torch.cuda.mem_get_info(device)[0] / 2:
            return ResidentImages(self.pixels.to(device), views)
        return MappedImages(self.pixels, views, device)


@dataclass(frozen=True, eq=False)
class MappedImages:
    """Images that stay in their file, from which each batch is read."""

    pixels: Tensor  # uint8 (N, 3, H, W), memory-mapped
    views: ViewMaker
    device: torch.device
    resident = None  # nothing stays on the device

    def train(self, batches: Sequence[list[int]], *, seed: int, epoch: int) -> Iterator[list[Tensor]]:
        """Yield the views of each batch of indices."""
        return finish_each(self, batches, self.device, seed=seed, epoch=epoch)

    def stage(self, batches: Sequence[list[int]], *, seed: int, epoch: int) -> Generator[list[Tensor], None, None]:
        """Yield the squares of each batch of indices, on the device."""
        return prepare_ahead(
            lambda batch: copy_pinned([self.pixels[torch.tensor(batch)]], self.device), batches, self.device
        )

    def finish(self, staged: list[Tensor], index: Tensor, *, seed: int | Tensor, epoch: int | Tensor) -> list[Tensor]:
        """Return the views of a batch from its squares."""
        return self.views.train(staged[0], index, seed=seed, epoch=epoch)

    def plain(self) -> Iterator[Tensor]:
        """Yield the evaluation inputs of all images, in batches."""
        for part in self.pixels.split(self.views.evaluation_batch(self.device)):
            yield self.views.plain(part.to(self.device))


def check_packed_path(path: Path) -> None:
    """Raise ValueError for a path that a packed copy cannot have."""
    if path.suffix != ENDING:
        raise ValueError(f"out: expected a file that ends with {ENDING}, got {path}")
    check_output_file("out", path)


def pack(settings: DataSettings, views: Views, out: Path, *, only: Sequence[str] = ()) -> Split:
    """Write a packed copy of the folder `settings.data` for these views to a file, and return the split that it contains.

    `only` names the class folders to pack; empty: all.
    """
    recipe, folder = views.recipes[0], Path(settings.data)
    split = with_limit(split_folder(folder, only, hold_out=settings.hold_out), settings.max_megapixels)
    metadata = {
        "format": _FORMAT,
        "folder": os.path.abspath(folder),
        "hold_out": repr(settings.hold_out),
        "only": json.dumps(only),
        "files": _digest(split),  # before the files are read: a file that changes meanwhile is noticed later
        "view_size": str(recipe.size),
    }
    if settings.skip_broken:
        split = without_broken(split, recipe)
    parts = {"train": split.train} | ({} if split.test is None else {"test": split.test})
    metadata["notes"] = json.dumps(split.notes)
    metadata["source_names"] = json.dumps({part: source.name for part, source in parts.items()})
    out.parent.mkdir(parents=True, exist_ok=True)
    _check_disk(out.parent, sum(map(len, parts.values())), recipe.resized)
    with out.with_name(f".{out.name}.part").open("wb") as file:
        try:
            _write(
                file, {name: source for name, source in parts.items() if isinstance(source, Files)}, recipe, metadata
            )
            file.flush()
            os.fsync(file.fileno())  # before it gets its name: a crash of the machine must not leave a file of zeros
        except BaseException:
            os.unlink(file.name)
            raise
    os.replace(file.name, out)
    return split


def _check_disk(folder: Path, images: int, side: int) -> None:
    """Raise ValueError if a folder's disk has too little free space, before hours are spent on decoding."""
    needed, free = images * 3 * side**2, shutil.disk_usage(folder).free
    if needed > free:
        raise ValueError(
            f"pack: {images:,} images of {side} × {side} pixels need {needed / 1e9:,.1f} GB, but {folder} has "
            f"{free / 1e9:,.1f} GB free; use another disk (`train --pack --data-root FOLDER`, `data pack -o FILE`)"
        )


def _write(file: Any, parts: dict[str, Files], recipe: Recipe, metadata: dict[str, str]) -> None:
    """Write a .safetensors file, its pixels in batches: safetensors itself would need them all in memory."""
    labels, names, images = list[_Entry](), list[_Entry](), list[_Entry]()
    for part, source in parts.items():
        listed = b"\0".join(os.fsencode(os.path.relpath(path, metadata["folder"])) for path in _resolved(source))
        names.append(_Entry(f"{part}_names", "U8", (len(listed),), [listed]))
        if source.labels is not None:
            labels.append(_Entry(f"{part}_labels", "I64", (len(source),), [source.labels.numpy().tobytes()]))
            metadata["classes"] = json.dumps(source.classes)
        batches = (pixels.numpy().tobytes() for pixels in whole(source, recipe, batch=_BATCH, workers=0))
        images.append(_Entry(f"{part}_images", "U8", (len(source), 3, recipe.resized, recipe.resized), batches))
    header: dict[str, Any] = {"__metadata__": metadata}
    entries, offset = [*labels, *names, *images], 0  # labels first, since their eight bytes must be aligned
    for entry in entries:
        size = math.prod(entry.shape) * (8 if entry.dtype == "I64" else 1)
        header[entry.name] = {"dtype": entry.dtype, "shape": entry.shape, "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    file.write(len(text).to_bytes(8, "little") + text)
    for entry in entries:
        file.writelines(entry.blocks)


class _Entry(NamedTuple):
    """A tensor to write."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    blocks: Iterable[bytes]


def read_packed(path: Path, *, as_folder: bool = False) -> Split:
    """Open a packed copy; raise ValueError if the folder that it was made of has changed since.

    With `as_folder`, names, paths and notes are those of the folder, as if the images were read from it.
    """
    metadata, tensors = _open(path)
    folder, only = Path(metadata["folder"]), json.loads(metadata.get("only", "[]"))
    if (
        folder.is_dir()
        and _digest(split_folder(folder, only, hold_out=float(metadata["hold_out"]))) != metadata["files"]
    ):
        raise ValueError(
            f"data: the files in {folder} have changed since {path} was packed; pack them again (contrapose data pack {folder} "
            f"-o {path}), or rename the folder to use the copy as it is"
        )
    classes = tuple(json.loads(metadata.get("classes", "[]")))
    source_names = json.loads(metadata["source_names"]) if as_folder else {}

    def images(part: str) -> PackedImages:
        listed = tensors[f"{part}_names"].numpy().tobytes().split(b"\0")
        names = FileList([(folder, [os.fsdecode(name) for name in listed])])
        return PackedImages(
            source_names.get(part, f"{path.name} ({part})"), tensors[f"{part}_images"], tensors.get(f"{part}_labels"), classes,
            paths=names if as_folder else (), names=names, view_size=int(metadata["view_size"]),
        )  # fmt: skip

    train, notes = images("train"), tuple(json.loads(metadata["notes"])) if as_folder else ()
    if "test_images" not in tensors:
        return Split(train, None, None, notes)
    return Split(train, train, images("test"), notes)


def packed_facts(path: Path) -> tuple[int, int]:
    """Return the number of training images in a packed copy, and the size of the views that it was made for."""
    metadata, tensors = _open(path)
    return len(tensors["train_images"]), int(metadata["view_size"])


def _open(path: Path) -> tuple[dict[str, str], dict[str, Tensor]]:
    """Return the metadata and the memory-mapped tensors of a packed copy."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "pt") as file:
            metadata: dict[str, str] = file.metadata() or {}
            if metadata.get("format") == _FORMAT:
                return metadata, {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise ValueError(f"data: {path} is not a packed copy, or it is damaged: {error}") from error
    raise ValueError(f"data: {path} is not a packed copy of a folder of images (contrapose data pack)")


def _digest(split: Split) -> str:
    """Return a hash of the names, sizes and times of a folder's files."""
    digest = hashlib.sha256()
    for source in (split.train, split.test):
        assert source is None or isinstance(source, Files)
        for path in source.paths if source else ():
            assert isinstance(path, Path)
            size, time = _size_and_time(path)
            digest.update(os.fsencode(f"{path.parent.name}/{path.name}\0{size}\0{time}\n"))
    return digest.hexdigest()


def _size_and_time(path: Path) -> tuple[int, int]:
    """Return the size of a file and the time at which it was changed; zeros for a link to nothing, which may be left out."""
    try:
        status = path.stat()
    except OSError:
        return 0, 0
    return status.st_size, status.st_mtime_ns


def _resolved(source: Files) -> Iterator[Path]:
    """Yield the absolute paths of files."""
    return (Path(os.path.abspath(path)) for path in source.paths if isinstance(path, Path))
