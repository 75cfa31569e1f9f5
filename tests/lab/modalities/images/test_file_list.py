"""Lists of many files: the order of the folder, little memory, and the same fingerprint as a tuple of paths."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from contrapose.lab.modalities.images.file_list import FileList
from contrapose.lab.modalities.images.folder import list_images
from contrapose.lab.modalities.images.images import fingerprint

NAMES = st.lists(st.text("ab.é ☃-", min_size=1).filter(lambda name: name not in (".", "..")), max_size=5)


@settings(deadline=None)
@given(st.dictionaries(st.text("abc", min_size=1), NAMES, max_size=4))
def test_a_list_is_a_tuple_of_paths(folders: dict[str, list[str]]) -> None:
    paths = [Path("root", folder, name) for folder, names in folders.items() for name in names]
    listed = FileList((Path("root", folder), names) for folder, names in folders.items())
    assert listed == paths
    assert (len(listed), bool(listed)) == (len(paths), bool(paths))
    assert [listed[i] for i in range(-len(paths), len(paths))] == paths + paths
    assert listed[1:3] == paths[1:3]
    assert listed[::2] == paths[::2]
    assert listed.take(torch.arange(len(paths)).flip(0)) == paths[::-1]


def test_nested_files_and_odd_names(tmp_path: Path) -> None:
    names = ["a/b.jpg", "a/b/c.JPG", "a/é.png", os.fsdecode(b"a/\xff.png"), "b/1.jpeg", "b/line\nbreak.png"]
    unread = ["a/.hidden.jpg", "a/.jpg", "a/note.txt", "a/.git/x.jpg", "b/__MACOSX/x.jpg", "b/jpg"]
    for name in [*names, *unread]:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    listing = list_images(tmp_path)
    assert listing.paths == sorted(tmp_path / name for name in names)
    assert listing.labels is not None
    assert listing.labels.tolist() == [0, 0, 0, 0, 1, 1]
    for paths in (listing.paths, listing.paths[2:3]):
        assert fingerprint(paths) == fingerprint(tuple(paths))


def test_an_index_past_the_end_is_refused() -> None:
    with pytest.raises(IndexError):
        FileList([(Path("a"), ["1.jpg"])])[1]


def test_a_list_takes_little_memory() -> None:
    """In a tuple, a path takes several hundred bytes."""
    files = FileList((Path(f"folder{i}"), [f"n{i:08}_{j}.JPEG" for j in range(1000)]) for i in range(10))
    tensors = sum(value.nbytes for value in vars(files).values() if isinstance(value, torch.Tensor))
    assert tensors + sys.getsizeof(files._names) < 45 * len(files)
