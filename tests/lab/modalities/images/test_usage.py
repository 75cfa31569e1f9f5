"""The code of a model card builds the networks of this package."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from contrapose.lab.modalities.images.encoders import NETWORKS, encoder
from contrapose.lab.modalities.images.inputs import InputDescription
from contrapose.lab.modalities.images.usage import usage
from contrapose.lab.modalities.images.views import Views


@pytest.mark.parametrize("name", NETWORKS)
def test_parameters_have_the_same_names_and_shapes(name: str) -> None:
    code = usage(name, 8, InputDescription.of(Views.named("simclr-cifar")), "encoder.safetensors")
    build_network = code.partition("network.load_state_dict")[0]
    names: dict[str, Any] = {}
    with torch.device("meta"):  # no weights are drawn
        exec(build_network, names)
        expected = encoder(name, 32).network.state_dict()
    shapes = {key: tensor.shape for key, tensor in names["network"].state_dict().items()}
    assert shapes == {key: tensor.shape for key, tensor in expected.items()}


def test_a_description_is_read_from_its_metadata() -> None:
    for recipe in ("simclr-cifar", "align-uniform-stl", "simclr", "kukleva"):
        views = Views.named(recipe)
        description = InputDescription.of(views)
        assert InputDescription.read(description.metadata()) == description
        assert InputDescription.of(description.views) == description
        images = torch.randint(0, 256, (2, 3, 300, 270), dtype=torch.uint8)
        assert torch.equal(description.views.plain(images), views.plain(images))
