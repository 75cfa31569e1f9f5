"""The gallery of scripts and the notebooks: their sources for Sphinx, and their Markdown copies."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

from sphinx_gallery.py_source_parser import split_code_and_text_blocks

EXAMPLES = Path(__file__).parents[3] / "examples"


def copy_examples(source: Path) -> None:
    """Copy the scripts beside `source`, from where the gallery reads them, and the notebooks into it."""
    # Inside of `source`, Sphinx would take the gallery's header for a page.
    shutil.copytree(EXAMPLES, source.parent / "examples", ignore=shutil.ignore_patterns("__pycache__", "notebooks"))
    for path in (EXAMPLES / "notebooks").glob("*.ipynb"):
        shutil.copy(path, source / "notebooks" / path.name)


def write_markdown_copies(source: Path) -> None:
    """Write each script and each notebook as Markdown, without results; Sphinx must have read `source` before."""
    titles = {}
    for path in sorted(EXAMPLES.glob("*.py")):
        blocks = list(script_blocks(path))
        titles[path.stem] = blocks[0].splitlines()[0].removeprefix("# ")
        (source / "gallery" / f"{path.stem}.md").write_text("\n\n".join(blocks) + "\n")
    index = [f"- [{title}]({name}.md)" for name, title in titles.items()]
    (source / "gallery/index.md").write_text("\n".join(["# Gallery", "", *index, ""]))
    for path in (EXAMPLES / "notebooks").glob("*.ipynb"):
        (source / "notebooks" / f"{path.stem}.md").write_text("\n\n".join(notebook_blocks(path)) + "\n")


def script_blocks(path: Path) -> Iterator[str]:
    """Yield the text and code of a script as Markdown; the first block begins with its title."""
    for number, block in enumerate(split_code_and_text_blocks(path)[1]):
        text = block.content.strip()
        if number == 0:
            title, _, *rest = text.splitlines()  # the second line underlines the title
            text = "\n".join([f"# {title}", *rest])
        yield f"```python\n{text}\n```" if block.type == "code" else text


def notebook_blocks(path: Path) -> Iterator[str]:
    """Yield the cells of a notebook as Markdown."""
    for cell in json.loads(path.read_text())["cells"]:
        text = "".join(cell["source"])
        yield f"```python\n{text}\n```" if cell["cell_type"] == "code" else text
