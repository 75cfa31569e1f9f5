"""Records as a run of trackio: in its local database, unless the user's environment names a Space or a server."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, redirect_stdout
from pathlib import Path

from contrapose.lab.training.records.sinks.sink import PROJECT, Bookmark
from contrapose.lab.training.run import Run

REMOTE = ("TRACKIO_SPACE_ID", "TRACKIO_SERVER_URL")  # trackio's own variables, with which it logs to another machine


class Trackio:
    """Logs to one trackio run. Runs of trackio are resumed by name, so the name ends with the id in trackio.json."""

    def __init__(self, run: Run, folder: Path, log: Callable[[str], None]) -> None:
        import trackio
        from trackio.sqlite_storage import SQLiteStorage

        self.bookmark = Bookmark.open(folder / "trackio.json")
        self.last_step = self.bookmark.last_step
        name = f"{folder.resolve().name}-{self.bookmark.id}"
        is_local = not any(map(os.environ.get, REMOTE))
        if is_local:
            # If trackio cannot write there, it only warns, and the records are lost.
            trackio.utils.TRACKIO_DIR.mkdir(parents=True, exist_ok=True)
            # A thread of trackio writes twice a second, so the database of a killed run may lack what the bookmark has.
            in_database = SQLiteStorage.get_max_step_for_run(PROJECT, name)
            self.last_step = -1 if in_database is None else in_database
        with _offline() if is_local else nullcontext(), redirect_stdout(io.StringIO()):
            self.run = trackio.init(
                project=PROJECT,
                name=name,
                config=run.describe(),
                resume="allow",
                embed=False,
                auto_log_gpu=False,
                auto_log_cpu=False,
            )
        log(f"trackio: to see the curves of {name}: trackio show --project {PROJECT}")

    def append(self, step: int, numbers: Mapping[str, float]) -> None:
        """Log the numbers at the record's step."""
        self.run.log(dict(numbers), step=step)
        self.bookmark.move(step)
        self.last_step = step

    def close(self) -> None:
        """Finish the trackio run, which waits until all records are written."""
        import trackio

        with redirect_stdout(io.StringIO()):
            trackio.finish()


@contextmanager
def _offline() -> Iterator[None]:
    """Keep trackio from asking Hugging Face for the user's name, which it does if there is a token, also for local runs."""
    from huggingface_hub import constants

    before, constants.HF_HUB_OFFLINE = constants.HF_HUB_OFFLINE, True
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = before
