"""Training on one data set, evaluated on another with labels: `eval_data`."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from commands import error_message
from PIL import Image

from contrapose.lab.cli import main
from contrapose.lab.modalities.images.digits import digits
from contrapose.lab.training import Run, prepare
from contrapose.lab.training.records.files import read_records

TINY = ["--views", "digits", "--encoder", "tiny", "--batch", "16", "--epochs", "1", "--knn", "3", "--lr", "0.01",
        "--metrics", "20"]  # fmt: skip


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """`pictures` without classes to train on, and `labelled` with train/ and test/ to evaluate on."""
    images = digits(120)
    assert images.labels is not None
    for i, (pixels, label) in enumerate(zip(images.pixels, images.labels.tolist(), strict=True)):
        path = "pictures/train" if i < 40 else f"labelled/{'train' if i < 80 else 'test'}/{label}"
        (tmp_path / path).mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels.permute(1, 2, 0).numpy()).save(tmp_path / path / f"{i}.png")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.thorough
@pytest.mark.parametrize("stream", [False, True])
def test_a_run_is_scored_on_other_data(
    folders: Path, stream: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    options = [*TINY, *(["--stream", "--workers", "0"] if stream else [])]
    main(["train", "--data", "pictures", "--eval-data", "labelled/", *options, "--out", "run"])
    output = capsys.readouterr().out
    assert "no score" not in output
    assert read_records(Path("run"))[-1]["knn_top1"] >= 0
    split = prepare(Run.load(Path("run/run.json")))
    assert len(split.train) == 40  # nothing is held out
    assert split.train.labels is None
    assert split.probe is not None
    assert split.test is not None
    assert (len(split.probe), len(split.test)) == (40, 40)
    (folders / "elsewhere").mkdir()
    monkeypatch.chdir(folders / "elsewhere")  # both paths are found from the directory in which the run was started
    main(["evaluate", "../run"])
    assert "knn_top1" in capsys.readouterr().out


def test_labelled_training_images_are_not_held_out(folders: Path) -> None:
    run = Run(data="labelled/train", eval_data="digits", views="digits", encoder="tiny", imbalance="uniform:10")
    split = prepare(run)
    assert len(split.train) == 10
    assert split.probe is not None
    assert len(split.probe) == 5000
    assert split.train.labels is not None
    assert torch.equal(split.train.labels, torch.arange(10))


def test_what_is_refused(folders: Path, capsys: pytest.CaptureFixture[str]) -> None:
    common = ["train", "--data", "labelled", *TINY, "--out", "run"]
    message = error_message(capsys, *common, "--eval-data", "pictures")
    assert "--eval-data: expected labelled training and test images, but pictures has none" in message
    message = error_message(capsys, *common, "--eval-data", "nowhere")
    assert "--eval-data: expected one of digits, " in message
    assert "got 'nowhere', which does not exist" in message
    with pytest.raises(ValueError, match=r"^eval_data: expected one of"):
        prepare(Run(data="digits", eval_data="nowhere"))
    message = error_message(capsys, *common, "--eval-data", "digits", "--probe", "train")
    assert "probe: train learns from the training samples, but eval_data is digits; use one" in message
    assert not Path("run").exists()


def test_names_of_runs_without_it_are_unchanged() -> None:
    assert "probe_data" not in Run(data="digits").describe()
    assert Run(data="digits", eval_data="cifar10").name != Run(data="digits").name
