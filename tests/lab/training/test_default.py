"""`contrapose train` without options, the first command of a new user: on the built-in digits, and on a folder of images."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from contrapose.lab.evaluation import KNN
from contrapose.lab.modalities import Split
from contrapose.lab.modalities.images.images import Images
from contrapose.lab.training import Run, prepare
from contrapose.lab.training.initial_model import start
from contrapose.lab.training.model import load


def train(folder: Path, *options: str) -> Path:
    """Run the command on one core and return the directory of the run."""
    completed = subprocess.run(
        [sys.executable, "-m", "contrapose", "train", *options],
        cwd=folder,
        capture_output=True,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
    )
    assert completed.returncode == 0, completed.stderr
    print(completed.stdout)
    (run,) = (folder / "runs").glob("*/")
    return run


def accuracies(run: Path) -> tuple[float, float, float]:
    """Return the kNN accuracy of the trained encoder, of the encoder that it started from, and of raw pixels."""
    records = [json.loads(line) for line in (run / "records.jsonl").read_text().splitlines()]
    settings = Run.load(run / "run.json")
    split = prepare(settings)
    untrained = start(load(run, device="cpu"), split).evaluate(split)["knn_top1"]
    trained, raw = records[-1]["knn_top1"], pixel_accuracy(split)
    seconds = sum(record["seconds"] for record in records)
    print(
        f"trained {trained:.2f}, untrained {untrained:.2f}, raw pixels {raw:.2f}; {seconds:.0f} s in {len(records)} epochs"
    )
    return trained, untrained, raw


def pixel_accuracy(split: Split) -> float:
    probe, test = split.probe, split.test
    assert isinstance(probe, Images)
    assert isinstance(test, Images)
    assert probe.labels is not None
    assert test.labels is not None
    pixels = (images.pixels.flatten(1) / 255 for images in (probe, test))
    bank, queries = pixels
    return float(KNN(20)(bank, probe.labels, queries, test.labels)["top1"])


@pytest.mark.slow
def test_the_default_run_learns_digits(tmp_path: Path) -> None:
    """One minute on two slow cores; measured: 86.6 %, raw pixels 48.8 %, untrained encoder 26.7 %."""
    trained, untrained, raw = accuracies(train(tmp_path))
    assert trained >= 80
    assert trained >= raw + 25
    assert trained >= untrained + 25


def textures(folder: Path, *, train: int = 16, test: int = 15, side: int = 40) -> None:
    """Draw four patterns at random places, angles, scales and levels of gray, so that pixels say little about the pattern."""
    y, x = np.mgrid[:side, :side] - side / 2
    random = np.random.default_rng(0)
    patterns: dict[str, Callable[[Any, Any], Any]] = {
        "stripes": lambda u, v: np.sin(u),
        "checks": lambda u, v: np.sign(np.sin(u) * np.sin(v)),
        "rings": lambda u, v: np.sin(np.hypot(u, v)),
        "spots": lambda u, v: np.cos(u) + np.cos(v) > 0.8,
    }
    for part, count in (("train", train), ("test", test)):
        for name, pattern in patterns.items():
            (folder / part / name).mkdir(parents=True)
            for number in range(count):
                angle, scale = random.uniform(0, np.pi), random.uniform(0.5, 1.2)
                u = scale * (np.cos(angle) * x + np.sin(angle) * y) + random.uniform(-6, 6)
                v = scale * (np.cos(angle) * y - np.sin(angle) * x) + random.uniform(-6, 6)
                dark, contrast = random.uniform(0, 0.5), random.choice([-1, 1]) * random.uniform(0.2, 0.5)
                gray = abs(dark + 0.2 + contrast * pattern(u, v))[..., None] * random.uniform(0.9, 1.1, 3)
                noisy = 255 * (gray + 0.05 * random.standard_normal(gray.shape)).clip(0, 1)
                Image.fromarray(noisy.astype(np.uint8)).save(folder / part / name / f"{number}.png")


@pytest.mark.slow
def test_the_default_command_learns_textures(tmp_path: Path) -> None:
    textures(tmp_path / "textures")
    trained, untrained, raw = accuracies(train(tmp_path, "--data", str(tmp_path / "textures")))
    assert trained >= raw + 20
    assert trained >= untrained + 10


@pytest.mark.slow
@pytest.mark.skipif(
    "CONTRAPOSE_TINY_IMAGENET" not in os.environ, reason="needs a folder of Tiny-ImageNet with train/ and val/"
)
@pytest.mark.timeout(3600)
def test_the_default_command_learns_tiny_imagenet(tmp_path: Path) -> None:
    """Four classes, spread over the list; every third training image is tested on, beside those of val/, which are few."""
    source = Path(os.environ["CONTRAPOSE_TINY_IMAGENET"])
    names = sorted(path.name for path in (source / "train").iterdir())
    for name in names[:: len(names) // 4][:4]:
        images, more = (
            sorted(
                path for path in (source / part / name).rglob("*") if path.suffix.lower() in (".jpeg", ".jpg", ".png")
            )
            for part in ("train", "val")
        )
        for part, chosen in (("train", [*images[1::3], *images[2::3]]), ("test", [*images[::3], *more])):
            folder = tmp_path / "tiny" / part / name
            folder.mkdir(parents=True)
            for path in chosen:
                (folder / path.name).symlink_to(path.resolve())
    trained, untrained, raw = accuracies(train(tmp_path, "--data", str(tmp_path / "tiny")))
    assert trained >= raw + 10
    assert trained >= untrained + 5
