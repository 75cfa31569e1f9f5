"""The gallery's scripts and the notebooks: they run, and end with a figure that says what was found."""

from __future__ import annotations

import json
import re
import runpy
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import matplotlib as mpl
import pytest

ROOT = Path(__file__).parents[1]
RACE = ROOT / "examples/race.py"  # needs a GPU and CIFAR-10; tests/test_race.py
SCRIPTS = sorted({*(ROOT / "examples").glob("*.py")} - {RACE})
NOTEBOOKS = sorted((ROOT / "examples/notebooks").glob("*.ipynb"))


def test_the_gallery_has_twelve_scripts() -> None:
    listed = runpy.run_path(str(ROOT / "docs/site/conf.py"))["GALLERY"]
    assert len(listed) == 12
    assert sorted(listed) == [path.name for path in SCRIPTS]


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_scripts_are_short_and_use_only_what_is_public(path: Path) -> None:
    text = path.read_text()
    assert 40 <= len(text.splitlines()) <= 95
    assert not re.search(r"contrapose\.(lab|reduce)", text)


@pytest.fixture
def pyplot() -> Iterator[Any]:
    mpl.use("agg")
    from matplotlib import pyplot

    yield pyplot
    pyplot.close("all")


@pytest.mark.thorough
@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_a_script_ends_with_one_labelled_figure(path: Path, pyplot: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", [str(path)])
    runpy.run_path(str(path), run_name="__main__")
    (number,) = pyplot.get_fignums()
    figure = pyplot.figure(number)
    plots = [axes for axes in figure.axes if axes.get_label() != "<colorbar>"]
    assert plots[-1].get_xlabel()
    assert all(axes.get_ylabel() or axes.get_yticklabels() for axes in plots)
    # A number in the title: the script computes what it says.
    assert re.search(r"\d", figure.get_suptitle() or plots[0].get_title())


def test_notebooks_are_stored_without_results() -> None:
    assert len(NOTEBOOKS) == 3
    for path in NOTEBOOKS:
        cells = [cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code"]
        assert cells
        assert not any(cell["outputs"] or cell["execution_count"] for cell in cells)


@pytest.mark.slow  # the site, which `make test-all` builds, runs them too
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path: Path, tmp_path: Path) -> None:
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(path, as_version=4)
    NotebookClient(notebook, timeout=200, resources={"metadata": {"path": str(tmp_path)}}).execute()
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    assert any("image/png" in output.get("data", {}) for output in outputs)


def test_markdown_copies_have_all_of_the_code() -> None:
    pages = runpy.run_path(str(ROOT / "docs/site/generated/examples.py"))
    for path in SCRIPTS:
        first, *rest = pages["script_blocks"](path)
        assert re.match(r"# \w.*\n\n\S", first)
        assert rest[-1].startswith("```python\n")
        code = [line for line in path.read_text().partition('"""\n\n')[2].splitlines() if not line.startswith("#")]
        assert [line for line in code if line] == [
            line for block in rest if block.startswith("```") for line in block.splitlines()[1:-1] if line
        ]
    for path in NOTEBOOKS:
        blocks = list(pages["notebook_blocks"](path))
        assert blocks[0].startswith("# ")
        assert any(block.startswith("```python\n") for block in blocks)
