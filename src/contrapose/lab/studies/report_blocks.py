"""Build the blocks of a report from a study's results: a table, curves over an axis or over epochs, a grid, t-SNE maps."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from contrapose.lab.report.document import Block, Chart, Heat, Number, Series, Table, points
from contrapose.lab.studies.measures import Measure
from contrapose.lab.studies.results import Results, column
from contrapose.lab.studies.study import Quantity, Row, Show, Study


def number(results: Results, row: Row, quantity: Quantity, data_set: str) -> Number:
    """Return a cell's value and the paper's number as text, or the reason why there is no value."""
    cell = results.cell(row.name, quantity.name, data_set)
    digits = {"%": 2, "s": 4}.get(quantity.unit, 3)
    printed = row.printed.get(column(quantity.name, data_set))
    if math.isnan(cell.mean):
        why = "; ".join(dict.fromkeys(cell.missing_reasons)) or "not run"
        return Number(printed=printed, why=why, digits=digits)
    error = (f"± {cell.error:.{digits}f} over anchors",) if cell.errors else ()
    return Number(
        ours=cell.mean,
        spread=cell.spread,
        count=len(cell.values),
        printed=printed,
        runs=cell.runs,
        note="; ".join((*error, *(f"of {form}" for form in dict.fromkeys(cell.older_forms)))),
        digits=digits,
    )


def table(study: Study, results: Results) -> list[Block]:
    """Return a table with a line per row and a column per quantity and data set; each cell also has the paper's number."""
    columns = [
        (quantity, data_set) for data_set in results.sets for quantity in study.quantities if quantity.measure.is_number
    ]
    rows = tuple(
        (row.name, tuple(number(results, row, quantity, data_set) for quantity, data_set in columns))
        for row in study.rows
    )
    headings = tuple(
        column(q.name, data_set) + (f", {q.unit}" if q.unit not in ("%", "") else "") for q, data_set in columns
    )
    return [Table(study.title, headings, rows)]


def curves(axis: str, charts: Mapping[str, str], *, log_x: bool = False) -> Show:
    """Return a function that builds one chart per entry of `charts`, {y-axis label: quantity}, and the table.

    The x coordinates are the rows' `x`.
    """

    def show(study: Study, results: Results) -> list[Block]:
        blocks: list[Block] = []
        for label, quantity in charts.items():
            series: list[Series] = []
            for data_set in results.sets:
                for kind in dict.fromkeys(row.series for row in study.rows):
                    rows = [row for row in study.rows if row.series == kind]
                    series += _over_x(results, rows, quantity=quantity, data_set=data_set, kind=kind)
            blocks.append(Chart(title=study.title, x=axis, y=label, series=tuple(series), log_x=log_x))
        return blocks + table(study, results)

    return show


def _over_x(results: Results, rows: Sequence[Row], *, quantity: str, data_set: str, kind: str) -> list[Series]:
    """Return our curve and the paper's curve, without curves that have no points."""
    name = ", ".join(part for part in (kind, data_set) if part)
    measured, printed = [], []
    for row in rows:
        if isinstance(row.x, int | float):
            cell, printed_value = (
                results.cell(row.name, quantity, data_set),
                row.printed.get(column(quantity, data_set)),
            )
            measured += [(float(row.x), cell)] if cell.values else []
            printed += [(float(row.x), printed_value)] if printed_value is not None else []
    series = []
    if measured:
        x, cells = zip(*measured, strict=True)
        spread, labels = tuple(c.spread for c in cells), tuple(", ".join(c.runs) for c in cells)
        series.append(Series(name=name, x=x, y=tuple(c.mean for c in cells), spread=spread, labels=labels))
    return series + ([points(f"{name} (paper)", printed, printed=True)] if printed else [])


def over_epochs(measure: Measure, label: str, *, limit: float | None = None, limit_name: str = "limit") -> Show:
    """Return a function that builds a chart of a recorded measure over epochs, one curve per row, and the table."""

    def show(study: Study, results: Results) -> list[Block]:
        series = []
        for data_set in results.sets:
            for row in study.rows:
                curve = results.curve(row.name, measure, data_set)
                if curve:
                    name = row.name if len(results.sets) == 1 else f"{row.name}, {data_set}"
                    series.append(points(name, curve))
        if limit is not None and series:
            last = max(max(s.x) for s in series)
            series.append(points(limit_name, [(1.0, limit), (last, limit)], printed=True))
        return [Chart(title=study.title, x="epoch", y=label, series=tuple(series)), *table(study, results)]

    return show


def grid(x: str, y: str, quantity: str = "") -> Show:
    """Return a function that builds heat maps of a quantity over two axes, one per series and data set, and the table."""

    def show(study: Study, results: Results) -> list[Block]:
        blocks: list[Block] = []
        units = [", ".join(filter(None, (q.name, q.unit))) for q in study.quantities if q.name == quantity]
        for data_set in results.sets:
            for kind in dict.fromkeys(row.series for row in study.rows):
                rows = {row.x: row for row in study.rows if row.series == kind and isinstance(row.x, tuple)}
                xs, ys = (sorted({at[axis] for at in rows if isinstance(at, tuple)}) for axis in (0, 1))
                values = tuple(tuple(_mean(results, rows.get((a, b)), quantity, data_set) for a in xs) for b in ys)
                suffix = data_set if len(results.sets) > 1 else ""
                title = ", ".join(part for part in (study.title, kind, suffix) if part)
                blocks.append(
                    Heat(title=title, x=x, y=y, xs=tuple(xs), ys=tuple(ys), values=values, unit="".join(units))
                )
        return blocks + table(study, results)

    return show


def _mean(results: Results, row: Row | None, quantity: str, data_set: str) -> float | None:
    cell = results.cell(row.name, quantity, data_set) if row is not None else None
    return cell.mean if cell is not None and cell.values else None


def maps(study: Study, results: Results) -> list[Block]:
    """Return the t-SNE map of each row's first run, one series per class, and the table."""
    blocks: list[Block] = []
    for row in study.rows:
        evaluations = results.evaluations.get((row.name, results.sets[0]), ()) if results.sets else ()
        for evaluation in evaluations[:1]:
            embedded = evaluation.get("map", {"points": [], "labels": []})
            blocks.append(map_chart(f"{study.title}: {row.name}", embedded))
    return blocks + table(study, results)


def map_chart(title: str, embedded: Mapping[str, Sequence[Any]]) -> Chart:
    """Return a chart of the evaluation `map`: points in the plane, one series per class."""
    by_class: dict[str, list[tuple[float, float]]] = {}
    for (x, y), label in zip(embedded["points"], embedded["labels"], strict=True):
        by_class.setdefault(str(label), []).append((x, y))
    series = tuple(points(name, group, points=True) for name, group in sorted(by_class.items()))
    return Chart(title=title, x="", y="", series=series)
