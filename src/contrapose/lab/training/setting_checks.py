"""What the settings of a run may be: their types, from the annotations of `Run`, and the range of their values.

Called while a `Run` is created, so `run` has all settings as fields, but its type cannot be imported here.
"""

from __future__ import annotations

import math
from dataclasses import fields
from typing import Any

from contrapose.lab.frameworks import FRAMEWORKS
from contrapose.lab.modalities.modality import LARGEST_MEGAPIXELS
from contrapose.lab.networks.heads import HEADS
from contrapose.lab.training.recording import recorded_measures
from contrapose.pairs.comparison import SIMILARITIES
from contrapose.validate import check_number

CHOICES: dict[str, tuple[str, ...]] = {
    "framework": tuple(FRAMEWORKS),
    "head": tuple(HEADS),
    "optimiser": ("sgd", "adam", "adamw", "lars", "lars-moco"),
    "schedule": ("cosine", "linear", "step", "constant"),
    "precision": ("fp32", "bf16", "fp16"),
    "contrast": ("separate", "whole"),
    "probe": ("all", "train"),
    "metrics_on": ("test", "train"),
    "similarity": SIMILARITIES,
}
# By annotation: the type, and what messages call one value and several.
_TYPES: dict[str, tuple[Any, str, str]] = {
    "str": (str, "a text", "texts"),
    "bool": (bool, "True or False", "True or False"),
    "int": (int, "a whole number", "whole numbers"),
    "float": (int | float, "a number", "numbers"),
}
_AT_LEAST = {
    "limit": 0, "view_count": 1, "size": 0, "queue": 1, "width": 0, "epochs": 1, "batch": 2, "knn": 1, "knn_every": 1,
    "metrics": 0, "accumulate": 1, "norm_splits": 1, "seed": 0, "predictor": 0, "prototypes": 0, "frozen_epochs": 0,
    "queue_start": 0, "anchor_views": 0, "parts": 1, "text_length": 0, "threads": 0,
}  # fmt: skip
_LARGEST = 2**31 - 1  # of whole numbers: indices of CUDA kernels have 32 bits
_AT_MOST = {"view_count": 256, "seed": 2**63 - 1}
_NUMBERS = ("lr", "weight_decay", "warmup", "clip", "gamma")  # finite and not negative


def list_settings(run: Any) -> list[str]:
    """Return the names of the settings that are lists."""
    return [field.name for field in fields(run) if str(field.type).startswith("tuple")]


def check_types(run: Any) -> None:
    """Refuse a setting that is not of its annotated type; a list may stand for a tuple, and a whole number for a float."""
    for field in fields(run):
        annotation, value = str(field.type), getattr(run, field.name)
        item = annotation.removeprefix("tuple[").removesuffix(", ...]")
        expected, one, several = _TYPES[item]
        if item == annotation:
            words, is_right = one, _is(value, expected)
        else:
            words = f"a list of {several}"
            is_right = isinstance(value, list | tuple) and all(_is(element, expected) for element in value)
        if not is_right:
            raise ValueError(f"{field.name}: expected {words}, got {value!r}")


def _is(value: Any, expected: Any) -> bool:
    # A bool is an int in Python, but True is not a number of epochs.
    return isinstance(value, expected) and (expected is bool or not isinstance(value, bool))


def check_values(run: Any) -> None:
    """Refuse a setting, of the right type, that is out of its range or contradicts another one."""
    for name, allowed in CHOICES.items():
        if getattr(run, name) not in allowed:
            raise ValueError(f"{name}: expected one of {', '.join(allowed)}, got {getattr(run, name)!r}")
    _check_numbers(run)
    if run.probe_data and run.probe == "train":
        raise ValueError(f"probe: train learns from the training images, but probe_data is {run.probe_data}; use one")
    run.kind.check_settings(run)
    recorded_measures(run.record, run.kind.recorded)  # refuses an unknown one
    last = math.inf if "epochs" in run.auto_settings else run.epochs
    for epoch in run.keep:
        if not 1 <= epoch <= last:
            within = "from 1 on" if last == math.inf else f"from 1 to {last}"
            raise ValueError(f"keep: expected epochs {within}, got {epoch!r}")


def _check_numbers(run: Any) -> None:
    """Refuse numbers out of range, but not the values that stand for a choice by the data."""
    for name, least in _AT_LEAST.items():
        value, most = getattr(run, name), _AT_MOST.get(name, _LARGEST)
        if value < least and name not in run.auto_settings:
            raise ValueError(f"{name}: expected a whole number of at least {least}, got {value!r}")
        if value > most:
            raise ValueError(f"{name}: expected a whole number of at most {most}, got {value!r}")
    for name in _NUMBERS:
        if name not in run.auto_settings:
            check_number(name, getattr(run, name), least=0)
    check_number("momentum", run.momentum, least=0, most=1)
    check_number("max_megapixels", run.max_megapixels, above=0, most=LARGEST_MEGAPIXELS)
    check_number("hold_out", run.hold_out, least=0)
    if run.hold_out >= 1:
        raise ValueError(f"hold_out: expected a share below 1, such as 0.2, got {run.hold_out!r}")
