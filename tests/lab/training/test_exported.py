"""An exported encoder says how it is used, and plain torchvision, timm and onnxruntime code gives the same features."""

from __future__ import annotations

import json
import pickle
import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from commands import error_message
from PIL import Image
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from tiers import first

import contrapose
from contrapose.lab.cli import main
from contrapose.lab.networks.encoder import Encoder
from contrapose.lab.training import Model, Run
from contrapose.lab.training.build import build
from contrapose.lab.training.checkpoints import checkpoint
from contrapose.lab.training.weights import export

SIZES = ((32, 32), (40, 57), (100, 36), (20, 90))  # width and height of the files


def write_run(folder: Path, run: Run) -> Path:
    """Write the directory of a run whose weights and running statistics are random."""
    network = build(run, 64)
    for name, buffer in network.named_buffers():
        if name.endswith("running_mean"):
            buffer.normal_(0, 0.1)
        elif name.endswith("running_var"):
            buffer.uniform_(0.5, 2)
    tensors = {f"state.network.{name}": tensor for name, tensor in network.state_dict().items()}
    checkpoint.save(folder / "checkpoints", checkpoint.Checkpoint(7, tensors))
    (folder / "run.json").write_text(json.dumps(run.describe()))
    return folder


def write_images(folder: Path, sizes: tuple[tuple[int, int], ...] = SIZES) -> list[Path]:
    folder.mkdir()
    paths = []
    for index, size in enumerate(sizes):
        pixels = np.random.default_rng(index).integers(0, 256, (4, 4, 3), dtype=np.uint8)
        paths.append(folder / f"{index}.png")
        Image.fromarray(pixels).resize(size, Image.Resampling.BICUBIC).save(paths[-1])
    return paths


def run_card(file: Path, paths: list[Path], monkeypatch: pytest.MonkeyPatch) -> torch.Tensor:
    """Run the first code of a model card on files; return its features."""
    (code, *_) = re.findall(r"```python\n(.*?)```", file.with_name(f"{file.name}.md").read_text(), re.DOTALL)
    assert "contrapose" not in code
    monkeypatch.chdir(file.parent)
    names: dict[str, Any] = {}
    exec(code.replace('["image.jpg"]', repr([str(path) for path in paths])), names)
    return torch.as_tensor(names["features"])


def close(ours: torch.Tensor, theirs: torch.Tensor) -> None:
    assert len(ours) == 1 or ours.std(0).max() > 1e-3  # features of different images differ
    torch.testing.assert_close(ours.float(), theirs.float(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("encoder", "size"),
    first(2, [("tiny", 0), ("resnet18", 96), ("resnet18-cifar", 0), ("timm:resnet18", 96)]),
)
def test_plain_code_gives_the_same_features(
    encoder: str, size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if encoder.startswith("timm:"):
        pytest.importorskip("timm")
    folder = write_run(tmp_path / "run", Run(data="digits", encoder=encoder, size=size))
    paths = write_images(tmp_path / "images")
    file = tmp_path / "encoder.safetensors"
    main(["export", str(folder), "-o", str(file)])
    assert file.stat().st_mode == (tmp_path / "encoder.safetensors.md").stat().st_mode  # others may read it as well
    plain = run_card(file, paths, monkeypatch)
    close(contrapose.load(file, device="cpu").embed(paths), plain)
    close(contrapose.load(folder, device="cpu").embed([Image.open(path) for path in paths]), plain)


@pytest.mark.thorough
@pytest.mark.filterwarnings("default")
def test_onnx_runtime_gives_the_same_features(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_run(tmp_path / "run", Run(data="digits", encoder="tiny"))
    paths = write_images(tmp_path / "images")
    file = tmp_path / "encoder.onnx"
    main(["export", str(folder), "-o", str(file)])
    graph = onnx.load(str(file))
    assert [value.name for value in graph.graph.input] == ["images"]
    assert [value.name for value in graph.graph.output] == ["features"]
    metadata = {entry.key: entry.value for entry in graph.metadata_props}
    assert (metadata["encoder"], metadata["size"], metadata["features"]) == ("tiny", "32", "64")
    assert "tiny encoder with 64 features" in graph.doc_string
    for count in (1, 4):  # the batch size is dynamic
        close(contrapose.load(folder, device="cpu").embed(paths)[:count], run_card(file, paths[:count], monkeypatch))


@pytest.mark.parametrize(
    "sizes",
    [
        ((32, 32),) * 4,
        SIZES,
    ],
    ids=["same size", "other sizes"],
)
def test_plain_code_gives_what_embed_writes(
    sizes: tuple[tuple[int, int], ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, file = write_run(tmp_path / "run", Run(data="digits", encoder="tiny")), tmp_path / "encoder.safetensors"
    paths = write_images(tmp_path / "images", sizes)
    main(["export", str(folder), "-o", str(file)])
    main(["embed", str(folder), str(tmp_path / "images"), "-o", str(tmp_path / "features.npz")])
    with np.load(tmp_path / "features.npz") as arrays:
        assert arrays["train_paths"].tolist() == [str(path) for path in paths]
        close(torch.from_numpy(arrays["train_features"]), run_card(file, paths, monkeypatch))


def test_the_metadata_and_the_card(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    main(
        [
            "train",
            "--data",
            "digits",
            "--limit",
            "64",
            "--batch",
            "16",
            "--epochs",
            "1",
            "--knn",
            "3",
            "--metrics",
            "0",
            "--out",
            str(run),
        ]
    )
    file = tmp_path / "new" / "encoder.safetensors"
    main(["export", str(run), "-o", str(file)])
    with safe_open(str(file), framework="pt") as content:
        metadata = content.metadata()
    assert metadata == {
        "format": "contrapose encoder",
        "contrapose": contrapose.__version__,
        "encoder": "tiny",
        "features": "64",
        "modality": "images",
        "size": "32",
        "resize": "32",
        "interpolation": "bilinear",
        "channels": "RGB",
        "mean": "[0.5, 0.5, 0.5]",
        "std": "[0.25, 0.25, 0.25]",
        "loss": "simclr(temperature=0.2)",
        "data": "digits",
        "step": "4",
    }
    card = file.with_name("encoder.safetensors.md").read_text()
    (record,) = [json.loads(line) for line in (run / "records.jsonl").read_text().splitlines()]
    assert f"- knn_top1: {record['knn_top1']:.6g}" in card
    assert "- loss: simclr(temperature=0.2)" in card
    assert "licence of the training data" in card
    # tyro exits with 2: an option that export does not have is not ignored.
    assert "--data-root" in error_message(capsys, "export", str(run), "-o", str(file), "--data-root", "data")


def test_a_loaded_file_needs_its_metadata(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_run(tmp_path / "run", Run(data="digits"))
    model = contrapose.load(folder, device="cpu")
    assert isinstance(model, Model)
    file = tmp_path / "encoder.safetensors"
    with pytest.raises(ValueError, match=r"encoder\.safetensors does not exist"):
        contrapose.load(file)
    file.write_bytes(b"no tensors")
    with pytest.raises(ValueError, match=r"is not a \.safetensors file"):
        contrapose.load(file)
    export(model.encoder, file)
    with pytest.raises(ValueError, match=r"its metadata has no modality, encoder; `contrapose train --init"):
        contrapose.load(file)
    main(["export", str(folder), "-o", str(file)])
    with safe_open(str(file), framework="pt") as content:
        metadata = content.metadata()
    for change, message in (
        ({"size": "big"}, "size, resize, mean or std that is not a number"),
        ({"mean": "[0.5]"}, "does not describe an image"),
        ({"encoder": "tinny"}, "did you mean 'tiny'"),
        ({"encoder": "alexnet"}, "does not fit the encoder"),
        ({"modality": "sounds"}, "modality: expected one of images"),
    ):
        save_file(load_file(file), tmp_path / "other.safetensors", metadata=metadata | change)
        with pytest.raises(ValueError, match=re.escape(message)):
            contrapose.load(tmp_path / "other.safetensors")
    del metadata["std"]
    save_file(load_file(file), tmp_path / "other.safetensors", metadata=metadata)
    with pytest.raises(ValueError, match="its metadata has no std"):
        contrapose.load(tmp_path / "other.safetensors")


def test_embed_takes_tensors_files_and_images(tmp_path: Path) -> None:
    model = contrapose.load(write_run(tmp_path / "run", Run(data="digits")), device="cpu")
    paths = write_images(tmp_path / "images", ((32, 32),) * 3)
    pixels = torch.stack([torch.from_numpy(np.array(Image.open(path))).permute(2, 0, 1) for path in paths])
    features = model.embed(pixels)
    assert features.shape == (3, 64)
    close(model.embed(paths), features)
    close(model.embed([str(path) for path in paths]), features)
    turned = Image.open(paths[0]).transpose(Image.Transpose.ROTATE_90)
    exif = Image.Exif()
    exif[0x0112] = 6  # stored turned to the left: a viewer turns it to the right
    turned.save(tmp_path / "turned.png", exif=exif)
    close(model.embed([tmp_path / "turned.png", paths[1]]), features[:2])
    (tmp_path / "broken.png").write_bytes(b"no image")
    for samples, message in (
        ("image.png", "got one text or path; write embed(['image.png'])"),
        ([], "expected at least one sample"),
        ([tmp_path / "broken.png"], "broken.png cannot be read"),
        ([3], "got a list with int"),
        (torch.rand(2, 3, 32, 32), "got torch.float32 of shape (2, 3, 32, 32)"),
        (torch.zeros(3, 32, 32, dtype=torch.uint8), "got torch.uint8 of shape (3, 32, 32)"),
    ):
        with pytest.raises(ValueError, match=re.escape(message)):
            model.embed(samples)


def moco_name(name: str) -> str:
    """The rule of MoCo's convert-pretrain-to-detectron2.py, in words: layer1 is res2, a norm belongs to its convolution."""
    name = name if "layer" in name else f"stem.{name}"
    for stage in (1, 2, 3, 4):
        name = name.replace(f"layer{stage}", f"res{stage + 1}")
    for number in (1, 2, 3):
        name = name.replace(f"bn{number}", f"conv{number}.norm")
    return name.replace("downsample.0", "shortcut").replace("downsample.1", "shortcut.norm")


@pytest.mark.thorough
@pytest.mark.parametrize("encoder", ["resnet18", "resnet50"])
def test_weights_for_detectron2(encoder: str, tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", Run(data="digits", encoder=encoder, size=32))
    file = tmp_path / "weights.pkl"
    main(["export", str(folder), "-o", str(file)])
    content = pickle.loads(file.read_bytes())
    assert content.keys() == {"model", "__author__", "matching_heuristics"}
    assert content["matching_heuristics"] is True
    arrays, model = content["model"], contrapose.load(folder, device="cpu")
    weights = {moco_name(name): tensor for name, tensor in model.encoder.network.state_dict().items()}
    assert arrays.keys() == weights.keys()
    assert {"stem.conv1.weight", "stem.conv1.norm.running_mean", "res2.0.conv1.weight"} <= arrays.keys()
    assert {"res3.0.shortcut.weight", "res5.1.conv2.norm.bias", "res3.0.shortcut.norm.weight"} <= arrays.keys()
    assert not any("layer" in name or "bn" in name for name in arrays)
    for name, array in arrays.items():
        assert isinstance(array, np.ndarray)
        assert np.array_equal(array, weights[name].numpy())
    card = file.with_name("weights.pkl.md").read_text()
    assert 'config.MODEL.WEIGHTS = "weights.pkl"' in card
    assert ("DEPTH = 18" in card) == (encoder == "resnet18")


def test_detectron2_has_no_counterpart_of_a_small_stem(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_run(tmp_path / "run", Run(data="digits", encoder="resnet18-cifar"))
    message = error_message(capsys, "export", str(folder), "-o", str(tmp_path / "weights.pkl"))
    assert "detectron2, which supports resnet18, resnet50, resnet50-zero" in message
    assert "is resnet18-cifar; use .safetensors" in message


def test_tied_weights_can_be_imported_and_exported(tmp_path: Path) -> None:
    """Two names of one tensor become two tensors: a .safetensors file cannot share memory between names."""
    first, second = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
    second.weight = first.weight
    tied = torch.nn.Sequential(first, second)
    rows = torch.arange(8.0).reshape(2, 4)  # a part of another tensor is tied too
    torch.save({**tied.state_dict(), "rows": rows, "row": rows[1]}, tmp_path / "tied.pth")
    main(["import", str(tmp_path / "tied.pth"), "-o", str(tmp_path / "tied.safetensors")])
    imported = load_file(tmp_path / "tied.safetensors")
    assert torch.equal(imported["0.weight"], first.weight)
    assert torch.equal(imported["1.weight"], first.weight)
    assert imported["row"].tolist() == [4, 5, 6, 7]
    export(Encoder(tied, 4), tmp_path / "encoder.safetensors")
    assert load_file(tmp_path / "encoder.safetensors").keys() == tied.state_dict().keys()


@pytest.mark.thorough
def test_the_model_card_has_baselines_and_the_objective(tmp_path: Path) -> None:
    main(
        ["train", "--data", "digits", "--limit", "64", "--batch", "32", "--epochs", "1", "--out", str(tmp_path / "run")]
    )
    main(["export", str(tmp_path / "run"), "-o", str(tmp_path / "encoder.safetensors")])
    card = (tmp_path / "encoder.safetensors.md").read_text()
    assert "- objective: nt_xent(temperature=0.2)" in card
    assert re.search(r"- knn_top1: [\d.]+ \(without training: raw pixels [\d.]+, untrained encoder [\d.]+\)", card)
