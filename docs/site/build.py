"""Build the site: `make docs`, or `python docs/site/build.py OUT`.

Pages are the Markdown files of this folder and of docs/, and pages that are made here: one for each loss, the reference, the
commands, the presets. Besides HTML, OUT has a Markdown copy of every page and llms.txt, which lists them.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import redirect_stdout, suppress
from functools import cache
from io import StringIO
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import contrapose
from contrapose import explain
from contrapose.lab.cli import main
from contrapose.lab.cli.commands import COMMANDS
from contrapose.lab.report.style import save
from contrapose.losses import CATALOGUE

SITE = Path(__file__).parent
DOCS = SITE.parent
ROOT = DOCS.parent
COSTS = [json.loads(line) for line in (ROOT / "benchmarks/wide-h200.jsonl").read_text().splitlines()]
sys.path.insert(0, str(ROOT / "benchmarks"))
import evidence_page  # noqa: E402

# Files outside docs/ that become pages
OTHERS = {
    "results": ROOT / "results/README.md",
    "benchmarks": ROOT / "benchmarks/README.md",
    "changelog": ROOT / "CHANGELOG.md",
}
CHOICES = [
    ("two views of each sample", "nt_xent(two_views(z1, z2), temperature=0.5)", "simclr"),
    ("two views, sparing likely false negatives", "nt_xent(two_views(z1, z2), temperature=cosine(0.07, 0.2))", "dystress"),
    ("more than two views", "cacr(views(torch.stack([z1, z2, z1 + z2])))", "cacr"),
    ("two views, small batches", "dcl(two_views(z1, z2), temperature=0.1)", "dcl"),
    ("pairs of texts, or of images and texts", "clip(cross(z1, z2), temperature=0.07)", "clip"),
    ("images and texts in very large batches", "siglip(cross(z1, z2), temperature=0.1, bias=-10.0)", "siglip"),
    ("labels", "supcon(two_views(z1, z2), labels=torch.arange(256) % 10, temperature=0.1)", "supcon"),
    ("a bank or a queue of stored embeddings", "nt_xent(queue(z1, z2, torch.randn(4096, 128)), temperature=0.2)", "contrastive"),
    ("two views, no negatives wanted", "vicreg(z1, z2)", "vicreg"),
]  # fmt: skip
_LINK = re.compile(r"\]\((?!https?:|#|mailto:)([^)#\s]+)(#[^)]*)?\)")


def build(out: Path) -> None:
    """Write the pages' sources to OUT/source, then HTML to OUT/html; warnings are errors."""
    source = out / "source"
    shutil.rmtree(out, ignore_errors=True)
    shutil.copytree(SITE, source, ignore=shutil.ignore_patterns("__pycache__", "build.py"))
    for path in [*DOCS.glob("*.png"), *DOCS.glob("*.svg")]:
        shutil.copy(path, source / path.name)
    pages = {path.stem: path for path in DOCS.glob("*.md")} | OTHERS
    for name, path in pages.items():
        (source / f"{name}.md").write_text(_relink(path, pages))
    (source / "index.md").write_text((SITE / "index.md").read_text().replace("{{choices}}", choose_table()))
    write_loss_pages(source / "losses")
    (source / "moving.md").write_text(moving_page())
    (source / "reference").mkdir()
    (source / "reference/api.md").write_text(api_page())
    (source / "reference/commands.md").write_text(commands_page())
    (source / "reference/presets.md").write_text(presets_page())
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-j", "auto", "-b", "html"]
    subprocess.run([*command, str(source), str(out / "html")], check=True)
    write_markdown(source, out / "html")


def _relink(path: Path, pages: Mapping[str, Path]) -> str:
    """Return a page's text, with links to other pages of the site; links to other files become plain text."""
    names = {page.resolve(): name for name, page in pages.items()}

    def link(found: re.Match[str]) -> str:
        target = (path.parent / found[1]).resolve()
        if target in names:
            return f"]({names[target]}.md{found[2] or ''})"
        if target.suffix in (".png", ".svg") and target.parent == DOCS.resolve():
            return f"]({target.name})"
        shown = target.relative_to(ROOT.resolve()) if target.is_relative_to(ROOT.resolve()) else Path(found[1])
        return f"](file:{shown})"

    text = _LINK.sub(link, path.read_text())
    # A file of the repository that is no page: its name stays, without a link.
    return re.sub(r"(?<!!)\[([^\]]*)\]\(file:([^)]*)\)", r"\1 (`\2`)", text)


def choose_table() -> str:
    """Return the table of the entry page: data, which links to the loss's page, and a line of code."""
    rows = [f"| [{data}](losses/{page}.md) | `{code}` |" for data, code, page in CHOICES]
    return "\n".join(["| your data | one line |", "|---|---|", *rows])


def write_loss_pages(folder: Path) -> None:
    """Write a page for each loss of the catalogue, with its figure beside NT-Xent's, and a table of all of them."""
    folder.mkdir()
    texts = tomllib.loads((DOCS / "losses.toml").read_text())
    lines = ["# Losses", "", "| loss | what it is |", "|---|---|"]
    for name, method in sorted(CATALOGUE.items()):
        (folder / f"{name}.md").write_text("\n".join(loss_page(name, texts, folder)) + "\n")
        lines.append(f"| [{name}]({name}.md) | {method.summary} |")
    lines += ["", "```{toctree}", ":hidden:", "", *sorted(CATALOGUE), "```", ""]
    (folder / "index.md").write_text("\n".join(lines))


def loss_page(name: str, texts: Mapping[str, Mapping[str, Any]], folder: Path) -> Iterator[str]:
    """Yield the lines of a loss's page."""
    method = CATALOGUE[name]
    objective = method.objective.__name__
    own, general = texts["catalogue"][name], texts["objectives"][objective]
    yield f"# {name}"
    yield f"\n{method.summary[0].upper()}{method.summary[1:]}."
    settings = ", ".join(f"{key}={value!r}" for key, value in method.values.items())
    yield f"\nIt is `{objective}({settings})`: {general['title']}."
    yield f"\n```{{math}}\n{general['formula'].strip()}\n```\n\n{general.get('where', '')}"
    yield f"\n## What it does\n\n{general['does'].strip()}"
    yield f"\n{own['does'].strip()}"
    figure = list(_figure(name, folder))
    yield from figure
    yield "\n## When to use it"
    for key in ("use", "avoid"):
        text = (own.get(key) or general.get(key, "")).strip()
        yield f"\n{'**Not for:** ' if key == 'avoid' else ''}{text}" if text else ""
    yield "".join(f"\n- {pitfall}" for pitfall in general.get("pitfalls", []))
    if general.get("equals"):
        yield "\n## Special cases\n\n| settings | the same as |\n|---|---|"
        yield "\n".join(f"| `{case['settings']}` | `{case['same_as']}` |" for case in general["equals"])
    yield f"\n## Example\n\n```python\n{general['example'].strip()}\n```"
    explained = f", `contrapose explain {name}`" if figure else ""
    yield f"\nOn the command line: `contrapose train --loss {name}`{explained}."
    yield from _measured(name, objective)
    yield f"\n## Source\n\n{general['paper']}; {general['equation']}."
    if general.get("differs"):
        yield f"\n{general['differs'].strip()}"
    yield f"\nArguments: [{objective}](#contrapose.{objective})." if hasattr(contrapose, objective) else ""


def _figure(name: str, folder: Path) -> Iterator[str]:
    """Draw a loss beside NT-Xent, and yield the figure and its summary in words; nothing if it is no function of similarities."""
    others = () if name == "simclr" else ("simclr",)
    try:
        explanation = explain(name, *others)
        save(explanation.figure(), folder / f"{name}.png")
    except ValueError:
        return
    yield f"\n![{name} beside NT-Xent: temperature, push and pull]({name}.png)\n"
    yield "\n".join(f"- {sentence}" for sentence in explanation.words()[name][1:])


def _measured(name: str, objective: str) -> Iterator[str]:
    """Yield the accuracies of a loss in our recorded runs, and what it costs, as far as they were measured."""
    rows = [row for loss, row in recorded_rows() if loss == name]
    if rows:
        yield "\n## In our runs\n\nCIFAR-10 unless it says otherwise; accuracy of the last epoch in per cent, with the standard"
        yield "deviation between seeds if there are several. [Evidence](../evidence.md) has the settings, and the other losses."
        yield "\n| protocol | loss | accuracy | runs |\n|---|---|---|---|"
        yield from rows
    costs = [row for row in COSTS if row.get("who") == "ours" and row["loss"] == objective and row["d"] == 128]
    costs = [row for row in costs if row["n"] in (8192, 65536) and row["dtype"] == "bfloat16"]
    # A temperature that depends on similarity has another cost than a number.
    if costs and all(isinstance(value, int | float) for value in CATALOGUE[name].values.values()):
        yield "\n## Cost\n\nForward and backward pass, 128 dimensions in bf16, one H200 ([benchmarks](../benchmarks.md)):"
        yield "\n| embeddings | milliseconds | memory, MiB |\n|---|---|---|"
        yield from (f"| {row['n']:,} | {row['ms']:.2f} | {row['mib']:,.0f} |" for row in costs)


@cache
def recorded_rows() -> list[tuple[str, str]]:
    """Return the name of the loss and a row of a table for each loss and protocol of the evidence page."""
    return [
        (
            json.loads((results[0].folder / "run.json").read_text())["loss"].partition("(")[0],
            f"| {protocol.title} | {printed} | {_mean(results)} | {len(results)} |",
        )
        for protocol in evidence_page.PROTOCOLS
        for printed, results in evidence_page.averages(protocol.results()).items()
    ]


def _mean(results: Sequence[Any]) -> str:
    values = [result.accuracy for result in results]
    return f"{mean(values):.2f} ± {stdev(values):.2f}" if len(values) > 1 else f"{values[0]:.2f}"


def moving_page() -> str:
    """Return the page on other libraries' calls and ours that give the same numbers."""
    lines = [
        "# Moving from another library",
        "",
        "Each row gives the same value and gradients, which a test checks beside the real package.",
    ]
    lines += ["`z1` and `z2` are embeddings of two views, or of two kinds of data; they need no normalisation here."]
    for library in tomllib.loads((DOCS / "moving.toml").read_text())["library"]:
        lines += [
            "",
            f"## {library['title']}",
            "",
            library.get("note", ""),
            "",
            "```python",
            library["setup"],
            "```",
            "",
        ]
        lines += [f"| {library['title']} | contrapose |", "|---|---|"]
        lines += [f"| `{theirs}` | `{ours}` |" for theirs, ours in library["rows"]]
    return "\n".join(lines) + "\n"


def api_page() -> str:
    """Return the reference of all public names, by the module that defines them."""
    lines = ["# Python", "", "Everything that `import contrapose` offers."]
    kinds = {"losses": "Losses", "pairs": "Pairs", "temperature": "Temperatures", "": "Other names"}
    names = {name: getattr(contrapose, name) for name in contrapose.__all__ if name != "CATALOGUE"}
    for kind, title in kinds.items():
        chosen = [n for n, value in names.items() if _kind(value) == kind or (not kind and _kind(value) not in kinds)]
        lines += ["", f"## {title}", "", "```{eval-rst}"]
        for name in sorted(chosen, key=str.lower):
            directive = "autoclass" if isinstance(names[name], type) else "autofunction"
            members = ["   :members:"] if directive == "autoclass" else []
            lines += [f".. {directive}:: contrapose.{name}", *members, ""]
        lines.append("```")
    return "\n".join(lines) + "\n"


def _kind(value: object) -> str:
    module = getattr(value, "__module__", "") or ""
    return module.split(".")[1] if module.count(".") else ""


def commands_page() -> str:
    """Return the help of every command."""
    lines = ["# Commands"]
    for command in COMMANDS:
        lines += ["", f"## contrapose {command}", "", "```text", _run(*command.split(), "--help").rstrip(), "```"]
    return "\n".join(lines) + "\n"


def presets_page() -> str:
    """Return the list of presets."""
    return f"# Presets\n\n`contrapose train --preset NAME`:\n\n```text\n{_run('presets').rstrip()}\n```\n"


def _run(*arguments: str) -> str:
    """Return what a command prints."""
    printed = StringIO()
    with redirect_stdout(printed), suppress(SystemExit):
        main(list(arguments))
    return printed.getvalue()


def write_markdown(source: Path, html: Path) -> None:
    """Copy each page's Markdown beside its HTML, and list all of them in llms.txt."""
    lines = ["# contrapose", "", "> Contrastive losses with temperature, hardness and balance as choices.", ""]
    for path in sorted(source.rglob("*.md")):
        name = path.relative_to(source)
        (html / name).write_text(path.read_text())
        title = next((line[2:] for line in path.read_text().splitlines() if line.startswith("# ")), name.stem)
        lines.append(f"- [{title}]({name})")
    (html / "llms.txt").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    build(Path(sys.argv[1]))
