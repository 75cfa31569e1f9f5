"""Images in shards: WebDataset's tars (KEY.jpg, with KEY.cls for its class) or LitData's chunks.

Shards are listed once, and their index is kept in the user's cache folder.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from contrapose.lab.cached_files import CachedFile, cache_path, entry, not_kept
from contrapose.lab.modalities.images.decoding import ENDINGS
from contrapose.lab.modalities.images.file_list import FileList, MemberList
from contrapose.lab.modalities.images.images import MOST_CLASSES
from contrapose.lab.modalities.images.layout import split_folder, with_held_out
from contrapose.lab.modalities.images.litdata_chunks import (
    SampleLayout,
    find_chunks,
    list_chunk,
    litdata_folders,
    write_chunks,
)
from contrapose.lab.modalities.images.stream import Files
from contrapose.lab.modalities.input_files import read_text
from contrapose.lab.modalities.progress import progress_bar
from contrapose.lab.modalities.shards import MEMBER, find_tars, first_tar, has_captions, splits_by_name
from contrapose.lab.modalities.source import Split
from contrapose.lab.modalities.stored_files import ShardMember
from contrapose.lab.modalities.tars import list_tar
from contrapose.randomness import permutation

_OLD_INDEX = "contrapose-index.safetensors"  # which earlier versions kept beside the tars
_CLASSES = "classes.txt"  # one class name per line, in the order of the labels
_FORMAT = "contrapose tars of images 1"
_NO_LABEL = -1


def is_image_shards(path: Path) -> bool:
    """Return whether a path has LitData's chunks, or names tars, or a folder of only tars, that have no captions."""
    if litdata_folders(path):
        return True
    tar = first_tar(path)
    if tar is None or has_captions(tar):
        return False
    return not path.is_dir() or all(
        file.suffix == ".tar" or file.name in (_OLD_INDEX, _CLASSES) or file.name.startswith(".")
        for file in path.iterdir()
    )


def list_shards(path: Path, *, hold_out: float, skip_broken: bool = False) -> Split:
    """List the images in shards; tars whose names contain train, val or test, and chunks in folders of these names, are splits.

    Without labelled test images, the share `hold_out` of each class is held out. With `skip_broken`, a tar that ends early is
    used up to its last complete file, and a note says so; otherwise it is an error.
    """
    chunks = find_chunks(path)
    shards = list(chunks) or find_tars(path)
    files, labels, notes = _listing(shards, chunks, path, skip_broken=skip_broken)
    if not len(files):
        expected = "" if chunks else " (expected KEY.jpg, and KEY.cls for its class)"
        raise ValueError(f"data: no images in the {'chunks' if chunks else 'tars'} of {path}{expected}")
    splits = splits_by_name(shards)
    roles = [splits.get(shard, "train") for shard in shards]
    has_labels = bool((labels != _NO_LABEL).all())
    if not has_labels and bool((labels != _NO_LABEL).any()):
        missing = files[int((labels == _NO_LABEL).nonzero()[0])]
        raise ValueError(
            f"data: {missing} has no class, and others have one; expected a class for each image or for none"
        )
    classes = _class_names(path, labels) if has_labels else ()

    def part(role: str) -> Files | None:
        shard_numbers = torch.tensor([number for number, own in enumerate(roles) if own == role], dtype=torch.int32)
        chosen = torch.isin(files.shard_numbers, shard_numbers).nonzero().flatten()
        if not len(chosen):
            return None
        own = labels[chosen] if has_labels and len(classes) > 1 else None
        return Files(f"{path.stem} ({role})" if splits else path.stem, files.take(chosen), own, classes)

    train = part("train")
    if train is None:
        raise ValueError(
            f"data: by their names, the files of {path} are validation and test splits; expected one with train in its name"
        )
    test = part("test") or part("val")
    if test is None or test.labels is None:
        return with_held_out(Split(train, None, None, notes), hold_out)
    return Split(train, train, test, notes)


def _class_names(path: Path, labels: Tensor) -> tuple[str, ...]:
    """Return the names in classes.txt; if there is none, the numbers of the classes."""
    count, file = int(labels.max()) + 1, (path if path.is_dir() else path.parent) / _CLASSES
    names = tuple(read_text(file).splitlines()) if file.is_file() else ()
    return names if len(names) >= count else tuple(map(str, range(count)))


def _listing(
    shards: Sequence[Path], chunks: Mapping[Path, SampleLayout], path: Path, *, skip_broken: bool
) -> tuple[MemberList, Tensor, tuple[str, ...]]:
    """Return the images in shards and their labels (N,), from the index on disk if it is that of these shards; and notes."""
    notes: list[str] = []
    index = _index(shards, chunks, path, notes)
    kept = index.read()
    if kept is not None:
        return *_from_index(kept, shards), ()
    warnings = len(notes)
    names: list[list[str]] = []
    offsets, sizes, labels = list[int](), list[int](), list[int]()
    with progress_bar("listing chunks" if chunks else "listing tars", len(shards)) as advance:
        for shard in shards:
            problem = ""
            if chunks:
                images, classes = list_chunk(shard, chunks[shard])
            else:
                images, classes, problem = _list_tar(shard)
            if problem and not skip_broken:
                raise ValueError(
                    f"data: {shard} {problem}; copy or download it again (--skip-broken uses its complete files)"
                )
            notes += [f"data: {shard} {problem}; its complete files are used"] if problem else []
            wrong = next((i for i, label in enumerate(classes) if not _NO_LABEL <= label < MOST_CLASSES), None)
            if wrong is not None:
                expected = f"expected a whole number from 0 to {MOST_CLASSES - 1:,}"
                raise ValueError(f"data: the class of {images[wrong]} is {classes[wrong]}, {expected}")
            names.append([image.name for image in images])
            offsets += [image.offset for image in images]
            sizes += [image.size for image in images]
            labels += classes or [_NO_LABEL] * len(images)
            advance()
    members = MemberList(FileList(zip(shards, names, strict=True)), torch.tensor(offsets), torch.tensor(sizes))
    if len(notes) == warnings:  # an index has no place for the problems of incomplete tars, which are told every time
        try:
            _write_index(index, members, torch.tensor(labels), names)
        except OSError as error:
            notes.append(not_kept(index.path, error))
    return members, torch.tensor(labels), tuple(notes)


def _list_tar(tar: Path) -> tuple[list[ShardMember], list[int], str]:
    """Return the images in a tar, their labels, `_NO_LABEL` for images without one, and why files may be missing."""
    listing = list_tar(tar)
    images: dict[str, ShardMember] = {}
    classes: dict[str, int] = {}
    with tar.open("rb") as file:
        for member in listing.members:
            match = MEMBER.fullmatch(member.name)
            key, ending = (match[1], match[2].lower()) if match else ("", "")
            if f".{ending}" in ENDINGS:
                if key in images:
                    raise ValueError(
                        f"data: {tar} has {images[key].name} and {member.name}, expected one image for each key"
                    )
                images[key] = member
            elif ending == "cls":
                classes[key] = _label(member, member.read_from(file) if member.size < 20 else b"")
    labels = [classes.get(key, _NO_LABEL) for key in images]
    if listing.problem and classes and labels[-1] == _NO_LABEL:  # the tar ends between an image and its class
        images.popitem()
        labels.pop()
    return list(images.values()), labels, listing.problem


def _label(member: ShardMember, content: bytes) -> int:
    text = content.decode(errors="replace").strip()
    if not text.isdecimal():
        raise ValueError(f"data: {member} is not a class: expected a whole number from 0 on, got {text!r}")
    return int(text)


def _index(shards: Sequence[Path], chunks: Mapping[Path, SampleLayout], path: Path, notes: list[str]) -> CachedFile:
    """Return the file with the index of the shards that a path names."""
    facts = ((shard, shard.stat(), chunks.get(shard, ())) for shard in shards)
    described = json.dumps([_FORMAT, *([s.name, f.st_size, f.st_mtime_ns, *layout] for s, f, layout in facts)])
    fingerprint = hashlib.blake2b(os.fsencode(described), digest_size=16).hexdigest()
    return CachedFile(cache_path("shards", path.name, os.path.abspath(path)), fingerprint, notes.append)


def _write_index(index: CachedFile, members: MemberList, labels: Tensor, names: Sequence[Sequence[str]]) -> None:
    listed = b"\0".join(os.fsencode(name) for own in names for name in own)
    index.write(
        entry("offsets", members.offsets),
        entry("sizes", members.sizes),
        entry("labels", labels),
        entry("counts", torch.tensor([len(own) for own in names])),
        entry("names", torch.frombuffer(bytearray(listed or b"\0"), dtype=torch.uint8)),
    )


def _from_index(kept: Mapping[str, Tensor], shards: Sequence[Path]) -> tuple[MemberList, Tensor]:
    """Return what an index lists."""
    listed = iter(kept["names"].numpy().tobytes().split(b"\0"))
    names = FileList(
        (shard, [os.fsdecode(next(listed)) for _ in range(count)])
        for shard, count in zip(shards, kept["counts"].tolist(), strict=True)
    )
    return MemberList(names, kept["offsets"], kept["sizes"]), kept["labels"]


def write_shards(folder: Path, out: Path, *, images_per_file: int, to: str = "webdataset") -> int:
    """Copy the images of a folder to tars or chunks, in a random order, and return the number of these.

    Files are not decoded. The order is random because training reads shards from beginning to end and shuffles a window only.
    """
    split = split_folder(folder, hold_out=0.0)
    out.mkdir(parents=True, exist_ok=True)
    parts = [("train", split.train)] + ([("test", split.test)] if split.test is not None else [])
    shards = 0
    with progress_bar("writing images", sum(len(source) for _, source in parts)) as advance:
        for name, source in parts:
            assert isinstance(source, Files)
            order = permutation(len(source), 0).tolist()
            if to == "litdata":
                own = out / name if len(parts) > 1 else out
                shards += write_chunks(source, order, own, images_per_chunk=images_per_file, advance=advance)
                continue
            prefix = f"{name}-" if len(parts) > 1 else "images-"
            for number, first in enumerate(range(0, len(order), images_per_file)):
                path = out / f"{prefix}{number:06d}.tar"
                with tarfile.open(path.with_name(f".{path.name}"), "w") as tar:
                    for index in order[first : first + images_per_file]:
                        _add(tar, source, index)
                        advance()
                os.replace(path.with_name(f".{path.name}"), path)
                shards += 1
    if split.train.classes:
        (out / _CLASSES).write_text("".join(f"{name}\n" for name in split.train.classes), encoding="utf-8")
    return shards


def _add(tar: tarfile.TarFile, source: Files, index: int) -> None:
    """Add an image, and its class if it has one, under its number in the folder."""
    path = source.paths[index]
    assert isinstance(path, Path)
    members = {path.suffix.lower(): path.read_bytes()}
    members |= {} if source.labels is None else {".cls": str(int(source.labels[index])).encode()}
    for ending, content in members.items():
        info = tarfile.TarInfo(f"{index:09d}{ending}")
        info.size = len(content)
        tar.addfile(info, io.BytesIO(content))
