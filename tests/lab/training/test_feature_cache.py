"""Features that `evaluate` keeps: read by the next evaluation, continued after a kill, and not used for anything else."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from streaming import write_folder

from contrapose.lab.cli import main
from contrapose.lab.modalities.images import decoding
from contrapose.lab.modalities.images.views import Views
from contrapose.lab.training import feature_cache

TRAIN = ["--limit", "48", "--batch", "16", "--epochs", "1", "--knn", "3", "--metrics", "0", "--baselines", "none"]
BATCH, CHUNK = 8, 10  # so a file has 16 features: two batches


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of two runs, with other weights."""
    folder = tmp_path_factory.mktemp("runs")
    for seed in "01":
        main(["train", *TRAIN, "--seed", seed, "--out", str(folder / seed)])
    return folder


@pytest.fixture
def run(runs: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(runs / "0", tmp_path / "run"))


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Return a folder with 40 training and 40 test images."""
    return write_folder(tmp_path / "mine")


@pytest.fixture(autouse=True)
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Divide features into small files, and list the images that are decoded."""
    opened, open_image = list[Path](), decoding.open_image

    def count(path: Path, **options: float) -> object:
        opened.append(path)
        return open_image(path, **options)

    monkeypatch.setattr(feature_cache, "_CHUNK", CHUNK)
    monkeypatch.setattr(Views, "evaluation_batch", lambda self, device: BATCH)
    monkeypatch.setattr(decoding, "open_image", count)
    return opened


def evaluate(capsys: pytest.CaptureFixture[str], run: Path, data: Path, *options: str) -> tuple[dict[str, float], str]:
    """Return the scores, and what was printed to stderr."""
    capsys.readouterr()
    main(["evaluate", str(run), "--data", str(data), "--baselines", "none", *options])
    output = capsys.readouterr()
    return json.loads(output.out), output.err


def test_the_next_evaluation_reads_them(
    run: Path, data: Path, decoded: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    expected, output = evaluate(capsys, run, data, "--no-feature-cache")
    assert len(decoded) == 80
    assert "features" not in output
    assert not (run / "features").exists()
    first, output = evaluate(capsys, run, data)
    assert len(decoded) == 160
    assert first == expected
    kept = sorted((run / "features").iterdir())
    assert [len(list(folder.iterdir())) for folder in kept] == [3, 3]
    assert "features of 40 images of mine (train): 0 read and 40 computed; kept in " in output
    scores, output = evaluate(capsys, run, data, "--linear", "wang-liu")
    assert len(decoded) == 160  # another probe, without an image
    assert {name: scores[name] for name in expected} == expected
    assert "linear_top1" in scores
    assert [output.count(f"images of mine ({part}): read from {run}/features/") for part in ("train", "test")] == [1, 1]


def test_features_of_other_files_or_weights_are_not_used(
    run: Path, runs: Path, data: Path, decoded: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    evaluate(capsys, run, data)
    decoded.clear()
    os.utime(data / "test" / "cat" / "0.png", ns=(1, 1))
    evaluate(capsys, run, data)
    assert len(decoded) == 40  # the test images
    decoded.clear()
    other = shutil.copytree(runs / "1", run.with_name("other"))
    expected, _ = evaluate(capsys, other, data, "--no-feature-cache")
    decoded.clear()
    shutil.copytree(run / "features", other / "features")
    assert evaluate(capsys, other, data)[0] == expected
    assert len(decoded) == 80


def test_damaged_files_are_computed_again(
    run: Path, data: Path, decoded: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    expected, _ = evaluate(capsys, run, data)
    first, second, last = sorted((run / "features").glob("*/*.safetensors"))[:3]
    content = first.read_bytes()
    flipped = bytearray(content)
    flipped[-5] ^= 64
    # Cut, empty, with another value, the features of other images, and another number of them.
    for damaged in (content[:-1], b"", bytes(flipped), second.read_bytes(), last.read_bytes()):
        first.write_bytes(damaged)
        decoded.clear()
        scores, output = evaluate(capsys, run, data)
        assert scores == expected
        assert len(decoded) == 16
        assert first.stat().st_size == len(content)
        assert "24 read and 16 computed" in output


def test_a_directory_that_cannot_be_written(
    run: Path, data: Path, decoded: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    (run / "features").touch()  # a file in the place of the folder
    _, output = evaluate(capsys, run, data)
    assert output.count("the next evaluation computes the remaining features again: ") == 1
    assert "40 computed; not kept" in output
    assert "Traceback" not in output


def test_data_in_memory_is_not_kept(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["evaluate", str(run), "--baselines", "none"])
    assert "features" not in capsys.readouterr().err
    assert not (run / "features").exists()


@pytest.mark.thorough
def test_killed_and_continued(run: Path, data: Path, decoded: list[Path], capsys: pytest.CaptureFixture[str]) -> None:
    code = f"""
import os, signal
from contrapose.lab.cli import main
from contrapose.lab.modalities.images import decoding
from contrapose.lab.modalities.images.views import Views
from contrapose.lab.training import feature_cache
feature_cache._CHUNK, Views.evaluation_batch = {CHUNK}, lambda self, device: {BATCH}
opened, open_image = [], decoding.open_image
def count(path, **options):
    opened.append(path)
    if len(opened) == 60:  # in the second file of the test images
        os.kill(os.getpid(), signal.SIGKILL)
    return open_image(path, **options)
decoding.open_image = count
main(["evaluate", {str(run)!r}, "--data", {str(data)!r}, "--baselines", "none"])
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -signal.SIGKILL
    scores, output = evaluate(capsys, run, data)
    assert len(decoded) == 80 - 40 - 16
    assert "40 images of mine (train): read from" in output
    assert "40 images of mine (test): 16 read and 24 computed" in output
    assert scores == evaluate(capsys, run, data, "--no-feature-cache")[0]
