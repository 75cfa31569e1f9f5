"""All records of a run are in one event file of TensorBoard, each step once."""

from __future__ import annotations

from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from contrapose.lab.training import Run
from contrapose.lab.training.records.recorder import Recorder

RECORD = {"loss": 1.0, "seconds": 0.5, "knn_top1": float("nan")}


def open_recorder(folder: Path, step: int) -> Recorder:
    recorder = Recorder(folder, (), print)
    recorder.resume(Run(), step)
    return recorder


def curves(folder: Path) -> EventAccumulator:
    """Return the curves in the only event file."""
    assert len(list((folder / "tensorboard").iterdir())) == 1
    accumulator = EventAccumulator(str(folder / "tensorboard"))
    accumulator.Reload()
    return accumulator


def test_all_epochs_are_in_one_file(tmp_path: Path) -> None:
    for epoch in (1, 2, 3):
        recorder = open_recorder(tmp_path, 4 * (epoch - 1))
        recorder.append({**RECORD, "epoch": epoch, "step": 4 * epoch, "loss": 1 / epoch})
        recorder.close()
    found = curves(tmp_path)
    assert found.Tags()["scalars"] == ["loss", "seconds"]
    points = [(event.step, event.value) for event in found.Scalars("loss")]
    assert points == [(4, 1.0), (8, 0.5), (12, pytest.approx(1 / 3))]


def test_repeated_steps_after_a_kill_have_one_point(tmp_path: Path) -> None:
    recorder = open_recorder(tmp_path, 0)
    for epoch in (1, 2):
        recorder.append({**RECORD, "epoch": epoch, "step": 4 * epoch})
    recorder = open_recorder(tmp_path, 4)  # from the checkpoint of step 4
    for epoch in (2, 3):
        recorder.append({**RECORD, "epoch": epoch, "step": 4 * epoch})
    assert [event.step for event in curves(tmp_path).Scalars("loss")] == [4, 8, 12]
