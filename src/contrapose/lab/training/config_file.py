"""Settings as text: from a file (TOML with the options of `train`, or the run.json of a run), or as NAME=VALUE."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any

from contrapose.extras import nearest
from contrapose.lab.training.run import Run

_TYPES = {field.name: field.type for field in fields(Run)}


def read_config(path: Path, *, others: Collection[str] = ()) -> dict[str, Any]:
    """Return the settings in a file, keyed by name; a run.json has all settings of its run.

    path     a .toml file, whose keys are the names of options with "-" or "_", or a run.json
    others   names that are allowed besides the settings of a run and "preset"
    """
    if path.suffix not in (".toml", ".json") or not path.is_file():
        problem = "does not exist" if not path.exists() else "is neither"
        raise ValueError(f"config: expected a .toml file or a run.json, but {path} {problem}")
    text = path.read_bytes()
    try:
        if path.suffix == ".json":
            return dict(vars(Run.read(json.loads(text))))
        content = tomllib.loads(text.decode())
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        what = "does not describe a run" if path.suffix == ".json" else "is not valid TOML"
        raise ValueError(f"config: {path} {what}: {error}") from error
    return _settings(content, path, [*(field.name for field in fields(Run)), "preset", *others])


@contextmanager
def name_config(path: Path | None, names: Collection[str]) -> Iterator[None]:
    """Name the file in errors about settings that it sets; `names` are those that no option on the command line overrides."""
    try:
        yield
    except ValueError as error:
        if path is None or str(error).partition(": ")[0] not in names:
            raise
        raise ValueError(f"config: {path}: {error}") from error


def read_settings(texts: Sequence[str]) -> dict[str, Any]:
    """Return settings that are written as NAME=VALUE, with numbers, true and lists as in TOML, and other values as text.

    >>> read_settings(["norm_views=together", "lr=1", "milestones=[120, 160]"])
    {'norm_views': 'together', 'lr': 1.0, 'milestones': [120, 160]}
    """
    settings: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        name = name.replace("-", "_")
        if not equals or name not in _TYPES:
            hint = nearest(name, _TYPES) if equals else ""
            raise ValueError(f"set: expected NAME=VALUE with a setting of `contrapose train`, got {text!r}{hint}")
        try:
            settings[name] = _as_typed(name, tomllib.loads(f"value = {value}")["value"])
        except (tomllib.TOMLDecodeError, RecursionError):
            settings[name] = value
    return settings


def _as_typed(name: str, value: Any) -> Any:
    """Return a TOML value as the command line does: 1 and 1.0 must give the same run, and so the same run name."""
    return float(value) if _TYPES.get(name) == "float" and type(value) is int else value


def _settings(content: dict[str, Any], path: Path, known: Collection[str]) -> dict[str, Any]:
    """Return the content of a TOML file with keys as in Python; raise ValueError for a key that is not an option."""
    settings: dict[str, Any] = {}
    for key, value in content.items():
        name = key.replace("-", "_")
        if name not in known:
            hint = nearest(name, known).replace("_", "-") or " (contrapose train --help-all lists all)"
            raise ValueError(f"config: {path} sets {key!r}, which is not an option that a file can set{hint}")
        if isinstance(value, dict):
            raise ValueError(f"config: {path} has a table [{key}]; expected one line per option, such as epochs = 30")
        if name in settings:
            raise ValueError(f"config: {path} sets {key!r} twice, with - and with _")
        settings[name] = _as_typed(name, value)
    return settings
