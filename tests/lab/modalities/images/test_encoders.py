from __future__ import annotations

import sys

import pytest
import torch
import torchvision
from tiers import every, first

from contrapose.lab.modalities.images.encoders import _TAKE_ANY_SIZE, _takes, check_encoder, check_sizes, encoder
from contrapose.lab.networks.heads import HEADS, head, mlp, predictor


@pytest.mark.parametrize(
    ("name", "size", "width", "parameters"),
    [
        ("tiny", 32, 64, None),
        ("small", 48, 128, None),
        ("small", 8, 128, None),
        ("resnet18-cifar", 32, 512, 11_168_832),
        ("alexnet", 32, 4096, None),
        *(
            pytest.param(*case, marks=pytest.mark.thorough)
            for case in (
                ("resnet50-cifar", 32, 2048, 23_500_352),
                ("resnet50", 64, 2048, 23_508_032),
                ("alexnet-64", 64, 4096, None),
                ("vit-b16", 224, 768, 85_798_656),
            )
        ),
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


@pytest.mark.parametrize("name", every(3, sorted(HEADS)))
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


@pytest.mark.parametrize(
    ("name", "sizes", "message"),
    [
        ("vit-b16", [100], r"vit-b16 takes images of a multiple of 16 pixels, got 100 \(--size 96\)"),
        ("vit-b16", [224, 96], r"of 224 pixels only, and not local crops of 96; use --views without \+local"),
        ("alexnet", [48], "size: alexnet takes images of 32 pixels, but these views have 48; use --size 32"),
        ("alexnet-64", [32], "size: alexnet-64 takes images of 64 pixels, but these views have 32; use --size 64"),
    ],
)
def test_a_size_that_the_encoder_cannot_take_is_refused(name: str, sizes: list[int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_sizes(name, sizes)


@pytest.mark.parametrize(("name", "size"), [("vit-b16", 96), ("resnet50", 8), ("resnet18-cifar", 40), ("small", 100)])
def test_other_sizes_are_taken(name: str, size: int) -> None:
    state = torch.random.get_rng_state()
    check_sizes(name, [size])
    assert torch.equal(torch.random.get_rng_state(), state)  # the weights of a run do not depend on the check
    with torch.device("meta"):
        assert encoder(name, size)(torch.zeros(2, 3, size, size)).shape[0] == 2


@pytest.mark.thorough
def test_models_of_timm() -> None:
    pytest.importorskip("timm")
    with pytest.raises(ValueError, match=r"encoder: timm has no model 'resnet5'; did you mean 'resnet50'\?"):
        check_encoder("timm:resnet5")
    # A transformer is built for the size of the views; the width is that of the output.
    for name, size in (("vit_tiny_patch16_224", 96), ("mobilenetv3_small_100", 64), ("resnet18", 64)):
        with torch.device("meta"):
            built = encoder(f"timm:{name}", size).eval()
            assert built(torch.zeros(2, 3, size, size)).shape == (2, built.width)
    with pytest.raises(ValueError, match=r"maxvit_tiny_rw_224 takes images of 96, 192, 288, 384 pixels, .* --size 96"):
        check_sizes("timm:maxvit_tiny_rw_224", [100])


def test_a_run_of_timm_can_be_read_without_timm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "timm", None)
    check_encoder("timm:resnet18")


@pytest.mark.parametrize("name", first(2, _TAKE_ANY_SIZE))
def test_encoders_whose_sizes_are_not_checked_take_all(name: str) -> None:
    with torch.device("meta"):
        built = encoder(name)
    assert all(_takes(built, size) for size in (1, 2, 7, 33, 224))
