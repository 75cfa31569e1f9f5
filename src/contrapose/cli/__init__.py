"""The command line: `contrapose COMMAND`.

Errors are one line on stderr, without a traceback. The exit code is 2 for a bad setting, 1 for a failure, 143 after SIGTERM
and 130 after Ctrl-C. If the reader of the output closes it, as in `contrapose study list | head`, training continues, and
the exit code is 141.
"""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from typing import Any, TextIO

import tyro
from tyro.conf import OmitArgPrefixes

from contrapose import __version__
from contrapose.cli import exits
from contrapose.cli.bench import BenchLosses
from contrapose.cli.compare import Compare, Demo, check_arguments
from contrapose.cli.conformance import BenchConformance
from contrapose.cli.data import DataCheck, DataList
from contrapose.cli.explain import Explain, Map
from contrapose.cli.files import Embed, Export, Import
from contrapose.cli.study import StudyList, StudyReport, StudyRun, StudyShow
from contrapose.cli.train import Evaluate, Presets, Train, expand_preset
from contrapose.training import Diverged, Stopped
from contrapose.workers import LoadingFailed

COMMANDS: dict[str, Any] = {
    "demo": Demo,
    "compare": Compare,
    "train": Train,
    "evaluate": Evaluate,
    "explain": Explain,
    "map": Map,
    "embed": Embed,
    "export": Export,
    "import": Import,
    "presets": Presets,
}
GROUPS: dict[str, dict[str, Any]] = {  # a group's name alone runs its first command
    "bench": {"losses": BenchLosses, "conformance": BenchConformance},
    "data": {"list": DataList, "check": DataCheck},
    "study": {"list": StudyList, "show": StudyShow, "run": StudyRun, "report": StudyReport},
}
ABOUT = {
    "": "Contrastive representation learning in which the loss is the subject.",
    "bench": "bench losses | conformance: time or check the losses on this machine, next to other libraries.",
    "data": "data list | check: list the built-in data sets, or check your own.",
    "study": "study list | show | run | report: reproduce the tables and figures of the four papers.",
}


def main(arguments: list[str] | None = None) -> None:
    """Parse the arguments and run the command; report an error in one line."""
    exit_request: SystemExit | None = None
    try:
        _run_command(arguments)
    except SystemExit as error:
        exit_request = error
    except BrokenPipeError:
        exit_request = SystemExit(exits.OUTPUT_CLOSED)
    # A list, because both streams must be flushed; any failure takes precedence over a closed output.
    if not all([_flush(sys.stdout), _flush(sys.stderr)]) and (exit_request is None or not exit_request.code):
        exit_request = SystemExit(exits.OUTPUT_CLOSED)
    if exit_request is not None:
        raise exit_request


def _run_command(arguments: list[str] | None) -> None:
    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments in (["--version"], ["-V"]):
        print(f"contrapose {__version__}")
        return
    group = arguments[0] if arguments and arguments[0] in GROUPS and len(arguments) > 1 else None
    firsts = {name: next(iter(commands.values())) for name, commands in GROUPS.items()}
    # A subclass with another docstring, because the docstring of the class is the help text.
    defaults: dict[str, Any] = {name: type(name, (first,), {"__doc__": ABOUT[name]}) for name, first in firsts.items()}
    commands, rest = (GROUPS[group], arguments[1:]) if group else (COMMANDS | defaults, arguments)
    try:
        if rest[:1] == ["train"]:
            rest = expand_preset(rest)  # before parsing, so that later options override the preset
        elif rest[:1] == ["compare"]:
            check_arguments(rest)  # before parsing, because a parsed option does not say whether the user set it
        command = tyro.extras.subcommand_cli_from_dict(
            commands, args=rest, prog=f"contrapose {group}" if group else "contrapose", config=(OmitArgPrefixes,),
            description=ABOUT[group or ""],
        )  # fmt: skip
        command()
    except (ValueError, FileNotFoundError, NotADirectoryError) as error:
        _fail(str(error), exits.BAD_SETTINGS)
    except (Diverged, LoadingFailed) as error:
        _fail(str(error), exits.FAILED)
    except Stopped as error:
        _fail(str(error), exits.INTERRUPTED if error.number == signal.SIGINT else exits.STOPPED)
    except KeyboardInterrupt:
        _fail("interrupted; run the same command again to resume", exits.INTERRUPTED)


def _fail(message: str, code: int) -> None:
    with suppress(OSError):  # stderr may be closed; the exit code still reports the failure
        print(f"contrapose: {message}", file=sys.stderr)
    raise SystemExit(code)


def _flush(stream: TextIO | None) -> bool:
    """Flush a stream; return False if its reader is gone."""
    if stream is None:  # a process may be started without stdout or stderr
        return True
    try:
        stream.flush()
    except OSError:
        # Python flushes again at exit and would print a traceback; the rest goes to /dev/null instead.
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        return False
    return True
