"""Options that are numbers are refused in words."""

from __future__ import annotations

import pytest

from contrapose.lab.cli import main


@pytest.mark.parametrize(
    ("option", "text", "expected"),
    [
        ("--epochs", "1.5", "expected a whole number, such as 20, got '1.5'"),
        ("--lr", "fast", "expected a number, such as 0.5, got 'fast'"),
    ],
)
def test_a_text_is_not_a_number(option: str, text: str, expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["train", option, text])
    assert stop.value.code == 2
    message = " ".join(capsys.readouterr().err.replace("│", " ").split())
    assert f"{option}: {expected}" in message
