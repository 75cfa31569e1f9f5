"""Records as curves of TensorBoard, in one event file of the run's directory."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path

from contrapose.lab.training.run import Run


class TensorBoard:
    """Appends points to a single event file; a SummaryWriter would start another file each time a run is resumed."""

    def __init__(self, run: Run, folder: Path, log: Callable[[str], None]) -> None:
        self.path = folder / "tensorboard" / "events.out.tfevents.contrapose"
        self.last_step = _last_step(self.path) if self.path.exists() else -1

    def append(self, step: int, numbers: Mapping[str, float]) -> None:
        """Append one point to each curve."""
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.summary.writer.record_writer import RecordWriter
        from torch.utils.tensorboard.summary import scalar

        now = time.time()
        # The epoch is another name for the step, so it has no curve.
        points = {name: value for name, value in numbers.items() if name != "epoch"}
        events = [Event(wall_time=now, step=step, summary=scalar(name, value)) for name, value in points.items()]
        if not self.path.exists():
            events.insert(0, Event(wall_time=now, file_version="brain.Event:2"))
        self.path.parent.mkdir(exist_ok=True)
        with self.path.open("ab") as file:
            writer = RecordWriter(file)
            for event in events:
                writer.write(event.SerializeToString())
        self.last_step = step

    def close(self) -> None:
        """Do nothing, because the file is closed after each record."""


def _last_step(path: Path) -> int:
    """Return the last step with a point in an event file; -1 if it has none."""
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    return max((event.step for event in EventFileLoader(str(path)).Load() if event.HasField("summary")), default=-1)
