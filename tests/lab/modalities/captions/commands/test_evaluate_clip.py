"""`contrapose evaluate clip:FOLDER`: zero-shot classification and retrieval, and options that do not fit."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from clip_folders import save_clip
from commands import error_message
from mixed_folder import CLASSES, make_mixed_folder

from contrapose.lab.cli import main
from contrapose.lab.evaluation import class_embeddings, zero_shot_scores
from contrapose.lab.modalities.captions.commands.evaluate import Towers, score_captions
from contrapose.lab.modalities.captions.files import CaptionList
from contrapose.lab.modalities.captions.pretrained import load_image_text_model


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model") / "clip"
    save_clip(folder)
    return folder


def scores_of(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[dict[str, float], str]:
    capsys.readouterr()
    main(["evaluate", *arguments])
    output = capsys.readouterr()
    return json.loads(output.out), output.err


def test_zero_shot_on_a_class_folder(clip: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = make_mixed_folder(tmp_path / "images", each=3)
    arguments = [f"clip:{clip}", "--zero-shot", str(folder)]
    scores, notes = scores_of(capsys, *arguments)
    assert "zero-shot: 12 images of images, 4 classes, 1 prompt for each" in notes
    model = load_image_text_model(clip)
    paths = [path for name in CLASSES for path in sorted((folder / name).iterdir())]
    labels = torch.arange(4).repeat_interleave(3)
    expected = zero_shot_scores(model.embed_images(paths), labels, class_embeddings(model.embed_texts, CLASSES))
    assert {name: scores[f"zero_shot_{name}"] for name in expected} == pytest.approx(expected)
    assert scores["chance_zero_shot_top1"] == 25
    (tmp_path / "names.txt").write_text("dog\ncat\nphoto\nthe\n")
    own = ["--class-names", str(tmp_path / "names.txt"), "--templates", "imagenet-7", "a {} ."]
    _, notes = scores_of(capsys, *arguments, *own)
    assert "8 prompts for each" in notes
    (folder / CLASSES[0] / "broken.png").write_bytes(b"no image")
    assert "broken.png, cannot be read" in error_message(capsys, "evaluate", *arguments)
    assert "zero-shot: 12 images" in scores_of(capsys, *arguments, "--skip-broken")[1]


def test_zero_shot_on_an_npz(clip: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The test images are classified; without names in the file, they are given."""
    images = np.random.default_rng(0).integers(0, 256, (30, 8, 8, 3), dtype=np.uint8)
    arrays: dict[str, Any] = {"train_images": images, "train_labels": np.arange(30) % 10}
    arrays |= {"test_images": images[:20], "test_labels": np.arange(20) % 10}
    np.savez(tmp_path / "set.npz", **arrays)
    arguments = ["evaluate", f"clip:{clip}", "--zero-shot", str(tmp_path / "set.npz")]
    assert "has 10 classes without names; give a text file" in error_message(capsys, *arguments)
    scores, notes = scores_of(capsys, *arguments[1:], "--class-names", "cifar10")
    assert "zero-shot: 20 images of set.npz (test), 10 classes" in notes
    assert scores["chance_zero_shot_top5"] == 50
    np.savez(tmp_path / "set.npz", **arrays, classes=np.array([f"n0000000{i}" for i in range(10)]))
    assert "10 of 10 are WordNet ids such as n00000000" in scores_of(capsys, *arguments[1:])[1]


def listed(images: Sequence[Path], captions: Sequence[tuple[str, ...]], parts: Sequence[str] = ()) -> CaptionList:
    return CaptionList("listed", tuple(images), tuple(captions), tuple(parts), notes=(), fingerprint="")


def test_captions_of_the_test_set(clip: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = make_mixed_folder(tmp_path / "images", each=3)
    images = tuple(sorted(path for path in folder.rglob("*.*") if path.is_file()))
    captions = tuple((f"a {path.parent.name} .", f"the photo of {path.stem}") for path in images)
    parts = tuple("test" if i % 2 else "train" for i in range(12))
    model = load_image_text_model(clip)
    towers = Towers(model.embed_images, model.embed_texts)
    scores = score_captions(listed(images, captions, parts), towers)
    assert "captions: 6 images with 12 captions of listed (test)" in capsys.readouterr().err
    recalls = {
        f"{way}_recall_{k}" for way, ks in (("image_to_text", (1, 5, 10)), ("text_to_image", (1, 5))) for k in ks
    }
    measures = {"modality_gap", "alignment", "image_uniformity", "text_uniformity"}
    assert set(scores) == recalls | {f"chance_{name}" for name in recalls} | measures
    only = score_captions(listed(images[1::2], captions[1::2]), towers)
    assert only == scores
    assert "of listed\n" in capsys.readouterr().err


def test_options_that_do_not_fit_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = ["evaluate", f"clip:{tmp_path / 'none'}"]
    folder = str(make_mixed_folder(tmp_path / "images", each=1))
    for arguments, message in [
        (model, "zero-shot: there is nothing to evaluate; give data with --zero-shot or --captions"),
        ([*model, "--zero-shot", "digitz"], "zero-shot: expected one of digits"),
        ([*model, "--zero-shot", folder], "encoder: "),
        ([*model, "--zero-shot", folder, "--templates", "a photo"], "templates: expected a prompt with {}"),
        ([*model, "--zero-shot", f"{folder}/checks"], "have no classes; give a folder with one subfolder per class"),
        ([*model, "--class-names", "cifar10", "--captions", folder], "class-names: they are those of --zero-shot"),
        (
            [*model, "--linear", "cacr"],
            "linear: --linear is for runs that contrapose trained; a model of images and texts takes",
        ),
        ([*model, "--sts", "x.tsv"], "sts: --sts is for sentence encoders; a model of images and texts takes"),
        ([*model, "--columns", "2"], "columns: --columns needs --data or --captions"),
        (
            ["evaluate", "hf:x", "--zero-shot", folder],
            "zero-shot: --zero-shot is for models of images and texts, as in clip:FOLDER; a sentence encoder",
        ),
    ]:
        assert message in error_message(capsys, *arguments)


def test_a_run_on_images_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = str(tmp_path / "run")
    main(["train", "--limit", "32", "--batch", "16", "--epochs", "1", "--knn", "3", "--metrics", "0", "--out", run])
    capsys.readouterr()
    message = error_message(capsys, "evaluate", run, "--zero-shot", "digits")
    assert "zero-shot: --zero-shot is for models of images and texts, as in clip:FOLDER;" in message
    assert "was trained on images" in message
