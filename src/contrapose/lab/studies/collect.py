"""Collect a study's results from the directories of its runs, and build the report page."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from contrapose.lab.report.document import Document, RunNote, Section
from contrapose.lab.studies.claims import UNDECIDED, Claim, Verdict
from contrapose.lab.studies.collapse import collapse_section
from contrapose.lab.studies.measures import Evaluation, LinearProbe, Measure
from contrapose.lab.studies.measures.classifiers import SMOKE_PROBE_EPOCHS
from contrapose.lab.studies.protocol import describe_quantities
from contrapose.lab.studies.report_blocks import table
from contrapose.lab.studies.results import Cell, Results
from contrapose.lab.studies.run_directory import Reading, RunDirectory
from contrapose.lab.studies.study import Plan
from contrapose.lab.training import Run
from contrapose.lab.training.collapse import collapse_in_words


def collect(plan: Plan, seeds: int, root: Path) -> Results:
    """Return the results of those runs of a plan that exist so far."""
    cells, records, evaluations = {}, {}, {}
    for row in plan.study.rows:
        for study_data in plan.sets:
            runs = [plan.run(row, study_data, seed) for seed in range(seeds)]
            directories = [RunDirectory(root / run.name) for run in runs]
            records[row.name, study_data.name] = tuple(directory.records() for directory in directories)
            evaluations[row.name, study_data.name] = tuple(directory.evaluations() for directory in directories)
            for quantity in plan.study.quantities:
                measure = plan.measure(quantity, study_data, row)
                cell = _cell(directories, measure, runs[0].epochs, plan.downstream)
                cells[row.name, quantity.name, study_data.name] = cell.negated() if quantity.negated else cell
    return Results(
        scale=plan.scale,
        seeds=seeds,
        sets=tuple(study_data.name for study_data in plan.sets),
        rows=frozenset(row.name for row in plan.study.rows),
        cells=cells,
        records=records,
        evaluations=evaluations,
    )


def _cell(directories: Sequence[RunDirectory], measure: Measure, epochs: int, downstream: Mapping[str, str]) -> Cell:
    """Return the values of a measure, one per run directory, and the reasons for missing values."""
    values, runs, missing_reasons, older_forms, errors = [], [], [], [], []
    missing_data = measure.missing_data(downstream)
    for directory in directories:
        trained = directory.trained(epochs)
        # A run's directory may hold the same measure for other data, which must not appear in this report.
        other_data = (
            measure.needs_data and isinstance(measure, Evaluation) and not measure.is_taken(directory, downstream)
        )
        measured = trained and not missing_data and not other_data
        value, older_form = measure.read(directory) if measured else Reading()
        if value is not None:
            values.append(value)
            runs.append(directory.folder.name)
            older_forms += [older_form] if older_form else []
            error = measure.read_error(directory)
            errors += [] if error is None else [error]
        else:
            unmeasured = measure.missing_reason(directory) if trained else "not run"
            missing_reasons.append(missing_data or directory.failure() or unmeasured)
    return Cell(
        values=tuple(values),
        runs=tuple(runs),
        missing_reasons=tuple(missing_reasons),
        older_forms=tuple(older_forms),
        errors=tuple(errors),
    )


def verdicts(plan: Plan, results: Results) -> list[Verdict]:
    """Return the verdict on each claim. At the smoke scale every claim is undecided: the runs are too small to test a paper."""
    judged = [_judge(claim, results) for claim in plan.study.claims]
    if plan.scale != "smoke" or plan.study.analytic:
        return judged
    return [
        replace(verdict, outcome=UNDECIDED, evidence=f"{verdict.evidence}; too small to decide") for verdict in judged
    ]


def _judge(claim: Claim, results: Results) -> Verdict:
    """Return the verdict on a claim; its evidence says if a cell that the claim reads has an older run's quantity."""
    cells = _ReadCells(results.cells)
    verdict = claim(replace(results, cells=cells))
    forms = dict.fromkeys(form for key in cells.read for form in results.cells[key].older_forms)
    if not forms:
        return verdict
    instead = f"older runs: not the study's own quantity, but that of {' and '.join(forms)}"
    return replace(verdict, evidence=f"{verdict.evidence}; {instead}")


class _ReadCells(dict[tuple[str, str, str], Cell]):
    """Cells of `Results` that remember which of them were read."""

    def __init__(self, cells: Mapping[tuple[str, str, str], Cell]) -> None:
        super().__init__(cells)
        self.read: list[tuple[str, str, str]] = []

    def get(self, key: tuple[str, str, str], default: Any = None) -> Any:
        """Return a cell and remember its key."""
        if key in self:
            self.read.append(key)
        return super().get(key, default)


def section(plan: Plan, results: Results) -> Section:
    """Return the section of the report about one study."""
    study = plan.study
    blocks = (study.show or table)(study, results)
    notes = [f"{study.paper}."] if study.paper else []
    notes += [study.note] if study.note else []
    notes += [f"Different from the paper: {' '.join(study.differences)}"] if study.differences else []
    if study.rows and plan.scale != "own":  # the page of `compare` already describes the settings
        where = ", ".join(f"{study_data.name} ({study_data.data})" for study_data in plan.sets)
        notes.append(f"Scale {plan.scale}, {_seeds(results.seeds)}, on {where}.")
        notes.append(f"Measured: {'; '.join(describe_quantities(plan))}.")
    if plan.downstream:
        paths = ", ".join(f"{name} ({path})" for name, path in plan.downstream.items())
        notes.append(f"Evaluated after training on {paths}.")
    if plan.scale == "smoke" and any(isinstance(quantity.measure, LinearProbe) for quantity in study.quantities):
        notes.append(f"Linear probes have {SMOKE_PROBE_EPOCHS} epochs at the smoke scale.")
    if plan.scale == "smoke" and study.rows:
        notes.append("The smoke scale only shows that everything runs; it does not test the paper.")
    if plan.scale_settings:
        changed = ", ".join(f"{key} {value}" for key, value in plan.scale_settings.items())
        notes.append(f"Changed against the paper: {changed}.")
    judged = tuple((v.statement, v.outcome, v.evidence) for v in verdicts(plan, results))
    title = study.title if plan.scale == "own" else f"{study.name}: {study.title}"
    return Section(
        title=title,
        lead=study.claim,
        verdicts=judged,
        blocks=tuple(blocks),
        notes=tuple(notes),
        name=study.name.replace("/", "-"),
    )


def _seeds(count: int) -> str:
    return "one seed" if count == 1 else f"{count} seeds"


def document(plans: Sequence[Plan], seeds: int, root: Path, *, title: str = "", lead: str = "") -> Document:
    """Return the report page of some studies. The page depends only on the directories of the studies' runs."""
    sections: list[Section] = []
    runs: dict[str, Run] = {}
    for plan in plans:
        results = collect(plan, seeds, root)
        collapse = collapse_section(plan, results)
        sections += [section(plan, results), *([collapse] if collapse is not None else [])]
        runs |= plan.runs(seeds)
    notes = [note for name in runs if (note := run_note(root / name)) is not None]
    title = title or ", ".join(plan.study.name for plan in plans)
    return Document(
        title=title, lead=lead, sections=tuple(sections), runs=tuple(notes), foot=foot([root / name for name in runs])
    )


def run_note(folder: Path) -> RunNote | None:
    """Return what a reader needs to repeat the run; None if the run has not started."""
    directory = RunDirectory(folder)
    settings, records, damaged = directory.settings(), directory.records(), directory.damaged_files()
    if not settings and not damaged:
        return None
    seconds = sum(record["seconds"] for record in records)
    facts = [("seconds of training", f"{seconds:.0f}"), ("epochs recorded", str(len(records)))]
    facts += [("failed", directory.failure())] if directory.failure() else []
    facts += [("damaged", "; ".join(damaged))] if damaged else []
    collapse = collapse_in_words(records)
    facts += [("collapse", collapse)] if collapse else []
    facts.append(("settings", json.dumps(settings, ensure_ascii=False)))
    return RunNote(folder.name, tuple(facts))


def foot(folders: Sequence[Path]) -> tuple[str, ...]:
    """Return one line for each machine and set of versions that the runs recorded."""
    environments = {json.dumps(RunDirectory(folder).environment(), sort_keys=True) for folder in folders}
    lines = []
    for text in sorted(environments - {"{}"}):
        environment = defaultdict(lambda: "unknown", json.loads(text))
        lines.append(
            f"contrapose {environment['contrapose']}, torch {environment['torch']}, Python {environment['python']}, "
            f"{environment['machine']}, {environment['cores']} cores, {environment['device']}"
        )
    return tuple(lines)
