"""Progress of one training."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from contrapose.lab.cli import display
from contrapose.lab.cli.display import TimeLeft, TrainingDisplay, training_display
from contrapose.lab.training import Progress


class Clock:
    """A clock that the test moves."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(display, "time", made)
    return made


def step(number: int, epoch: int = 1, steps: int = 20) -> Progress:
    return Progress(epoch, number, steps, loss=1.0, images_per_second=100.0)


def test_a_resumed_training_estimates_from_its_own_steps(clock: Clock) -> None:
    left = TimeLeft()
    assert left(step(10)) == float("inf")
    clock.now = 6.0
    assert left(step(12)) == 3.0 * 8


def test_the_estimate_is_announced_once_steps_have_settled(clock: Clock) -> None:
    estimates: list[float] = []
    shown = TrainingDisplay(on_estimate=estimates.append)
    for number in range(1, 8):
        shown.show_step(step(number))
        clock.now += 2.0
    assert estimates == [2.0 * 16]  # after the fourth step: three steps and six seconds after the first


def test_epoch_lines_have_the_time_left(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    with training_display() as shown:
        for number in range(1, 5):
            shown.show_step(step(number, epoch=1 + (number > 2), steps=4))
            clock.now += 10.0
    first, last = capsys.readouterr().out.splitlines()
    assert first == "epoch    1   loss 1.000   100 images/s   about 20 s left"
    assert last == "epoch    2   loss 1.000   100 images/s"


def test_a_long_epoch_has_a_line_every_30_seconds(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    with training_display() as shown:
        shown.noun = "pairs"
        for number in range(1, 9):
            clock.now += 20.0
            shown.show_step(step(number, steps=16))
        shown.show_evaluation()
    assert capsys.readouterr().out.splitlines() == [
        "step 2 of 16, epoch 1   loss 1.000   100 pairs/s   about 5 min left",
        "step 4 of 16, epoch 1   loss 1.000   100 pairs/s   about 4 min left",
        "step 6 of 16, epoch 1   loss 1.000   100 pairs/s   about 3 min left",
        "step 8 of 16, epoch 1   loss 1.000   100 pairs/s   about 3 min left",
        "epoch    1   loss 1.000   100 pairs/s   about 3 min left",
        "evaluating after epoch 1",
    ]


def test_a_short_epoch_is_evaluated_without_a_line(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    with training_display() as shown:
        shown.show_step(step(20))
        shown.show_evaluation()
    assert capsys.readouterr().out.splitlines() == ["epoch    1   loss 1.000   100 images/s"]


def test_no_estimate_at_the_end_of_training(clock: Clock) -> None:
    estimates: list[float] = []
    shown = TrainingDisplay(on_estimate=estimates.append)
    for number in range(1, 6):
        shown.show_step(step(number, steps=5))
        clock.now += 1.5
    assert estimates == []


def test_a_silent_display_prints_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with training_display(silent=True) as shown:
        shown.show_step(step(20))
        shown.show_evaluation()
        shown.print_line("text")
    assert capsys.readouterr().out == ""


@pytest.mark.thorough
def test_a_terminal_says_when_the_encoder_is_evaluated(tmp_path: Path) -> None:
    parent, child = os.openpty()
    options = [
        "--limit",
        "256",
        "--batch",
        "8",
        "--epochs",
        "3",  # seconds, so that the display is drawn during an epoch too
        "--knn",
        "3",
        "--metrics",
        "0",
        "--out",
        str(tmp_path / "run"),
    ]
    with subprocess.Popen(
        [sys.executable, "-m", "contrapose", "train", *options], stdout=child, stderr=child
    ) as process:
        os.close(child)
        output = b""
        try:
            while part := os.read(parent, 4096):
                output += part
        except OSError:  # the other end is closed
            pass
    os.close(parent)
    assert process.returncode == 0, output.decode()
    assert "evaluating" in output.decode()
    assert "images/s" in output.decode()


def test_the_first_evaluation_does_not_count(clock: Clock) -> None:
    """It initialises what the others reuse, and would make the first estimates many times too long."""
    left = TimeLeft()
    left(step(1))
    clock.now = 2.0
    left.begin_evaluation()
    clock.now = 60.0
    left(step(2))
    clock.now = 64.0
    assert left(step(4)) == pytest.approx(6.0 / 3 * 16)
    left.begin_evaluation()
    clock.now = 70.0
    assert left(step(6)) == pytest.approx(12.0 / 5 * 14)


def test_a_compilation_does_not_count(clock: Clock) -> None:
    left = TimeLeft()
    for clock.now, number in ((0.0, 1), (1.0, 2), (2.0, 3), (42.0, 4), (42.5, 5)):
        estimate = left(step(number))
    assert estimate == pytest.approx(3.5 / 4 * 15)
