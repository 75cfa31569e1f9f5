"""Rows and data sets of the studies have the settings of the papers that their numbers are from."""

from __future__ import annotations

from dataclasses import replace

import pytest
from commands import error_message

from contrapose.lab.studies import SCALES, STUDIES, find
from contrapose.lab.training import Run, preset


def runs(name: str, scale: str = "paper") -> dict[tuple[str, str], Run]:
    """Return the runs of a study by row and data set."""
    return {(row.name, study_data.name): run for row, study_data, run in find(name).plan(scale).cells(1)}


@pytest.mark.thorough
@pytest.mark.parametrize(
    "name", [name for name in STUDIES if any("ImageNet-100" in s.name for s in STUDIES[name].sets)]
)
def test_imagenet100_has_100_classes(name: str) -> None:
    for scale in SCALES:
        for (_, data_set), run in runs(name, scale).items():
            own = scale == "paper" and data_set.startswith("ImageNet-100")
            assert run.classes == ("imagenet100" if own else ""), data_set


@pytest.mark.parametrize(
    "name", [f"dystress/{n}" for n in ("table1", "table2", "table3", "table13", "table13-imagenet")]
)
def test_printed_numbers_of_dcl_are_of_the_old_form(name: str) -> None:
    losses = {
        row.name: (row.changes["loss"], bool(row.printed)) for row in find(name).rows if row.name.startswith("DCL")
    }
    assert losses.pop("DCL") == ("dcl", False)
    assert losses.pop("DCL (old form)") == ("dcl(split_views=True)", True)
    assert losses in ({}, {"DCLW": ("dclw", False), "DCLW (old form)": ("dclw(split_views=True)", True)})


def test_long_tails_of_dystress() -> None:
    table4, table5 = runs("dystress/table4"), runs("dystress/table5")
    assert {(run.imbalance, run.probe, run.epochs) for run in table4.values()} == {("kukleva:0", "train", 2000)}
    assert {(run.imbalance, run.probe, run.epochs) for run in table5.values()} == {("pareto:12205", "train", 2000)}
    assert {run.imbalance for run in runs("dystress/table4", "smoke").values()} == {"kukleva:0"}
    # Digits and CIFAR-10 in place of ImageNet-100 are thinned out by their own number of images, or not at all.
    assert {run.imbalance for run in runs("dystress/table5", "smoke").values()} == {""}
    assert {run.imbalance for run in runs("dystress/table5", "small").values()} == {"exponential:100"}


@pytest.mark.parametrize("name", ["balanced/table2", "balanced/table5"])
def test_uniform_and_long_tailed_classes(name: str) -> None:
    rules = {data_set: run.imbalance for (_, data_set), run in runs(name).items()}
    assert rules == {
        "uniform CIFAR-10": "uniform:12406",
        "long-tailed CIFAR-10": "exponential:100",
        "uniform ImageNet": "uniform:115846",
        "long-tailed ImageNet": "pareto",
    }


@pytest.mark.parametrize(
    ("name", "data_set", "epochs"), [("cacr/table4", "ImageNet-1K", 1000), ("cacr/table16", "100 epochs", 100)]
)
def test_simclr_on_imagenet_has_its_own_settings(name: str, data_set: str, epochs: int) -> None:
    run = runs(name)["SimCLR", data_set]
    # The queue and its momentum belong to MoCo and are not used.
    expected = replace(
        preset("cacr/simclr-imagenet"), epochs=epochs, stream=True, queue=run.queue, momentum=run.momentum
    )
    assert run == expected
    small = next(run for (row, _), run in runs(name, "small").items() if row == "SimCLR")
    assert (small.optimiser, small.lr, small.batch, small.encoder) == ("sgd", 0.06, 128, "resnet18-cifar")
    smoke = runs(name, "smoke")["SimCLR", "digits"]
    assert (smoke.optimiser, smoke.lr, smoke.warmup, smoke.knn) == ("adamw", 0.004, 0.0, 5)


def test_moco_on_imagenet() -> None:
    assert runs("cacr/table4")["MoCov2", "ImageNet-1K"].epochs == 800
    resnet, vit = (runs("cacr/table18")["MoCov3", encoder] for encoder in ("ResNet-50", "ViT-B/16"))
    assert resnet == replace(preset("cacr/moco-v3-resnet50-1000"), epochs=800, stream=True)
    assert vit == replace(preset("cacr/moco-v3-vit"), stream=True)
    assert vit.encoder == "vit-b16-moco"


def test_cacr_with_moco_v3_is_the_authors_code() -> None:
    """Its own objective at MoCo v3's temperature, and eight local crops beside the two views with multi-crop."""
    table = runs("cacr/table18")
    for encoder, temperature in (("ResNet-50", 1.0), ("ViT-B/16", 0.2)):
        base = table["MoCov3", encoder]
        loss = f"cacr_moco_v3(temperature={temperature})"
        assert table["CACR", encoder] == replace(base, loss=loss)
        assert table["CACR (multi-crop)", encoder] == replace(base, loss=loss, views=f"{base.views}+local8")
        assert table["CACR (multi-crop)", encoder].view_maker().count == 10
    published = table["CACR (multi-crop)", "ViT-B/16"]
    for way in ("fine-tuned", "linear"):
        assert runs("cacr/table6")[f"CACR, {way}", "ImageNet-1K"] == published
    smoke = find("cacr/table18").plan("smoke").runs(1).values()
    assert {(run.views, run.loss) for run in smoke if "cacr" in run.loss} == {
        ("digits", "cacr_moco_v3(temperature=1.0)"),
        ("digits+local8", "cacr_moco_v3(temperature=1.0)"),
    }


def test_training_on_webvision_is_evaluated_on_imagenet(capsys: pytest.CaptureFixture[str]) -> None:
    data_sets = {run.data: (run.eval_data, run.epochs) for run in runs("cacr/table5").values()}
    assert data_sets == {"imagenet": ("", 200), "webvision": ("imagenet", 100), "imagenet22k": ("imagenet", 20)}
    given = find("cacr/table5").plan("paper", ["webvision=a/web", "imagenet=b/in"])
    assert {run.data: run.eval_data for _, _, run in given.cells(1)}["a/web"] == "b/in"
    message = error_message(
        capsys, "study", "run", "cacr/table5", "--scale", "short", "--data", f"webvision={__file__}"
    )
    assert "the data that Webvision v1 is evaluated on cannot be downloaded automatically; give its path" in message
    assert "--data imagenet=PATH" in message
