"""The option --config of `train` and `compare`: a file with options, which options on the command line override."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, TypeVar

from tyro.conf import arg

from contrapose.lab.cli.run_options import RunOptions
from contrapose.lab.devices import DeviceOption, use_device
from contrapose.lab.training.checks.setting_values import check_type
from contrapose.lab.training.config_file import name_config, read_config

C = TypeVar("C", bound="ConfigOption")
_PATHS = ("out", "data_root")  # a file has them as text


@dataclass(frozen=True)
class ConfigOption(DeviceOption):
    """The settings of a run, from the command line and from a file."""

    given: Annotated[RunOptions, arg(name="")]
    config: Path | None = None
    """File with options, which options on the command line override: TOML with one option per line, such as epochs = 30, or the
    run.json of a run. It may name a preset, which it then overrides."""


@contextmanager
def with_config(command: C, types: Mapping[str, str]) -> Iterator[tuple[C, dict[str, Any]]]:
    """Yield the command with its own options from the file, and the settings of a run in the file; use the device.

    Errors about values in the file name the file.

    types   the command's own options that a file may set, and their types in the file; their defaults are None or empty
    """
    config = read_config(command.config, others=types) if command.config else {}
    own = {name: config.pop(name) for name in types if name in config}
    # Options that are None or empty were omitted on the command line.
    own = {name: value for name, value in own.items() if not getattr(command, name)}
    with name_config(command.config, {*own, *config} - command.given.keys()):
        for name, value in own.items():
            own[name] = value = _with_texts(value) if name.startswith("temperature") else value
            check_type(name, types[name], value)
        own |= {name: Path(own[name]) for name in _PATHS if name in own}
        own |= {name: tuple(value) for name, value in own.items() if isinstance(value, list)}
        command = replace(command, **own)
        with use_device(command.device):
            yield command, config


def _with_texts(value: Any) -> Any:
    """Return a temperature, or a list of temperatures, as texts: 0.2 and "0.07:0.2" are both allowed in a file."""
    if isinstance(value, list):
        return [_with_texts(item) for item in value]
    return str(value) if isinstance(value, int | float) else value
