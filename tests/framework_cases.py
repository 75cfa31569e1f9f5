"""A small run of every framework, from the registry: what resumes, is captured in a graph or runs on several processes.

A new framework is found here without being listed. Frameworks of other data than images have runs of their own.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from contrapose.lab.frameworks import FRAMEWORKS, FrameworkRow
from contrapose.lab.settings import rule_of

# By name of the setting: widths that would only take time.
NARROW = {"predictor": 32}


def small_settings(row: FrameworkRow) -> dict[str, Any]:
    """Return the settings of a run on few images: the loss of its preset, the last of several choices, and small sizes.

    All flags are set, except a ring, which has tests of its own: it does not have the last of the similarities.
    """
    own = fields(row.settings)
    preset: dict[str, Any] = {}
    for protocols in row.presets.values():
        preset |= protocols.get("cifar", {})
    return {
        "framework": row.name,
        **{name: preset[name] for name in ("loss", "view_count") if name in preset},
        **{setting.name: rule_of(setting).small for setting in own if rule_of(setting).small},
        **{name: width for name, width in NARROW.items() if row.uses(name)},
        **{setting.name: True for setting in own if setting.type == "bool" and setting.name != "ring"},
        **{setting.name: rule_of(setting).choices[-1] for setting in own if rule_of(setting).choices},
    }


FRAMEWORK_CASES = {row.name: small_settings(row) for row in FRAMEWORKS.values() if row.tower_count == 1}
