from __future__ import annotations

import sys

import pytest
import torch
import torchvision

from contrapose.modalities.images.encoders import encoder
from contrapose.networks.heads import HEADS, head, mlp, predictor


@pytest.mark.parametrize(
    ("name", "size", "width", "parameters"),
    [
        ("tiny", 32, 64, None),
        ("resnet18-cifar", 32, 512, 11_168_832),
        ("resnet50-cifar", 32, 2048, 23_500_352),
        ("resnet50", 64, 2048, 23_508_032),
        ("alexnet", 32, 4096, None),
        ("alexnet-64", 64, 4096, None),
        ("vit-b16", 224, 768, 85_798_656),
    ],
)
def test_shapes_and_sizes(name: str, size: int, width: int, parameters: int | None) -> None:
    network = encoder(name)
    assert network.width == width
    assert network(torch.randn(2, 3, size, size)).shape == (2, width)
    if parameters is not None:
        assert sum(p.numel() for p in network.parameters()) == parameters


def test_the_cifar_stem_keeps_the_resolution() -> None:
    network = encoder("resnet18-cifar").network
    x = network.maxpool(network.conv1(torch.randn(1, 3, 32, 32)))  # type: ignore[operator]
    assert x.shape == (1, 64, 32, 32)


def test_weights_have_torchvisions_names() -> None:
    theirs = torchvision.models.resnet50(weights=None).state_dict()
    ours = encoder("resnet50").network
    missing, unexpected = ours.load_state_dict({k: v for k, v in theirs.items() if not k.startswith("fc.")})
    assert not missing
    assert not unexpected


def test_alexnet_is_the_papers() -> None:
    """The papers' small AlexNet has maps of 15, 7, 7, 7 and 3 pixels, N(0, 0.02) weights and no biases."""
    network = encoder("alexnet").network
    x, sides = torch.randn(2, 3, 32, 32), []
    for layer in network.children():
        x = layer(x)
        if isinstance(layer, torch.nn.MaxPool2d):
            sides.append(x.shape[-1])
    assert sides == [15, 7, 3]
    for module in network.modules():
        if isinstance(module, torch.nn.Conv2d | torch.nn.Linear):
            assert module.bias is None
            assert abs(float(module.weight.detach().std()) - 0.02) < 0.002


@pytest.mark.parametrize("name", sorted(HEADS))
def test_heads(name: str) -> None:
    assert head(name, 32)(torch.randn(4, 32)).ndim == 2


def test_the_simclr_head_is_lightlys() -> None:
    kinds = [type(layer).__name__ for layer in head("simclr", 512).children()]
    assert kinds == ["Linear", "BatchNorm1d", "ReLU", "Linear", "BatchNorm1d"]
    plain = mlp((8, 16, 4), last_norm="plain")
    assert not list(plain[-1].parameters())
    assert [type(layer).__name__ for layer in predictor(256).children()][-1] == "Linear"


def test_errors_suggest_the_nearest_name(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="did you mean 'resnet18-cifar'"):
        encoder("resnet18-cifr")
    with pytest.raises(ValueError, match="did you mean 'moco-v2'"):
        head("moco2", 8)
    monkeypatch.setitem(sys.modules, "timm", None)  # as if it were not installed
    with pytest.raises(ValueError, match="pip install timm"):
        encoder("timm:resnet18")
