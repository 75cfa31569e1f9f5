"""Settings as the fields of a dataclass: default, allowed values and help text in one place.

Whatever has settings, such as a framework, owns a dataclass of them, and `Run` has the fields of all. Checks of values, the
options of the command line and the scales of studies are derived from the fields.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Mapping
from dataclasses import Field, dataclass, field, fields
from itertools import pairwise
from typing import Any, TypeVar

T = TypeVar("T")
Settings = Mapping[str, Any]  # some fields of a run, by name


@dataclass(frozen=True)
class Rule:
    """Which values a setting may have, and how runs treat it. Numbers are at least 0 unless `above` or `least` says otherwise."""

    least: float = 0
    above: float | None = None  # in place of `least`: the value itself is not allowed
    most: float | None = None
    choices: tuple[str, ...] = ()
    small: int = 0  # the largest value on the few images of a smoke run; 0: any
    always_recorded: bool = (
        False  # part of run.json, and so of a run's name, even at its default: the first runs had it
    )
    recorded_as: str = ""  # its name in run.json, where a setting was renamed: names of runs are hashes of run.json
    recorded_values: Mapping[Any, Any] = field(default_factory=dict)  # values in run.json, by value; empty: the same
    ignored_elsewhere: bool = (
        False  # frameworks that do not use it ignore its value, as the first runs did, and do not refuse it
    )


def setting(default: T, rule: Rule = Rule(), *, help_text: str = "") -> T:  # a frozen default
    """Return a field of a dataclass with a rule for its values; its help text is by default the docstring below the field."""
    return field(default=default, metadata={"rule": rule, "help": help_text})


def rule_of(setting_field: Field[Any]) -> Rule:
    """Return the rule of a dataclass's field."""
    rule: Rule = setting_field.metadata.get("rule", Rule())
    return rule


def recorded_name(setting_field: Field[Any]) -> str:
    """Return the name of a setting in run.json."""
    return rule_of(setting_field).recorded_as or setting_field.name


def to_recorded(setting_field: Field[Any], value: object) -> object:
    """Return the value of a setting as run.json has it."""
    return rule_of(setting_field).recorded_values.get(value, value)


def from_recorded(setting_field: Field[Any], recorded: object) -> object:
    """Return a setting's value for that of run.json; raise ValueError if run.json cannot have it."""
    values = rule_of(setting_field).recorded_values
    for value, known in values.items():
        if known == recorded and isinstance(recorded, type(known)):  # 1 == True in Python
            return value
    if values:
        expected = " or ".join(map(repr, values.values()))
        raise ValueError(f"{recorded_name(setting_field)}: expected {expected}, got {recorded!r}")
    return recorded


def help_texts(owner: type) -> dict[str, str]:
    """Return the help text of each field of a dataclass, by name: that of `setting`, or the docstring below the field."""
    docstrings = {name: text for cls in reversed(owner.__mro__) for name, text in _docstrings(cls).items()}
    return {f.name: f.metadata.get("help") or docstrings.get(f.name, "") for f in fields(owner)}


def _docstrings(cls: type) -> dict[str, str]:
    """Return the docstrings of the fields that a class itself declares. Python does not keep them, so the source is read."""
    try:
        (definition,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
    except (OSError, TypeError):  # a built-in class, or one without source: made by `make_dataclass`
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
