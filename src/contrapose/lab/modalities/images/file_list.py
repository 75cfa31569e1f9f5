"""Lists of many files in little memory: `FileList` of files on disk, `MemberList` of images in shards, such as tars."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Self, TypeVar, overload

import torch
from torch import Tensor

from contrapose.lab.modalities.stored_files import ShardMember

T = TypeVar("T")


class CompactList(Sequence[T], ABC):
    """A list of images whose elements are made when they are asked for."""

    @abstractmethod
    def take(self, indices: Tensor) -> Self:
        """Return the images at these indices, in this order."""

    @abstractmethod
    def short_names(self) -> Iterator[str]:
        """Yield each image's name after that of its parent folder or shard, such as cat/1.jpg."""

    @abstractmethod
    def element(self, index: int) -> T:
        """Return one element."""

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> Self: ...
    def __getitem__(self, index: int | slice) -> T | Self:
        if isinstance(index, slice):
            return self.take(torch.tensor(range(len(self))[index], dtype=torch.long))
        return self.element(index)


class FileList(CompactList[Path]):
    """Paths of files in a fixed order. A million paths take 50 MB, a tenth of a tuple of `Path` objects.

    All names are in one block of bytes; a `Path` is made when it is asked for.
    """

    def __init__(self, folders: Iterable[tuple[Path, Sequence[str]]] = ()) -> None:
        """List files by their folders, each with the names of its files relative to it."""
        self._folders, blocks = list[Path](), list[bytes]()
        lengths, numbers = [torch.empty(0, dtype=torch.long)], [torch.empty(0, dtype=torch.int32)]
        for folder, members in folders:
            names = [os.fsencode(name) for name in members]
            numbers.append(torch.full((len(names),), len(self._folders), dtype=torch.int32))
            lengths.append(torch.tensor([len(name) for name in names], dtype=torch.long))
            blocks.append(b"".join(names))
            self._folders.append(folder)
        self._names, self._ends, self._folder = b"".join(blocks), torch.cat(lengths).cumsum(0), torch.cat(numbers)
        self._starts = self._ends - torch.cat(lengths)

    def take(self, indices: Tensor) -> FileList:
        """Return the files at these indices, in this order."""
        taken = FileList()
        taken._folders, taken._names = self._folders, self._names
        taken._starts, taken._ends, taken._folder = self._starts[indices], self._ends[indices], self._folder[indices]
        return taken

    def short_names(self) -> Iterator[str]:
        """Yield each file's name after that of its parent folder, such as cat/1.jpg."""
        parents = [folder.name for folder in self._folders]
        for start, end, folder in zip(*(part.tolist() for part in self._columns), strict=True):
            *_, parent, name = f"{parents[folder]}/{os.fsdecode(self._names[start:end])}".split("/")
            yield f"{parent}/{name}"

    @property
    def _columns(self) -> tuple[Tensor, Tensor, Tensor]:
        return self._starts, self._ends, self._folder

    def split(self, index: int) -> tuple[Path, str]:
        """Return the folder of a file, and the file's name relative to it."""
        start, end, folder = (int(part[index]) for part in self._columns)
        return self._folders[folder], os.fsdecode(self._names[start:end])

    @property
    def folder_numbers(self) -> Tensor:
        """The number of each file's folder, int32 (N,), in the order in which the folders were listed."""
        return self._folder

    def _path(self, start: int, end: int, folder: int) -> Path:
        return self._folders[folder] / os.fsdecode(self._names[start:end])

    def __len__(self) -> int:
        return len(self._starts)

    def __iter__(self) -> Iterator[Path]:
        return map(self._path, *(part.tolist() for part in self._columns))

    def element(self, index: int) -> Path:
        """Return the path of one file."""
        return self._path(*(int(part[index]) for part in self._columns))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and len(self) == len(other) and all(map(Path.__eq__, self, other))

    __hash__ = None  # type: ignore[assignment]  # like a list


class MemberList(CompactList[ShardMember]):
    """Images in shards, in little memory: a `ShardMember` is made when it is asked for."""

    def __init__(self, names: FileList, offsets: Tensor, sizes: Tensor) -> None:
        """Take the names of the members, listed by shard, and the position and size of each in its shard."""
        self.names, self.offsets, self.sizes = names, offsets, sizes

    @property
    def shard_numbers(self) -> Tensor:
        """The number of each image's shard (N,): reading a shard from its beginning is faster than jumping between shards."""
        return self.names.folder_numbers

    def take(self, indices: Tensor) -> MemberList:
        """Return the images at these indices, in this order."""
        return MemberList(self.names.take(indices), self.offsets[indices], self.sizes[indices])

    def short_names(self) -> Iterator[str]:
        """Yield each image's name after that of its shard."""
        return self.names.short_names()

    def __len__(self) -> int:
        return len(self.offsets)

    def element(self, index: int) -> ShardMember:
        """Return one image in its shard."""
        shard, name = self.names.split(index)
        return ShardMember(shard, int(self.offsets[index]), int(self.sizes[index]), name)
