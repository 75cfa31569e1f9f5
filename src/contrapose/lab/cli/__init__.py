"""The command line: `contrapose COMMAND`.

Errors are one line on stderr, without a traceback. The exit code is 2 for a bad setting, 1 for a failure, 143 after SIGTERM
and 130 after Ctrl-C. If the reader of the output closes it, as in `contrapose study list | head`, training continues, and
the exit code is 141.
"""

from __future__ import annotations

import errno
import io
import os
import shutil
import signal
import sys
import textwrap
from contextlib import suppress
from typing import Any, TextIO

from contrapose import __version__
from contrapose.extras import MissingPackage, nearest, train_extra
from contrapose.lab.cli import exits
from contrapose.lab.cli.commands import COMMAND_LINE, COMMANDS, FORMER, FORMER_OPTIONS, group_commands
from contrapose.lab.cli.overview import missing_extras, overview

_HELP = ("-h", "--help")


def main(arguments: list[str] | None = None) -> None:
    """Parse the arguments and run the command; report an error in one line."""
    exit_request: SystemExit | None = None
    _escape_output()
    try:
        _run(sys.argv[1:] if arguments is None else arguments)
    except SystemExit as error:
        exit_request = error
    except BrokenPipeError:
        exit_request = SystemExit(exits.OUTPUT_CLOSED)
    # A list, because both streams must be flushed; any failure takes precedence over a closed output.
    if not all([_flush(sys.stdout), _flush(sys.stderr)]) and (exit_request is None or not exit_request.code):
        exit_request = SystemExit(exits.OUTPUT_CLOSED)
    if exit_request is not None:
        raise exit_request


def _run(arguments: list[str]) -> None:
    """Handle options that need no other package, such as --version, or run a command."""
    first, *rest = arguments or [""]
    if arguments in (["--version"], ["-V"]):
        print(f"contrapose {__version__}")
    elif first in _HELP:
        print(_help_text())
    elif not arguments:
        print(overview())
    elif " ".join(arguments[:2]) in {**FORMER, **COMMANDS}:
        _run_command(" ".join(arguments[:2]), arguments[2:])
    elif first in {name.split()[0] for name in FORMER} and (not rest or rest[0] in _HELP):
        print(f"The commands of `contrapose {first}` are now scripts in a clone of the repository:")
        print(*(f"  {name}: {script}" for name, script in FORMER.items() if name.split()[0] == first), sep="\n")
    elif first in COMMANDS or not group_commands(first):
        _run_command(first, rest)
    elif not rest:
        _run_command(group_commands(first)[0], [])
    elif rest[0] in _HELP:
        print(_help_text(first))
    else:
        _run_command(f"{first} {rest[0]}", rest[1:])


def _run_command(name: str, arguments: list[str]) -> None:
    if name in FORMER:
        _fail(f"`contrapose {name}` is now {FORMER[name]}, in a clone of the repository", exits.BAD_SETTINGS)
    if name not in COMMANDS:
        hint = nearest(name, [*COMMANDS, *(known.split()[0] for known in COMMANDS)])
        _fail(f"there is no command {name!r}{hint} (`contrapose --help` lists all commands)", exits.BAD_SETTINGS)
    arguments = _current_options(arguments)
    try:
        with train_extra("this command"):
            _parse_and_run(name, arguments)
    except MissingPackage as error:
        _fail(str(error), exits.FAILED)
    except KeyboardInterrupt:
        _fail("interrupted; run the same command again to resume", exits.INTERRUPTED)


def _current_options(arguments: list[str]) -> list[str]:
    """Return the arguments with options from earlier releases renamed to their current names; print each renaming."""
    current, remaining = [], list(arguments)
    while remaining:
        argument = remaining.pop(0)
        if remaining and f"{argument}={remaining[0]}" in FORMER_OPTIONS:  # --contrast whole
            argument = f"{argument}={remaining.pop(0)}"
        current.append(_current_option(argument))
    return current


def _current_option(argument: str) -> str:
    """Return the current name of an option from an earlier release, and print the change; return other arguments unchanged."""
    option, equals, value = argument.partition("=")
    option = option.replace("_", "-")  # options may be typed with "_" or "-"
    former = next((name for name in (f"{option}={value}", option) if name in FORMER_OPTIONS), "")
    if not former:
        return argument
    current = FORMER_OPTIONS[former]
    with suppress(OSError):  # stderr may be closed
        names = f"{former} is now {current}".replace("=", " ")
        print(f"contrapose: {names}; the former name will not work in 1.0", file=sys.stderr)
    return current if former != option else f"{current}{equals}{value}"


def _parse_and_run(name: str, arguments: list[str]) -> None:
    """Run a command with its options; report an expected error in one line, with its exit code."""
    import tyro  # noqa: F401  first, so that a missing package is reported before the slow import of torch

    from contrapose.lab.cli.help import HELP_ALL, help_text, name_option
    from contrapose.lab.devices import use_device
    from contrapose.lab.training.records.files import DISK_FULL, WriteFailed
    from contrapose.lab.training.stops import Diverged, RankFailed, Solved, Stopped, signals
    from contrapose.lab.workers import LoadingFailed

    command = COMMANDS[name].load()
    try:
        if HELP_ALL in arguments or any(option in arguments for option in _HELP):
            print(help_text(command, name, everything=HELP_ALL in arguments))
            return
        parsed = parse_options(name, arguments)
        COMMAND_LINE.set((*name.split(), *arguments))
        # A signal ends the command immediately, except during training, which saves its step first.
        with signals() as requests, requests.immediate(), use_device(getattr(parsed, "device", "")):
            parsed()
    except (Diverged, LoadingFailed, RankFailed, Solved, WriteFailed) as error:
        _fail(str(error), exits.FAILED)
    except ValueError as error:
        _fail(name_option(str(error), command), exits.BAD_SETTINGS)
    except BrokenPipeError:
        raise
    except OSError as error:
        # A full or failing disk is the machine's failure (exit code 1); any other error is a bad path (exit code 2).
        failed = error.errno in DISK_FULL | {errno.EIO}
        _fail(_describe(error, full=error.errno in DISK_FULL), exits.FAILED if failed else exits.BAD_SETTINGS)
    except Stopped as error:
        _fail(str(error), exits.INTERRUPTED if error.number == signal.SIGINT else exits.STOPPED)


def parse_options(name: str, arguments: list[str]) -> Any:
    """Return a command with its options, to be called; exit with a message if there is no such option or value."""
    import tyro

    from contrapose.lab.cli.numbers import number_rules

    command, config = COMMANDS[name].load(), (tyro.conf.OmitArgPrefixes,)
    return tyro.cli(command, args=arguments, prog=f"contrapose {name}", config=config, registry=number_rules())


def _help_text(group: str = "") -> str:
    """Return the help text that lists all commands, or the commands in one group."""
    names = group_commands(group) if group else list(COMMANDS)
    indent = max(map(len, names)) + 4
    width = min(120, shutil.get_terminal_size().columns)
    lines = [
        textwrap.fill(
            COMMANDS[name].summary,
            width,
            initial_indent=f"  {name:{indent - 2}}",
            subsequent_indent=" " * indent,
            break_on_hyphens=False,
        )
        for name in names
    ]
    prefix = f"contrapose {group}".rstrip()
    closing = f"`{prefix} COMMAND --help` lists the options of a command; `contrapose --version` prints the version."
    closing += f"\n{missing_extras()}"
    about = [] if group else ["", "Contrastive representation learning in which the loss is the subject."]
    return "\n".join([f"usage: {prefix} COMMAND [OPTIONS]", *about, "", *lines, "", closing])


def _describe(error: OSError, *, full: bool) -> str:
    """Return a message for a failed file operation: the path, the reason without Python's error number, and what may help.

    `full` means that the disk is full.
    """
    if error.strerror is None or error.filename is None:
        return str(error)
    advice = ""
    if full:
        advice = "; free some space and run the same command again"
    elif isinstance(error, PermissionError):
        advice = "; choose another path, or change its permissions"
    return f"{error.filename}: {error.strerror[:1].lower()}{error.strerror[1:]}{advice}"


def _fail(message: str, code: int) -> None:
    with suppress(OSError):  # stderr may be closed; the exit code still reports the failure
        print(f"contrapose: {message}", file=sys.stderr)
    raise SystemExit(code)


def _escape_output() -> None:
    """Let stdout and stderr escape what they cannot encode, such as the bytes of a file name that is not UTF-8."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # not in a notebook, or a process without output
            stream.reconfigure(errors="backslashreplace")


def _flush(stream: TextIO | None) -> bool:
    """Flush a stream; return False if its reader is gone."""
    if stream is None:  # a process may be started without stdout or stderr
        return True
    try:
        stream.flush()
    except OSError:
        # Python flushes again at exit and would print a traceback, so the remaining output is sent to /dev/null.
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        return False
    return True
