"""The command line. A bad setting exits with 2, a failure with 1, a signal with 143: one line says what happened."""

from __future__ import annotations

import os
import sys
from typing import Any

import tyro
from tyro.conf import OmitArgPrefixes

from contrapose.cli import exits
from contrapose.cli.bench import BenchLosses
from contrapose.cli.data import DataCheck, DataList
from contrapose.cli.files import Embed, Export, Import
from contrapose.cli.look import Explain, Map
from contrapose.cli.study import Compare, Demo, StudyList, StudyReport, StudyRun, StudyShow
from contrapose.cli.train import Evaluate, Presets, Train, without_preset
from contrapose.data.stream import WorkerDied
from contrapose.training import Diverged, Stopped

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
    words = sys.argv[1:] if words is None else words
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
        sys.stdout.flush()
    except (ValueError, FileNotFoundError, NotADirectoryError) as error:
        _fail(str(error), exits.BAD_SETTINGS)
    except (Diverged, WorkerDied) as error:
        _fail(str(error), exits.FAILED)
    except Stopped as error:
        _fail(str(error), exits.STOPPED)
    except BrokenPipeError:  # as in `contrapose study list | head`: whoever read it has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is left goes nowhere, and says nothing
        raise SystemExit(exits.UNREAD) from None
    except KeyboardInterrupt:
        _fail("interrupted; the same command goes on from what is done", exits.INTERRUPTED)


def _fail(message: str, code: int) -> None:
    print(f"contrapose: {message}", file=sys.stderr)
    raise SystemExit(code)
