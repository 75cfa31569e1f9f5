"""The presets hold the papers' settings and mean the same in Python and on the command line."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import tyro
from tiers import every
from tyro.conf import OmitArgPrefixes

from contrapose.lab.cli import main
from contrapose.lab.cli.train import Train
from contrapose.lab.modalities.images.views import Views
from contrapose.lab.modalities.text.presets import PRESETS as SENTENCES
from contrapose.lab.training import PRESETS, preset
from contrapose.lab.training.baselines import BASELINES
from contrapose.lab.training.options import make_run
from contrapose.lab.training.presets import moco_v3_settings


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_every_preset_is_a_run(name: str) -> None:
    assert preset(name).epochs >= 20


# Optimiser, learning rate, schedule, epochs of warm-up, batch, epochs, weight decay; then what else the papers say.
SETTINGS: dict[str, tuple[tuple[str, float, str, float, int, int, float], dict[str, Any]]] = {
    "dystress/cifar10": (("sgd", 0.06, "cosine", 0, 128, 200, 5e-4), {"encoder": "resnet18-cifar", "knn": 200}),
    "dystress/cifar100": (("sgd", 0.06, "cosine", 0, 128, 200, 5e-4), {"encoder": "resnet18-cifar", "knn": 200}),
    "dystress/cifar10-lt": (("sgd", 0.06, "cosine", 0, 128, 500, 5e-4), {"imbalance": "exponential:100", "probe": "train"}),
    "dystress/cifar100-lt": (("sgd", 0.06, "cosine", 0, 128, 500, 5e-4), {"imbalance": "exponential:100", "probe": "train"}),
    "dystress/table4-cifar10-lt": (
        ("sgd", 0.5, "cosine", 10, 512, 2000, 1e-4),
        {"encoder": "resnet18-cifar", "views": "kukleva", "imbalance": "kukleva:0", "probe": "train"}),
    "dystress/table4-cifar100-lt": (
        ("sgd", 0.5, "cosine", 10, 512, 2000, 1e-4),
        {"encoder": "resnet18-cifar", "views": "kukleva", "imbalance": "kukleva:0", "probe": "train"}),
    "dystress/table5-imagenet100-lt": (
        ("sgd", 0.5, "cosine", 10, 256, 2000, 1e-4),
        {"encoder": "resnet50", "classes": "imagenet100", "imbalance": "pareto:12205", "probe": "train"}),
    "dystress/tiny-imagenet": (("sgd", 0.06, "cosine", 0, 128, 200, 5e-4), {"encoder": "resnet50", "views": "simclr-64"}),
    "dystress/imagenet100": (("lars", 1.2, "cosine", 10, 256, 200, 1e-6), {"precision": "fp16", "classes": "imagenet100"}),
    "dystress/imagenet": (("lars", 1.2, "cosine", 10, 256, 100, 1e-6), {"precision": "fp16", "classes": ""}),
    "dystress/table8-imagenet100": (("lars", 0.15, "cosine", 10, 128, 400, 1e-6), {"classes": "imagenet100"}),
    "behaviour/cifar10": (("sgd", 0.03, "step", 0, 128, 200, 5e-4), {"milestones": (160, 190), "head": "linear"}),
    "behaviour/cifar100": (("sgd", 0.03, "step", 0, 128, 200, 5e-4), {"milestones": (160, 190), "lr_drop": 0.1}),
    "behaviour/svhn": (("sgd", 0.03, "step", 0, 128, 200, 5e-4), {"milestones": (160, 190), "views": "insdis-svhn"}),
    "behaviour/imagenet100": (
        ("sgd", 0.03, "step", 0, 128, 200, 1e-4), {"encoder": "resnet50", "views": "moco-v2", "classes": "imagenet100"}),
    "cacr/cifar10": (("sgd", 0.36, "step", 0, 768, 200, 1e-4), {"milestones": (155, 170, 185), "view_count": 2}),
    "cacr/cifar100": (("sgd", 0.36, "step", 0, 768, 200, 1e-4), {"loss": "cacr(t_neg=3.0)"}),
    "cacr/stl10": (("sgd", 0.36, "step", 0, 768, 200, 1e-4), {"loss": "cacr(t_neg=3.0)"}),
    "cacr/cifar10-k4": (("sgd", 0.06, "step", 0, 128, 200, 1e-4), {"loss": "cacr(t_neg=0.9)", "view_count": 5}),
    "cacr/cifar100-k4": (("sgd", 0.06, "step", 0, 128, 200, 1e-4), {"loss": "cacr(t_neg=2.0)", "view_count": 5}),
    "cacr/stl10-k4": (("sgd", 0.06, "step", 0, 128, 200, 1e-4), {"loss": "cacr(t_neg=2.0)", "view_count": 5}),
    "cacr/resnet50-cifar10": (("adam", 1e-3, "constant", 0, 256, 400, 1e-6), {"encoder": "resnet50-cifar", "head": "hcl"}),
    "cacr/resnet50-cifar100": (("adam", 1e-3, "constant", 0, 256, 400, 1e-6), {"encoder": "resnet50-cifar", "head": "hcl"}),
    "cacr/moco-imagenet100": (("sgd", 0.03, "cosine", 0, 128, 200, 1e-4), {"queue": 65536, "classes": "imagenet100"}),
    "cacr/moco-imagenet": (("sgd", 0.03, "cosine", 0, 256, 200, 1e-4), {"queue": 65536, "momentum": 0.999}),
    "cacr/moco-webvision": (("sgd", 0.03, "cosine", 0, 256, 100, 1e-4), {"queue": 65536, "momentum": 0.999}),
    "cacr/moco-imagenet22k": (("sgd", 0.03, "cosine", 0, 256, 20, 1e-4), {"queue": 65536, "momentum": 0.999}),
    "cacr/simclr-imagenet": (
        ("lars", 0.3 * 4096 / 256, "cosine", 10, 4096, 1000, 1e-6),
        {"framework": "simclr", "head": "simclr", "views": "simclr", "loss": "simclr(temperature=0.1)"}),
    "cacr/moco-v3-resnet50-100": (
        ("lars-moco", 0.6 * 4096 / 256, "cosine", 10, 4096, 100, 1e-6), {"momentum": 0.99, "momentum_schedule": "cosine", "views": "moco-v3"}),
    "cacr/moco-v3-resnet50": (
        ("lars-moco", 0.3 * 4096 / 256, "cosine", 10, 4096, 300, 1e-6), {"momentum": 0.99, "momentum_schedule": "cosine", "views": "moco-v3"}),
    "cacr/moco-v3-resnet50-1000": (
        ("lars-moco", 0.3 * 4096 / 256, "cosine", 10, 4096, 1000, 1.5e-6),
        {"momentum": 0.996, "momentum_schedule": "cosine", "views": "moco-v3", "encoder": "resnet50-zero"}),
    "cacr/moco-v3-vit": (
        ("adamw", 1.5e-4 * 4096 / 256, "cosine", 40, 4096, 300, 0.1),
        {"momentum": 0.99, "momentum_schedule": "cosine", "views": "byol", "head": "moco-v3-vit", "loss": "moco_v3(temperature=0.2)",
         "encoder": "vit-b16-moco"}),
    "clip/cc3m": (
        ("adamw", 5e-4, "cosine", 1, 2048, 32, 0.1),
        {"encoder": "resnet50", "text_encoder": "clip", "width": 1024, "loss": "clip", "views": "clip"}),
    "cacr/cc3m": (("adamw", 5e-4, "cosine", 1, 2048, 32, 0.1), {"loss": "cacr(t_pos=1.0, t_neg=2.0)", "views": "clip"}),
    "balanced/cifar10": (("sgd", 0.1, "cosine", 0, 512, 200, 1e-4), {"knn": 1, "head": "balanced-cifar"}),
    "balanced/imagenet": (
        ("sgd", 0.1, "cosine", 0, 512, 100, 1e-4), {"knn": 200, "head": "balanced", "encoder": "resnet50-zero"}),
}  # fmt: skip


def test_the_table_has_every_preset() -> None:
    assert SETTINGS.keys() == PRESETS.keys() - BASELINES.keys() - SENTENCES.keys()


@pytest.mark.parametrize("name", sorted(SETTINGS))
def test_settings_of_the_papers(name: str) -> None:
    run, (main_settings, others) = preset(name), SETTINGS[name]
    optimiser, lr, schedule, warmup, batch, epochs, weight_decay = main_settings
    assert (run.optimiser, run.schedule, run.warmup, run.batch, run.epochs) == (
        optimiser,
        schedule,
        warmup,
        batch,
        epochs,
    )
    assert (run.lr, run.weight_decay) == pytest.approx((lr, weight_decay))
    assert {key: getattr(run, key) for key in others} == others


@pytest.mark.parametrize(
    ("epochs", "published"), [(50, 100), (100, 100), (200, 300), (400, 1000), (800, 1000), (2000, 1000)]
)
def test_moco_v3_takes_the_settings_of_the_next_longer_training(epochs: int, published: int) -> None:
    settings, known = moco_v3_settings(epochs), moco_v3_settings(published)
    assert settings == {**known, "epochs": epochs}


def test_views_of_moco_v3() -> None:
    """Crops of at least a fifth of the image for a ResNet, of 8 % for a ViT (moco-v3's own configurations)."""
    for name, share in (("cacr/moco-v3-resnet50", 0.2), ("cacr/moco-v3-vit", 0.08)):
        views = preset(name).view_maker()
        assert isinstance(views, Views)
        assert [recipe.scale for recipe in views.recipes] == [(share, 1.0)] * 2
        assert [(recipe.blur, recipe.solarize) for recipe in views.recipes] == [(1.0, 0.0), (0.1, 0.2)]


def test_a_preset_on_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    main(["presets"])
    assert "cacr/cifar10-k4" in capsys.readouterr().out
    with pytest.raises(SystemExit) as exit_info:
        main(["train", "--preset", "dystress/cifar"])
    assert exit_info.value.code == 2
    assert "did you mean 'dystress/cifar10'" in capsys.readouterr().err


@pytest.mark.parametrize("name", every(5, sorted(PRESETS)))
def test_every_preset_is_the_same_run_on_the_command_line(name: str) -> None:
    command = tyro.cli(Train, args=["--seed", "3", "--preset", name], config=(OmitArgPrefixes,))
    assert make_run(command.given, preset=command.preset) == replace(preset(name), seed=3)
