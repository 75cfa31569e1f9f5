"""Small images with captions, and runs on them."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from contrapose.lab.modalities.captions.settings import CAPTION_SETTINGS
from contrapose.lab.training import Run, Trainer

COLOURS = {
    "red": (220, 30, 40), "green": (30, 180, 60), "blue": (40, 60, 220), "yellow": (230, 220, 40), "white": (240, 240, 240),
    "black": (15, 15, 15), "orange": (240, 140, 30), "purple": (130, 40, 150), "brown": (120, 70, 30), "grey": (128, 128, 128),
    "pink": (250, 150, 190), "cyan": (60, 220, 220),
}  # fmt: skip
TEST = ("pink", "cyan")
SIZE = 16  # of views


def captions_of(number: int, colour: str) -> list[str]:
    """Return two or three captions of an image."""
    return [f"a {colour} square", f"something {colour} on a wall", f"{colour} paint"][: 2 + number % 2]


def png(colour: str) -> bytes:
    """Return the file of an image; it is as large as images are in memory, so that no pixel depends on scaling."""
    pixels = torch.zeros(SIZE, SIZE, 3, dtype=torch.uint8) + torch.tensor(COLOURS[colour], dtype=torch.uint8)
    # Another gradient in each image: crops differ.
    pixels[:, :, 0] //= torch.linspace(1, 3, SIZE).to(torch.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels.numpy()).save(file, "PNG")
    return file.getvalue()


def write_folder(folder: Path) -> Path:
    """Write twelve images, ten of them for training, and captions.tsv."""
    (folder / "images").mkdir(parents=True)
    rows = ["image\tcaption\tsplit"]
    for number, colour in enumerate(COLOURS):
        (folder / "images" / f"{number:02d}.png").write_bytes(png(colour))
        part = "test" if colour in TEST else "train"
        rows += [f"{number:02d}.png\t{caption}\t{part}" for caption in captions_of(number, colour)]
    (folder / "captions.tsv").write_text("\n".join(rows) + "\n")
    return folder


def write_tars(folder: Path) -> Path:
    """Write the same images and captions as `write_folder` to two WebDataset tars."""
    folder.mkdir()
    for shard in range(2):
        with tarfile.open(folder / f"{shard}.tar", "w") as tar:
            for number, colour in list(enumerate(COLOURS))[6 * shard : 6 * shard + 6]:
                part = "test" if colour in TEST else "train"
                described = {"caption": captions_of(number, colour), "split": part}
                for name, content in (
                    (f"{number:02d}.png", png(colour)),
                    (f"{number:02d}.json", json.dumps(described)),
                ):
                    data = content if isinstance(content, bytes) else content.encode()
                    info = tarfile.TarInfo(name)
                    info.size = len(data)
                    tar.addfile(info, io.BytesIO(data))
    return folder


def run_of(data: Path, **changes: Any) -> Run:
    """Return a short run."""
    settings: dict[str, Any] = {
        "views": "captions",
        "size": SIZE,
        "encoder": "tiny",
        "text_encoder": "tiny",
        "text_length": 12,
        "width": 16,
        "batch": 5,
        "epochs": 2,
        "lr": 1e-3,
        "metrics": 10,
    }
    return Run(data=str(data), **{**CAPTION_SETTINGS, **settings, **changes})


def trainer_of(run: Run, folder: Path, **options: Any) -> Trainer:
    """Return a trainer on the CPU that prints nothing."""
    device = torch.device("cpu")
    return Trainer(run, folder, log=lambda text: None, device=device, data_root=folder.parent / "cache", **options)
