"""Settings as fields: help texts come from docstrings, rules from `setting`, and frameworks share what they inherit."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import pytest

from contrapose.lab.frameworks import FRAMEWORKS, merge_settings
from contrapose.lab.frameworks.framework import QueueSettings
from contrapose.lab.settings import Rule, help_texts, rule_of, setting


@dataclass(frozen=True, kw_only=True)
class Inherited(QueueSettings):
    rate: float = setting(0.5, Rule(above=0, most=1))
    """A rate,
    in two lines."""
    shown: str = setting("a", help_text="Given with the field.")
    plain: bool = False


@dataclass(frozen=True, kw_only=True)
class Redeclared:
    queue: int = 8
    """Rows of another queue."""


def test_help_texts() -> None:
    texts = {
        "queue": "Rows of the queue.",
        "rate": "A rate, in two lines.",
        "shown": "Given with the field.",
        "plain": "",
    }
    assert help_texts(Inherited) == texts


def test_rules_and_defaults() -> None:
    rules = {field.name: rule_of(field) for field in fields(Inherited)}
    assert rules["rate"] == Rule(above=0, most=1)
    assert rules["plain"] == Rule()
    assert rules["queue"].least == 1
    assert Inherited().rate == Inherited.rate == 0.5


def test_frameworks_share_what_they_inherit() -> None:
    moco, other = FRAMEWORKS["moco"], replace(FRAMEWORKS["memory-bank"], name="other", settings=Inherited)
    merged = {name: field for name, _, field in merge_settings([moco, other])}
    assert merged["queue"].metadata["help"] == "moco, other: rows of the queue."
    assert merged["rate"].metadata["help"] == "other: a rate, in two lines."
    with pytest.raises(TypeError, match="queue: moco and other declare it differently"):
        merge_settings([moco, replace(other, settings=Redeclared)])
