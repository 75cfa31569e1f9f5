"""Progress of many runs where the output is not a terminal."""

from __future__ import annotations

import pytest

from contrapose.lab.cli import progress
from contrapose.lab.cli.progress import progress_display
from contrapose.lab.training import Progress


class Clock:
    """A clock that the test moves."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now


def test_a_line_every_30_seconds_and_whenever_a_run_ends(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = Clock()
    monkeypatch.setattr(progress, "time", clock)
    with progress_display(2) as display:
        for number in range(1, 5):
            clock.now += 20.0
            display.on_step("digits-simclr", Progress(1, number, 4, loss=1.5, images_per_second=100.0))
        display.on_end("digits-simclr", "")
        clock.now += 20.0
        display.on_step("digits-cacr", Progress(1, 1, 4, loss=2.0, images_per_second=100.0))
    assert capsys.readouterr().out.splitlines() == [
        "0 of 2 runs done; digits-simclr: step 2 of 4, loss 1.500; about 2 min left",
        "0 of 2 runs done; digits-simclr: step 4 of 4, loss 1.500; about 80 s left",
        "1 of 2: digits-simclr done, about 80 s left",
    ]


def test_a_slow_start_is_not_counted(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Importing, reading and compiling before the first step happen once; they would announce hours at step 1."""
    clock = Clock()
    monkeypatch.setattr(progress, "time", clock)
    with progress_display(1) as display:
        clock.now += 100.0
        for number in range(1, 101):
            display.on_step("digits-simclr", Progress(1, number, 1000, loss=1.5, images_per_second=100.0))
            clock.now += 1.0
    assert capsys.readouterr().out.splitlines() == [
        "0 of 1 run done; digits-simclr: step 1 of 1,000, loss 1.500",
        "0 of 1 run done; digits-simclr: step 31 of 1,000, loss 1.500; about 16 min left",
        "0 of 1 run done; digits-simclr: step 61 of 1,000, loss 1.500; about 16 min left",
        "0 of 1 run done; digits-simclr: step 91 of 1,000, loss 1.500; about 15 min left",
    ]
