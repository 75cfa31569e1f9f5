"""The command line in a test."""

from __future__ import annotations

import pytest

from contrapose.cli import main


def failed(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """What a refused command says: exit code 2 and no traceback."""
    with pytest.raises(SystemExit) as stopped:
        main(list(words))
    assert stopped.value.code == 2
    said = capsys.readouterr().err
    assert "Traceback" not in said
    return said
