from __future__ import annotations

import pytest
import torch
from torch import Tensor

from contrapose import metrics
from contrapose.evaluation import Measures, partners
from contrapose.modalities.images.digits import digits
from contrapose.modalities.images.images import Images
from contrapose.modalities.images.views import Views
from contrapose.pairs import unit

CPU = torch.device("cpu")
VIEWS = Views.named("digits")
RECIPE = VIEWS.recipes[0]


def embed(x: Tensor) -> Tensor:
    """A fixed projection of the pixels."""
    generator = torch.Generator().manual_seed(0)
    return x.flatten(1) @ torch.randn(x[0].numel(), 6, generator=generator)


def test_all_metrics_of_a_sample() -> None:
    data = digits(200)
    found = Measures(images=80, drawn=20, draws=3)(embed, data, VIEWS, CPU)
    sample = Measures(images=80).sample(data, VIEWS)
    assert isinstance(sample, Images)
    assert sample.labels is not None
    x = (sample.pixels.float() / 255 - torch.tensor(RECIPE.mean)[:, None, None]) / torch.tensor(RECIPE.std)[
        :, None, None
    ]
    z = unit(embed(x))
    assert found["uniformity"] == pytest.approx(metrics.uniformity(z), rel=1e-5)
    assert found["tolerance"] == pytest.approx(metrics.tolerance(z, sample.labels), rel=1e-4)
    assert found["alignment"] > 0
    assert found["separation_positive"] <= 1
    assert found["repulsion_gap"] > 0
    assert {"attraction_gap", "prototype_bias_single", "prototype_bias_means", "conditional_entropy", "effective_rank",
            "feature_std", "interclass_uniformity", "separation_n10", "alignment_class"} <= found.keys()  # fmt: skip
    assert found == Measures(images=80, drawn=20, draws=3)(embed, data, VIEWS, CPU)


def test_without_labels_there_are_fewer() -> None:
    data = digits(60)
    found = Measures(images=40)(embed, Images("plain", data.pixels, None), VIEWS, CPU)
    assert "uniformity" in found
    assert "tolerance" not in found
    one = Images("one class", data.pixels, torch.zeros(60, dtype=torch.long))
    assert "tolerance" not in Measures(images=40)(embed, one, VIEWS, CPU)


def test_partners_are_others_of_the_class() -> None:
    labels = torch.tensor([0, 1, 0, 2, 1, 0])
    found = partners(labels, seed=3)
    assert found[3] == -1
    for i in (0, 1, 2, 4, 5):
        assert found[i] != i
        assert labels[found[i]] == labels[i]
