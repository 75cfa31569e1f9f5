"""Build the site: `make docs`, or `python docs/site/build.py OUT`.

Pages are the Markdown files of this folder and of docs/, and those that `generated/` makes: losses, temperatures, negatives,
metrics, frameworks, the reference. Besides HTML, OUT has a Markdown copy of every page and llms.txt, which lists them.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path

SITE = Path(__file__).parent
DOCS = SITE.parent
ROOT = DOCS.parent
sys.path.insert(0, str(SITE))
from generated import choose, examples, frameworks, losses, markdown, parts, raw_html, reference  # noqa: E402

# Files outside docs/ that become pages
OTHERS = {
    "results": ROOT / "results/README.md",
    "benchmarks": ROOT / "benchmarks/README.md",
    "changelog": ROOT / "CHANGELOG.md",
}
UNSEARCHED = ("changelog",)  # it names everything, and would come before the page that explains it
FIGURES = (DOCS.resolve(), (ROOT / "results").resolve())  # folders of figures that pages show
API = Path("reference/api.md")
# Blocks, and calls such as `CATALOGUE["dystress"]("cifar10")`, which look like a link
_CODE = re.compile(r"(^```.*?^```$|`[^`\n]*\]\([^`\n]*`)", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"\]\((?!https?:|#|mailto:)([^)#\s]+)(#[^)]*)?\)")


def build(out: Path) -> None:
    """Write the pages' sources to OUT/source, then HTML to OUT/html; warnings are errors."""
    source = out / "source"
    shutil.rmtree(out, ignore_errors=True)
    shutil.copytree(SITE, source, ignore=shutil.ignore_patterns("__pycache__", "build.py", "generated"))
    for path in (path for folder in FIGURES for ending in ("png", "svg") for path in folder.glob(f"*.{ending}")):
        shutil.copy(path, source / path.name)
    pages = {path.stem: path for path in DOCS.glob("*.md")} | OTHERS
    for name, path in pages.items():
        unsearched = "---\nno-search: true\n---\n\n" if name in UNSEARCHED else ""
        (source / f"{name}.md").write_text(unsearched + _relink(path, pages))
    write_generated(source)
    examples.copy_examples(source)
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-j", "auto", "-b", "html"]
    # The gallery trains in Sphinx's process, which then forks: OpenMP's threads would not survive that.
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    subprocess.run([*command, str(source), str(out / "html")], check=True, env=environment)
    examples.write_markdown_copies(source)
    write_markdown(source, out / "html")


def write_generated(source: Path) -> None:
    """Write the pages that are made here, and fill the tables of the pages that have a place for one."""
    cards = {kind: choose.cards(kind) for kind in ("data", "conditions")}
    _fill(source / "index.md", difference=choose.least_difference(), **cards)
    table, slider = parts.table("temperatures", "temperatures/"), raw_html(parts.slider("", static="_static"))
    _fill(source / "temperature.md", temperatures=table, slider=slider)
    _fill(source / "conformance.md", table=reference.conformance_table())
    losses.write_loss_pages(source / "losses")
    parts.write_pages(source)
    frameworks.write_pages(source / "frameworks")
    (source / "moving.md").write_text(moving_page())
    (source / "studies.md").write_text(reference.studies_page((source / "studies.md").read_text()))
    (source / "reference").mkdir()
    (source / API).write_text(reference.api_page())
    (source / "reference/commands.md").write_text(reference.commands_page())
    (source / "reference/presets.md").write_text(reference.presets_page())
    (source / "reference/conformance.md").write_text(reference.conformance_page())


def _fill(page: Path, **parts: str) -> None:
    """Replace {{name}} in a page by the part of that name."""
    text = page.read_text()
    for name, part in parts.items():
        text = text.replace(f"{{{{{name}}}}}", part)
    page.write_text(text)


def _relink(path: Path, pages: Mapping[str, Path]) -> str:
    """Return a page's text, with links to other pages of the site; links to other files become plain text."""
    names = {page.resolve(): name for name, page in pages.items()}

    def link(found: re.Match[str]) -> str:
        target = (path.parent / found[1]).resolve()
        if target in names:
            return f"]({names[target]}.md{found[2] or ''})"
        if target.suffix in (".png", ".svg") and target.parent in FIGURES:
            return f"]({target.name})"
        shown = target.relative_to(ROOT.resolve()) if target.is_relative_to(ROOT.resolve()) else Path(found[1])
        return f"](file:{shown})"

    parts = _CODE.split(path.read_text())
    # A file of the repository that is no page: its name stays, without a link.
    parts[::2] = [
        re.sub(r"(?<!!)\[([^\]]*)\]\(file:([^)]*)\)", r"\1 (`\2`)", _LINK.sub(link, part)) for part in parts[::2]
    ]
    return "".join(parts)


def moving_page() -> str:
    """Return the page on other libraries' calls and ours that give the same numbers."""
    lines = [
        "# Moving from another library",
        "",
        "Each row gives the same value and gradients, which a test checks beside the real package.",
    ]
    lines += [
        "`z1` and `z2` are embeddings of two views, or of two kinds of data; they need no normalisation here. In a loop, only the"
    ]
    lines += ["line of the loss changes. If your loop expects a module, write"]
    lines += ["`criterion = Loss(nt_xent, temperature=0.5)`, called with `(z1, z2)`."]
    lines += ["", "```python"]
    lines += ["from contrapose import Loss, barlow_twins, clip, cross, dcl, dclw, nt_xent, queue, siglip"]
    lines += ["from contrapose import supcon, two_views, vicreg, views"]
    lines += ["```"]
    for library in tomllib.loads((DOCS / "moving.toml").read_text())["library"]:
        lines += [
            "",
            f"## {library['title']}",
            "",
            f"Checked with {library['title']} {library['version']}. {library['note']}",
            "",
            "```python",
            library["setup"].strip(),
            "```",
            "",
        ]
        lines += [f"| {library['title']} | contrapose |", "|---|---|"]
        lines += [f"| `{theirs}` | `{ours}` |" for theirs, ours in library["rows"]]
    return "\n".join(lines) + "\n"


def write_markdown(source: Path, html: Path) -> None:
    """Copy each page's Markdown beside its HTML, and list all of them in llms.txt."""
    lines = ["# contrapose", "", "> Contrastive losses with temperature, hardness and balance as choices.", ""]
    for path in sorted(source.rglob("*.md")):
        name = path.relative_to(source)
        text = reference.api_markdown() if name == API else markdown.plain_markdown(path.read_text(), name)
        (html / name).write_text(text)
        title = next((line[2:] for line in text.splitlines() if line.startswith("# ")), name.stem)
        lines.append(f"- [{title}]({name})")
    (html / "llms.txt").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    build(Path(sys.argv[1]))
