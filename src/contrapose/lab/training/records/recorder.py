"""Where the records of a run go: to records.jsonl, and to the sinks that show them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from contrapose.extras import MissingPackage, install_command
from contrapose.lab.training.records.files import append, drop_records_after, read_records
from contrapose.lab.training.records.sinks.sink import OpenSink, Sink
from contrapose.lab.training.records.sinks.tensorboard import TensorBoard
from contrapose.lab.training.records.sinks.trackio import Trackio
from contrapose.lab.training.records.sinks.wandb import WeightsAndBiases
from contrapose.lab.training.run import Run
from contrapose.validate import check_known

# Keyed by the name of the package and of the extra that installs it.
SINKS: dict[str, OpenSink] = {"tensorboard": TensorBoard, "wandb": WeightsAndBiases, "trackio": Trackio}


def parse_sinks(text: str) -> tuple[str, ...]:
    """Return the sinks in a list with commas; raise an error for an unknown sink, or one that is not installed."""
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    for name in names:
        check_known("log", name, SINKS)
        if not _is_installed(name):
            raise MissingPackage(f"log: {name} is not installed; install it with: {install_command(name)}", name=name)
    return names


def _is_installed(package: str) -> bool:
    spec = find_spec(package)
    # A directory of that name in the working directory, such as W&B's own, is found as a package without a file.
    return spec is not None and spec.origin is not None


class Recorder:
    """Writes records to records.jsonl and shows them in sinks. A sink that fails is left out, and training continues."""

    def __init__(self, folder: Path, sinks: Sequence[str], log: Callable[[str], None]) -> None:
        always = ["tensorboard"] if _is_installed("tensorboard") else []
        self.folder, self.names, self.log = folder, tuple(dict.fromkeys([*always, *sinks])), log
        self.sinks: dict[str, Sink] = {}

    def resume(self, run: Run, step: int) -> set[int]:
        """Drop the records of steps that will be repeated and open the sinks; return the steps of the remaining records."""
        steps = drop_records_after(self.folder, step)
        for name in self.names:
            with self._left_out_on_failure(name):
                self.sinks[name] = SINKS[name](run, self.folder, self.log)
                # What a new sink has missed so far, or one whose process was killed before it had the last record.
                for record in read_records(self.folder):
                    _show(self.sinks[name], record)
        return steps

    def append(self, record: Mapping[str, Any]) -> None:
        """Append a record."""
        written = append(self.folder, record)
        for name, sink in list(self.sinks.items()):
            with self._left_out_on_failure(name):
                _show(sink, written)

    def close(self) -> None:
        """Close the sinks; without any, do nothing."""
        for name, sink in list(self.sinks.items()):
            with self._left_out_on_failure(name):
                sink.close()
        self.sinks = {}

    @contextmanager
    def _left_out_on_failure(self, name: str) -> Iterator[None]:
        """Log an error of a sink, and use the sink no more."""
        try:
            yield
        except Exception as error:
            reason = " ".join(str(error).split()) or type(error).__name__
            self.log(
                f"{name} failed and shows no further records: {reason}. Training continues; records.jsonl has all records"
            )
            sink = self.sinks.pop(name, None)
            if sink is not None:
                with suppress(Exception):
                    sink.close()


def _show(sink: Sink, record: Mapping[str, Any]) -> None:
    """Show a record in a sink, unless it has the step: a resumed run repeats the steps since its checkpoint."""
    if record["step"] <= sink.last_step:
        return
    numbers = {name: value for name, value in record.items() if name != "step" and isinstance(value, int | float)}
    sink.append(record["step"], numbers)
