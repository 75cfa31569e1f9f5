"""A folder of 600 mixed images goes through every command, and all ways to compute its features agree."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from mixed_folder import make_mixed_folder

import contrapose
from contrapose.lab.cli import main

pytestmark = pytest.mark.thorough
SHORT = ("--encoder", "tiny", "--views", "simclr", "--size", "40", "--epochs", "2", "--batch", "64", "--warmup", "0")


@contextmanager
def exit_code(expected: int) -> Iterator[None]:
    with pytest.raises(SystemExit) as exit_info:
        yield
    assert exit_info.value.code == expected


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the folder `mine`, which has three broken files, and a run of it in memory and of it streamed."""
    root = tmp_path_factory.mktemp("own")
    make_mixed_folder(root / "mine", corrupt=True, empty=True, text=True)
    for name, options in (("memory", ()), ("stream", ("--stream",))):
        run = ("train", "--data", str(root / "mine"), *SHORT, "--skip-broken", "--out", str(root / name))
        main([*run, *options])
    return root


def features(workplace: Path, run: str) -> dict[str, np.ndarray]:
    """Embed the folder with a run; return the features of each file, by its name."""
    out = workplace / f"{run}.npz"
    main(["embed", str(workplace / run), str(workplace / "mine"), "--skip-broken", "-o", str(out)])
    with np.load(out) as arrays:
        return dict(zip(arrays["train_paths"].tolist(), arrays["train_features"], strict=True))


def test_data_check_shows_what_is_wrong(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with exit_code(1):
        main(["data", "check", str(workplace / "mine")])
    said = capsys.readouterr().out
    for expected in ("8 to 480 pixels", "16-bit", "CMYK", "palette", "alpha", "rotated by their EXIF data", "warning",
                     "corrupt.jpg", "empty.png", "text.jpg", "600 of 603 images can be read"):  # fmt: skip
        assert expected in said, expected


def test_a_broken_file_ends_the_training_by_default(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with exit_code(2):
        main(["train", "--data", str(workplace / "mine"), *SHORT, "--out", str(workplace / "strict")])
    said = capsys.readouterr().err
    assert "cannot be read" in said
    assert "--skip-broken" in said
    assert not (workplace / "strict").exists()


@pytest.mark.parametrize("run", ["memory", "stream"])
def test_every_command_takes_the_run(workplace: Path, run: str, capsys: pytest.CaptureFixture[str]) -> None:
    main(["evaluate", str(workplace / run), "--metrics"])
    captured = capsys.readouterr()
    scores = json.loads(captured.out)
    assert scores["knn_top1"] > 35  # of four classes, after two epochs
    assert "3 broken files are left out" in captured.err
    main(["map", str(workplace / run), "--method", "pca", "--images", "100", "-o", str(workplace / f"{run}.png")])
    assert (workplace / f"{run}.png").stat().st_size > 10_000


def test_all_ways_to_compute_features_agree(workplace: Path) -> None:
    by_command = features(workplace, "memory")
    assert len(by_command) == 600
    paths = list(by_command)[::7]
    expected = torch.tensor(np.stack([by_command[path] for path in paths]))
    model = contrapose.load(workplace / "memory", device="cpu")
    torch.testing.assert_close(model.embed(paths), expected, rtol=1e-5, atol=1e-5)
    for ending in (".safetensors", ".onnx"):
        main(["export", str(workplace / "memory"), "-o", str(workplace / f"encoder{ending}")])
    exported = contrapose.load(workplace / "encoder.safetensors", device="cpu")
    torch.testing.assert_close(exported.embed(paths), expected, rtol=1e-5, atol=1e-5)
    onnxruntime = pytest.importorskip("onnxruntime")
    inputs = model.views.plain(torch.stack([_square(path) for path in paths]))
    session = onnxruntime.InferenceSession(str(workplace / "encoder.onnx"))
    (output,) = session.run(["features"], {"images": inputs.numpy()})
    torch.testing.assert_close(torch.from_numpy(output), expected, rtol=1e-5, atol=1e-5)


def _square(path: str) -> torch.Tensor:
    from contrapose.lab.modalities.images.decoding import decode_square

    return decode_square(Path(path), size=40, resized=40)


def test_evaluation_reads_the_same_pixels_in_memory_and_streamed(workplace: Path) -> None:
    from contrapose.lab.training import Run, prepare

    model = contrapose.load(workplace / "memory", device="cpu")
    both = [prepare(Run.load(workplace / name / "run.json")) for name in ("memory", "stream")]
    in_memory, streamed = (model.features(split.train) for split in both)
    torch.testing.assert_close(in_memory, streamed, rtol=1e-5, atol=1e-5)


def test_an_icon_more_changes_no_feature(workplace: Path) -> None:
    from PIL import Image

    before = features(workplace, "stream")
    icon = workplace / "mine" / "checks" / "0000-aaa.png"
    Image.new("RGB", (12, 12), "red").save(icon)
    try:
        after = features(workplace, "stream")
    finally:
        icon.unlink()
    assert after.keys() - before.keys() == {str(icon)}
    assert all(np.allclose(after[path], before[path], atol=1e-5) for path in before)


def test_compare_says_only_what_it_can_tell(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main([
        "compare", "--data", str(workplace / "mine"), *SHORT[:-4], "--epochs", "1", "--batch", "64", "--warmup", "0",
        "--skip-broken", "--losses", "simclr,dystress", "--seeds", "1",
        "--runs-dir", str(workplace / "runs"), "-o", str(workplace / "reports"),
    ])  # fmt: skip
    said = capsys.readouterr().out
    assert "Use " not in said  # one seed tells nothing apart
    assert list((workplace / "reports").glob("compare-*/index.html"))
