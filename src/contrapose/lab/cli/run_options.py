"""The settings of a run as command-line options with help texts; the parsed result has only the options that the user gave."""

from __future__ import annotations

import shlex
from dataclasses import Field, fields
from typing import TYPE_CHECKING, Annotated, Any, TypedDict, get_type_hints

from tyro.conf import arg

from contrapose.lab.frameworks import FrameworkSettings
from contrapose.lab.modalities import CaptionSettings, DataSettings
from contrapose.lab.settings import help_texts
from contrapose.lab.training import Run

# The groups of the settings that `Run` itself declares, each by its first setting.
_FIRST_IN_GROUP = {
    "views": "model",
    "framework": "loss and framework",
    "optimiser": "optimisation",
    "knn": "evaluation",
    "keep": "run",
}


def _groups() -> dict[str, list[str]]:
    """Return the names of all settings by group, in the order of `--help-all`."""
    data, captions = ([field.name for field in fields(owner)] for owner in (DataSettings, CaptionSettings))
    methods = [field.name for field in fields(FrameworkSettings) if field.name not in captions]
    groups: dict[str, list[str]] = {"data": data, **{title: [] for title in _FIRST_IN_GROUP.values()}}
    title = ""
    for field in fields(Run):
        if field.name not in (*data, *captions, *methods):
            title = _FIRST_IN_GROUP.get(field.name, title)
            groups[title].append(field.name)
    groups["model"] += captions
    groups["loss and framework"] += methods
    return groups


GROUPS = _groups()


def _options() -> dict[str, Any]:
    types, texts = get_type_hints(Run), help_texts(Run)
    return {
        field.name: Annotated[
            types[field.name], arg(help=texts[field.name], help_behavior_hint=f"(default: {_default_text(field)})")
        ]
        for field in fields(Run)
    }


def _default_text(field: Field[Any]) -> str:
    """Return a default value as a user would type it."""
    values = field.default if isinstance(field.default, tuple) else (field.default,)
    return shlex.join(map(str, values))


if TYPE_CHECKING:
    RunOptions = dict[str, Any]
else:
    # Omitted options are absent, because a filled-in default would look like the same value typed by the user.
    RunOptions = TypedDict("RunOptions", _options(), total=False)
