"""`contrapose explain` and `map`: the files that they write, and the names of runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from contrapose.lab.cli import main
from contrapose.lab.cli.explain import name_apart
from contrapose.lab.report.embedding import NamedEmbedding


@pytest.mark.thorough
def test_the_page_is_utf8_whatever_the_locale(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = Path.write_text

    def write_text(path: Path, text: str, encoding: str = "latin-1", **options: Any) -> int:
        return write(path, text, encoding=encoding, **options)

    monkeypatch.setattr(Path, "write_text", write_text)
    main(["explain", "simclr", "-o", str(tmp_path / "out.png")])
    assert "∂" in (tmp_path / "out.html").read_text(encoding="utf-8")


def test_panels_of_one_loss_have_the_names_of_their_runs() -> None:
    same, other = NamedEmbedding("simclr", torch.eye(3)), NamedEmbedding("dystress", torch.eye(3))
    folders = [Path("runs/A"), Path("runs/B")]
    assert [named.name for named in name_apart([same, other], folders)] == ["simclr", "dystress"]
    assert [named.name for named in name_apart([same, same], folders)] == ["simclr (A)", "simclr (B)"]
    others = [Path("one/A"), Path("two/A")]
    assert [named.name for named in name_apart([same, same], others)] == ["simclr (one/A)", "simclr (two/A)"]
