"""What a study shows of its results: a table, curves over an axis or over epochs, a grid, maps."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from contrapose.report.document import Block, Chart, Heat, Number, Series, Table, points
from contrapose.studies.results import Results, column
from contrapose.studies.study import Quantity, Row, Show, Study


def number(results: Results, row: Row, quantity: Quantity, on: str) -> Number:
    """A cell beside its printed number; the reason where there is none."""
    cell = results.cell(row.name, quantity.name, on)
    digits = {"%": 2, "s": 4}.get(quantity.unit, 3)
    why = row.missing or "; ".join(dict.fromkeys(cell.holes)) or "not run"
    printed = row.printed.get(column(quantity.name, on))
    if math.isnan(cell.mean):
        return Number(printed=printed, why=why, digits=digits)
    return Number(cell.mean, cell.spread, len(cell.values), printed, cell.runs, digits=digits)


def table(study: Study, results: Results) -> list[Block]:
    """Rows against quantities on data sets, each number beside the paper's."""
    there = [
        (quantity, on)
        for on in results.sets
        for quantity in study.quantities
        if quantity.measure not in ("map", "histograms")
    ]
    rows = tuple((row.name, tuple(number(results, row, *at) for at in there)) for row in study.rows)
    names = tuple(column(q.name, on) + (f", {q.unit}" if q.unit not in ("%", "") else "") for q, on in there)
    return [Table(study.title, names, rows)]


def curves(axis: str, charts: Mapping[str, str], *, log_x: bool = False) -> Show:
    """A chart for each entry, {label of the y axis: name of a quantity}, over the rows' x; then the table."""

    def show(study: Study, results: Results) -> list[Block]:
        made: list[Block] = []
        for label, quantity in charts.items():
            series: list[Series] = []
            for on in results.sets:
                for kind in dict.fromkeys(row.series for row in study.rows):
                    rows = [row for row in study.rows if row.series == kind]
                    name = ", ".join(part for part in (kind, on) if part)
                    series += _over_x(results, rows, quantity, on, name)
            made.append(Chart(study.title, axis, label, tuple(series), log_x))
        return made + table(study, results)

    return show


def _over_x(results: Results, rows: Sequence[Row], quantity: str, on: str, name: str) -> list[Series]:
    ours, printed = [], []
    for row in rows:
        if isinstance(row.x, int | float):
            cell, theirs = results.cell(row.name, quantity, on), row.printed.get(column(quantity, on))
            ours += [(float(row.x), cell)] if cell.values else []
            printed += [(float(row.x), theirs)] if theirs is not None else []
    found = []
    if ours:
        x, cells = zip(*ours, strict=True)
        spread, labels = tuple(c.spread for c in cells), tuple(", ".join(c.runs) for c in cells)
        found.append(Series(name, x, tuple(c.mean for c in cells), spread, labels=labels))
    return found + ([points(f"{name} (paper)", printed, printed=True)] if printed else [])


def over_epochs(measure: str, label: str, *, limit: float | None = None, limit_name: str = "limit") -> Show:
    """An entry of the records against epochs, a curve for each row; then the table."""

    def show(study: Study, results: Results) -> list[Block]:
        series = []
        for on in results.sets:
            for row in study.rows:
                found = results.curve(row.name, measure, on)
                if found:
                    series.append(points(row.name if len(results.sets) == 1 else f"{row.name}, {on}", found))
        if limit is not None and series:
            last = max(max(s.x) for s in series)
            series.append(points(limit_name, [(1.0, limit), (last, limit)], printed=True))
        return [Chart(study.title, "epoch", label, tuple(series)), *table(study, results)]

    return show


def grid(x: str, y: str, quantity: str = "") -> Show:
    """A quantity over two axes, a picture for each series of rows and each data set; then the table."""

    def show(study: Study, results: Results) -> list[Block]:
        made: list[Block] = []
        for on in results.sets:
            for kind in dict.fromkeys(row.series for row in study.rows):
                at = {row.x: row for row in study.rows if row.series == kind and isinstance(row.x, tuple)}
                xs, ys = (sorted({place[axis] for place in at if isinstance(place, tuple)}) for axis in (0, 1))
                values = tuple(tuple(_value(results, at.get((a, b)), quantity, on) for a in xs) for b in ys)
                title = ", ".join(part for part in (study.title, kind, on if len(results.sets) > 1 else "") if part)
                made.append(Heat(title, x, y, tuple(xs), tuple(ys), values))
        return made + table(study, results)

    return show


def _value(results: Results, row: Row | None, quantity: str, on: str) -> float | None:
    cell = results.cell(row.name, quantity, on) if row is not None else None
    return cell.mean if cell is not None and cell.values else None


def maps(study: Study, results: Results) -> list[Block]:
    """The t-SNE map of each row's first run, a series for each class; then the table."""
    made: list[Block] = []
    for row in study.rows:
        for found in results.evaluations.get((row.name, results.sets[0]), ())[:1] if results.sets else ():
            drawn = found.get("map", {"points": [], "labels": []})
            by_class: dict[str, list[tuple[float, float]]] = {}
            for (x, y), label in zip(drawn["points"], drawn["labels"], strict=True):
                by_class.setdefault(str(label), []).append((x, y))
            series = tuple(points(name, group, points=True) for name, group in sorted(by_class.items()))
            made.append(Chart(f"{study.title}: {row.name}", "", "", series))
    return made + table(study, results)
