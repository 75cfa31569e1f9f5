"""Data sets that torchvision lists as files, and PASCAL VOC's lists of classes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from PIL import Image
from torchvision import datasets

from contrapose.lab.modalities.images.file_sets import FILE_SETS
from contrapose.lab.modalities.images.load import NAMED, can_stream, load
from contrapose.lab.modalities.images.views import Views
from contrapose.lab.modalities.images.voc import load_voc


def write_image(path: Path, value: int = 100) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (12, 10), (value, value, value)).save(path)


def test_every_name_is_a_data_set_of_torchvision() -> None:
    for name, file_set in FILE_SETS.items():
        assert hasattr(datasets, file_set.dataset)
        assert name in NAMED
        assert can_stream(name)
    assert not can_stream("cifar10")


def test_splits_with_labels(tmp_path: Path) -> None:
    """DTD as torchvision finds it on disk: training and validation images are both trained on."""
    lists = {
        "train": ("dots/a.jpg", "lines/b.jpg"),
        "val": ("lines/c.jpg", "dots/d.jpg"),
        "test": ("dots/e.jpg", "lines/f.jpg"),
    }
    for part, names in lists.items():
        for name in names:
            write_image(tmp_path / "dtd" / "dtd" / "images" / name)
        labels = tmp_path / "dtd" / "dtd" / "labels" / f"{part}1.txt"
        labels.parent.mkdir(parents=True, exist_ok=True)
        labels.write_text("\n".join(names) + "\n")
    split = load("dtd", root=tmp_path)
    assert [path.name for path in split.train.paths] == ["a.jpg", "b.jpg", "c.jpg", "d.jpg"]
    assert split.train.labels is not None
    assert split.train.labels.tolist() == [0, 1, 1, 0]
    assert split.train.classes == ("dots", "lines")
    assert split.test is not None
    assert split.test.labels is not None
    assert split.test.labels.tolist() == [0, 1]
    assert len(split.train.in_memory(Views.named("digits"))) == 4


def test_pets_have_labels_in_a_list_of_their_own(tmp_path: Path) -> None:
    lines = {"trainval": ("Abyssinian_1 1 1 1", "beagle_2 2 2 1"), "test": ("beagle_3 2 2 1",)}
    for part, content in lines.items():
        for line in content:
            write_image(tmp_path / "oxford-iiit-pet" / "images" / f"{line.split()[0]}.jpg")
        labels = tmp_path / "oxford-iiit-pet" / "annotations" / f"{part}.txt"
        labels.parent.mkdir(parents=True, exist_ok=True)
        labels.write_text("\n".join(content) + "\n")
    split = load("oxford-pets", root=tmp_path)
    assert [path.name for path in split.train.paths] == ["Abyssinian_1.jpg", "beagle_2.jpg"]
    assert split.train.labels is not None
    assert split.train.labels.tolist() == [0, 1]


def test_a_share_is_held_out_where_there_is_no_test_split(tmp_path: Path) -> None:
    for name in ("Forest", "River"):
        for i in range(10):
            write_image(tmp_path / "eurosat" / "2750" / name / f"{i}.jpg")
    split = load("eurosat", root=tmp_path)
    assert split.test is not None
    assert (len(split.train), len(split.test)) == (16, 4)
    assert not set(split.train.paths) & set(split.test.paths)
    assert "20 % of each class, 4 images, are held out" in split.notes[0]
    whole = load("eurosat", root=tmp_path, hold_out=0.0)
    assert (len(whole.train), whole.test) == (20, None)


def test_what_cannot_be_downloaded_says_where_it_belongs(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"data: stanford-cars is not under .*; put torchvision's files under"):
        load("stanford-cars", root=tmp_path)


def make_voc(folder: Path) -> Path:
    """Write two classes: cat in images 1 and 2, dog in 2 and, marked as difficult, in 3."""
    for part, names in {"trainval": ("1", "2", "3"), "test": ("4",)}.items():
        for name in names:
            write_image(folder / "JPEGImages" / f"{name}.jpg")
        for c, flags in {"cat": (1, 1, -1), "dog": (-1, 1, 0)}.items():
            lists = folder / "ImageSets" / "Main" / f"{c}_{part}.txt"
            lists.parent.mkdir(parents=True, exist_ok=True)
            lists.write_text("".join(f"{name} {flag:2}\n" for name, flag in zip(names, flags, strict=False)))
    return folder


def test_an_image_of_voc_can_have_several_classes(tmp_path: Path) -> None:
    make_voc(tmp_path / "VOCdevkit" / "VOC2007")
    for folder in (tmp_path, tmp_path / "VOCdevkit", tmp_path / "VOCdevkit" / "VOC2007"):
        split = load_voc(folder)
        assert split.train.classes == ("cat", "dog")
        assert split.train.labels is not None
        assert split.train.labels.tolist() == [[1, 0], [1, 1], [0, 0]]
        assert split.test is not None
        assert torch.equal(torch.as_tensor(split.test.labels), torch.tensor([[1, 0]]))
    with pytest.raises(ValueError, match="expected a folder of PASCAL VOC"):
        load_voc(tmp_path / "VOCdevkit" / "VOC2007" / "JPEGImages")


def test_of_several_years_of_voc_the_first_is_read(tmp_path: Path) -> None:
    for year in ("VOC2012", "VOC2007", "VOC2010"):
        make_voc(tmp_path / year)
    assert load_voc(tmp_path).train.name == "VOC2007 (trainval)"


def test_lists_of_voc_that_do_not_agree_are_refused(tmp_path: Path) -> None:
    """The labels of one list would go to the images of another."""
    make_voc(tmp_path)
    dogs = tmp_path / "ImageSets" / "Main" / "dog_trainval.txt"
    for content in ("2 -1\n1 1\n3 0\n", "1 -1\n2 1\n", "1\n2\n3\n"):
        dogs.write_text(content)
        with pytest.raises(
            ValueError, match=r"data: .*dog_trainval.txt: expected an image and 1, 0 or -1 in each line"
        ):
            load_voc(tmp_path)
    make_voc(tmp_path)
    (tmp_path / "ImageSets" / "Main" / "dog_test.txt").unlink()
    with pytest.raises(ValueError, match=r"data: the lists of trainval and of test in .* have different classes"):
        load_voc(tmp_path)
