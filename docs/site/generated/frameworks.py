"""A page for each framework of the command line, with a diagram of what is trained and where the gradient stops."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from contrapose.lab.frameworks import FRAMEWORKS
from contrapose.lab.frameworks.protocols import presets_of
from contrapose.losses import CATALOGUE
from contrapose.losses.objective import traits_of
from generated import drawings, hidden_toctree, raw_html, texts

_INTRO = """# Frameworks

A framework says where positives and negatives come from: `contrapose train --framework NAME`. Most losses work in several
frameworks.

| framework | where positives and negatives come from |
|---|---|"""
_LEGEND = """Blue frame: trained. Dashed orange frame: a momentum copy. Filled: stored. Solid arrow: a gradient flows back. Dashed
arrow: none does. Dotted orange arrow: an update after the step."""


def write_pages(folder: Path) -> None:
    """Write a page for each framework, and a table of all of them."""
    folder.mkdir()
    lines = [_INTRO]
    for name, row in FRAMEWORKS.items():
        (folder / f"{name}.md").write_text("\n".join(page(name)) + "\n")
        lines.append(f"| [{texts('frameworks')[name]['title']}]({name}.md) | {row.summary} |")
    (folder / "index.md").write_text("\n".join(lines) + "\n" + hidden_toctree(list(FRAMEWORKS)))


def suitable_losses(name: str) -> list[str]:
    """Return the losses of the catalogue that can be trained in a framework."""
    return [loss for loss, method in CATALOGUE.items() if FRAMEWORKS[name].suits(traits_of(method.objective))]


def page(name: str) -> Iterator[str]:
    """Yield the lines of a framework's page."""
    row, text = FRAMEWORKS[name], texts("frameworks")[name]
    yield f"# {text['title']}\n\n{row.summary[0].upper()}{row.summary[1:]}.\n"
    yield text["does"]
    yield raw_html(drawings.diagram(text["boxes"], text["arrows"], f"diagram of {text['title']}"))
    yield _LEGEND
    yield f"\n- **Trained:** {text['trained']}\n- **Momentum copy:** {text['momentum']}\n- **No gradient:** {text['stops']}"
    yield f"\n## When to use it\n\n{text['use']}\n"
    yield "\n".join(f"- {pitfall}" for pitfall in text["pitfalls"])
    yield f"\n## Command line\n\n```bash\n{text['command']}\n```"
    presets = [preset for method, changes in row.presets.items() for preset in presets_of(method, changes)]
    if presets:
        yield "\nPresets: " + ", ".join(f"`{preset}`" for preset in presets) + "."
    yield "\n## Losses that fit\n"
    yield ", ".join(f"[{loss}](../losses/{loss}.md)" for loss in suitable_losses(name)) + "."
    if row.losses:
        yield f"\n`contrapose train --loss NAME` chooses this framework for {', '.join(f'`{loss}`' for loss in row.losses)}."
    yield f"\n## Source\n\n{text['paper']}."
