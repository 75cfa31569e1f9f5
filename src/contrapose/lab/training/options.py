"""Make a run from a user's options by merging layers of settings."""

from __future__ import annotations

from collections.abc import Callable

from contrapose.lab.frameworks import used_settings
from contrapose.lab.modalities import MODALITIES, modality, recognise
from contrapose.lab.settings import Settings
from contrapose.lab.training.method_settings import describe_settings, settings_for_loss
from contrapose.lab.training.presets import PRESETS
from contrapose.lab.training.run import AUTO, Run
from contrapose.losses.parse import with_temperature
from contrapose.validate import check_known


def make_run(
    given: Settings,
    *,
    preset: str = "",
    config: Settings | None = None,
    temperature: str = "",
    log: Callable[[str], None] = print,
) -> Run:
    """Return the run that the given settings describe, and log one line on which other settings were chosen for its loss.

    Later layers override earlier ones: defaults, modality of the data, loss, preset, config, given settings. A preset overrides
    the loss because its values belong together: `--preset byol/imagenet --loss byol` keeps the head for ImageNet.

    given         settings that the user chose, keyed by name
    preset        a name in `PRESETS`; empty: the preset that `config` names, if any
    config        settings from a file (`read_config`)
    temperature   a number or LOW:HIGH, which becomes part of the loss; empty: that of the loss
    log           called with the message

    >>> make_run({"data": "digits", "loss": "simsiam", "predictor": 64}).head
    for --loss simsiam: framework simsiam, head simsiam-cifar; each can be set (contrapose train --help-all)
    'simsiam-cifar'
    """
    requested = {**(config or {}), **given}
    named = str(requested.pop("preset", ""))
    preset = preset or named
    if preset:
        check_known("preset", preset, PRESETS, cutoff=0.4)
    base = PRESETS.get(preset, {})
    chosen = {**base, **requested}
    framework, loss = str(chosen.get("framework", "")), str(requested.get("loss", ""))
    for_loss = settings_for_loss(loss, framework=framework, given=chosen)
    if for_loss:
        log(f"for --loss {loss}: {describe_settings(for_loss)}; each can be set (contrapose train --help-all)")
    kind = str(chosen.get("modality") or recognise(str(chosen.get("data", ""))))
    # `Run` reports an unknown modality. A preset that names a modality already includes its settings.
    is_open = kind in MODALITIES and "modality" not in base
    for_data: Settings = {"modality": kind, **modality(kind).settings} if is_open else {}
    framework = str({**for_data, **for_loss, **chosen}.get("framework", Run.framework))
    # A preset without a precision has its authors' fp32, which is also the default of `Run`.
    open_settings: Settings = {} if preset else {"precision": AUTO["precision"]}
    settings = {**open_settings, **for_data, **for_loss, **used_settings(base, framework), **requested}
    if temperature:
        # Only a temperature that the user wrote into the loss as well is a contradiction.
        settings["loss"] = with_temperature(
            str(settings.get("loss", Run.loss)), temperature, replace="loss" not in given
        )
    return Run(**settings)
