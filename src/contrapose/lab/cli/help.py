"""Help texts of single commands: `--help` lists the options that most users need, and `--help-all` lists all, in groups."""

from __future__ import annotations

import shlex
import shutil
import textwrap
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, NamedTuple, get_args, get_origin, get_type_hints

from tyro.conf import Positional

from contrapose.lab.devices import DeviceOption
from contrapose.lab.settings import help_texts

HELP_ALL = "--help-all"
_COLUMN = 26  # where help texts begin
_METAVARS = {int: "INT", float: "FLOAT", str: "TEXT", Path: "PATH"}
_POSITIONAL = get_args(Positional[int])[1]


class Option(NamedTuple):
    """An option of a command, or a positional argument."""

    name: str
    signature: str  # as typed: --epochs INT
    text: str  # help text, with the default
    is_positional: bool = False


def help_text(command: type, name: str, *, everything: bool) -> str:
    """Return the help text of a command.

    command      class of the command; its attribute `common`, if it has one, maps the most common options to a line of help each
    name         name of the command
    everything   whether to list all options of a command that has common ones
    """
    groups = option_groups(command)
    options = {option.name: option for group in groups.values() for option in group}
    arguments = [option for option in options.values() if option.is_positional]
    lines = [" ".join(["usage: contrapose", name, *(option.signature for option in arguments), "[OPTIONS]"])]
    lines += ["", *_description(command)]
    if arguments:
        lines += ["", "arguments:", *_table((option.signature, option.text) for option in arguments)]
    common: Mapping[str, str] = getattr(command, "common", {})
    if common and not everything:
        count = len(options) - len(arguments)
        chosen = [(options[name].signature, text) for name, text in common.items() if name in options]
        closing = f"`contrapose {name} {HELP_ALL}` lists all {count} options."
        return "\n".join([*lines, "", "common options:", *_table(chosen), "", closing])
    for title, group in groups.items():
        rows = [(option.signature, option.text) for option in group if not option.is_positional]
        lines += ["", f"{title}:", *_table(rows)] if rows else []
    return "\n".join(lines)


def option_groups(command: type) -> dict[str, list[Option]]:
    """Return the options of a command by group: the settings of a run, then the command's own options, then nested ones."""
    hints, texts = get_type_hints(command, include_extras=True), help_texts(command)
    groups: dict[str, list[Option]] = {}
    own, nested = list[Option](), dict[str, list[Option]]()
    for field in fields(command):
        hint, extras = _unwrap(hints[field.name])
        if field.name == "given":
            groups = _run_groups()
        elif isinstance(hint, type) and is_dataclass(hint):
            nested[f"options for {getattr(hint, 'purpose', field.name)}"] = option_groups(hint)["options"]
        else:
            own.append(_option(field, hint, texts[field.name], extras))
    own.sort(key=lambda option: hasattr(DeviceOption, option.name))  # inherited, so it would be first
    groups.setdefault("run" if groups else "options", []).extend(own)
    return groups | nested


def name_option(message: str, command: type) -> str:
    """Return an error message that starts with the name of a setting, such as "hold_out: …", with the option as it is typed.

    Functions of the library raise the same errors, and there the name of the argument is right.
    """
    names, colon, problem = message.partition(": ")
    names = getattr(command, "option_names", {}).get(names, names)
    options = {option.name for group in option_groups(command).values() for option in group if not option.is_positional}
    if not colon or not options.issuperset(names.split(", ")):
        return message
    return f"{', '.join(f'--{name}' for name in names.replace('_', '-').split(', '))}: {problem}"


def _run_groups() -> dict[str, list[Option]]:
    # Imported here, because these need torch, which other commands may not.
    from contrapose.lab.cli.run_options import GROUPS
    from contrapose.lab.training import Run

    hints, texts, known = get_type_hints(Run), help_texts(Run), {field.name: field for field in fields(Run)}
    return {
        title: [_option(known[name], hints[name], texts[name]) for name in names] for title, names in GROUPS.items()
    }


def _unwrap(hint: Any) -> tuple[Any, tuple[Any, ...]]:
    """Split an annotation into its type and what `Annotated` adds to it."""
    return (get_args(hint)[0], get_args(hint)[1:]) if get_origin(hint) is Annotated else (hint, ())


def _option(field: Field[Any], hint: Any, text: str, extras: tuple[Any, ...] = ()) -> Option:
    text = " ".join(text.split())
    if _POSITIONAL in extras:
        dots = " ..." if get_origin(hint) is tuple else ""
        return Option(field.name, f"{field.name.upper()}{dots}", text, is_positional=True)
    name, default = field.name.replace("_", "-"), () if field.default is MISSING else field.default
    if default not in ("", None, ()) and default is not False:
        text += f" (default: {shlex.join(map(str, default if isinstance(default, tuple) else (default,)))})"
    if hint is bool:
        return Option(field.name, f"--[no-]{name}", text)
    aliases = (alias for extra in extras for alias in getattr(extra, "aliases", None) or ())
    return Option(field.name, f"{', '.join([*aliases, f'--{name}'])} {_metavar(hint)}", text)


def _metavar(hint: Any) -> str:
    """Return the placeholder for an option's value, such as INT."""
    if get_origin(hint) is tuple:
        return f"{_metavar(get_args(hint)[0])} ..."
    types = [kind for kind in get_args(hint) if kind is not NoneType] or [hint]
    return _METAVARS[types[0]]


def _description(command: type) -> list[str]:
    """Return the docstring of a command, wrapped."""
    paragraphs = textwrap.dedent(f"    {command.__doc__}").strip().split("\n\n")
    return "\n\n".join(textwrap.fill(" ".join(text.split()), _width()) for text in paragraphs).splitlines()


def _table(rows: Iterable[tuple[str, str]]) -> list[str]:
    """Return two columns, of which the second is wrapped; a first column that is too long gets a line of its own."""
    lines = []
    for left, text in rows:
        wrapped = textwrap.wrap(text, _width() - _COLUMN, break_on_hyphens=False) or [""]
        if len(left) + 4 > _COLUMN:
            lines.append(f"  {left}")
            left = ""
        lines.append(f"  {left:{_COLUMN - 2}}{wrapped[0]}")
        lines += [" " * _COLUMN + line for line in wrapped[1:]]
    return lines


def _width() -> int:
    return min(120, shutil.get_terminal_size().columns)
