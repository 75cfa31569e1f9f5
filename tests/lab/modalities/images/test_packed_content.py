"""Packed copies with a correct checksum and content that no copy has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch import Tensor

from contrapose.lab.cached_files import entry, open_tensors, write_tensors
from contrapose.lab.modalities import DataSettings
from contrapose.lab.modalities.images.packed import pack, packed_facts, read_packed
from contrapose.lab.modalities.images.views import Views


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    for part in ("train", "test"):
        for number in range(4):
            path = tmp_path / "photos" / part / "ab"[number % 2] / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (20, 20)).save(path)
    out = tmp_path / "copy.safetensors"
    pack(DataSettings(data=str(tmp_path / "photos")), Views.named("simclr-cifar", size=16), out)
    return out


def rewrite(path: Path, changes: dict[str, Any]) -> None:
    """Write a copy again, with a correct checksum; None removes a tensor."""
    metadata, tensors = open_tensors(path)
    parts: dict[str, Tensor] = {name: tensor.clone() for name, tensor in tensors.items()}
    for name, value in changes.items():
        if isinstance(value, str):
            metadata[name] = value
        elif value is None:
            del parts[name]
        else:
            parts[name] = value
    write_tensors(path, [entry(name, tensor) for name, tensor in parts.items()], metadata)


def test_a_copy_that_is_written_again_is_read(copy: Path) -> None:
    rewrite(copy, {})
    assert len(read_packed(copy).train) == 4


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"folder": "bytes:zz"}, "it names the folder 'bytes:zz'"),
        ({"hold_out": "much"}, "could not convert string to float"),
        ({"hold_out": "nan"}, "its hold_out is nan"),
        ({"view_size": "1e9"}, "invalid literal for int"),
        ({"view_size": "-1"}, "its view_size -1"),
        ({"classes": "[" * 100_000}, "its classes are not JSON"),
        ({"only": "[" * 100_000}, "its only are not JSON"),
        ({"classes": "[1]"}, "its classes are no texts"),
        ({"notes": "5"}, "its notes are no texts"),
        ({"source_names": '{"train": 5}'}, "its source_names are no texts"),
        ({"source_names": "[]"}, "its source_names are no texts"),
        ({"test_names": None}, "its test_names are not one name for each of 4 images"),
        ({"train_names": torch.zeros(9, dtype=torch.uint8)}, "its train_names are not one name for each of 4 images"),
        ({"train_images": torch.zeros(4, 3, 18, 18)}, "its train_images are no images of uint8"),
        ({"train_images": torch.zeros(4, 9, dtype=torch.uint8)}, "its train_images are no images of uint8"),
        ({"train_labels": torch.zeros(4)}, "its train_labels are not one whole number for each of 4 images"),
        ({"train_labels": torch.tensor([0, 1])}, "its train_labels are not one whole number for each of 4 images"),
        ({"train_labels": torch.tensor([0, 1, -1, 0])}, "its train_labels are not from 0 to 1"),
        ({"test_labels": torch.tensor([0, 1, 2, 0])}, "its test_labels are not from 0 to 1"),
        (
            {"classes": "[]", "test_labels": torch.tensor([0, 1, 10**15, 0])},
            "its test_labels are not from 0 to 999,999",
        ),
    ],
)
def test_impossible_content_is_refused(copy: Path, changes: dict[str, Any], expected: str) -> None:
    rewrite(copy, changes)
    for read in (read_packed, packed_facts):
        with pytest.raises(ValueError, match=rf"^data: {copy}, a packed copy, is damaged: ") as error:
            read(copy)
        assert expected in str(error.value)
        assert "\n" not in str(error.value)
