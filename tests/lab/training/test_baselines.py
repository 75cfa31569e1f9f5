"""The presets of BYOL, DINO and the others have the settings of lightly's benchmarks, of the papers and of their code."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from contrapose.lab.training import Trainer, preset
from contrapose.lab.training.baselines import BASELINES
from contrapose.lab.training.eager import EagerSteps

SGD, ADAM = ("sgd", 0.06, 0.0, 128, 200, 5e-4), ("adam", 1e-3, 0.0, 128, 200, 1e-6)
TABLE8 = ("lars", 0.3 * 128 / 256, 10.0, 128, 400, 1e-6)  # as Zero-CL and ARB
SIMCLR_V2 = {"head": "simclr-v2", "views": "simclr"}
ZERO_CL = {"framework": "simclr", "head": "zero-cl", "views": "byol", "encoder": "resnet50-zero"}

# Optimiser, learning rate, epochs of warm-up, batch, epochs, weight decay; then what else the sources say.
SETTINGS: dict[str, tuple[tuple[str, float, float, int, int, float], dict[str, Any]]] = {
    # CIFAR: lightly's benchmark on CIFAR-10
    "byol/cifar": (SGD, {"framework": "byol", "head": "byol-cifar", "predictor": 1024, "momentum": 0.99, "momentum_schedule": "constant",
                         "loss": "simsiam", "views": "byol-cifar"}),
    "simsiam/cifar": (SGD, {"framework": "simsiam", "head": "simsiam-cifar", "predictor": 512, "constant_predictor_lr": False,
                            "views": "simsiam-cifar"}),
    "barlow-twins/cifar": (SGD, {"framework": "simclr", "head": "barlow-twins-cifar", "loss": "barlow_twins",
                                 "views": "byol-cifar"}),
    "swav/cifar": (ADAM, {"head": "swav-cifar", "views": "swav-cifar", "prototypes": 512, "queue_start": 0, "frozen_epochs": 0}),
    "dino/cifar": (SGD, {"head": "dino-cifar", "views": "dino-cifar", "prototypes": 2048, "momentum": 0.99, "momentum_schedule": "constant",
                         "loss": "dino(teacher_temperature=0.04)", "frozen_epochs": 0}),
    "nnclr/cifar": (SGD, {"framework": "nnclr", "queue": 4096, "predictor": 0, "loss": "nnclr(temperature=0.5)"}),
    # CIFAR: htdt/self-supervised, at DySTreSS's batch and epochs: 500 steps of 50,000 // 128 to warm up
    "w-mse/cifar": (("adam", 3e-3, 1.28, 128, 200, 1e-6), {
        "loss": "w_mse(size=128)", "views": "w-mse-cifar", "schedule": "step", "milestones": (200 - 50, 200 - 25), "lr_drop": 0.2}),
    # CIFAR: our choice of everything but the head
    "vicreg/cifar": (("sgd", 0.02, 10.0, 128, 200, 5e-4), {"head": "barlow-twins-cifar"}),
    "zero-cl/cifar": (SGD, {"head": "zero-cl", "width": 0}),
    "zero-fcl/cifar": (SGD, {"head": "zero-cl", "loss": "zero_fcl"}),
    "zero-icl/cifar": (SGD, {"head": "zero-cl", "loss": "zero_icl"}),
    "arb/cifar": (SGD, {"head": "zero-cl", "width": 256}),
    "fnc/cifar": (SGD, {"framework": "fnc", "head": "simclr", "queue": 16 * 128}),
    "simclr-v2/cifar": (SGD, {"head": "simclr-v2", "loss": "simclr"}),
    # ImageNet: lightly's benchmark, which DySTreSS's Table 2 takes its numbers from
    "byol/imagenet": (("lars", 0.45, 10.0, 256, 100, 1e-6), {"momentum": 0.99, "momentum_schedule": "cosine", "loss": "byol", "views": "byol"}),
    "barlow-twins/imagenet": (("lars", 0.2, 10.0, 256, 100, 1.5e-6), {"head": "barlow-twins", "views": "byol"}),
    "vicreg/imagenet": (("lars", 0.5, 10.0, 256, 100, 1e-6), {"head": "vicreg-lightly", "views": "vicreg"}),
    "w-mse/imagenet": (("lars", 0.1 * 256**0.5, 10.0, 256, 100, 1e-6), {"head": "w-mse", "view_count": 4, "views": "w-mse"}),
    # ImageNet: the authors' code or paper
    "simsiam/imagenet": (("sgd", 0.05 * 512 / 256, 0.0, 512, 100, 1e-4), {
        "predictor": 512, "constant_predictor_lr": True, "views": "moco-v2", "encoder": "resnet50-zero"}),
    "swav/imagenet": (("lars", 0.6, 0.0, 256, 200, 1e-6), {
        "prototypes": 3000, "queue": 3840, "queue_start": 16, "frozen_epochs": 1, "views": "swav+local6"}),
    "dino/imagenet": (("sgd", 0.03, 10.0, 256, 100, 1e-4), {
        "head": "dino", "prototypes": 65536, "momentum": 0.996, "momentum_schedule": "cosine", "frozen_epochs": 1, "views": "dino+local8"}),
    "zero-cl/imagenet": (("lars", 0.3, 10.0, 256, 100, 1e-6), {**ZERO_CL, "loss": "zero_cl"}),
    "zero-fcl/imagenet": (("lars", 0.3, 10.0, 256, 100, 1e-6), {**ZERO_CL, "loss": "zero_fcl"}),
    "zero-icl/imagenet": (("lars", 0.3, 10.0, 256, 100, 1e-6), {**ZERO_CL, "loss": "zero_icl"}),
    "arb/imagenet": (("lars", 0.2, 10.0, 256, 100, 1e-6), {**ZERO_CL, "loss": "arb"}),
    "nnclr/imagenet": (("lars", 0.3 * 4096 / 256, 10.0, 4096, 1000, 1e-6), {
        "queue": 98304, "loss": "nnclr(temperature=0.1)", "head": "nnclr"}),
    "fnc/imagenet": (("lars", 0.1 * 4096**0.5, 10.0, 4096, 100, 1e-4), {
        **SIMCLR_V2, "view_count": 2 + 8, "queue": 6 * 4096, "momentum": 0.999}),
    "simclr-v2/imagenet": (("lars", 6.4, 0.05 * 800, 4096, 800, 1e-4), {**SIMCLR_V2, "loss": "simclr(temperature=0.1)"}),
    # ImageNet-100: DySTreSS's Table 8, with the widths it prints
    "byol/imagenet100": (TABLE8, {"framework": "byol", "head": "byol", "predictor": 0}),
    "barlow-twins/imagenet100": ((*TABLE8[:-1], 1e-4), {"head": "zero-cl", "width": 0}),
    "vicreg/imagenet100": ((*TABLE8[:-1], 1e-4), {"head": "zero-cl", "width": 0}),
    "zero-cl/imagenet100": (TABLE8, ZERO_CL),
    "zero-fcl/imagenet100": (TABLE8, ZERO_CL),
    "zero-icl/imagenet100": (TABLE8, {**ZERO_CL, "width": 256}),
    "arb/imagenet100": (TABLE8, ZERO_CL),
    "dino/imagenet100": (("sgd", 0.03 * 128 / 256, 10.0, 128, 400, 1e-4), {"prototypes": 65536}),
    "w-mse/imagenet100": (("adam", 2e-3, 10.0, 128, 400, 1e-6), {"view_count": 2}),
    # ImageNet-100: our choice of batch and epochs
    "simsiam/imagenet100": (("sgd", 0.1, 0.0, 512, 200, 1e-4), {"head": "simsiam", "encoder": "resnet50-zero"}),
    "swav/imagenet100": (("lars", 0.6, 0.0, 256, 200, 1e-6), {"queue_start": 16}),
    "nnclr/imagenet100": (("lars", 0.3, 10.0, 256, 200, 1e-6), {"queue": 65536}),
    "fnc/imagenet100": (("lars", 1.6, 10.0, 256, 200, 1e-4), {"queue": 6 * 256, "anchor_views": 0}),
    "simclr-v2/imagenet100": (("lars", 1.6, 10.0, 256, 200, 1e-4), SIMCLR_V2),
}  # fmt: skip


def test_the_table_has_every_preset() -> None:
    names = [name for name in SETTINGS if not name.endswith("/cifar")]
    cifar = [f"{name}{classes}" for name in SETTINGS if name.endswith("/cifar") for classes in (10, 100)]
    assert sorted(names + cifar) == sorted(BASELINES)
    assert len(BASELINES) == 14 * 4


@pytest.mark.parametrize("name", sorted(BASELINES))
def test_settings_of_the_sources(name: str) -> None:
    run, (main_settings, others) = preset(name), SETTINGS[name.replace("cifar100", "cifar").replace("cifar10", "cifar")]
    optimiser, lr, warmup, batch, epochs, weight_decay = main_settings
    assert (run.optimiser, run.warmup, run.batch, run.epochs) == (optimiser, warmup, batch, epochs)
    assert (run.lr, run.weight_decay) == pytest.approx((lr, weight_decay))
    assert run.schedule == others.get("schedule", "cosine")
    assert run.classes == ("imagenet100" if name.endswith("/imagenet100") else "")
    assert run.encoder == others.get("encoder", "resnet18-cifar" if "cifar" in name else "resnet50")
    assert {key: getattr(run, key) for key in others} == others


@pytest.mark.thorough
def test_vicreg_starts_with_finite_losses(tmp_path: Path) -> None:
    """Without warm-up, at the learning rate of the other methods, its loss was not finite after three steps."""
    small: dict[str, Any] = {
        "data": "digits",
        "limit": 600,
        "encoder": "tiny",
        "metrics": 0,
        "precision": "fp32",
        "batch": 128,
    }
    trainer = Trainer(
        replace(preset("vicreg/cifar10"), **small), tmp_path, log=lambda text: None, device=torch.device("cpu")
    )
    steps = EagerSteps(trainer.context)
    losses = [steps.step([batch], 0, place) for place, batch in enumerate(steps.batches(0, 0))]
    assert len(losses) == 4
    assert max(losses) < 100
