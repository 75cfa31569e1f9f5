"""What a sink is, and what a run's directory keeps so that a resumed run continues in the same place."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from contrapose.lab.training.records.files import read_object, write_json_atomically
from contrapose.lab.training.run import Run

PROJECT = "contrapose"  # under which the dashboards list runs


class Sink(Protocol):
    """Shows the records of one run. A method that raises an error ends the sink, never the training."""

    @property
    def last_step(self) -> int:
        """Step of the last record that the sink has; -1 if it has none."""

    def append(self, step: int, numbers: Mapping[str, float]) -> None:
        """Show the numbers of a record, which belongs to a later step than all records before."""

    def close(self) -> None:
        """End the sink after the run's last record, or when training stops."""


OpenSink = Callable[[Run, Path, Callable[[str], None]], Sink]  # the run, its directory, a function for messages


@dataclass
class Bookmark:
    """The id of a run in a dashboard and the last step that it has, kept in the run's directory."""

    path: Path
    id: str
    last_step: int

    @classmethod
    def open(cls, path: Path) -> Bookmark:
        """Return the bookmark in a file, with a new id if there is no such file; the file has it from now on."""
        content = read_object(path)
        bookmark = cls(path, str(content.get("id", secrets.token_hex(4))), int(content.get("last_step", -1)))
        bookmark.move(bookmark.last_step)
        return bookmark

    def move(self, step: int) -> None:
        """Remember that the dashboard has all records up to a step."""
        self.last_step = step
        write_json_atomically(self.path, {"id": self.id, "last_step": step})
