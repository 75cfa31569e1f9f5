"""Which framework and head suit a loss, for small data such as CIFAR-10.

A run says explicitly what it consists of. The command line fills in what its user leaves out: `train --loss byol` needs a
predictor and a teacher, and `compare` gives each of its losses what it needs.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from contrapose.lab.frameworks import FRAMEWORKS
from contrapose.lab.settings import Settings
from contrapose.losses.parse import loss_name

# By name in the catalogue. Other losses run in any framework of pairs.
METHOD_SETTINGS: Mapping[str, Settings] = {
    loss: {"framework": row.name, **settings} for row in FRAMEWORKS.values() for loss, settings in row.losses.items()
}


def method_name(loss: str) -> str:
    """Return the name of a loss without its settings; empty if it is not one.

    >>> method_name("dino(teacher_temperature=0.04)")
    'dino'
    """
    try:
        return loss_name(loss)
    except ValueError:  # `Run` refuses it, with a message
        return ""


def settings_for_loss(loss: str, *, framework: str = "", given: Collection[str] = ()) -> Settings:
    """Return the settings that suit a loss, without those that are given.

    loss        a loss as in `Run.loss`
    framework   the framework that was given, if any: if it is another one, no settings are returned
    given       names of settings that were given

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
