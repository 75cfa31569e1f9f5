"""Settings as the fields of a dataclass: default, allowed values and help text in one place.

A component with settings, such as a framework, owns a dataclass with these settings, and `Run` has the fields of all such
dataclasses. Checks of values, command-line options and the scales of studies are derived from the fields.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Mapping
from dataclasses import Field, dataclass, field, fields
from functools import cache
from itertools import pairwise
from typing import Any, TypeVar

T = TypeVar("T")
Settings = Mapping[str, Any]  # some fields of a run, by name


@dataclass(frozen=True)
class Rule:
    """Allowed values of a setting, and how runs treat it. Numbers must be at least 0 unless `above` or `least` differs."""

    least: float = 0
    above: float | None = None  # an exclusive lower bound, instead of `least`
    most: float | None = None
    choices: tuple[str, ...] = ()
    small: int = 0  # largest value for the few images in a smoke run; 0: no limit
    # Whether run.json, and so the run's name, includes the setting even at its default, as in the first runs.
    always_recorded: bool = False
    recorded_as: str = ""  # its name in run.json, if the setting was renamed since: run names are hashes of run.json
    recorded_values: Mapping[Any, Any] = field(default_factory=dict)  # value -> its form in run.json; empty: unchanged
    # Whether frameworks that do not use the setting ignore its value, as in the first runs, instead of refusing it.
    ignored_elsewhere: bool = False


def setting(default: T, rule: Rule = Rule(), *, help_text: str = "") -> T:  # a frozen default
    """Return a dataclass field with a rule for its values; by default, its help text is the docstring below the field."""
    return field(default=default, metadata={"rule": rule, "help": help_text})


def rule_of(setting_field: Field[Any]) -> Rule:
    """Return a dataclass field's rule."""
    rule: Rule = setting_field.metadata.get("rule", Rule())
    return rule


def recorded_name(setting_field: Field[Any]) -> str:
    """Return the name of a setting in run.json."""
    return rule_of(setting_field).recorded_as or setting_field.name


def to_recorded(setting_field: Field[Any], value: object) -> object:
    """Return a setting's value in the form that run.json stores."""
    return rule_of(setting_field).recorded_values.get(value, value)


def from_recorded(setting_field: Field[Any], recorded: object) -> object:
    """Convert a value in run.json to the setting's value; raise ValueError if run.json cannot contain this value."""
    values = rule_of(setting_field).recorded_values
    for value, known in values.items():
        if known == recorded and isinstance(recorded, type(known)):  # 1 == True in Python
            return value
    if values:
        expected = " or ".join(map(repr, values.values()))
        raise ValueError(f"{recorded_name(setting_field)}: expected {expected}, got {recorded!r}")
    return recorded


def help_texts(owner: type) -> dict[str, str]:
    """Return the help text of each dataclass field, keyed by name: from `setting`, or else the docstring below the field."""
    docstrings = {name: text for cls in reversed(owner.__mro__) for name, text in _docstrings(cls).items()}
    return {f.name: f.metadata.get("help") or docstrings.get(f.name, "") for f in fields(owner)}


@cache
def _docstrings(cls: type) -> dict[str, str]:
    """Return the docstrings of the fields that a class itself declares, read from its source: Python does not keep them."""
    try:
        (definition,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
    except (OSError, TypeError):  # a built-in class, or a class without source, such as from `make_dataclass`
        return {}
    assert isinstance(definition, ast.ClassDef)
    return {
        declared.target.id: " ".join(below.value.value.split())
        for declared, below in pairwise(definition.body)
        if isinstance(declared, ast.AnnAssign)
        and isinstance(declared.target, ast.Name)
        and isinstance(below, ast.Expr)
        and isinstance(below.value, ast.Constant)
        and isinstance(below.value.value, str)
    }
