"""Settings that are chosen for a user's images."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from contrapose.lab.modalities.images.load import NAMED
from contrapose.lab.modalities.images.modality import IMAGES
from contrapose.lab.modalities.images.suggest import _KNOWN, _activation_bytes
from contrapose.lab.modalities.modality import DataSettings

CPU, GPU = torch.device("cpu"), torch.device("cuda")


def npz(path: Path, count: int, side: int) -> str:
    """Write images, compressed: many of them are a small file."""
    np.savez_compressed(path, train_images=np.zeros((count, side, side + 7, 3), np.uint8))
    return str(path)


def suggested(data: str, device: torch.device, **chosen: Any) -> dict[str, Any]:
    return dict(IMAGES.suggest(DataSettings(data=data), chosen, device).settings)


@pytest.mark.parametrize(
    ("count", "side", "device", "encoder", "size", "views", "batch"),
    [
        (600, 28, CPU, "small", 32, "simclr-cifar", 64),
        (600, 64, CPU, "small", 32, "simclr-cifar", 64),
        (2000, 240, CPU, "small", 48, "simclr-cifar", 128),
        (2000, 28, GPU, "resnet18-cifar", 32, "simclr-cifar", 256),
        (600, 48, GPU, "resnet18-cifar", 48, "simclr-cifar", 128),
        (600, 64, GPU, "resnet18-cifar", 64, "simclr-cifar", 128),
        (600, 240, GPU, "resnet18", 96, "simclr", 128),
        pytest.param(10_000, 240, GPU, "resnet50", 224, "simclr", 256, marks=pytest.mark.thorough),
        # Images are never enlarged.
        pytest.param(10_000, 100, GPU, "resnet18", 96, "simclr", 256, marks=pytest.mark.thorough),
    ],
)
def test_settings_fit_the_images_and_the_device(
    count: int, side: int, device: torch.device, encoder: str, size: int, views: str, batch: int, tmp_path: Path
) -> None:
    chosen = suggested(npz(tmp_path / "mine.npz", count, side), device)
    if device == GPU and torch.cuda.is_available():
        batch = min(batch, chosen["batch"])  # a small GPU holds fewer
    assert chosen == {"encoder": encoder, "size": size, "views": views, "batch": batch}


def test_what_was_chosen_decides_the_rest(tmp_path: Path) -> None:
    data = npz(tmp_path / "mine.npz", 600, 240)
    assert suggested(data, GPU, size=64) == {"views": "simclr-cifar", "encoder": "resnet18-cifar", "batch": 128}
    assert suggested(data, GPU, encoder="alexnet")["size"] == 32
    # A recipe that was chosen has its own size, which the encoder follows.
    assert suggested(data, GPU, views="simclr-64", size=0) == {"encoder": "resnet18-cifar", "batch": 128}
    assert suggested(data, CPU, views="moco-v2", size=0, encoder="resnet18", batch=8) == {}
    assert suggested(data, CPU, accumulate=8)["batch"] == 16  # 600 images allow four steps of eight batches


@pytest.mark.parametrize(("count", "batch"), [(3, 2), (12, 2), (40, 8), (255, 32)])
def test_an_epoch_has_four_steps(count: int, batch: int, tmp_path: Path) -> None:
    assert suggested(npz(tmp_path / "mine.npz", count, 32), CPU)["batch"] == batch


def test_headers_of_a_folder_are_enough(tmp_path: Path) -> None:
    for number, (mode, shape) in enumerate(
        [("L", (300, 90)), ("RGB", (90, 200)), ("RGBA", (91, 91)), ("P", (500, 500))]
    ):
        folder = tmp_path / "train" / f"class{number % 2}"
        folder.mkdir(parents=True, exist_ok=True)
        Image.new(mode, shape).save(folder / f"{number}.png")
    (folder / "broken.png").write_bytes(b"not an image")
    suggestion = IMAGES.suggest(DataSettings(data=str(tmp_path), hold_out=0.0), {}, CPU)
    assert suggestion.samples == 5  # the broken file is reported when it is loaded
    assert suggestion.description == "5 images of 90 pixels"
    limited = IMAGES.suggest(DataSettings(data=str(tmp_path), limit=3), {}, CPU)
    assert limited.samples == 3


def test_a_file_that_cannot_be_read_is_reported_as_when_it_is_loaded(tmp_path: Path) -> None:
    (tmp_path / "fake.npz").write_text("nothing")
    with pytest.raises(ValueError, match=r"fake.npz is not an .npz file"):
        suggested(str(tmp_path / "fake.npz"), CPU)
    np.savez(tmp_path / "other.npz", images=np.zeros(3))
    with pytest.raises(ValueError, match="expected the array train_images, found images"):
        suggested(str(tmp_path / "other.npz"), CPU)
    np.savez(tmp_path / "newer.npz", train_images=np.zeros((2, 8, 8), np.uint8))
    data = bytearray((tmp_path / "newer.npz").read_bytes())
    data[data.index(b"PK\x01\x02") + 6] = 108  # the version of zip that the first file needs
    (tmp_path / "newer.npz").write_bytes(data)
    with pytest.raises(ValueError, match=r"newer.npz is not an .npz file"):
        suggested(str(tmp_path / "newer.npz"), CPU)


def test_all_named_data_sets_are_known() -> None:
    assert _KNOWN.keys() == NAMED.keys()
    assert suggested("stl10", GPU)["encoder"] == "resnet18"


def test_activations_are_those_of_the_layers() -> None:
    """A ResNet-50 at 224 pixels stores about 88 MB for an image in float32; its activations are computed in place."""
    assert _activation_bytes("resnet50", 224) == pytest.approx(88e6, rel=0.05)
    # Convolutions scale with the number of pixels.
    assert _activation_bytes("resnet50", 224) / _activation_bytes("resnet50", 112) == pytest.approx(4, rel=0.02)


@pytest.mark.parametrize("damage", ["encrypted", "deflated"])
def test_the_array_of_a_damaged_archive_is_named(damage: str, tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez_compressed(path, train_images=np.zeros((2, 8, 8), np.uint8))
    content = bytearray(path.read_bytes())
    if damage == "encrypted":
        content[6] |= 1
        content[content.index(b"PK\x01\x02") + 8] |= 1
    else:
        name, extra = (int.from_bytes(content[at : at + 2], "little") for at in (26, 28))
        content[30 + name + extra] = 0xFF
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"a\.npz: train_images cannot be read: "):
        suggested(str(path), CPU)
