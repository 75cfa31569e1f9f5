from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from contrapose import metrics
from contrapose.lab.evaluation import GEOMETRY, Measures, explain_metric, partners
from contrapose.lab.modalities.images.digits import digits
from contrapose.lab.modalities.images.images import Images
from contrapose.lab.modalities.images.views import Views
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
    assert [name for name in values if not explain_metric(name)] == []


def test_metrics_of_classes_need_labels_of_two_classes() -> None:
    data = digits(60)
    values = Measures(images=40)(embed, Images("plain", data.pixels, None), VIEWS, CPU)
    assert "uniformity" in values
    assert "tolerance" not in values
    one = Images("one class", data.pixels, torch.zeros(60, dtype=torch.long))
    assert "tolerance" not in Measures(images=40)(embed, one, VIEWS, CPU)


def test_few_samples_have_no_rank_that_looks_like_a_collapse() -> None:
    data = digits(8)
    assert "effective_rank" in Measures(augmented=False)(embed, data, VIEWS, CPU)
    few = Measures(augmented=False)(embed, data.subset(range(7)), VIEWS, CPU)
    assert "effective_rank" not in few
    assert "feature_std" in few


@pytest.mark.parametrize("noise", [0.0, 1e-8])
def test_a_collapsed_embedding_has_finite_metrics(noise: float) -> None:
    torch.manual_seed(0)
    values = Measures(images=80, drawn=20, draws=3)(
        lambda x: torch.ones(6) + noise * torch.randn(len(x), 6), digits(200), VIEWS, CPU
    )
    assert "repulsion_gap" in values
    assert all(map(math.isfinite, values.values()))
    assert values["feature_std"] == pytest.approx(0, abs=1e-6)
    assert values["effective_rank"] == pytest.approx(1, abs=1e-4)
    assert values["uniformity"] == pytest.approx(0, abs=1e-5)
    assert values["alignment"] == pytest.approx(0, abs=1e-12)
    assert values["tolerance"] == pytest.approx(1, abs=1e-5)
    assert values["separation_gap"] == pytest.approx(0, abs=1e-5)


def test_a_collapse_to_opposite_points_or_to_the_origin() -> None:
    data = digits(200)
    # As many images of each class on either side: class means are zero, and the bound over their lengths is infinite.
    opposite = Images("opposite", data.pixels, torch.arange(200) // 2 % 10)
    values = Measures(images=0, drawn=20, draws=3)(
        lambda x: (1.0 - 2 * (torch.arange(len(x)) % 2))[:, None] * torch.ones(6), opposite, VIEWS, CPU
    )
    assert "repulsion_gap" not in values
    assert all(map(math.isfinite, values.values()))
    assert values["effective_rank"] == pytest.approx(1)
    assert values["feature_std"] == pytest.approx(1)
    zero = Measures(images=80)(lambda x: torch.zeros(len(x), 6), data, VIEWS, CPU)
    assert zero == {"effective_rank": 0.0, "feature_std": 0.0}


def test_partners_are_others_of_the_class() -> None:
    labels = torch.tensor([0, 1, 0, 2, 1, 0])
    partner = partners(labels, seed=3)
    assert partner[3] == -1  # the only image of its class
    for i in (0, 1, 2, 4, 5):
        assert partner[i] != i
        assert labels[partner[i]] == labels[i]


def colours(*, sort: bool) -> Images:
    """Return 384 images of three classes, each of its own colour with noise, in the order of their classes or mixed."""
    labels = torch.arange(3).repeat_interleave(128)
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 40, (384, 3, 32, 32), generator=generator)
    pixels[torch.arange(384), labels] += 200
    index = torch.arange(384) if sort else torch.randperm(384, generator=generator)
    return Images("colours", pixels[index].to(torch.uint8), labels[index])


def test_batches_of_a_class_folder_are_mixed() -> None:
    """A batch of one class is spread evenly around its class, and its conditional entropy is nearly the maximum."""
    in_order, mixed = (
        Measures(images=0, batch=32)(embed, colours(sort=sort), VIEWS, CPU)["conditional_entropy"]
        for sort in (True, False)
    )
    z = unit(torch.cat([embed(RECIPE.plain(part)) for part in colours(sort=True).pixels.split(100)]))
    of_one_class = metrics.conditional_entropy(z, batch=32)
    assert in_order == pytest.approx(mixed, rel=0.02)
    assert of_one_class > 1.2 * in_order


def test_anchors_of_a_class_folder_are_of_all_classes() -> None:
    """Every view of a black image is black, so anchors of the first class alone would have no gap."""
    data = colours(sort=True)
    data.pixels[:128] = 0
    values = Measures(images=0, drawn=60, draws=3)(embed, data, VIEWS, CPU)
    black = Measures(images=0, drawn=60, draws=3)(embed, data.subset(torch.arange(129)), VIEWS, CPU)
    assert black["attraction_gap"] < 0.1 * values["attraction_gap"]


def test_means_over_anchors_have_their_errors() -> None:
    few, many = (Measures(images=0, drawn=drawn, draws=3)(embed, digits(400), VIEWS, CPU) for drawn in (20, 320))
    for name in ("attraction_gap", "repulsion_gap", "prototype_bias_single"):
        assert 2 < few[f"{name}_error"] / many[f"{name}_error"] < 8  # about √16
        assert abs(few[name] - many[name]) < 5 * few[f"{name}_error"]
    default = Measures(images=0, draws=2)(embed, digits(200), VIEWS, CPU)
    assert (
        default["attraction_gap"]
        == Measures(images=0, drawn=128, draws=2)(embed, digits(200), VIEWS, CPU)["attraction_gap"]
    )


class OnDisk(Images):
    """Images that cannot be loaded into memory."""

    def in_memory(self, views: object) -> Images:
        raise AssertionError("loaded into memory")


def test_metrics_without_augmentation_leave_the_images_on_disk() -> None:
    data = digits(60)
    on_disk = OnDisk("on disk", data.pixels, data.labels)
    values = Measures(images=0, augmented=False)(embed, on_disk, VIEWS, CPU)
    assert set(values) == set(GEOMETRY)
    with pytest.raises(AssertionError, match="loaded into memory"):
        Measures(images=0)(embed, on_disk, VIEWS, CPU)
