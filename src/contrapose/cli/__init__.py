"""The command line. A bad setting exits with 2, a failure with 1, a signal with 143 or 130: one line says what happened.

Whoever reads the output may leave, as in `contrapose study list | head`: runs go on, and the exit code is 141.
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
from contrapose.cli.data import DataCheck, DataList
from contrapose.cli.files import Embed, Export, Import
from contrapose.cli.look import Explain, Map
from contrapose.cli.study import Compare, Demo, StudyList, StudyReport, StudyRun, StudyShow
from contrapose.cli.train import Evaluate, Presets, Train, without_preset
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
GROUPS: dict[str, dict[str, Any]] = {  # alone, a group's name means the first of them
    "bench": {"losses": BenchLosses},
    "data": {"list": DataList, "check": DataCheck},
    "study": {"list": StudyList, "show": StudyShow, "run": StudyRun, "report": StudyReport},
}
ABOUT = {
    "": "Contrastive representation learning in which the loss is the subject.",
    "bench": "bench losses: every path and every installed peer, timed on this machine.",
    "data": "data list | check: the data sets that have a name, and a look at yours.",
    "study": "study list | show | run | report: every table and figure of the four papers.",
}


def main(words: list[str] | None = None) -> None:
    """Parse, run, and say in one line what went wrong."""
    end: SystemExit | None = None
    try:
        _command(words)
    except SystemExit as asked:
        end = asked
    except BrokenPipeError:
        end = SystemExit(exits.UNREAD)
    if not all([_flushed(sys.stdout), _flushed(sys.stderr)]) and (end is None or not end.code):
        end = SystemExit(exits.UNREAD)
    if end is not None:
        raise end


def _command(words: list[str] | None) -> None:
    words = sys.argv[1:] if words is None else words
    if words in (["--version"], ["-V"]):
        print(f"contrapose {__version__}")
        return
    group = words[0] if words and words[0] in GROUPS and len(words) > 1 else None
    firsts = {name: next(iter(commands.values())) for name, commands in GROUPS.items()}
    alone: dict[str, Any] = {name: type(name, (first,), {"__doc__": ABOUT[name]}) for name, first in firsts.items()}
    commands, rest = (GROUPS[group], words[1:]) if group else (COMMANDS | alone, words)
    try:
        if rest[:1] == ["train"]:
            rest = without_preset(rest)
        chosen = tyro.extras.subcommand_cli_from_dict(
            commands, args=rest, prog=f"contrapose {group}" if group else "contrapose", config=(OmitArgPrefixes,),
            description=ABOUT[group or ""],
        )  # fmt: skip
        chosen()
    except (ValueError, FileNotFoundError, NotADirectoryError) as error:
        _fail(str(error), exits.BAD_SETTINGS)
    except (Diverged, LoadingFailed) as error:
        _fail(str(error), exits.FAILED)
    except Stopped as error:
        _fail(str(error), exits.INTERRUPTED if error.number == signal.SIGINT else exits.STOPPED)
    except KeyboardInterrupt:
        _fail("interrupted; the same command goes on from what is done", exits.INTERRUPTED)


def _fail(message: str, code: int) -> None:
    with suppress(OSError):  # nobody reads it; the code says it too
        print(f"contrapose: {message}", file=sys.stderr)
    raise SystemExit(code)


def _flushed(stream: TextIO | None) -> bool:
    """Whether all of it was read; what was not goes nowhere, and says nothing at the end."""
    if stream is None:  # a daemon may have none
        return True
    try:
        stream.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        return False
    return True
