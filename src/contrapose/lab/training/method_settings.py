"""The framework and head that suit a loss, for small images such as CIFAR-10.

A `Run` states all of its settings explicitly. The command line fills in the settings that a user omits: for `train --loss byol`
it adds a predictor and a teacher, and `compare` adds the settings that each loss needs.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from contrapose.lab.frameworks import FRAMEWORKS
from contrapose.lab.settings import Settings
from contrapose.losses.parse import loss_name

# Keyed by the loss's name in the catalogue. Losses that are not listed run in any framework that offers pairs.
METHOD_SETTINGS: Mapping[str, Settings] = {
    loss: {"framework": row.name, **settings} for row in FRAMEWORKS.values() for loss, settings in row.losses.items()
}


def method_name(loss: str) -> str:
    """Return the name of a loss without its settings; empty if `loss` cannot be parsed.

    >>> method_name("dino(teacher_temperature=0.04)")
    'dino'
    """
    try:
        return loss_name(loss)
    except ValueError:  # `Run` raises the error, with a message
        return ""


def settings_for_loss(loss: str, *, framework: str = "", given: Collection[str] = ()) -> Settings:
    """Return the settings that suit a loss, except those that the user has given.

    loss        a loss as in `Run.loss`
    framework   the framework that the user gave, if any; if it is not the loss's own framework, no settings are returned
    given       names of the settings that the user gave

    >>> settings_for_loss("byol", given=("head",))
    {'framework': 'byol', 'predictor': 1024}
    """
    suited = METHOD_SETTINGS.get(method_name(loss), {})
    if framework and framework != suited.get("framework"):
        return {}
    return {name: value for name, value in suited.items() if name not in given}


def describe_settings(settings: Settings) -> str:
    """Return settings in words.

    >>> describe_settings({"framework": "byol", "head": "byol-cifar"})
    'framework byol, head byol-cifar'
    """
    return ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in settings.items())
