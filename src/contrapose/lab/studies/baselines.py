"""Settings of the baselines in the papers' tables, for rows of studies."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import fields

from contrapose.lab.studies.study import Settings
from contrapose.lab.training import PRESETS, Run
from contrapose.lab.training.baselines import BASELINES

_DEFAULTS: Settings = {field.name: field.default for field in fields(Run)}
_OF_THE_TABLE = ("data", "classes", "batch", "epochs", "precision", "knn")  # the table fixes these for all rows


def baseline_settings(method: str, data: str, *, without: Collection[str] = ()) -> Settings:
    """Return the settings of the preset METHOD/DATA, without the settings that a table fixes for all of its rows."""
    return {name: value for name, value in BASELINES[f"{method}/{data}"].items() if name not in without}


def baseline_changes(method: str, data: str, *, preset: str) -> Settings:
    """Return the settings in which METHOD/DATA differs from a study's preset, except those that the table fixes."""
    known = {**_DEFAULTS, **PRESETS[preset]}
    own = baseline_settings(method, data, without=_OF_THE_TABLE)
    return {name: value for name, value in own.items() if value != known[name]}


def settings_on_cifar(method: str, changes: Settings) -> Settings:
    """Return the settings that a row changes at the small and short scales, where CIFAR-10 replaces ImageNet.

    These are the settings of METHOD/cifar10, and defaults for the row's other ImageNet settings. The study sets the epochs.
    """
    own = baseline_settings(method, "cifar10", without=("data", "epochs"))
    return {**{name: _DEFAULTS[name] for name in changes}, **own}
