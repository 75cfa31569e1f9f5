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
    """Return a fixed linear projection of the pixels."""
    generator = torch.Generator().manual_seed(0)
    return x.flatten(1) @ torch.randn(x[0].numel(), 6, generator=generator)


def test_all_metrics_of_a_sample() -> None:
    data = digits(200)
    values = Measures(images=80, drawn=20, draws=3)(embed, data, VIEWS, CPU)
    sample = Measures(images=80).sample(data, VIEWS)
    assert isinstance(sample, Images)
    assert sample.labels is not None
    x = (sample.pixels.float() / 255 - torch.tensor(RECIPE.mean)[:, None, None]) / torch.tensor(RECIPE.std)[
        :, None, None
    ]
    z = unit(embed(x))
    assert values["uniformity"] == pytest.approx(metrics.uniformity(z), rel=1e-5)
    assert values["tolerance"] == pytest.approx(metrics.tolerance(z, sample.labels), rel=1e-4)
    assert values["alignment"] > 0
    assert values["separation_positive"] <= 1
    assert values["repulsion_gap"] > 0
    assert {"attraction_gap", "prototype_bias_single", "prototype_bias_means", "conditional_entropy", "effective_rank",
            "feature_std", "interclass_uniformity", "separation_n10", "alignment_class"} <= values.keys()  # fmt: skip
    # Random augmentation included, a second call gives the same numbers.
    assert values == Measures(images=80, drawn=20, draws=3)(embed, data, VIEWS, CPU)


def test_metrics_of_classes_need_labels_of_two_classes() -> None:
    data = digits(60)
    values = Measures(images=40)(embed, Images("plain", data.pixels, None), VIEWS, CPU)
    assert "uniformity" in values
    assert "tolerance" not in values
    one = Images("one class", data.pixels, torch.zeros(60, dtype=torch.long))
    assert "tolerance" not in Measures(images=40)(embed, one, VIEWS, CPU)


def test_partners_are_others_of_the_class() -> None:
    labels = torch.tensor([0, 1, 0, 2, 1, 0])
    partner = partners(labels, seed=3)
    assert partner[3] == -1  # the only image of its class
    for i in (0, 1, 2, 4, 5):
        assert partner[i] != i
        assert labels[partner[i]] == labels[i]
