"""Every study says in words what it measures, and docs/studies.md is up to date."""

from __future__ import annotations

from pathlib import Path

import pytest
from tiers import every

from contrapose.lab.studies import STUDIES, find
from contrapose.lab.studies.measures import LinearProbe, Metric, RecordedKNN
from contrapose.lab.studies.protocol import describe_quantities, describe_study, protocol_page
from contrapose.lab.training import Run

PAGE = Path(__file__).parents[3] / "docs" / "studies.md"


@pytest.mark.thorough
def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text() == protocol_page(STUDIES.values()), "run: contrapose study protocols > docs/studies.md"


@pytest.mark.parametrize("name", every(5, STUDIES))
def test_every_study_says_what_it_measures(name: str) -> None:
    paper, ours, difference = describe_study(STUDIES[name])
    assert paper
    assert ours
    assert difference or STUDIES[name].diagram


@pytest.mark.parametrize("name", [name for name in STUDIES if name.startswith("dystress/")])
def test_uniformity_of_dystress_is_that_of_the_encoder(name: str) -> None:
    for quantity in STUDIES[name].quantities:
        measure = quantity.measure
        if isinstance(measure, Metric) and "uniformity" in measure.name:
            assert (measure.space, measure.images) == ("encoder", "test")


def test_a_measure_names_output_and_images() -> None:
    run = Run(data="digits", knn=7, probe="train")
    assert Metric("uniformity", "encoder").describe(run).text == "uniformity (encoder's output, all test images)"
    assert "7-NN accuracy" in RecordedKNN().describe(run).text
    assert "the images trained on" in LinearProbe("cacr").describe(run).text


def test_a_probe_says_its_classes_its_epochs_and_its_images() -> None:
    run = Run(data="digits", extra_metrics=("linear:wang-liu@10",))
    words = LinearProbe("wang-liu", best=True, top=5).describe(run).text
    assert words.startswith("top-5 accuracy of a linear probe")
    assert "SGD for 100 epochs, lr 30 (× 0.2 after 40, 60 and 80)" in words
    assert words.endswith("best epoch, every 10 epochs of training")
    other = Run(data="a", eval_data="b/imagenet")
    assert "all training images of imagenet:" in LinearProbe("cacr").describe(other).text


def test_probes_of_the_smoke_scale_are_short_before_training_too() -> None:
    after, before = describe_quantities(find("behaviour/equation6").plan("smoke"))
    assert after.startswith("accuracy of a linear probe")
    assert "SGD for 5 epochs" in after
    assert before == f"before training: {after}"


def test_quantities_of_the_same_images_are_described_together() -> None:
    assert "uniformity and tolerance (projector's output" in describe_study(STUDIES["behaviour/table1"])[0]
    assert describe_study(STUDIES["cacr/table8"])[1] == "the same; also the last epoch's accuracy"
    assert "Webvision v1, ImageNet-22K: accuracy" in describe_study(STUDIES["cacr/table5"])[0]


def test_what_remains_different_is_said() -> None:
    expected = {
        "dystress/table4": "we choose the images and the order of the classes at random",
        "dystress/table6": "we choose at random which images",
        "cacr/table6": "exclude biases and norms from weight decay",
        "cacr/table8": "105,000 in total",
        "cacr/table15": "the authors' code prints the best one",
        "balanced/table2": "115 or 116 images per class",
    }
    for name, sentence in expected.items():
        assert sentence in describe_study(STUDIES[name])[2], name
    assert describe_study(STUDIES["dystress/table10"])[2] == "same"
    assert "decays" not in describe_study(STUDIES["dystress/table1"])[2]  # it ends where lightly's does
    assert "105,000" not in describe_study(STUDIES["cacr/table2"])[2]  # without STL-10


def test_what_the_paper_does_not_say_is_not_the_papers_measure() -> None:
    assert "accuracy" not in describe_study(STUDIES["dystress/figure1"])[0]
    assert describe_study(STUDIES["dystress/table4"])[0] == "one accuracy, without saying which"
    assert describe_study(STUDIES["behaviour/equation6"])[0].startswith("no number")


def test_studies_of_wang_and_liu_name_the_error_of_equation_11_and_the_flips() -> None:
    for name in ("behaviour/figure5", "behaviour/figure7", "behaviour/table1"):
        assert "Equation 11 divides by all pairs" in STUDIES[name].note
        assert "the authors' code flips neither CIFAR nor SVHN" in describe_study(STUDIES[name])[2]
    assert "Equation 11" not in STUDIES["behaviour/figure9"].note
    assert "flip" not in describe_study(STUDIES["behaviour/figure3"])[2]  # it trains nothing
