"""Which checkpoints are kept."""

from __future__ import annotations

from pathlib import Path

import torch

from contrapose.lab.training import Run, Trainer
from contrapose.lab.training.checkpoints.checkpoint import Checkpoint, newest_first, save

RUN = Run(limit=32, batch=16, epochs=2, metrics=0, knn=3)


def steps_in(folder: Path) -> list[int]:
    return [int(path.name[5:]) for path in newest_first(folder)]


def test_the_newest_two_are_kept(tmp_path: Path) -> None:
    for step in (2, 4, 6, 8):
        save(tmp_path, Checkpoint(step, {"x": torch.zeros(1)}))
    assert steps_in(tmp_path) == [8, 6]


def test_a_damaged_newer_one_does_not_count(tmp_path: Path) -> None:
    """Training resumes from an intact checkpoint, and keeps the one before that in case it is damaged too."""
    (tmp_path / "step-00000006").mkdir()
    for step in (2, 4, 5):
        save(tmp_path, Checkpoint(step, {"x": torch.zeros(1)}))
    assert steps_in(tmp_path) == [6, 5, 4]
    save(tmp_path, Checkpoint(6, {"x": torch.zeros(1)}))
    assert steps_in(tmp_path) == [6, 5]


def test_a_finished_run_removes_what_a_killed_process_left(tmp_path: Path) -> None:
    """It writes no further checkpoint, after which old ones are removed."""
    Trainer(RUN, tmp_path, log=lambda text: None).train()
    folder = tmp_path / "checkpoints"
    (newest, *_) = steps_in(folder)
    for left in ("step-00000000", "step-00000001"):
        (folder / left).mkdir()
    lines: list[str] = []
    Trainer(RUN, tmp_path, log=lines.append).train()
    assert f"finished at step {newest}" in lines
    assert len(steps_in(folder)) <= 2
    assert steps_in(folder)[0] == newest
