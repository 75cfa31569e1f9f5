"""A file of thousands of brackets exhausts Python's stack, and is refused like other damaged files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from contrapose.lab.jobs.description import read_description
from contrapose.lab.training.config_file import read_config, read_settings
from contrapose.lab.training.continuation import read_extensions
from contrapose.lab.training.sources import recorded_data
from contrapose.lab.training.threads import _recorded_threads

BRACKETS = "[" * 100_000
READERS: dict[str, Callable[[Path], object]] = {
    "run.json": read_config,
    "run.toml": read_config,
    "job.toml": lambda path: read_description(f"local:{path}"),
    "data.json": lambda path: recorded_data(path.parent),
    "extensions.json": lambda path: read_extensions(path.parent),
    "environment.json": lambda path: _recorded_threads(path.parent),
}


@pytest.mark.parametrize("name", READERS)
def test_nested_brackets_are_refused(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_text(("a = " if name.endswith("toml") else "") + BRACKETS)
    with pytest.raises(ValueError, match=name) as error:
        READERS[name](path)
    assert "\n" not in str(error.value)


def test_nested_brackets_in_a_setting_are_text() -> None:
    assert read_settings([f"views={BRACKETS}"]) == {"views": BRACKETS}
