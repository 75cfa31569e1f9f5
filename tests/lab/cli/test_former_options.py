"""Options of earlier releases: they still work, and print what to type from now on."""

from __future__ import annotations

from dataclasses import fields

import pytest

from contrapose.lab.cli import main
from contrapose.lab.cli.commands import COMMANDS, FORMER_OPTIONS
from contrapose.lab.training import Run

TRAIN, STUDY = ["train"], ["study", "run", "behaviour/figure4"]
# What is now what, with a value that its present setting refuses: nothing is trained.
CASES = [
    (STUDY, "--on", "--executor", "cloud"),
    (STUDY, "--root", "--runs-dir", "/"),
    (TRAIN, "--clip", "--grad-clip", "-1"),
    (TRAIN, "--gamma", "--lr-drop", "-1"),
    (TRAIN, "--parts", "--epoch-slices", "0"),
    (TRAIN, "--probe-data", "--eval-data", "nowhere"),
    (TRAIN, "--record", "--extra-metrics", "nothing"),
    (TRAIN, "--rising", "--momentum-schedule cosine", ""),  # of a framework without momentum
    (TRAIN, "--contrast whole", "--grad-cache", ""),  # without --accumulate
]


def error_lines(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[str]:
    with pytest.raises(SystemExit):
        main(list(arguments))
    return [line.removeprefix("contrapose: ") for line in capsys.readouterr().err.splitlines()]


@pytest.mark.thorough
@pytest.mark.parametrize(("command", "former", "current", "value"), CASES, ids=[case[1] for case in CASES])
def test_a_former_option_still_works(
    command: list[str], former: str, current: str, value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = f"{former} {value}".split()
    for arguments in (words, ["=".join(words)], [word.replace("e-d", "e_d") for word in words]):
        note, error = error_lines(capsys, *command, *arguments)[-2:]
        assert note == f"{former} is now {current}; the former name will not work in 1.0"
        assert error.startswith(f"{current.split()[0]}: ")


def test_former_switches_that_are_off(capsys: pytest.CaptureFixture[str]) -> None:
    off = ["--no-rising", "--contrast", "separate", "--contrast=separate"]
    *notes, error = error_lines(capsys, "train", *off, "--batch", "1")
    assert [note.partition(";")[0] for note in notes] == [
        "--no-rising is now --momentum-schedule constant",
        "--contrast separate is now --no-grad-cache",
        "--contrast separate is now --no-grad-cache",
    ]
    assert error.startswith("--batch: ")


def test_no_present_option_has_a_former_name() -> None:
    """It would be taken for the former one."""
    owners = [Run, *(command.load() for command in COMMANDS.values())]
    present = {f"--{field.name.replace('_', '-')}" for owner in owners for field in fields(owner)}
    assert "--runs-dir" in present
    assert not present & {former.partition("=")[0] for former in FORMER_OPTIONS}


def test_every_former_option_is_tested() -> None:
    tested = {former.replace(" ", "=") for _, former, _, _ in CASES} | {"--no-rising", "--contrast=separate"}
    assert tested == set(FORMER_OPTIONS)
