"""The command line. A bad setting exits with 2, a failure with 1, a signal with 143: one line says what happened."""

from __future__ import annotations

import sys
from typing import Any

import tyro
from tyro.conf import OmitArgPrefixes

from contrapose.cli.data import DataCheck, DataList
from contrapose.cli.files import Embed, Export, Import
from contrapose.cli.look import Explain, Map
from contrapose.cli.train import Evaluate, Presets, Train, without_preset
from contrapose.data.stream import WorkerDied
from contrapose.training import Diverged, Stopped

EXIT_BAD_SETTINGS, EXIT_FAILED, EXIT_STOPPED = 2, 1, 143
COMMANDS: dict[str, Any] = {
    "train": Train,
    "evaluate": Evaluate,
    "explain": Explain,
    "map": Map,
    "embed": Embed,
    "export": Export,
    "import": Import,
    "presets": Presets,
}
DATA_COMMANDS: dict[str, Any] = {"list": DataList, "check": DataCheck}


def main(words: list[str] | None = None) -> None:
    """Parse, run, and say in one line what went wrong."""
    words = sys.argv[1:] if words is None else words
    inner = words[:1] == ["data"] and len(words) > 1
    commands, rest = (DATA_COMMANDS, words[1:]) if inner else (COMMANDS | {"data": DataList}, words)
    try:
        if rest[:1] == ["train"]:
            rest = without_preset(rest)
        chosen = tyro.extras.subcommand_cli_from_dict(
            commands, args=rest, prog="contrapose data" if inner else "contrapose", config=(OmitArgPrefixes,),
            description="Contrastive representation learning in which the loss is the subject.",
        )  # fmt: skip
        chosen()
    except (ValueError, FileNotFoundError, NotADirectoryError) as error:
        _fail(str(error), EXIT_BAD_SETTINGS)
    except (Diverged, WorkerDied) as error:
        _fail(str(error), EXIT_FAILED)
    except Stopped as error:
        _fail(str(error), EXIT_STOPPED)


def _fail(message: str, code: int) -> None:
    print(f"contrapose: {message}", file=sys.stderr)
    raise SystemExit(code)
