"""Signs of collapse in a study's runs: feature deviation and effective rank of encoder and projector, as table and charts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import mean
from typing import Any

from contrapose.lab.report.document import Block, Chart, Number, Section, Table, points
from contrapose.lab.studies.measures import RecordEntry
from contrapose.lab.studies.results import Results, column
from contrapose.lab.studies.study import Plan, Row, Study
from contrapose.lab.training.collapse import DEVIATION, RANK, collapse_in_words

# (name in the records, heading, number of digits)
_QUANTITIES = (
    ("feature_std", "feature deviation, projector", 3),
    ("effective_rank", "effective rank, projector", 1),
    ("encoder_feature_std", "feature deviation, encoder", 3),
    ("encoder_effective_rank", "effective rank, encoder", 1),
)
_BATCH = "batch_feature_std"
_MOST_CURVES = 12  # more curves cannot be distinguished in a chart
_DEFINITIONS = (
    "Feature deviation: the standard deviation of the coordinates of unit vectors, times the square root of their number; 1 if "
    "they are spread evenly over the sphere, 0 if all are equal. Effective rank: the number of dimensions in use. Below "
    f"{DEVIATION:g} or {RANK:g} a run counts as collapsed."
)


def collapse_section(plan: Plan, results: Results) -> Section | None:
    """Return the report's section on signs of collapse; None if no run recorded these quantities."""
    study = plan.study
    cases = [(row, data_set) for data_set in results.sets for row in study.rows if _last(results, row, data_set)]
    if not cases:
        return None
    blocks: list[Block] = [_table(results, cases)]
    if len(cases) <= _MOST_CURVES:
        blocks += _charts(results, cases)
    sentences = collapse_sentences(study, results) or ("No run was found to have collapsed.",)
    return Section(
        title="Signs of collapse" if plan.scale == "own" else f"{study.name}: signs of collapse",
        lead=" ".join(sentences),
        blocks=tuple(blocks),
        notes=(_DEFINITIONS,),
        name=f"{study.name.replace('/', '-')}-collapse",
    )


def collapse_sentences(study: Study, results: Results) -> tuple[str, ...]:
    """Return a sentence for each run that collapsed, such as "byol collapsed from epoch 3 on."; empty if none did."""
    sentences = []
    for data_set in results.sets:
        for row in study.rows:
            for seed, records in enumerate(results.records.get((row.name, data_set), ())):
                collapse = collapse_in_words(records)
                if collapse:
                    which = f" (seed {seed})" if results.seeds > 1 else ""
                    sentences.append(f"{_name(results, row, data_set)} {collapse}{which}.")
    return tuple(sentences)


def _name(results: Results, row: Row, data_set: str) -> str:
    return row.name if len(results.sets) == 1 else column(row.name, data_set)


def _last(results: Results, row: Row, data_set: str) -> list[dict[str, Any]]:
    """Return, for each seed, the last evaluation that has one of the quantities."""
    evaluations = []
    for records in results.records.get((row.name, data_set), ()):
        measured = [record for record in records if any(record.get(name) is not None for name, *_ in _QUANTITIES)]
        evaluations += measured[-1:]
    return evaluations


def _table(results: Results, cases: Sequence[tuple[Row, str]]) -> Table:
    rows = []
    for row, data_set in cases:
        evaluations, cells = _last(results, row, data_set), []
        for name, _, digits in _QUANTITIES:
            values = [evaluation[name] for evaluation in evaluations if evaluation.get(name) is not None]
            cells.append(Number(ours=mean(values), digits=digits) if values else "–")
        rows.append((_name(results, row, data_set), tuple(cells)))
    title = "At the last evaluation" + (", mean over seeds" if results.seeds > 1 else "")
    return Table(title=title, columns=tuple(heading for _, heading, _ in _QUANTITIES), rows=tuple(rows))


def _charts(results: Results, cases: Sequence[tuple[Row, str]]) -> Iterator[Chart]:
    """Yield a chart over epochs for each quantity that has a curve of at least two points."""
    quantities = {name: heading for name, heading, _ in _QUANTITIES}
    if any(results.curve(row.name, RecordEntry(_BATCH), data_set) for row, data_set in cases):
        # This quantity is recorded in every epoch, not only at evaluations; older records do not have it.
        del quantities["feature_std"]
        quantities = {
            _BATCH: "feature deviation of the embeddings that the loss takes, last batch of each epoch"
        } | quantities
    for name, heading in quantities.items():
        curves = [
            (_name(results, row, data_set), results.curve(row.name, RecordEntry(name), data_set))
            for row, data_set in cases
        ]
        if any(len(curve) > 1 for _, curve in curves):
            series = tuple(points(curve_name, curve) for curve_name, curve in curves if curve)
            title = f"{heading[0].upper()}{heading[1:]}"
            yield Chart(title=title, x="epoch", y=heading.split(",")[0], series=series)
