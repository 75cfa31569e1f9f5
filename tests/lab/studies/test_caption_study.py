"""CACR's Table 19: its settings at each scale, its data, and zero-shot accuracy on data that is given."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import error_message

from contrapose import load
from contrapose.lab.cli import main
from contrapose.lab.evaluation import class_embeddings
from contrapose.lab.modalities.captions.shapes import SHAPES, drawings, labelled_shapes
from contrapose.lab.studies import find
from contrapose.lab.studies.measures import Context, Map, ZeroShot
from contrapose.lab.studies.task import Task, run_task
from contrapose.lab.training import Model, Run, prepare
from contrapose.pairs import unit

NAME = "cacr/table19"
WORDNET = {shape: f"n0000000{number}" for number, shape in enumerate(SHAPES)}


def write_imagenet(folder: Path) -> Path:
    """Write shapes as ImageNet is stored: folders with WordNet ids, whose names are in a file."""
    for part, images in {"train": drawings()[:10], "val": drawings()[10:60]}.items():
        for image in images:
            path = folder / part / WORDNET[image.shape] / image.name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(image.read())
    return folder


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run a row of the study at the smoke scale, on a folder in place of ImageNet."""
    root = tmp_path_factory.mktemp("study")
    (root / "names.txt").write_text("\n".join(SHAPES))
    data = [f"imagenet={write_imagenet(root / 'imagenet')}", f"class_names={root / 'names.txt'}"]
    main(
        [
            "study",
            "run",
            NAME,
            "--rows",
            "CACR",
            "--data",
            *data,
            "--runs-dir",
            str(root / "runs"),
            "-o",
            str(root / "out"),
        ]
    )
    return root


def trained(root: Path) -> Model:
    (folder,) = (root / "runs").glob("shapes-cacr-*")
    model = load(folder)
    assert isinstance(model, Model)
    return model


def context_of(model: Any, downstream: dict[str, str]) -> Context:
    return Context(model, prepare(model.run, folder=model.folder), downstream)


@pytest.mark.thorough
def test_the_smoke_scale_measures_everything(measured: Path) -> None:
    (folder,) = (measured / "runs").glob("shapes-cacr-*")
    values = json.loads((folder / "evaluations.json").read_text())
    (record,) = (
        json.loads(line) for line in (folder / "records.jsonl").read_text().splitlines() if '"epoch": 2' in line
    )
    for quantity in find(NAME).quantities:
        assert 0 <= {**record, **values}[quantity.measure.key] <= 100
    page = next((measured / "out").glob("*/index.md")).read_text()
    assert "zero-shot CIFAR-10 in place of ImageNet-1K" in page
    assert "cifar10 (made)" in page


@pytest.mark.thorough
def test_zero_shot_accuracy_is_that_of_the_towers(measured: Path) -> None:
    model = trained(measured)
    paths = sorted((measured / "imagenet" / "val").rglob("*.png"))
    labels = [sorted(WORDNET.values()).index(path.parent.name) for path in paths]
    images = unit(model.towers["images"].embed(paths))
    texts = unit(model.towers["text"].embed([f"a photo of a {shape}." for shape in SHAPES]))
    right = [int(row.argmax()) == label for row, label in zip(images @ texts.T, labels, strict=True)]
    assert model.folder is not None
    values = json.loads((model.folder / "evaluations.json").read_text())
    assert values["zero_shot:imagenet:class_names"] == pytest.approx(100 * np.mean(right))
    made = labelled_shapes()
    assert made.labels is not None
    similar = unit(model.towers["images"].embed(made.paths)) @ class_embeddings(model.towers["text"].embed, SHAPES).T
    assert values["zero_shot:cifar10"] == pytest.approx(100 * float((similar.argmax(1) == made.labels).float().mean()))


@pytest.mark.thorough
def test_an_archive_has_the_names_of_its_data_set(measured: Path, tmp_path: Path) -> None:
    model = trained(measured)
    pixels = np.random.default_rng(0).integers(0, 256, (20, 32, 32, 3), dtype=np.uint8)
    labels, archive = np.arange(20) % 10, tmp_path / "any.npz"
    np.savez(archive, train_images=pixels, train_labels=labels, test_images=pixels, test_labels=labels)
    value = ZeroShot("cifar10").evaluate(context_of(model, {"cifar10": str(archive)}))
    assert 0 <= value["zero_shot:cifar10"] <= 100
    with pytest.raises(ValueError, match=r"class_names: any\.npz .* has 10 classes without names"):
        ZeroShot("imagenet").evaluate(context_of(model, {"imagenet": str(archive)}))


def test_a_measure_of_one_encoder_is_refused(measured: Path, tmp_path: Path) -> None:
    model = trained(measured)
    with pytest.raises(
        ValueError, match="map cannot be computed for a run on shapes, which has encoders of images and text"
    ):
        Map().take(context_of(model, {}))
    run = Run(limit=48, batch=16, epochs=1, knn=3, metrics=0)
    reason = run_task(Task(run, (ZeroShot("cifar10"),), tmp_path, downstream={"cifar10": "made"}))
    assert reason == "measures: zero_shot:cifar10 cannot be computed for a run on digits16, which has one encoder"


def test_settings_of_each_scale() -> None:
    study = find(NAME)
    for run in study.plan("paper", ["cc3m=tars", "imagenet=there", "class_names=names.txt"]).runs(1).values():
        assert (run.data, run.encoder, run.text_encoder, run.width) == ("tars", "resnet50", "clip", 1024)
        assert (run.batch, run.epochs, run.optimiser, run.lr, run.schedule) == (2048, 32, "adamw", 5e-4, "cosine")
        assert (run.weight_decay, run.stream) == (0.1, True)
    small, short = (study.plan(scale, ["flickr8k=photos", "cifar10=cifar10.npz"]) for scale in ("small", "short"))
    assert [(study_data.name, study_data.data) for study_data in small.sets] == [("Flickr8k", "photos")]
    assert {run.epochs for run in small.runs(1).values()} == {60}
    assert {run.epochs for run in short.runs(1).values()} == {15}
    (row, *_) = study.rows
    assert small.measures(small.sets[0], row)[0] == ZeroShot("cifar10")  # ImageNet is not given
    losses = {row.name: small.run(row, small.sets[0]).loss.split("(")[0] for row in study.rows}
    assert losses == {
        "CLIP": "clip", "CLIP, reproduced": "clip", "CACR": "cacr", "SigLIP": "siglip", "DySTreSS": "dystress",
    }  # fmt: skip
    assert len(small.runs(1)) == 4  # the two rows of CLIP are one run


def test_both_data_sets_or_others_can_be_given() -> None:
    study = find(NAME)
    assert [s.name for s in study.plan("small", ["cc3m=a", "flickr8k=b"]).sets] == ["CC3M", "Flickr8k"]
    assert [(s.name, s.data) for s in study.plan("small", ["my/photos"]).sets] == [("photos", "my/photos")]
    assert [s.data for s in study.plan("smoke").sets] == ["shapes"]
    assert [s.data for s in study.plan("smoke", ["flickr8k=b"]).sets] == ["b"]


def test_missing_data_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    small = ["study", "run", NAME, "--scale", "small"]
    message = "give its path with --data flickr8k=PATH: a folder with captions.tsv and images, or tars of both"
    assert message in error_message(capsys, *small)
    assert "--data cc3m=PATH" in error_message(capsys, "study", "run", NAME, "--scale", "paper")
    assert "data: class_names=nowhere does not exist" in error_message(
        capsys, "study", "run", NAME, "--data", "class_names=nowhere"
    )
