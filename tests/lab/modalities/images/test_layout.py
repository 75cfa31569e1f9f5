"""Layouts of folders: which are understood, which notes they give, and which are refused."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from contrapose.lab.modalities import Source, Split
from contrapose.lab.modalities.images.layout import split_folder


def write(folder: Path, *names: str) -> Path:
    """Write small images under these names, and return the folder."""
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (2, 2)).save(folder / name, "PNG")
    return folder


def classes(part: str, *names: str, each: int = 2) -> list[str]:
    return [f"{part}{name}/{i}.png" for name in names for i in range(each)]


def labelled(source: Source | None) -> dict[str, int]:
    """Return the number of images of each class."""
    assert source is not None
    assert source.labels is not None
    return {name: count for name, count in Counter(source.classes[i] for i in source.labels.tolist()).items() if count}


def split(folder: Path, hold_out: float = 0.2) -> Split:
    return split_folder(folder, hold_out=hold_out)


@pytest.mark.parametrize(
    ("train", "test"),
    [("train", "test"), ("train", "val"), ("train", "valid"), ("train", "validation"), ("Train", "Test"), ("TRAIN", "Val"),
     ("Training", "Testing")],
)  # fmt: skip
def test_names_of_the_two_parts(train: str, test: str, tmp_path: Path) -> None:
    write(tmp_path, *classes(f"{train}/", "cat", "dog", each=3), *classes(f"{test}/", "cat", "dog", each=1))
    found = split(tmp_path)
    assert labelled(found.train) == {"cat": 3, "dog": 3}
    assert labelled(found.test) == {"cat": 1, "dog": 1}
    assert found.probe is found.train
    assert not found.notes


def test_tiny_imagenet(tmp_path: Path) -> None:
    write(tmp_path, *(f"train/{wnid}/images/{wnid}_{i}.JPEG" for wnid in ("n01", "n02", "n03") for i in range(3)))
    write(tmp_path, *(f"val/images/val_{i}.JPEG" for i in range(4)), "test/images/test_0.JPEG")
    (tmp_path / "val" / "val_annotations.txt").write_text(
        "".join(f"val_{i}.JPEG\t{wnid}\t0\t0\t9\t9\n" for i, wnid in enumerate(("n03", "n01", "n03", "n01")))
    )
    (tmp_path / "wnids.txt").touch()
    found = split(tmp_path)
    assert labelled(found.train) == {"n01": 3, "n02": 3, "n03": 3}
    assert found.test is not None
    assert found.test.labels is not None
    assert [(path.name, label) for path, label in zip(found.test.paths, found.test.labels.tolist(), strict=True)] == [
        ("val_0.JPEG", 2), ("val_1.JPEG", 0), ("val_2.JPEG", 2), ("val_3.JPEG", 0)
    ]  # fmt: skip
    assert [note for note in found.notes if f"{tmp_path / 'test'} has no class folders and is not used" in note]
    assert f"data: evaluation uses {tmp_path / 'val'}" in found.notes
    assert len(split_folder(tmp_path, ["n01", "n03"], hold_out=0).train) == 6
    write(tmp_path, "val/images/stray.JPEG")
    with pytest.raises(ValueError, match=r"val has 1 images that are not in it, for example stray\.JPEG"):
        split(tmp_path)


def test_test_is_preferred_to_val(tmp_path: Path) -> None:
    write(tmp_path, *classes("train/", "cat", "dog"), *classes("val/", "cat", "dog"), *classes("test/", "cat", "dog"))
    found = split(tmp_path)
    assert found.test is not None
    assert found.test.name.endswith("(test)")
    assert found.notes == (f"data: evaluation uses {tmp_path / 'test'}; val/ is not used",)


def test_a_test_folder_without_labels_is_not_used(tmp_path: Path) -> None:
    write(tmp_path, *classes("train/", "cat", "dog", each=10), "test/1.png", "test/2.png")
    found = split(tmp_path)
    assert labelled(found.train) == {"cat": 8, "dog": 8}
    assert labelled(found.test) == {"cat": 2, "dog": 2}
    assert "has no class folders and is not used; to evaluate on its images, sort them" in found.notes[0]
    assert "20 % of each class, 4 images, are held out for evaluation; --hold-out changes the share" in found.notes[1]


def test_a_test_folder_with_one_of_the_classes(tmp_path: Path) -> None:
    write(tmp_path, *classes("train/", "cat", "dog"), *classes("test/", "dog"))
    found = split(tmp_path)
    assert labelled(found.test) == {"dog": 2}
    assert not found.notes


def test_a_share_of_each_class_is_held_out(tmp_path: Path) -> None:
    write(
        tmp_path, *classes("", "cat", each=20), *classes("", "dog", each=10), *classes("", "cow", each=2), "ant/1.png"
    )
    found = split(tmp_path)
    assert labelled(found.train) == {"ant": 1, "cat": 16, "cow": 1, "dog": 8}
    assert labelled(found.test) == {"cat": 4, "cow": 1, "dog": 2}
    assert found.test is not None
    assert not set(found.train.paths) & set(found.test.paths)
    assert [path.name for path in found.test.paths] != [
        "0.png",
        "1.png",
        "2.png",
        "3.png",
        "0.png",
        "0.png",
        "1.png",
    ]
    assert split(tmp_path).test.paths == found.test.paths  # type: ignore[union-attr]
    nothing = split(tmp_path, hold_out=0)
    assert (nothing.test, nothing.notes, len(nothing.train)) == (None, (), 33)


def test_one_class_folder_gives_no_labels(tmp_path: Path) -> None:
    found = split(write(tmp_path, *classes("", "cat")))
    assert found.train.labels is None
    assert found.test is None
    assert found.notes == (
        f"data: {tmp_path} has one class folder only, cat/, so its images have no labels; "
        f"if the classes are inside it, use {tmp_path / 'cat'}",
    )


@pytest.mark.parametrize("part", ["images/", ""])
def test_captions_by_another_name_are_named(tmp_path: Path, part: str) -> None:
    write(tmp_path, f"{part}dog.png", f"{part}cat.png")
    (tmp_path / "README.txt").write_text("Photographs of animals")
    assert not any("not read" in note for note in split(tmp_path).notes)
    (tmp_path / "mine.tsv").write_text("image\tcaption\ndog.png\tA dog runs.\n")
    assert split(tmp_path).notes[-1] == (
        f"data: mine.tsv in {tmp_path} is not read; a file with captions of these images must be called captions.tsv"
    )
    (tmp_path / "also.csv").write_text("dog.PNG,A dog runs.\n")
    assert "data: also.csv and 1 more in" in split(tmp_path).notes[-1]


def test_tables_beside_labelled_images_are_no_captions(tmp_path: Path) -> None:
    write(tmp_path, *classes("", "cat", "dog"))
    (tmp_path / "labels.csv").write_text("1.png,cat\n")
    assert not any("not read" in note for note in split(tmp_path).notes)


def test_a_pipe_beside_images_is_not_opened(tmp_path: Path) -> None:
    write(tmp_path, "images/dog.png")
    os.mkfifo(tmp_path / "pipe.tsv")
    assert not any("not read" in note for note in split(tmp_path).notes)


def test_training_images_without_labels(tmp_path: Path) -> None:
    found = split(write(tmp_path, "train/1.png", *classes("test/", "cat", "dog")))
    assert (len(found.train), found.test) == (1, None)
    assert "train have no classes, so runs will have no score, and test/ cannot be used" in found.notes[0]


def test_loose_images_beside_class_folders_are_refused(tmp_path: Path) -> None:
    write(tmp_path, *classes("", "cat", "dog"), "lost.png", "stray.jpg")
    with pytest.raises(
        ValueError, match=r"has images beside its class folders, 2 in all, for example lost\.png; move them"
    ):
        split(tmp_path)


def test_a_part_without_training_images_is_refused(tmp_path: Path) -> None:
    write(tmp_path, *classes("Test/", "cat", "dog"), *classes("cat/", "x"))
    with pytest.raises(ValueError, match=r"has Test/ but no train/; name the folder of the training images train, or"):
        split(tmp_path)


def test_two_folders_for_one_part_are_refused(tmp_path: Path) -> None:
    write(tmp_path, *classes("train/", "a", "b"), *classes("val/", "a", "b"), *classes("valid/", "a", "b"))
    with pytest.raises(ValueError, match=r"has both val/ and valid/; expected one folder of val images"):
        split(tmp_path)


def test_classes_that_differ_by_case_are_refused(tmp_path: Path) -> None:
    write(tmp_path, *classes("train/", "cat", "dog"), *classes("test/", "Cat", "dog"))
    with pytest.raises(
        ValueError, match=r"a class 'Cat' that the .* have; it differs from 'cat' only by case: rename one"
    ):
        split(tmp_path)


def test_hidden_files_and_folders_are_skipped(tmp_path: Path) -> None:
    write(tmp_path, *classes("", "cat", "dog"), *classes("", ".cache", "__MACOSX"), "cat/.ipynb_checkpoints/1.png")
    write(tmp_path, "dog/._0.png", ".hidden.png", "cat/__MACOSX/0.png")
    found = split(tmp_path, hold_out=0)
    assert labelled(found.train) == {"cat": 2, "dog": 2}
    assert not found.notes


def test_what_is_not_read_is_said(tmp_path: Path) -> None:
    write(tmp_path, *classes("train/", "cat", "dog"), *classes("test/", "cat", "dog"), "extra/1.png", "sample.png")
    (tmp_path / "train" / "cat" / "photo.HEIC").touch()
    (tmp_path / "train" / "notes").mkdir()
    notes = split(tmp_path).notes
    assert f"data: notes/ in {tmp_path / 'train'} has no images, so it is not a class" in notes
    assert [note for note in notes if "1 file" in note and "not read, for example photo.HEIC; convert" in note]
    assert f"data: extra/ and 1 more in {tmp_path} are not used, only train/ and test/ are" in notes
    assert split(tmp_path).train.classes == ("cat", "dog")


def test_an_empty_folder(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="data: no images under"):
        split(tmp_path)
    (tmp_path / "cat.png").touch()
    with pytest.raises(ValueError, match="is not a folder"):
        split(tmp_path / "cat.png")


def test_a_class_folder_that_cannot_be_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a folder without permission, which tests that run as root cannot make."""
    write(tmp_path, "cat/1.png", "dog/1.png")
    scan = os.scandir

    def scan_all_but_dog(path: str) -> Any:
        if Path(path).name == "dog":
            raise PermissionError(13, "Permission denied", str(path))
        return scan(path)

    monkeypatch.setattr("os.scandir", scan_all_but_dog)
    with pytest.raises(ValueError, match="dog cannot be listed: Permission denied"):
        split(tmp_path)
