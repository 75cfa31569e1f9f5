"""The code and the commands on a page of documentation."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from contrapose.lab.cli import parse_options
from contrapose.lab.cli.commands import COMMANDS

ROOT = Path(__file__).parents[1]
_FENCE = re.compile(r"^```(\w+)\n(.*?)^```", re.DOTALL | re.MULTILINE)
_FILE = re.compile(r"# (\w+\.py)\n")  # the first line of a block that is a file of its own


class Block(NamedTuple):
    """A fenced block of a page."""

    language: str
    text: str

    @property
    def file_name(self) -> str:
        """The name of the file that the block shows; empty if it is code of the page."""
        found = _FILE.match(self.text)
        return found[1] if found is not None and self.language == "python" else ""


def blocks(page: Path) -> list[Block]:
    """Return the fenced blocks of a page, in order."""
    return [Block(*found) for found in _FENCE.findall(page.read_text())]


def python_blocks(page: Path) -> list[str]:
    """Return the Python code of a page, in order, without files."""
    return [block.text for block in blocks(page) if block.language == "python" and not block.file_name]


def command_lines(block: Block) -> Iterator[list[str]]:
    """Yield the words of each command in a block of shell lines, without comments and prompts."""
    if block.language in ("sh", "bash"):
        for line in block.text.replace("\\\n", " ").splitlines():
            words = shlex.split(line.removeprefix("$ "), comments=True)
            if words:
                yield words


def own_arguments(words: list[str]) -> list[str] | None:
    """Return the arguments that a command line passes to contrapose, also through torchrun or timeout; None if it does not."""
    if "contrapose" not in words or words[0] == "pip":
        return None
    return words[words.index("contrapose") + 1 :]


def parse(arguments: list[str]) -> Any:
    """Return the command that these arguments run, as the command line parses them; exit if it refuses them."""
    if not arguments or arguments == ["--version"]:
        return None
    name = next(name for length in (2, 1) if (name := " ".join(arguments[:length])) in COMMANDS)
    return parse_options(name, arguments[len(name.split()) :])
