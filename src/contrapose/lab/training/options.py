"""The run that a user's options describe: layers of settings, merged as data."""

from __future__ import annotations

from collections.abc import Callable

from contrapose.lab.modalities import MODALITIES, modality, recognise
from contrapose.lab.settings import Settings
from contrapose.lab.training.method_settings import describe_settings, settings_for_loss
from contrapose.lab.training.presets import PRESETS
from contrapose.lab.training.run import Run
from contrapose.validate import check_known


def make_run(given: Settings, *, preset: str = "", log: Callable[[str], None] = print) -> Run:
    """Return the run that some settings describe, and say in one line which others were chosen for its loss.

    Where layers disagree, the later one counts: defaults, modality of the data, loss, preset, given. A preset is above the loss
    because its values belong together: `--preset byol/imagenet --loss byol` keeps the head for ImageNet.

    given    settings that the user chose, by name
    preset   a name of `PRESETS`; empty: none
    log      called with the message

    >>> make_run({"data": "digits", "loss": "simsiam", "predictor": 64}).head
    for --loss simsiam: framework simsiam, head simsiam-cifar; each can be set (contrapose train --help)
    'simsiam-cifar'
    """
    if preset:
        check_known("preset", preset, PRESETS, cutoff=0.4)
    base = PRESETS.get(preset, {})
    chosen = {**base, **given}
    framework, loss = str(chosen.get("framework", "")), str(given.get("loss", ""))
    for_loss = settings_for_loss(loss, framework=framework, given=chosen)
    if for_loss:
        log(f"for --loss {loss}: {describe_settings(for_loss)}; each can be set (contrapose train --help)")
    kind = str(chosen.get("modality") or recognise(str(chosen.get("data", ""))))
    # `Run` refuses an unknown modality; a preset that names one has its settings already.
    for_data = modality(kind).settings if kind in MODALITIES and "modality" not in base else {}
    return Run(**{**for_data, **for_loss, **chosen})
