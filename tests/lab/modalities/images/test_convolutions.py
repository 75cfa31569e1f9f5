"""The gradients of `FastBackwardConv2d` equal torch's for every supported convolution."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from torch import nn
from torch.func import grad, vmap
from torch.nn.functional import conv2d

from contrapose.lab.modalities.images import convolutions
from contrapose.lab.modalities.images.convolutions import FastBackwardConv2d, speed_up_backward
from contrapose.lab.modalities.images.encoders import encoder

FORMS = [(k, s, p) for k, s, p in product((1, 3, 4, 7), (1, 2, 3), (0, 1, 3)) if p < k]


@pytest.mark.parametrize(("kernel", "stride", "padding"), FORMS)
@pytest.mark.parametrize("side", [9, 12])
def test_gradients_are_those_of_torch(
    kernel: int, stride: int, padding: int, side: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(convolutions, "_UNFOLDED", 400)  # small enough to split the batch into several parts
    x = torch.randn(5, 4, side, 11, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(6, 4, kernel, kernel, dtype=torch.float64, requires_grad=True)
    expected = conv2d(x, weight, None, stride, padding)
    ours = convolutions._Convolution.apply(x, weight, stride, padding)
    torch.testing.assert_close(ours, expected)
    upstream = torch.randn_like(expected)
    for gradient, expected_gradient in zip(
        torch.autograd.grad(ours, (x, weight), upstream),
        torch.autograd.grad(expected, (x, weight), upstream),
        strict=True,
    ):
        torch.testing.assert_close(gradient, expected_gradient, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("kernel", "stride", "padding"), [(3, 1, 1), (4, 2, 1), (1, 1, 0), (7, 3, 3)])
def test_second_derivatives_are_those_of_torch(kernel: int, stride: int, padding: int) -> None:
    x = torch.randn(2, 3, 9, 8, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(4, 3, kernel, kernel, dtype=torch.float64, requires_grad=True)
    second = []
    for y in (convolutions._Convolution.apply(x, weight, stride, padding), conv2d(x, weight, None, stride, padding)):
        first = torch.autograd.grad(y.square().sum(), (x, weight), create_graph=True)
        second.append(torch.autograd.grad(first[0].square().sum() + first[1].square().sum(), (x, weight)))
    torch.testing.assert_close(*second)


def test_transforms_use_the_convolution_of_torch() -> None:
    ours, plain = FastBackwardConv2d(3, 4, 3), nn.Conv2d(3, 4, 3)
    plain.load_state_dict(ours.state_dict())
    x = torch.randn(5, 3, 8, 8)
    for transform in (grad(lambda x: ours(x).square().sum()), vmap(lambda image: ours(image[None])[0])):
        assert transform(x).isfinite().all()
    torch.testing.assert_close(grad(lambda x: ours(x).square().sum())(x), grad(lambda x: plain(x).square().sum())(x))


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["tiny", "resnet18-cifar"])
def test_a_network_keeps_its_parameter_names_and_gradients(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(convolutions, "SLOW_BACKWARD", False)
    torch.manual_seed(0)
    network = encoder(name)
    images = torch.randn(4, 3, 32, 32)
    network(images).square().sum().backward()
    expected = {
        key: parameter.grad.clone() for key, parameter in network.named_parameters() if parameter.grad is not None
    }
    names = list(network.state_dict())
    monkeypatch.setattr(convolutions, "SLOW_BACKWARD", True)
    speed_up_backward(network)
    assert any(isinstance(module, FastBackwardConv2d) for module in network.modules())
    network.zero_grad()
    network(images).square().sum().backward()
    assert list(network.state_dict()) == names
    for key, parameter in network.named_parameters():
        assert parameter.grad is not None
        error = (parameter.grad - expected[key]).norm() / expected[key].norm()
        assert float(error) < 1e-4, key


def test_unsupported_convolutions_are_not_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(convolutions, "SLOW_BACKWARD", True)
    unsupported = [
        nn.Conv2d(4, 4, 3, groups=2),
        nn.Conv2d(4, 4, 3, dilation=2),
        nn.Conv2d(4, 4, (3, 1)),
        nn.Conv2d(4, 4, 3, padding="same"),
    ]
    network = nn.Sequential(*unsupported, nn.Conv2d(4, 4, 3))
    speed_up_backward(network)
    assert [type(module) for module in network] == [nn.Conv2d] * 4 + [FastBackwardConv2d]
