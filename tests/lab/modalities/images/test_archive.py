"""Hostile and damaged .npz files end in one line, without a traceback and without using memory."""

from __future__ import annotations

import io
import math
import pickle
import resource
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.lib import format as npy

from contrapose.lab.modalities.images import memory
from contrapose.lab.modalities.images.archive import read_archive

GOOD = np.zeros((4, 8, 8, 3), dtype=np.uint8)


def serialised(array: Any) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=True)
    return buffer.getvalue()


def declaring(shape: tuple[int, ...], dtype: str = "|u1", data: bytes = b"\0" * 100) -> bytes:
    """Return an array file whose header declares any shape."""
    buffer = io.BytesIO()
    npy.write_array_header_1_0(buffer, {"descr": dtype, "fortran_order": False, "shape": shape})
    return buffer.getvalue() + data


def archive(path: Path, **members: bytes) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in members.items():
            file.writestr(f"{name}.npy", content)
    return path


class Dangerous:
    def __reduce__(self) -> Any:
        return (open, ("/tmp/started-by-pickle", "w"))


@pytest.mark.parametrize(
    ("members", "expected"),
    [
        ({"train_images": serialised(np.array([Dangerous()], dtype=object))}, "train_images: expected an array of numbers, got pickled objects"),
        ({"train_images": pickle.dumps([1])}, "train_images cannot be read"),
        ({"train_images": b""}, "train_images cannot be read"),
        ({"train_images": declaring((10**6, 1000, 1000, 3))}, "does not fit in the 228 bytes of the file"),
        ({"train_images": declaring((2**62, 2, 2, 3))}, "does not fit in"),
        ({"train_images": declaring((-4, 8, 8, 3))}, "(-4, 8, 8, 3)"),
        ({"train_images": b"\x93NUMPY\x01\x00\xff\xff{" + b"(" * 60000}, "train_images cannot be read"),
        ({"train_images": serialised(np.zeros((2, 8, 8), dtype=np.float32))}, "got float32 (2, 8, 8)"),
        ({"train_images": serialised(np.zeros((0, 8, 8), dtype=np.uint8))}, "got uint8 (0, 8, 8)"),
        ({"train_images": serialised(np.zeros(8, dtype=np.uint8))}, "got uint8 (8,)"),
        ({"train_images": serialised(GOOD), "train_labels": serialised(np.arange(5))}, "train_labels: expected one label for each of the 4 images, got int64 (5,)"),
        ({"train_images": serialised(GOOD), "train_labels": declaring((4,), "|V150000000", bytes(6 * 10**8))}, "expected one label for each of the 4 images, got |V150000000 (4,)"),
        ({"train_images": serialised(GOOD), "train_labels": serialised(np.array(list("abcd")))}, "got <U1 (4,)"),
        ({"train_images": b"\x93NUMPY\x02\x00" + (2**27).to_bytes(4, "little") + b" " * 2**20}, "train_images cannot be read: ValueError: EOF: reading array header, expected 134217728 bytes got 65524"),
        ({"train_images": serialised(GOOD), "train_labels": serialised(np.array([0, 1, 2, 10**15]))}, "expected class numbers below 1,000,000, got 1000000000000000"),
        ({"train_images": serialised(GOOD), "train_labels": serialised(np.array([None] * 4))}, "train_labels: expected an array of numbers, got pickled"),
        ({"x": serialised(GOOD)}, "expected the array train_images, found x"),
    ],
)  # fmt: skip
def test_one_line(members: dict[str, bytes], expected: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"bad\.npz") as error:
        read_archive(archive(tmp_path / "bad.npz", **members))
    assert expected in str(error.value)
    assert "\n" not in str(error.value)
    assert not Path("/tmp/started-by-pickle").exists()


def test_members_that_are_no_arrays_are_left_out(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as file:
        file.writestr("train_images", serialised(GOOD))
    with pytest.raises(ValueError, match=r"a\.npz: expected the array train_images, found nothing"):
        read_archive(tmp_path / "a.npz")
    with zipfile.ZipFile(archive(tmp_path / "b.npz", train_images=serialised(GOOD)), "a") as file:
        file.writestr("test_images", b"")
    assert read_archive(tmp_path / "b.npz").test is None


@pytest.mark.parametrize("shape", [(1000, 64, 64), (1000, 64, 64, 1)])
def test_gray_images_are_counted_as_they_are_stored(
    shape: tuple[int, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = archive(tmp_path / "gray.npz", train_images=serialised(np.zeros(shape, dtype=np.uint8)))
    monkeypatch.setattr(memory, "free_memory", lambda: 6 * math.prod(shape))
    with pytest.raises(ValueError, match=r"the train_images of .*gray\.npz need"):
        read_archive(path)
    monkeypatch.setattr(memory, "free_memory", lambda: 9 * math.prod(shape))
    assert len(read_archive(path).train) == 1000


@pytest.mark.thorough
def test_many_long_names_of_classes_are_refused(tmp_path: Path) -> None:
    labels, classes = serialised(np.array([0, 1, 1, 0])), declaring((2,), "<U40000000", bytes(32 * 10**7))
    path = archive(tmp_path / "x.npz", train_images=serialised(GOOD), train_labels=labels, classes=classes)
    with pytest.raises(ValueError, match=r"the array of classes in .*x\.npz would take 1 GiB"):
        read_archive(path)


def test_damaged_archives(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "good.npz", train_images=rng.integers(0, 256, (10, 16, 16, 3), dtype=np.uint8))
    content = bytearray((tmp_path / "good.npz").read_bytes())
    assert len(read_archive(tmp_path / "good.npz").train) == 10
    (tmp_path / "cut.npz").write_bytes(content[: len(content) // 2])
    with pytest.raises(ValueError, match=r"cut\.npz is not an \.npz file"):
        read_archive(tmp_path / "cut.npz")
    content[2000] ^= 0xFF
    (tmp_path / "flipped.npz").write_bytes(content)
    with pytest.raises(ValueError, match=r"flipped\.npz: train_images cannot be read: BadZipFile: Bad CRC"):
        read_archive(tmp_path / "flipped.npz")


@pytest.mark.thorough
def test_an_archive_that_expands_to_more_than_memory(tmp_path: Path) -> None:
    """The header and the archive agree on 16 TB; no memory is used for them."""
    path = archive(tmp_path / "bomb.npz", train_images=declaring((10**7, 1000, 1600)))
    content = path.read_bytes()
    size = 16 * 10**12 + 128
    with zipfile.ZipFile(path) as file:
        actual = file.getinfo("train_images.npy").file_size
    # Declare the size in the central directory with the extension for large files.
    at = content.rindex(b"PK\x01\x02")
    extra = (1).to_bytes(2, "little") + (8).to_bytes(2, "little") + size.to_bytes(8, "little")
    entry = bytearray(content[at:])
    assert int.from_bytes(entry[24:28], "little") == actual
    entry[24:28] = b"\xff" * 4
    entry[30:32] = len(extra).to_bytes(2, "little")
    name_end = 46 + int.from_bytes(entry[28:30], "little")
    entry[name_end:name_end] = extra
    end = entry.rindex(b"PK\x05\x06")
    entry[end + 12 : end + 16] = (int.from_bytes(entry[end + 12 : end + 16], "little") + len(extra)).to_bytes(
        4, "little"
    )
    path.write_bytes(content[:at] + entry)
    code = f"from pathlib import Path; from contrapose.lab.modalities.images.archive import read_archive; read_archive(Path({str(path)!r}))"

    def limit_memory() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (8 * 2**30, 8 * 2**30))

    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, preexec_fn=limit_memory
    )
    last = result.stderr.strip().splitlines()[-1]
    assert "ValueError: data: the train_images of" in last
    assert "need 64,000.0 GB of memory" in last


@pytest.mark.parametrize(
    ("classes", "expected"),
    [
        (np.array(["cat", "dog"]), ("cat", "dog")),
        (np.array(["cat", "dog", "ship"]), ("cat", "dog", "ship")),
        (np.array(["cat"]), ()),
        (np.array([7, 8]), ()),
        (np.array([Dangerous(), None], dtype=object), ()),
    ],
)
def test_names_of_classes(classes: Any, expected: tuple[str, ...], tmp_path: Path) -> None:
    labels = serialised(np.array([0, 1, 1, 0]))
    images = {f"{part}_images": serialised(GOOD) for part in ("train", "test")}
    path = archive(tmp_path / "x.npz", **images, train_labels=labels, test_labels=labels, classes=serialised(classes))
    split = read_archive(path)
    assert split.test is not None
    assert split.train.classes == split.test.classes == expected
