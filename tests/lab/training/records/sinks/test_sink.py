"""The id and the last step of a run in a dashboard are kept in the run's directory."""

from __future__ import annotations

from pathlib import Path

import pytest

from contrapose.lab.training.records.sinks.sink import Bookmark


def test_a_bookmark_is_kept(tmp_path: Path) -> None:
    new = Bookmark.open(tmp_path / "wandb.json")
    assert new.last_step == -1
    assert len(new.id) == 8
    assert Bookmark.open(tmp_path / "wandb.json") == new  # also if the process is killed before the first record
    new.move(12)
    assert Bookmark.open(tmp_path / "wandb.json") == Bookmark(tmp_path / "wandb.json", new.id, 12)
    assert Bookmark.open(tmp_path / "other.json").id != new.id


def test_a_damaged_bookmark(tmp_path: Path) -> None:
    (tmp_path / "wandb.json").write_text('{"id": ')
    with pytest.raises(ValueError, match=r"wandb.json is damaged: it is not JSON"):
        Bookmark.open(tmp_path / "wandb.json")
