"""Settings of the baselines in the papers' tables, for rows of studies."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import fields

from contrapose.lab.studies.study import Settings
from contrapose.lab.training import PRESETS, Run
from contrapose.lab.training.baselines import BASELINES

_DEFAULTS: Settings = {field.name: field.default for field in fields(Run)}
_OF_THE_TABLE = ("data", "classes", "batch", "epochs", "precision", "knn")  # the same in all rows of a table


def baseline_settings(method: str, data: str, *, without: Collection[str] = ()) -> Settings:
    """Return the settings of the preset METHOD/DATA, without those that a table decides for all of its rows."""
    return {name: value for name, value in BASELINES[f"{method}/{data}"].items() if name not in without}


def baseline_changes(method: str, data: str, *, preset: str) -> Settings:
    """Return the settings in which METHOD/DATA differs from the preset of a study, except those that its table decides."""
    known = {**_DEFAULTS, **PRESETS[preset]}
    own = baseline_settings(method, data, without=_OF_THE_TABLE)
    return {name: value for name, value in own.items() if value != known[name]}


def settings_on_cifar(method: str, changes: Settings) -> Settings:
    """Return what a row changes at the small and the short scale, where CIFAR-10 replaces ImageNet.

    These are the settings of METHOD/cifar10, and defaults for the row's other ImageNet settings; the epochs are the study's.
    """
    own = baseline_settings(method, "cifar10", without=("data", "epochs"))
    return {**{name: _DEFAULTS[name] for name in changes}, **own}
