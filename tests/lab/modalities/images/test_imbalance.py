from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from contrapose.lab.modalities.images import imbalance
from contrapose.lab.modalities.images.images import Images
from contrapose.lab.modalities.images.stream import Files


def labelled(counts: list[int]) -> Images:
    labels = torch.cat([torch.full((n,), c) for c, n in enumerate(counts)])
    return Images(
        "synthetic", torch.zeros(len(labels), 3, 2, 2, dtype=torch.uint8), labels, tuple("abcdefghij"[: len(counts)])
    )


def test_the_papers_counts() -> None:
    assert imbalance.exponential(10, 5000)[:3] == [5000, 2997, 1796]
    assert imbalance.exponential(10, 5000)[-2:] == [83, 50]
    assert sum(imbalance.exponential(10, 5000)) == 12406
    assert sum(imbalance.exponential(100, 500)) == 10847
    assert sum(imbalance.exponential(10, 4500)) == 11165
    assert sum(imbalance.exponential(100, 450)) == 9754
    assert imbalance.cacr_exponential(10, 5000) == [0, 1, 4, 12, 33, 91, 248, 676, 1839, 5000]
    assert sum(imbalance.cacr_linear(100, 500)) == 27500
    assert sum(imbalance.cacr_exponential(100, 500)) == 7870
    assert sum(imbalance.pareto()) == 115846


def test_thinning_keeps_the_counts_and_the_order() -> None:
    images = labelled([30, 30, 30])
    thinned = imbalance.thin(images, [30, 10, 0], seed=3)
    assert thinned.counts() == [30, 10, 0]
    assert thinned.labels is not None
    assert torch.equal(thinned.labels, thinned.labels.sort().values)
    with pytest.raises(ValueError, match="expected at most the 30 images of class 1, got 31"):
        imbalance.thin(images, [30, 31, 0])


def test_rules_by_name() -> None:
    images = labelled([50] * 10)
    assert imbalance.by_rule(images, "exponential:10").counts()[-1] == 5
    assert imbalance.by_rule(images, "cacr-linear").counts() == [5, 10, 15, 20, 25, 30, 35, 40, 45, 50]
    for invalid in (
        "exponential:x",
        "linear",
        "kukleva",
        "kukleva:a",
        "uniform",
        "uniform:-5",
        "pareto:1.5",
        "pareto:",
    ):
        with pytest.raises(ValueError, match="imbalance: expected exponential:FACTOR"):
            imbalance.by_rule(images, invalid)


def with_labels(counts: list[int]) -> Files:
    """Files that are listed but do not exist, since only their labels matter."""
    labels = torch.cat([torch.full((n,), c) for c, n in enumerate(counts)])
    return Files(
        "synthetic", tuple(Path(f"{i}.png") for i in range(len(labels))), labels, tuple(map(str, range(len(counts))))
    )


@pytest.mark.parametrize(("classes", "each", "total"), [(10, 5000, 11165), (100, 500, 9754)])
def test_splits_of_kukleva(classes: int, each: int, total: int) -> None:
    images = with_labels([each] * classes)
    splits = [imbalance.by_rule(images, f"kukleva:{split}") for split in range(3)]
    sizes = sorted(imbalance.exponential(classes, each * 9 // 10), reverse=True)
    for thinned in splits:
        assert len(thinned) == total
        assert sorted(thinned.counts(), reverse=True) == sizes
    assert len({tuple(thinned.counts()) for thinned in splits}) == 3  # the order of the classes differs
    assert len({path for thinned in splits for path in thinned.paths}) <= classes * each * 9 // 10  # one training part
    assert imbalance.by_rule(images, "kukleva:1").paths == splits[1].paths


@pytest.mark.thorough
def test_pareto_and_uniform_classes_of_imagenet() -> None:
    """ImageNet's classes have 732 to 1300 images; 105 of them have fewer than 1280, here every seventh."""
    counts = [732 + c % 500 if c % 7 == 0 else 1300 for c in range(1000)]
    labels = torch.arange(1000).repeat_interleave(torch.tensor(counts))
    images = Images("ImageNet", torch.zeros(len(labels), 3, 1, 1, dtype=torch.uint8), labels)
    tail = imbalance.by_rule(images, "pareto").counts()
    assert (sum(tail), max(tail), min(tail)) == (115846, 1280, 5)
    assert tail != sorted(tail, reverse=True)  # sizes are not in the order of the labels
    assert imbalance.by_rule(images, "pareto:115846").counts() == tail
    uniform = imbalance.by_rule(images, "uniform:115846").counts()
    assert sum(uniform) == 115846
    assert set(uniform) == {115, 116}
    assert sum(imbalance.by_rule(images, "pareto:12205").counts()) == 12205


@pytest.mark.parametrize(
    ("rule", "reason"),
    [
        ("pareto", "expected 366 images of one more class, but the classes that are left have at most 50"),
        ("pareto:49", "pareto takes 50 to 12,800 images of 10 classes, 5 to 1280 of each, got 49"),
        ("uniform:9", "uniform takes at least one image of each of 10 classes, got 9"),
        ("uniform:501", "expected 51 images of one more class, but the classes that are left have at most 50"),
    ],
)
def test_too_few_images_are_refused(rule: str, reason: str) -> None:
    with pytest.raises(ValueError, match=f"imbalance: {reason}"):
        imbalance.by_rule(labelled([50] * 10), rule)


def test_a_published_list(tmp_path: Path) -> None:
    images = labelled([5, 5])
    np.save(tmp_path / "list.npy", np.array([9, 0, 3]))
    thinned = imbalance.by_rule(images, f"index:{tmp_path / 'list.npy'}")
    assert thinned.labels is not None
    assert thinned.labels.tolist() == [1, 0, 0]
    (tmp_path / "list.txt").write_text("1\n2\n")
    assert len(imbalance.by_rule(images, f"index:{tmp_path / 'list.txt'}")) == 2
    (tmp_path / "far.txt").write_text("1\n10\n")
    with pytest.raises(ValueError, match=r"expected indices from 0 to 9 in .*far.txt, got values from 1 to 10"):
        imbalance.by_rule(images, f"index:{tmp_path / 'far.txt'}")
    with pytest.raises(ValueError, match=r"expected a file of indices after 'index:', but nothing\.npy is not a file"):
        imbalance.by_rule(images, "index:nothing.npy")


def test_a_published_list_of_paths(tmp_path: Path) -> None:
    names = [f"n0{c}/n0{c}_{i}.JPEG" for c in range(2) for i in range(3)]
    images = replace(labelled([3, 3]), paths=tuple(Path("train") / name for name in names))
    listed = tmp_path / "ImageNet_LT_train.txt"
    listed.write_text("train/n01/n01_2.JPEG 1\ntrain/n00/n00_0.JPEG 0\n\n")
    thinned = imbalance.by_rule(images, f"index:{listed}")
    assert [path.name for path in thinned.paths] == ["n01_2.JPEG", "n00_0.JPEG"]
    listed.write_text("train/n01/n01_2.JPEG 1\ntrain/n07/n07_1.JPEG 7\n")
    message = r"1 of the 2 files in .* are not among the training images, such as n07/n07_1.JPEG; expected FOLDER/NAME"
    with pytest.raises(ValueError, match=message):
        imbalance.by_rule(images, f"index:{listed}")


@pytest.mark.parametrize(
    "array",
    [np.ones(10, dtype=bool), np.array([1.5, 2.0]), np.array(["1"]), np.zeros(3, dtype=[("a", "i4")])],
    ids=["mask", "floats", "texts", "records"],
)
def test_arrays_that_are_no_indices_are_refused(array: np.ndarray, tmp_path: Path) -> None:
    np.save(tmp_path / "list.npy", array)
    with pytest.raises(ValueError, match=r"imbalance: expected an array of whole numbers in .*list\.npy, got"):
        imbalance.by_rule(labelled([5, 5]), f"index:{tmp_path / 'list.npy'}")


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04", b"\x93NUMPY\x01\x00\xff\xff{", b"\x80\x04."])
def test_damaged_arrays_of_indices_are_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "list.npy").write_bytes(content)
    with pytest.raises(ValueError, match=r"imbalance: .*list\.npy cannot be read as an array of indices"):
        imbalance.by_rule(labelled([5, 5]), f"index:{tmp_path / 'list.npy'}")


def test_an_array_that_claims_terabytes_is_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "list.npy", np.arange(10**3))
    content = (tmp_path / "list.npy").read_bytes()
    (tmp_path / "list.npy").write_bytes(content.replace(b"(1000,), }           ", b"(10000000000000,), } "))
    with pytest.raises(ValueError, match=r"list\.npy cannot be read as an array of indices"):
        imbalance.by_rule(labelled([5, 5]), f"index:{tmp_path / 'list.npy'}")


@pytest.mark.parametrize("text", ["9" * 30, "9" * 5000, "²"])
def test_numbers_that_cannot_be_read_are_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "list.txt").write_text(f"1\n{text}\n")
    with pytest.raises(
        ValueError, match=r"imbalance: expected indices in .*list\.txt, got a number that cannot be read"
    ):
        imbalance.by_rule(labelled([5, 5]), f"index:{tmp_path / 'list.txt'}")
