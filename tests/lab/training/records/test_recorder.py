"""Records go to the sinks as well: each step once, also after a resume; and a sink that fails ends nothing."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from contrapose.extras import MissingPackage
from contrapose.lab.training import Run, Trainer
from contrapose.lab.training.records import recorder
from contrapose.lab.training.records.files import read_records
from contrapose.lab.training.records.recorder import SINKS, Recorder, parse_sinks

RUN = Run(limit=64, batch=32, epochs=2, encoder="tiny", knn=3, knn_every=2, metrics=0, warmup=0)


def record(step: int, **numbers: Any) -> dict[str, Any]:
    return {"epoch": step // 4, "step": step, "loss": 1 / step, "seconds": 0.5, **numbers}


class Dashboard:
    """A sink whose records outlive it, and which raises an error in one method."""

    def __init__(self, *, failing: str = "") -> None:
        self.failing = failing
        self.steps = list[int]()
        self.numbers = list[Mapping[str, float]]()
        self.closed = 0

    def open(self, run: Run, folder: Path, log: Callable[[str], None]) -> Dashboard:
        self._fail("open")
        return self

    @property
    def last_step(self) -> int:
        return max(self.steps, default=-1)

    def append(self, step: int, numbers: Mapping[str, float]) -> None:
        self._fail("append")
        self.steps.append(step)
        self.numbers.append(numbers)

    def close(self) -> None:
        self.closed += 1
        self._fail("close")

    def _fail(self, method: str) -> None:
        if method == self.failing:
            raise RuntimeError(f"{method} has\n failed")


@pytest.fixture
def other_sinks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take TensorBoard for not installed, so that only the sinks of a test are used."""
    monkeypatch.setattr(recorder, "_is_installed", lambda package: False)


def test_a_list_of_sinks() -> None:
    assert parse_sinks("") == ()
    assert parse_sinks(" tensorboard,tensorboard , ") == ("tensorboard",)
    with pytest.raises(ValueError, match=r"log: .*wnadb.*did you mean 'wandb'"):
        parse_sinks("tensorboard,wnadb")


def test_a_missing_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A directory with the package's name, such as the one that W&B writes, is not the package."""
    monkeypatch.setitem(SINKS, "absent_dashboard", Dashboard().open)
    expected = r"log: absent_dashboard is not installed; install it with: pip install '.*\[absent_dashboard\]'"
    with pytest.raises(MissingPackage, match=expected):
        parse_sinks("absent_dashboard")
    (tmp_path / "absent_dashboard").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(MissingPackage, match=expected):
        parse_sinks("absent_dashboard")


@pytest.mark.usefixtures("other_sinks")
def test_each_step_is_shown_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that was killed repeats the steps since its checkpoint, and a sink that is added later gets all records."""
    first, later = Dashboard(), Dashboard()
    monkeypatch.setitem(SINKS, "first", first.open)
    monkeypatch.setitem(SINKS, "later", later.open)
    recorded = Recorder(tmp_path, ["first"], print)
    assert recorded.resume(RUN, 0) == set()
    recorded.append(record(4, knn_top1=math.nan))
    recorded.append(record(8))
    recorded = Recorder(tmp_path, ["first", "later"], print)  # killed: not closed
    assert recorded.resume(RUN, 4) == {4}
    recorded.append(record(8))
    recorded.append(record(12))
    assert first.steps == later.steps == [4, 8, 12]
    assert first.numbers[0] == {"epoch": 1, "loss": 0.25, "seconds": 0.5}  # NaN is not shown
    recorded.close()
    recorded.close()
    assert (first.closed, later.closed) == (1, 1)


@pytest.mark.usefixtures("other_sinks")
@pytest.mark.parametrize("failing", ["open", "append", "close"])
def test_a_sink_that_fails_is_left_out(failing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other, messages = Dashboard(), list[str]()
    monkeypatch.setitem(SINKS, "failing", Dashboard(failing=failing).open)
    monkeypatch.setitem(SINKS, "other", other.open)
    trainer = Trainer(RUN, tmp_path, log=messages.append, sinks=("failing", "other"))
    assert trainer.train().keys() == {"knn_top1", "knn_top5"}
    (message,) = [text for text in messages if "failing" in text]
    assert message == (
        f"failing failed and shows no further records: {failing} has failed. "
        "Training continues; records.jsonl has all records"
    )
    assert [one["epoch"] for one in read_records(tmp_path)] == [1, 2]
    assert other.steps == [2, 4]
    assert other.closed == 1


@pytest.mark.usefixtures("other_sinks")
def test_only_rank_0_has_sinks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dashboard = Dashboard()
    monkeypatch.setitem(SINKS, "dashboard", dashboard.open)
    trainer = Trainer(RUN, tmp_path, log=lambda text: None, sinks=("dashboard",))
    trainer.rank = 1
    trainer._resume()
    assert trainer.recorder.sinks == {}


def test_sinks_are_no_setting_of_a_run(tmp_path: Path) -> None:
    assert "sinks" not in vars(RUN)
    assert "log" not in RUN.describe()
