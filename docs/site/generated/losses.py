"""A page for each loss of the catalogue: formula, figure, recorded accuracies and cost."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import evidence_page

import contrapose
from contrapose import explain
from contrapose.lab.report.style import save
from contrapose.losses import CATALOGUE
from contrapose.losses.catalogue import Method
from generated import ROOT, cell, hidden_toctree, prose, texts

_TYPED = {
    "Arctanh": "arctanh(",
    "ShiftedCosine": "cosine(",
    "Cosine": "cosine(",
    "LearnedTemperature": "learned(",
    "LearnedNumber": "learned_number(",
}
COSTS = ROOT / "benchmarks" / "costs-h200.jsonl"


def write_loss_pages(folder: Path) -> None:
    """Write a page for each loss of the catalogue, with its figure beside NT-Xent's, and a table of all of them."""
    folder.mkdir()
    lines = ["# Losses", "", "| loss | what it is |", "|---|---|"]
    names = loss_names()
    for name in names:
        (folder / f"{name}.md").write_text("\n".join(loss_page(name, folder)) + "\n")
        lines.append(f"| [{name}]({name}.md) | {cell(_summary(name))} |")
    (folder / "index.md").write_text("\n".join(lines) + "\n" + hidden_toctree(names))


def loss_names() -> list[str]:
    """Return the names of all loss pages: the catalogue, and objectives that no method of the catalogue uses."""
    used = {method.objective.__name__ for method in CATALOGUE.values()}
    return sorted({*CATALOGUE, *(set(texts("losses")["objectives"]) - used)})


def page_of_objective(objective: str) -> str:
    """Return the name of the page that describes an objective: its own, or that of the first method that uses it."""
    names = [name for name, method in CATALOGUE.items() if method.objective.__name__ == objective]
    return objective if objective in names or not names else names[0]


def _summary(name: str) -> str:
    title: str = texts("losses")["objectives"].get(name, {}).get("title", "")
    return CATALOGUE[name].summary if name in CATALOGUE else title


def loss_page(name: str, folder: Path) -> Iterator[str]:
    """Yield the lines of a loss's page."""
    method = CATALOGUE.get(name)
    objective = name if method is None else method.objective.__name__
    own, general = texts("losses")["catalogue"].get(name, {}), texts("losses")["objectives"][objective]
    yield f"# {name}"
    summary = _summary(name)
    yield f"\n{summary[0].upper()}{summary[1:]}."
    if method is not None:
        yield f"\nIt is `{objective}({settings(method)})`: {general['title']}."
    formula = own.get("formula", general["formula"]).strip()
    yield f"\n```{{math}}\n{formula}\n```\n\n{own.get('where', general.get('where', ''))}"
    yield f"\n## What it does\n\n{prose(general['does'].strip())}"
    yield f"\n{prose(own.get('does', '').strip())}"
    yield from _figure(name, folder)
    yield "\n## When to use it"
    for key in ("use", "avoid"):
        text = prose((own.get(key) or general.get(key, "")).strip())
        yield f"\n{'**When not to use it:** ' if key == 'avoid' else ''}{text}" if text else ""
    yield "".join(f"\n- {prose(pitfall)}" for pitfall in general.get("pitfalls", []))
    if general.get("equals"):
        yield f"\n## Special cases{'' if name == objective else f' of `{objective}`'}\n\n| settings | the same as |\n|---|---|"
        yield "\n".join(f"| `{case['settings']}` | `{case['same_as']}` |" for case in general["equals"])
    yield f"\n## Example\n\n```python\n{own.get('example', general['example']).strip()}\n```"
    if method is not None:
        yield f"\nOn the command line: `contrapose train --loss {name}`."
    yield from measured(name)
    yield from cost(name)
    yield f"\n## Source\n\n{_source(own, general)}"
    if general.get("differs"):
        yield f"\n{prose(general['differs'].strip())}"
    yield f"\nArguments: [{objective}](#contrapose.{objective})." if hasattr(contrapose, objective) else ""


def _source(own: Mapping[str, str], general: Mapping[str, str]) -> str:
    """Return the paper of an objective; first that of the method, if another paper proposes it."""
    source = f"{general['paper']}; {general['equation']}."
    return f"{own['paper']}. Its objective: {source}" if "paper" in own else source


def settings(method: Method) -> str:
    """Return the settings of a method as a user types them: `cosine(…)` and not the class that it returns."""
    text = ", ".join(f"{key}={value!r}" for key, value in method.values.items())
    return re.sub(rf"\b({'|'.join(_TYPED)})\(", lambda found: _TYPED[found[1]], text)


def _figure(name: str, folder: Path) -> Iterator[str]:
    """Draw a loss beside NT-Xent, and yield the figure and its summary in words; nothing if it is no function of similarities."""
    others = () if name == "simclr" else ("simclr",)
    try:
        explanation = explain(name, *others)
        save(explanation.figure(), folder / f"{name}.png")
    except ValueError:
        return
    yield f"\n![{name} beside NT-Xent: temperature, push and pull]({name}.png)\n"
    yield f"Made by `contrapose explain {' --vs '.join((name, *others))}`. In words:\n"
    yield "\n".join(f"- {sentence}" for sentence in explanation.words()[name][1:])


def measured(name: str) -> Iterator[str]:
    """Yield the accuracies of a loss in our recorded runs, if there are any, beside those of NT-Xent at its best temperature."""
    rows = [row for row in recorded_rows() if row.loss == name]
    if rows:
        protocols = [row.protocol for row in rows]
        rows = [row for row in recorded_rows() if row in rows or (row.is_baseline and row.protocol in protocols)]
        yield "\n## In our runs\n\nCIFAR-10 unless it says otherwise; accuracy of the last epoch in per cent, with the standard"
        yield "deviation between seeds if there are several. NT-Xent's rows have its best temperature of those that were run."
        yield "[Evidence](../evidence.md) has the settings, and the other losses."
        yield "\n| protocol | loss | accuracy | runs |\n|---|---|---|---|"
        yield from (row.text for row in rows)


def cost(name: str, path: Path = COSTS) -> Iterator[str]:
    """Yield the time and memory of a step, from the records that benchmarks/costs.py has written to `path`."""
    if not path.exists():
        return
    machine, *rows = (json.loads(line) for line in path.read_text().splitlines())
    own = [row for row in rows if row["loss"] == name]
    if not own:
        return
    device = machine["device"].removeprefix("NVIDIA ")
    prototypes = f", {own[0]['prototypes']:,} prototypes" if "prototypes" in own[0] else ""
    yield "\n## Cost\n\nOne step, forward and backward, with the settings above, on embeddings of two views (half of them each),"
    yield f"{own[0]['d']} dimensions in bf16{prototypes}, on one {device} ([how it is measured](../benchmarks.md)):"
    yield "\n| embeddings | milliseconds | memory, MiB |\n|---|---|---|"
    for row in own:
        figures = row["note"] + " | " if "note" in row else f"{row['ms']:.2f} | {row['mib']:,.0f}"
        yield f"| {row['n']:,} | {figures} |"


@dataclass(frozen=True)
class RecordedRow:
    """A row of the table of recorded accuracies."""

    loss: str  # its name, without settings
    protocol: str
    text: str
    is_baseline: bool  # NT-Xent with the highest accuracy of its protocol


@cache
def recorded_rows() -> list[RecordedRow]:
    """Return a row for each loss and protocol of the evidence page, the most accurate of a protocol first."""
    rows = []
    for protocol in evidence_page.PROTOCOLS:
        averages = evidence_page.averages(protocol.results())
        baseline = next((printed for printed in averages if printed.startswith("NT-Xent, ")), None)
        for printed, results in averages.items():
            loss = json.loads((results[0].folder / "run.json").read_text())["loss"].partition("(")[0]
            text = f"| {protocol.title} | {printed} | {_mean(results)} | {len(results)} |"
            rows.append(RecordedRow(loss, protocol.title, text, printed == baseline))
    return rows


def _mean(results: Sequence[Any]) -> str:
    values = [result.accuracy for result in results]
    return f"{mean(values):.2f} ± {stdev(values):.2f}" if len(values) > 1 else f"{values[0]:.2f}"
