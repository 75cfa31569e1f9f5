"""Records as a run of Weights & Biases: offline, unless the user's environment says otherwise."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

from contrapose.lab.training.records.sinks.sink import PROJECT, Bookmark
from contrapose.lab.training.run import Run

# W&B's own variables, so that each can be set otherwise. Even offline, error reporting looks up a server.
DEFAULTS = {
    "WANDB_MODE": "offline",
    "WANDB_PROJECT": PROJECT,
    "WANDB_ERROR_REPORTING": "false",
    "WANDB_DISABLE_GIT": "true",
    "WANDB_DISABLE_CODE": "true",
    "WANDB_CONSOLE": "off",
    "WANDB_SYMLINK": "false",
    "WANDB_X_TRANSACTION_LOG_FLUSH_INTERVAL": "1",  # seconds, in place of 15; what is not written is lost on a kill
    "WANDB_SILENT": "true",
}


class WeightsAndBiases:
    """Logs to one W&B run, whose id is in wandb.json. Its files are in wandb/ of the run's directory."""

    def __init__(self, run: Run, folder: Path, log: Callable[[str], None]) -> None:
        for name, value in DEFAULTS.items():
            os.environ.setdefault(name, value)
        import wandb

        self.bookmark = Bookmark.open(folder / "wandb.json")
        # With "create_new", a process may have several runs at a time.
        self.run = wandb.init(
            id=self.bookmark.id,
            name=folder.resolve().name,
            dir=str(folder),
            config=run.describe(),
            resume="allow",
            reinit="create_new",
        )
        if self.run.offline:
            log(f"wandb: offline; to upload the run: wandb sync {folder}/wandb/offline-run-*-{self.bookmark.id}")

    @property
    def last_step(self) -> int:
        """Step of the last record that W&B has."""
        return self.bookmark.last_step

    def append(self, step: int, numbers: Mapping[str, float]) -> None:
        """Log the numbers at the record's step."""
        self.run.log(dict(numbers), step=step, commit=True)  # by default, W&B keeps it until the next step
        self.bookmark.move(step)

    def close(self) -> None:
        """Finish the W&B run, which waits until all records are written."""
        self.run.finish()
