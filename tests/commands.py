"""Run the command line in a test."""

from __future__ import annotations

import pytest

from contrapose.lab.cli import main


def error_message(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Run a command that must be refused, with exit code 2 and no traceback; return its message."""
    with pytest.raises(SystemExit) as exit_info:
        main(list(arguments))
    assert exit_info.value.code == 2
    message = capsys.readouterr().err
    assert "Traceback" not in message
    return message


def printed_lines(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> list[str]:
    """Run a command that must end with this exit code; return the lines on stdout."""
    exit_code: object = 0
    try:
        main(list(arguments))
    except SystemExit as error:
        exit_code = error.code
    assert exit_code == code
    return capsys.readouterr().out.splitlines()
