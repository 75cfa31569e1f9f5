"""The data sets of the papers' transfer tables, and the settings that belong to them."""

from __future__ import annotations

import pytest
import torch

from contrapose.lab.evaluation import TRANSFER_SETS, TransferSet, transfer_score
from contrapose.lab.evaluation.transfer import dystress_recipe
from contrapose.lab.modalities.images.digits import digits
from contrapose.lab.modalities.images.encoders import encoder
from contrapose.lab.modalities.images.images import Images
from contrapose.lab.modalities.images.views import Views


def test_weights_of_table_11() -> None:
    for name, weight in {"mura": 0.7097, "isic2016": 4.24, "mhist": 2.45}.items():
        recipe = dystress_recipe(TRANSFER_SETS[name])
        assert (recipe.lr, recipe.pos_weight, recipe.class_weights) == (1.0, weight, ())
    for name in ("cifar10", "cifar100", "flowers102"):
        recipe = dystress_recipe(TRANSFER_SETS[name])
        assert (recipe.lr, recipe.pos_weight, recipe.class_weights) == (0.1, None, ())


def test_class_weights_follow_the_order_of_the_folders() -> None:
    """The paper's order is that of Chaoyang's labels; class folders are in alphabetical order."""
    chaoyang = TRANSFER_SETS["chaoyang"]
    assert dystress_recipe(chaoyang).class_weights == (1.264, 1.667, 1.0, 2.114)
    folders = ("adenocarcinoma", "adenoma", "normal", "serrated")
    assert dystress_recipe(chaoyang, folders).class_weights == (1.0, 2.114, 1.264, 1.667)
    with pytest.raises(ValueError, match=r"Chaoyang has weights for the class folders normal, .*, got a, b"):
        dystress_recipe(chaoyang, ("a", "b"))


def test_scores_are_those_of_elevater() -> None:
    by_metric = {
        "mean_per_class": {"caltech101", "fgvc-aircraft", "flowers102", "oxford-pets"},
        "roc_auc": {"hateful-memes"},
        "map_11": {"voc2007"},
    }
    for metric, names in by_metric.items():
        assert {name for name, data_set in TRANSFER_SETS.items() if data_set.metric == metric} == names


@pytest.mark.parametrize("protocol", ["dystress", "elevater-linear", "elevater-fine-tune"])
def test_every_protocol_gives_a_score(protocol: str) -> None:
    train, test = digits(300), digits(200, train=False)
    views = Views.named("digits")
    value = transfer_score(encoder("tiny"), train, test, to=TRANSFER_SETS["digits"], protocol=protocol, views=views)
    assert 0 <= value <= 100


def test_the_score_is_the_metric_of_the_data_set() -> None:
    """Two classes told apart by their colour: the ranking is right, whatever the threshold."""
    labels = torch.arange(40) % 2
    pixels = (labels * 200)[:, None, None, None].expand(40, 3, 32, 32).to(torch.uint8)
    source, views = Images("colours", pixels.contiguous(), labels), Views.named("digits")
    to = TransferSet("colours", "roc_auc", trial=True)
    value = transfer_score(encoder("tiny"), source, source, to=to, protocol="elevater-linear", views=views)
    assert value == pytest.approx(100)
    with pytest.raises(ValueError, match="protocol: expected one of dystress"):
        transfer_score(encoder("tiny"), source, source, to=to, protocol="linear", views=views)
