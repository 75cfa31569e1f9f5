"""`contrapose evaluate` on few samples, with few shots and with the papers' fine-tuning, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from commands import error_message
from mixed_folder import make_mixed_folder

from contrapose.lab.cli import main
from contrapose.lab.training import Model

TRAIN = ["--limit", "48", "--batch", "16", "--epochs", "1", "--knn", "3", "--metrics", "0"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained") / "run"
    main(["train", *TRAIN, "--out", str(folder)])
    return folder


def striped(file: Path, *, train: int, test: int) -> Path:
    """Write a data set of two classes: horizontal and vertical stripes."""
    horizontal = np.tile(np.array([[0], [255]], dtype=np.uint8).repeat(4, 0).reshape(1, 8, 1, 1), (1, 4, 32, 3))
    stripes = np.concatenate([horizontal, horizontal.swapaxes(1, 2)])
    labels = np.arange(max(train, test)) % 2
    images = stripes[labels]
    np.savez(
        file,
        train_images=images[:train],
        train_labels=labels[:train],
        test_images=images[:test],
        test_labels=labels[:test],
    )
    return file


@pytest.mark.thorough
def test_fewer_training_samples_than_the_neighbours_of_the_run(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    data = ["--data", str(striped(tmp_path / "small.npz", train=2, test=12))]
    capsys.readouterr()
    main(["evaluate", str(run), *data])
    captured = capsys.readouterr()
    assert json.loads(captured.out)["knn_top1"] == 100
    note = "knn: 2 neighbours in place of the run's 3: the data has 2 training samples\n"
    assert note in captured.err
    main(["map", str(run), *data, "--method", "pca", "-o", str(tmp_path / "map.png")])
    assert note in capsys.readouterr().err
    monkeypatch.setattr(Model, "features", None)  # an explicit number is refused before anything is encoded
    expected = "--knn: expected at most 2 neighbours, the number of training samples, got 3"
    assert expected in error_message(capsys, "evaluate", str(run), *data, "--knn", "3")
    assert "--knn: expected a whole number of at least 0" in error_message(capsys, "evaluate", str(run), "--knn", "-1")


@pytest.mark.thorough
def test_few_shots_and_recipes_on_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, folder = tmp_path / "run", make_mixed_folder(tmp_path / "images", each=6)
    main(["train", *TRAIN, "--out", str(run)])
    evaluate = ["evaluate", str(run), "--data", str(folder)]
    capsys.readouterr()
    main([*evaluate, "--shots", "2", "--finetune", "1"])
    few_shot = json.loads(capsys.readouterr().out)
    assert 0 <= few_shot["finetune_2_shot"] <= 100
    assert "finetune_top1" not in few_shot
    main([*evaluate, "--recipe", "dystress-multiclass", "--finetune", "1"])
    assert 0 <= json.loads(capsys.readouterr().out)["finetune_top1"] <= 100
    assert "shots: class 'checks' has 5 training images, fewer than the 6 to draw" in error_message(
        capsys, *evaluate, "--shots", "6"
    )
    assert "--recipe: expected two classes for dystress-binary, got 4" in error_message(
        capsys, *evaluate, "--recipe", "dystress-binary"
    )
    assert "shots: expected at least 2" in error_message(capsys, *evaluate, "--shots", "1")
    assert "did you mean 'dystress-binary'?" in error_message(capsys, *evaluate, "--recipe", "dystress-binari")
    assert "omit --recipe or --shots" in error_message(capsys, *evaluate, "--recipe", "vit", "--shots", "5")


@pytest.mark.thorough
def test_options_of_evaluate_and_map_are_named_when_refused(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    evaluate = ["evaluate", str(run)]
    assert "--best: there is no linear probe" in error_message(capsys, *evaluate, "--best")
    expected = "--finetune: expected a whole number of at least 0, got -3"
    assert expected in error_message(capsys, *evaluate, "--finetune", "-3")
    expected = "--images: expected a whole number of at least 10, got 5"
    assert expected in error_message(capsys, "map", str(run), "--images", "5")
    small = ["--data", str(striped(tmp_path / "small.npz", train=4, test=4))]
    assert "--data: expected at least 10 points to draw a map, got 4" in error_message(capsys, "map", str(run), *small)


@pytest.mark.thorough
@pytest.mark.parametrize("test", [1, 2])
def test_metrics_of_too_few_images_leave_the_other_scores(
    test: int, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = striped(tmp_path / "small.npz", train=4, test=test)
    capsys.readouterr()
    main(["evaluate", str(run), "--data", str(data), "--metrics"])
    captured = capsys.readouterr()
    assert json.loads(captured.out)["knn_top1"] == 100
    assert "no metrics: z: expected at least" in captured.err
