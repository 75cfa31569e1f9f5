"""`contrapose explain` and `map`: the files that they write, and the names of runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from contrapose.lab.cli import main


@pytest.mark.thorough
def test_the_page_is_utf8_whatever_the_locale(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = Path.write_text

    def write_text(path: Path, text: str, encoding: str = "latin-1", **options: Any) -> int:
        return write(path, text, encoding=encoding, **options)

    monkeypatch.setattr(Path, "write_text", write_text)
    main(["explain", "simclr", "-o", str(tmp_path / "out.png")])
    assert "∂" in (tmp_path / "out.html").read_text(encoding="utf-8")
