"""A progress bar appears on a terminal, in commands that allow one, and only for long work."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from contextlib import suppress

import pytest

from contrapose.lab.modalities import progress
from contrapose.lab.modalities.progress import allow_progress_bars, progress_bar

CODE = """
import time
from contrapose.lab.modalities.progress import allow_progress_bars, progress_bar
with {context}, progress_bar("reading images", 30) as advance:
    for _ in range(30):
        time.sleep({seconds})
        advance()
print("done")
"""


def terminal_output(context: str, seconds: float) -> str:
    """Run the code with a terminal as stderr, and return what it shows."""
    ours, theirs = pty.openpty()
    code = CODE.format(context=context, seconds=seconds)
    environment = os.environ | {"TERM": "xterm"}
    result = subprocess.run(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=theirs, env=environment, check=True
    )
    assert result.stdout == b"done\n"
    os.close(theirs)
    shown = b""
    with suppress(OSError):  # the end of a terminal's output
        while part := os.read(ours, 65536):
            shown += part
    os.close(ours)
    return shown.decode()


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("context", "seconds", "expected"),
    [("allow_progress_bars()", 0.05, True), ("allow_progress_bars()", 0.0, False), ("open('/dev/null')", 0.05, False)],
    ids=["long", "short", "library"],
)
def test_a_bar_on_a_terminal(context: str, seconds: float, expected: bool) -> None:
    shown = terminal_output(context, seconds)
    assert ("reading images" in shown) is expected
    assert expected or shown == ""


def test_lines_where_stderr_is_not_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "LINE_INTERVAL", 0.0)
    with allow_progress_bars(), progress_bar("reading images", 1500) as advance:
        advance()
        advance()
    assert capsys.readouterr().err.splitlines() == ["reading images: 1 of 1,500", "reading images: 2 of 1,500"]
