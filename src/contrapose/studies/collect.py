"""From directories of runs to a study's results, and from those to a page."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from contrapose.report.document import Document, RunNote, Section
from contrapose.studies.claims import UNDECIDED, Verdict
from contrapose.studies.results import Cell, Left, Results
from contrapose.studies.shows import table
from contrapose.studies.study import Plan
from contrapose.training import Run


def collect(plan: Plan, seeds: int, root: Path) -> Results:
    """What the plan's runs have left behind so far."""
    cells, records, evaluations = {}, {}, {}
    for row in plan.study.rows:
        for on in plan.sets:
            if row.missing:
                continue
            lefts = [(name := plan.run(row, on, seed).name, Left(root / name)) for seed in range(seeds)]
            epochs = plan.run(row, on).epochs
            records[row.name, on.name] = tuple(left.records() for _, left in lefts)
            evaluations[row.name, on.name] = tuple(left.evaluations() for _, left in lefts)
            for quantity in plan.study.quantities:
                cells[row.name, quantity.name, on.name] = _cell(lefts, quantity.measure, epochs)
    runnable = frozenset(row.name for row in plan.study.rows if not row.missing)
    return Results(plan.scale, seeds, tuple(on.name for on in plan.sets), runnable, cells, records, evaluations)


def _cell(lefts: Sequence[tuple[str, Left]], measure: str, epochs: int) -> Cell:
    values, runs, holes = [], [], []
    for name, left in lefts:
        value = left.value(measure) if left.trained(epochs) else None
        if value is not None:
            values.append(value)
            runs.append(name)
        else:
            none = "timed beside other runs" if measure == "step_seconds" else "there is no such number"
            holes.append(left.failure() or (none if left.trained(epochs) else "not run"))
    return Cell(tuple(values), tuple(runs), tuple(holes))


def verdicts(plan: Plan, results: Results) -> list[Verdict]:
    """How each claim came out; a smoke run decides nothing about a paper."""
    found = [claim(results) for claim in plan.study.claims]
    if plan.scale != "smoke" or plan.study.analytic:
        return found
    return [
        replace(verdict, outcome=UNDECIDED, evidence=f"{verdict.evidence}; too small to decide") for verdict in found
    ]


def section(plan: Plan, results: Results) -> Section:
    """A study as a part of a page."""
    study = plan.study
    blocks = (study.show or table)(study, results)
    notes = [f"{study.paper}."] if study.paper else []
    notes += [study.note] if study.note else []
    if study.rows:
        where = ", ".join(f"{on.name} ({on.data})" for on in plan.sets)
        scale = "Settings of its own" if plan.scale == "own" else f"Scale {plan.scale}"
        notes.append(f"{scale}, {_seeds(results.seeds)}, on {where}.")
    if any(quantity.measure.startswith("linear") for quantity in study.quantities) and study.rows:
        notes.append("Linear probes learn from images that are not augmented, and their last epoch counts.")
    if plan.scale == "smoke" and study.rows:
        notes.append("The smoke scale shows that everything runs; it says nothing about the paper.")
    if plan.scale == "small" and study.small:
        changed = ", ".join(f"{key} {value}" for key, value in study.small.items())
        notes.append(f"Shortened against the paper: {changed}.")
    found = tuple((v.statement, v.outcome, v.evidence) for v in verdicts(plan, results))
    title = f"{study.name}: {study.title}"
    return Section(title, study.claim, found, tuple(blocks), tuple(notes), study.name.replace("/", "-"))


def _seeds(count: int) -> str:
    return "one seed" if count == 1 else f"{count} seeds"


def document(plans: Sequence[Plan], seeds: int, root: Path, *, title: str = "", lead: str = "") -> Document:
    """A page of studies, from what is in their runs' directories: the same directories, the same page."""
    sections: list[Section] = []
    names: dict[str, Run] = {}
    for plan in plans:
        sections.append(section(plan, collect(plan, seeds, root)))
        names |= plan.wanted(seeds)
    notes = [note for name in names if (note := run_note(root / name)) is not None]
    title = title or ", ".join(plan.study.name for plan in plans)
    return Document(title, lead, tuple(sections), tuple(notes), foot([root / name for name in names]))


def run_note(folder: Path) -> RunNote | None:
    """What a reader needs to do the run again."""
    left = Left(folder)
    settings, records = left.settings(), left.records()
    if not settings:
        return None
    seconds = sum(record["seconds"] for record in records)
    facts = [("seconds of training", f"{seconds:.0f}"), ("epochs recorded", str(len(records)))]
    facts += [("failed", left.failure())] if left.failure() else []
    facts.append(("settings", json.dumps(settings, ensure_ascii=False)))
    return RunNote(folder.name, tuple(facts))


def foot(folders: Sequence[Path]) -> tuple[str, ...]:
    """Machines and versions, as the runs recorded them."""
    found = {json.dumps(Left(folder).environment(), sort_keys=True) for folder in folders}
    lines = []
    for text in sorted(found - {"{}"}):
        one = json.loads(text)
        lines.append(
            f"contrapose {one['contrapose']}, torch {one['torch']}, Python {one['python']}, {one['machine']}, "
            f"{one['cores']} cores, {one['device']}"
        )
    return tuple(lines)
