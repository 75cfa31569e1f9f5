"""A packed copy of a folder of images: all images as squares of one size, in one .safetensors file that is memory-mapped.

The squares are those that training keeps in memory without --stream, so that a packed copy gives the same pixels, and a run on
it the same weights. They are read from disk when they are needed, without decoding.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from torch import Tensor

from contrapose.lab.cached_files import Entry, block_count, entry, is_intact, open_tensors, write_tensors
from contrapose.lab.cuda.prefetch import copy_pinned, prepare_ahead
from contrapose.lab.modalities.images.file_list import FileList
from contrapose.lab.modalities.images.images import Images, ResidentImages, fingerprint
from contrapose.lab.modalities.images.layout import split_folder
from contrapose.lab.modalities.images.packed_content import check_content
from contrapose.lab.modalities.images.stream import Files, whole, with_limit, without_broken
from contrapose.lab.modalities.images.views import Recipe, Views
from contrapose.lab.modalities.input_files import check_file
from contrapose.lab.modalities.modality import DataSettings
from contrapose.lab.modalities.progress import progress_bar
from contrapose.lab.modalities.source import Reader, Split, ViewMaker, finish_each
from contrapose.validate import check_output_file

ENDING = ".safetensors"
_BATCH = 256  # images decoded at a time
_FORMAT = "contrapose packed images 2"
_OLD_FORMAT = "contrapose packed images 1"  # without a checksum
_BYTES = "bytes:"  # before the name of a folder that is not UTF-8, in hexadecimal
_METADATA = ("folder", "files", "hold_out", "view_size", "source_names", "notes")
_TENSORS = ("train_images", "train_names")


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


def pack(settings: DataSettings, views: Views, out: Path, *, only: Sequence[str] = (), fingerprint: str = "") -> Split:
    """Write a packed copy of the folder `settings.data` for these views to a file, and return the split that it contains.

    `only` names the class folders to pack; empty: all. `fingerprint` is what `read_packed` compares.
    """
    recipe, folder = views.recipes[0], Path(settings.data)
    split = with_limit(split_folder(folder, only, hold_out=settings.hold_out), settings.max_megapixels)
    metadata = {
        "format": _FORMAT,
        "folder": _folder_text(os.path.abspath(folder)),
        "hold_out": repr(settings.hold_out),
        "only": json.dumps(only),
        "files": _digest(split),  # before the files are read: a file that changes meanwhile is noticed later
        "view_size": str(recipe.size),
        "fingerprint": fingerprint,
    }
    if settings.skip_broken:
        split = without_broken(split, recipe)
    parts = {"train": split.train} | ({} if split.test is None else {"test": split.test})
    metadata["notes"] = json.dumps(split.notes)
    metadata["source_names"] = json.dumps({part: source.name for part, source in parts.items()})
    out.parent.mkdir(parents=True, exist_ok=True)
    _check_disk(out.parent, sum(map(len, parts.values())), recipe.resized)
    # The file's modification time is set to this one: as long as it has it, nothing has been written to the file since.
    metadata["written"] = str(int(time.time()))
    entries = list(_entries({name: one for name, one in parts.items() if isinstance(one, Files)}, recipe, metadata))
    write_tensors(out, entries, metadata)
    _mark_intact(out, metadata)
    return split


def _check_disk(folder: Path, images: int, side: int) -> None:
    """Raise ValueError if a folder's disk has too little free space, before hours are spent on decoding."""
    needed, free = images * 3 * side**2, shutil.disk_usage(folder).free
    if needed > free:
        raise ValueError(
            f"pack: {images:,} images of {side} × {side} pixels need {needed / 1e9:,.1f} GB, but {folder} has "
            f"{free / 1e9:,.1f} GB free; use another disk (set CONTRAPOSE_CACHE for `train --pack`, or `data pack -o FILE`)"
        )


def _entries(parts: dict[str, Files], recipe: Recipe, metadata: dict[str, str]) -> Iterator[Entry]:
    """Yield what a packed copy contains, with pixels in batches: all of them may be larger than the memory."""
    for part, source in parts.items():
        listed = b"\0".join(os.fsencode(os.path.relpath(path, _folder_of(metadata))) for path in _resolved(source))
        yield Entry(f"{part}_names", "U8", (len(listed),), [listed])
        if source.labels is not None:
            yield entry(f"{part}_labels", source.labels)
            metadata["classes"] = json.dumps(source.classes)
        batches = (pixels.numpy().tobytes() for pixels in whole(source, recipe, batch=_BATCH, workers=0))
        yield Entry(f"{part}_images", "U8", (len(source), 3, recipe.resized, recipe.resized), batches)


def read_packed(path: Path, *, as_folder: bool = False, fingerprint: str | None = None) -> Split:
    """Open a packed copy; raise ValueError if the folder that it was made of has changed since.

    With `as_folder`, names, paths and notes are those of the folder, as if the images were read from it. A copy with another
    `fingerprint`, if one is given, is refused.
    """
    metadata, tensors = _open(path)
    if fingerprint not in (None, metadata.get("fingerprint")):
        raise ValueError(f"data: {path} is a packed copy of other images")
    folder, only = Path(_folder_of(metadata)), json.loads(metadata.get("only", "[]"))
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


def _folder_text(folder: str) -> str:
    """Return a folder as text for metadata, which are UTF-8: a name in other bytes is written in hexadecimal."""
    try:
        folder.encode()
    except UnicodeEncodeError:
        return f"{_BYTES}{os.fsencode(folder).hex()}"
    return folder


def _folder_of(metadata: Mapping[str, str]) -> str:
    """Return the folder that a copy was made of."""
    text = metadata["folder"]
    if not text.startswith(_BYTES):
        return text
    try:
        return os.fsdecode(bytes.fromhex(text.removeprefix(_BYTES)))
    except ValueError as error:
        raise ValueError(f"it names the folder {text[:80]!r}") from error


def packed_facts(path: Path) -> tuple[int, int]:
    """Return the number of training images in a packed copy, and the size of the views that it was made for."""
    metadata, tensors = _open(path)
    return len(tensors["train_images"]), int(metadata["view_size"])


def check_packed(path: Path) -> Iterator[str]:
    """Read a packed copy whole and compare it with its checksum; yield a line about it."""
    metadata, _ = _open(path)
    if metadata["format"] == _OLD_FORMAT:
        yield f"{path} was packed by an earlier version, without a checksum: damaged pixels would not be noticed; pack again"
        return
    _check_whole(path, metadata)
    yield f"{path} has the bytes that were written when it was packed"


def _open(path: Path) -> tuple[dict[str, str], dict[str, Tensor]]:
    """Return the metadata and the memory-mapped tensors of a packed copy, which is checked if it may have changed."""
    check_file(path)  # opening a named pipe would block forever
    try:
        metadata, tensors = open_tensors(path)
    except ValueError as error:
        raise ValueError(f"data: {path} is not a packed copy, or {error}") from error
    if metadata.get("format") not in (_FORMAT, _OLD_FORMAT):
        raise ValueError(f"data: {path} is not a packed copy of a folder of images (contrapose data pack)")
    _check_unless_marked(path, metadata)
    missing = sorted({*_METADATA, *_TENSORS} - {*metadata, *tensors})
    if missing:
        raise ValueError(
            f"data: {path}, a packed copy, is damaged: it has no {', '.join(missing)}; pack the images again"
        )
    try:
        _folder_of(metadata)
    except ValueError as error:
        raise ValueError(f"data: {path}, a packed copy, is damaged: {error}; pack the images again") from error
    check_content(path, metadata, tensors)
    return metadata, tensors


def _check_unless_marked(path: Path, metadata: dict[str, str]) -> None:
    """Compare a packed copy with its checksum if it may have changed since it was written or last compared."""
    # Reading a copy of ImageNet takes minutes. A file that cannot be marked afterwards (another user's, or on a read-only disk)
    # would be read at every start; `data check` reads it.
    status = path.stat()
    is_marked = str(status.st_mtime_ns) == metadata.get("written", "") + "0" * 9
    can_mark = os.geteuid() in (0, status.st_uid) and os.access(path, os.W_OK)
    if metadata["format"] == _FORMAT and not is_marked and can_mark:
        _check_whole(path, metadata)
        _mark_intact(path, metadata)


def _check_whole(path: Path, metadata: dict[str, str]) -> None:
    with progress_bar(f"checking {path.name}", block_count(path)) as advance:
        if not is_intact(path, advance):
            raise ValueError(
                f"data: {path}, a packed copy, is damaged: its checksum does not match; copy it again, or pack the images again "
                f"(contrapose data pack {metadata.get('folder', 'FOLDER')} -o {path})"
            )


def _mark_intact(path: Path, metadata: dict[str, str]) -> None:
    """Set the modification time that says that a packed copy is as it was written."""
    with suppress(OSError):  # another user's file
        os.utime(path, times=(time.time(), int(metadata["written"])))


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
