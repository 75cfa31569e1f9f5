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
