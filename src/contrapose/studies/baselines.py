"""Settings of the methods that tables compare with, for rows of studies."""

from __future__ import annotations

from collections.abc import Collection

from contrapose.studies.study import Settings
from contrapose.training.baselines import BASELINES


def baseline_settings(method: str, data: str, *, without: Collection[str] = ()) -> Settings:
    """Return the settings of the preset METHOD/DATA, without those that a table decides for all of its rows."""
    return {name: value for name, value in BASELINES[f"{method}/{data}"].items() if name not in without}
