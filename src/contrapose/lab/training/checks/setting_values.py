"""Check the types of a run's settings against the annotations in `Run`, and their values against the fields' rules.

These functions are called while a `Run` is created, so `run` has all settings as fields, but `Run` cannot be imported here.
"""

from __future__ import annotations

import math
from dataclasses import Field, fields
from typing import Any

from contrapose.lab.settings import rule_of
from contrapose.lab.training.records.extra_metrics import recorded_measures
from contrapose.validate import check_number

# Keyed by annotation: the type, and the words in messages for one value and for several values.
_TYPES: dict[str, tuple[Any, str, str]] = {
    "str": (str, "a text", "texts"),
    "bool": (bool, "True or False", "True or False"),
    "int": (int, "a whole number", "whole numbers"),
    "float": (int | float, "a number", "numbers"),
}
_LARGEST = 2**31 - 1  # largest whole number unless a rule says otherwise, because CUDA kernels use 32-bit indices


def list_settings(run: Any) -> list[str]:
    """Return the names of the settings that are lists."""
    return [field.name for field in fields(run) if str(field.type).startswith("tuple")]


def check_types(run: Any) -> None:
    """Raise ValueError for a setting without its annotated type; a list may replace a tuple, and a whole number a float."""
    for field in fields(run):
        check_type(field.name, str(field.type), getattr(run, field.name))


def check_type(name: str, annotation: str, value: object) -> None:
    """Raise ValueError if a value does not have the annotated type."""
    item = annotation.removeprefix("tuple[").removesuffix(", ...]")
    expected, one, several = _TYPES[item]
    if item == annotation:
        words, is_right = one, _is(value, expected)
    else:
        words = f"a list of {several}"
        is_right = isinstance(value, list | tuple) and all(_is(element, expected) for element in value)
    if not is_right:
        raise ValueError(f"{name}: expected {words}, got {value!r}")


def _is(value: Any, expected: Any) -> bool:
    # A bool is an int in Python, but True is not a number of epochs.
    return isinstance(value, expected) and (expected is bool or not isinstance(value, bool))


def check_values(run: Any) -> None:
    """Raise ValueError for a setting that is out of its range or contradicts another setting."""
    for field in fields(run):
        # Until the data determines the value, a setting may have a placeholder, such as 0 epochs.
        _check_value(field, getattr(run, field.name), is_auto=field.name in run.auto_settings)
    if run.hold_out >= 1:
        raise ValueError(f"hold_out: expected a share below 1, such as 0.2, got {run.hold_out!r}")
    if run.eval_data and run.probe == "train":
        raise ValueError(f"probe: train learns from the training samples, but eval_data is {run.eval_data}; use one")
    run.kind.check_settings(run)
    recorded_measures(run.extra_metrics, run.kind.recorded)  # raises ValueError for an unknown measure
    last = math.inf if "epochs" in run.auto_settings else run.epochs
    for epoch in run.keep:
        if not 1 <= epoch <= last:
            within = "from 1 on" if last == math.inf else f"from 1 to {last}"
            raise ValueError(f"keep: expected epochs {within}, got {epoch!r}")


def _check_value(field: Field[Any], value: Any, *, is_auto: bool) -> None:
    """Raise ValueError for a value that is not among the setting's choices, or a number out of its range."""
    rule = rule_of(field)
    if rule.choices and value not in rule.choices:
        raise ValueError(f"{field.name}: expected one of {', '.join(rule.choices)}, got {value!r}")
    if field.type == "int":
        most = _LARGEST if rule.most is None else rule.most
        if value < rule.least and not is_auto:
            default: Any = field.default  # below the least value, it is the placeholder
            auto = f", or {default} to have it chosen" if default < rule.least else ""
            raise ValueError(f"{field.name}: expected a whole number of at least {rule.least}{auto}, got {value!r}")
        if value > most:
            raise ValueError(f"{field.name}: expected a whole number of at most {most}, got {value!r}")
    elif field.type == "float" and not is_auto:
        least = rule.least if rule.above is None else None
        check_number(field.name, value, least=least, above=rule.above, most=rule.most)
