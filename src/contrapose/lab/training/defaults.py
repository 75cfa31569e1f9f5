"""Choose the settings that the user has left open, for the run's data and device, before the run's directory is named."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from contrapose.lab.training.precision import choose_precision
from contrapose.lab.training.run import Run

# Target number of optimiser steps, and limits on the number of epochs: fewer steps on a slow CPU, more epochs for small data.
_STEPS = {"cpu": 400, "cuda": 20_000}
_EPOCHS = {"cpu": (5, 60), "cuda": (20, 400)}
# Learning rates at a batch of 256: SimSiam's for SGD, SimCLR's for LARS.
_RATES = {"sgd": 0.05, "lars": 0.3, "lars-moco": 0.3, "adam": 1e-3, "adamw": 1e-3}
_SMALL = 500_000  # with fewer parameters than this, Adam tolerates a learning rate six times as high
_ORDER = ("encoder", "text_encoder", "size", "views", "view_count", "batch", "epochs", "lr", "precision")  # in messages


def resolve(
    run: Run,
    device: torch.device,
    *,
    log: Callable[[str], None] = print,
    folder: Path | None = None,
    world_size: int = 1,
) -> Run:
    """Return the run with all open settings chosen, and log them in one line; raise ValueError if it cannot be trained.

    Settings that the user gave are kept. If `folder` contains a run on the same data, the other settings are taken from that
    run, so that it is resumed even if the number of images or the device has changed.
    """
    # Checked before any data is read. The schedule is checked here if the epochs are given, otherwise below.
    run.kind.check_files(run)
    _check_schedule(run)
    if run.auto_settings:
        stored = _stored_run(run, folder)
        if stored is not None:
            chosen = {name: getattr(stored, name) for name in _names(run)}
            reason = f"as stored in {folder}"
        else:
            chosen, reason = _choose(run, device, world_size)
        run = replace(run, **chosen)
        if device.type == "cpu" and run.precision == "fp32":  # the rule on a CPU, so it is not mentioned
            chosen.pop("precision", None)
        if chosen:
            log(f"{_describe(run, chosen)}: {reason}; each can be set (contrapose train --help-all)")
    _check_schedule(run)
    parameter_count(run)  # raises ValueError if the encoder cannot take views of this size
    return run


def _check_schedule(run: Run) -> None:
    # Checked here and not by `Run`, so that a finished run with such settings can still be loaded.
    if run.lr == 0:
        raise ValueError(
            "lr: a learning rate of 0 trains nothing; use a number above 0, or omit --lr to have it chosen"
        )
    if run.epochs and run.warmup > run.epochs:
        raise ValueError(
            f"warmup: {run.warmup:g} epochs are more than the {run.epochs} epochs of the run; use --warmup "
            f"{run.epochs / 10:g} or more --epochs"
        )


def parameter_count(run: Run) -> int:
    """Return the number of parameters in the run's encoders, without allocating memory for them."""
    return sum(_parameter_counts(run))


def _parameter_counts(run: Run) -> list[int]:
    with torch.random.fork_rng(devices=[]), torch.device("meta"):
        encoders = run.kind.encoders(run, run.view_maker())
    return [sum(parameter.numel() for parameter in encoder.parameters()) for encoder in encoders.values()]


def _names(run: Run) -> list[str]:
    """Return the names of the settings to choose.

    The image size is included unless the augmentation recipe fixes it.
    """
    names = set(run.auto_settings)
    if "views" in run.auto_settings:
        names |= {name for name in run.kind.chosen_with_views if getattr(run, name) == getattr(Run, name)}
    return [name for name in _ORDER if name in names]


def _stored_run(run: Run, folder: Path | None) -> Run | None:
    """Return the run in a directory if it was trained on the same data."""
    path = None if folder is None else folder / "run.json"
    if path is None or not path.is_file():
        return None
    stored = Run.load(path)
    return stored if stored.data == run.data else None


def _choose(run: Run, device: torch.device, world_size: int) -> tuple[dict[str, Any], str]:
    """Return values for the open settings, and what they were chosen for."""
    names, on_device = _names(run), f"on a {'CPU' if device.type == 'cpu' else 'GPU'}"
    precision = {"precision": choose_precision(device)} if "precision" in names else {}
    if names == [*precision]:  # the data need not be read
        return precision, f"chosen for training {on_device}"
    given = ("views", "size", "encoder", "text_encoder", "batch", "view_count", "accumulate")
    suggestion = run.kind.suggest(run, {name: getattr(run, name) for name in given if name not in names}, device)
    chosen = precision | {name: suggestion.settings[name] for name in names if name in suggestion.settings}
    if "batch" in chosen and chosen["batch"] > world_size:
        chosen["batch"] -= chosen["batch"] % world_size  # the processes share a batch equally
    run = replace(run, **chosen)
    if "epochs" in names and "epochs" not in chosen:
        chosen["epochs"] = _epochs(suggestion.samples // (run.batch * run.accumulate * run.epoch_slices), device)
    if "lr" in names and "lr" not in chosen:
        chosen["lr"] = _learning_rate(run)
    return chosen, f"chosen for {suggestion.description} {on_device}"


def _epochs(steps_per_epoch: int, device: torch.device) -> int:
    kind = "cpu" if device.type == "cpu" else "cuda"
    fewest, most = _EPOCHS[kind]
    return min(most, max(fewest, round(_STEPS[kind] / max(1, steps_per_epoch))))


def _learning_rate(run: Run) -> float:
    """Scale the learning rate with the images per step: with their square root for Adam, linearly for other optimisers."""
    images, rate = run.batch * run.accumulate / 256, _RATES[run.optimiser]
    if run.optimiser in ("adam", "adamw"):
        rate *= math.sqrt(images) * (6 if parameter_count(run) < _SMALL else 1)
    else:
        rate *= images
    return float(f"{rate:.1g}")  # one digit: the rule is not more precise than that


def _describe(run: Run, chosen: dict[str, Any]) -> str:
    words = {
        name: f"{name.replace('_', ' ')} {value:g}" if isinstance(value, float) else f"{name.replace('_', ' ')} {value}"
        for name, value in chosen.items()
    }
    for name, count in zip(("encoder", "text_encoder"), _parameter_counts(run), strict=False):
        if name in words:
            words[name] += f" ({count / 1e6:.2g} M parameters)"
    return ", ".join(words[name] for name in _ORDER if name in words)
