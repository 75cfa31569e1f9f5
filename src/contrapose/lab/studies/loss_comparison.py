"""Compare losses by accuracy, uniformity and tolerance: the plan of `compare`, and the page of `compare` and `demo`."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from contrapose.lab.counts import count_of
from contrapose.lab.evaluation.feature_scores import difference_margin
from contrapose.lab.modalities import Split
from contrapose.lab.report.document import Block, Chart, Document, Number, Picture, Series, Table, Text
from contrapose.lab.studies.collapse import collapse_sentences
from contrapose.lab.studies.collect import document
from contrapose.lab.studies.differences import Difference, differences, in_words, list_words
from contrapose.lab.studies.report_blocks import map_chart, table
from contrapose.lab.studies.results import Cell, Results
from contrapose.lab.studies.scores import KNN, Score, choose_score, hits_of, score_of
from contrapose.lab.studies.study import Plan, Row, Study, StudyData
from contrapose.lab.training import Run
from contrapose.lab.training.method_settings import describe_settings, settings_for_loss
from contrapose.losses.parse import temperature_of, without_temperature

Lines = Mapping[str, Sequence[Row]]  # lines of temperatures, keyed by the name of their loss


@dataclass(frozen=True)
class Description:
    """The description of data and settings on the page: a few sentences, and a contact sheet."""

    data: str
    settings: str
    sheet: bytes = b""
    frameworks: tuple[str, ...] = ()  # framework and head of each loss, if they differ between losses


def describe(run: Run, split: Split, score: Score = KNN) -> Description:
    """Describe the data and the settings that the runs of a comparison share."""
    held_out = score.counted_samples
    test = f"{len(split.test):,} {held_out}" if split.test is not None else f"no {held_out}"
    neighbours = f", {run.knn} neighbours in the kNN accuracy" if score is KNN else ""
    epochs = count_of(run.epochs, "epoch")
    return Description(
        data=f"Data: {run.data}, {len(split.train):,} {score.training_samples} and {test}.",
        settings=f"Encoder {run.encoder}, {epochs} in batches of {run.batch}, views {run.views}{neighbours}.",
        sheet=run.kind.contact_sheet(split.train, run.view_maker(), seed=run.seed),
    )


def rows_of(rows: Iterable[Row], score: Score = KNN) -> tuple[Row, ...]:
    """Return the rows with the evaluations that a comparison needs: hits per test sample and, in the first row, references."""
    return tuple(
        replace(row, measures=(*row.measures, *(score.measures if number == 0 else score.measures[:1])))
        for number, row in enumerate(rows)
    )


def describe_frameworks(base: Run, rows: Iterable[Row]) -> tuple[str, ...]:
    """Return the framework and head of each loss, one line for all losses that have the same."""
    groups: dict[str, list[str]] = {}
    for row in rows:
        changes = {name: value for name, value in row.changes.items() if name != "loss"}
        words = describe_settings({"framework": base.framework, "head": base.head, **changes})
        groups.setdefault(words, []).append(row.name)
    return tuple(f"{', '.join(names)}: {words}." for words, names in groups.items())


def describe_objectives(plan: Plan) -> tuple[str, ...]:
    """Return what each named loss is, such as "simclr is nt_xent(temperature=0.05)", since settings depend on the data."""
    objectives = {row.name: run.objective for row, _, run in plan.cells(1)}
    return tuple(f"{name} is {objective}." for name, objective in objectives.items() if "(" not in name)


def comparison(base: Run, losses: Sequence[str], split: Split, *, given: Collection[str] = ()) -> Plan:
    """Return the plan that compares losses on the user's data; `base` has all other settings.

    Raises ValueError if the data allows no score to compare the losses by.
    Each loss gets the framework and head that it needs, except for settings that the user set, whose names are in `given`.
    """
    score = choose_score(base, split)
    study_data = StudyData(name=Path(base.data).name or base.data, data=base.data)
    framework = base.framework if "framework" in given else ""
    rows = rows_of(
        (
            Row(
                name=loss,
                changes={"loss": loss, **settings_for_loss(loss, framework=framework, given=given)},
                x=temperature_of(loss) if line else None,
                series=line,
            )
            for loss, line in zip(losses, _lines_of_temperatures(losses), strict=True)
        ),
        score,
    )
    description = replace(describe(base, split, score), frameworks=describe_frameworks(base, rows))
    study = Study(
        name="compare",
        title=score.title,
        claim="Which loss suits this data?",
        rows=rows,
        quantities=score.quantities,
        sets=(study_data,),
        show=partial(show_comparison, description=description),
        base={key: value for key, value in vars(base).items() if key not in ("loss", "data", "seed")},
    )
    return Plan(study=study, scale="own", sets=study.sets)


def _lines_of_temperatures(losses: Sequence[str]) -> list[str]:
    """Return for each loss the name of its line in charts: all losses that differ only in a number as temperature, or none."""
    bases = [without_temperature(loss) if temperature_of(loss) is not None else "" for loss in losses]
    return [base if bases.count(base) > 1 else "" for base in bases]


def show_comparison(study: Study, results: Results, description: Description) -> list[Block]:
    """Return the description and the findings, the table, the plane of uniformity and tolerance, and further charts."""
    lines = _lines(study)
    others = [row for row in study.rows if not row.series]
    seeds = "One seed" if results.seeds == 1 else f"{results.seeds} seeds"
    plane = _plane(results, lines, others)
    blocks: list[Block] = [Text(learned(study, results))]
    blocks += [plane] if plane.series else []
    blocks += [
        _table_with_references(study, results),
        Text(score_of(study).definitions),
        Text((description.data, f"{description.settings} {seeds} for each loss.", *description.frameworks)),
    ]
    blocks += [_accuracy_chart(study, results, lines, others)] if lines else []
    blocks += _maps(study, results)
    if description.sheet:
        title = "Training images (first row) and two augmented views of each, which the losses compare"
        blocks.append(
            Picture(title, description.sheet, alt="A contact sheet of training images and their augmented views.")
        )
    return blocks


def _lines(study: Study) -> dict[str, list[Row]]:
    """Return the rows of each line of temperatures, keyed by the name of its loss."""
    names = dict.fromkeys(row.series for row in study.rows if row.series)
    return {name: [row for row in study.rows if row.series == name] for name in names}


def page(plan: Plan, results: Results, root: Path) -> Document:
    """Return the report of a comparison, which starts with what was learned."""
    title, lead = f"Losses on {plan.sets[0].name}", " ".join(learned(plan.study, results))
    whole = document([plan], results.seeds, root, title=title, lead=lead)
    main, *others = whole.sections
    # Without the first block, which is the lead, and the question, which the lead has answered.
    return replace(whole, sections=(replace(main, lead="", blocks=main.blocks[1:]), *others), interactive=False)


def _plane(results: Results, lines: Lines, others: Sequence[Row]) -> Chart:
    series = [_uniformity_tolerance(results, rows, name) for name, rows in lines.items()]
    series += [_uniformity_tolerance(results, [row], row.name) for row in others]
    return Chart(
        title="Spread out, or keep classes together",
        x="-U: images spread evenly →",
        y="T: classes stay together →",
        series=tuple(s for s in series if s.x),
        alt="Each loss at its uniformity and tolerance"
        + "".join(f"; {name}'s temperatures make a line" for name in lines)
        + ".",
    )


def _uniformity_tolerance(results: Results, rows: Sequence[Row], name: str) -> Series:
    """Return rows as points in the plane; points on a line are labelled with their temperature."""
    names = [row.name for row in rows if results.cell(row.name, "-U").values and results.cell(row.name, "T").values]
    return Series(
        name=name,
        x=tuple(results.cell(row, "-U").mean for row in names),
        y=tuple(results.cell(row, "T").mean for row in names),
        labels=tuple(f"{row}: kNN {results.cell(row, 'kNN').mean:.1f} %" for row in names),
        annotations=tuple(f"τ = {row.x:g}" for row in rows if row.name in names and len(rows) > 1),
    )


def _accuracy_chart(study: Study, results: Results, lines: Lines, others: Sequence[Row]) -> Chart:
    """Return a chart of accuracy over temperature, with the losses that have only one as horizontal lines."""
    score, series = score_of(study), []
    positions = sorted(row.x for rows in lines.values() for row in rows if isinstance(row.x, float))
    for name, rows in lines.items():
        cells = [(row.x, results.cell(row.name, score.name)) for row in rows if isinstance(row.x, float)]
        measured = sorted(((x, cell) for x, cell in cells if cell.values), key=lambda point: point[0])
        series.append(
            Series(
                name=name,
                x=tuple(x for x, _ in measured),
                y=tuple(cell.mean for _, cell in measured),
                spread=tuple(cell.spread for _, cell in measured),
            )
        )
    ends = (positions[0], positions[-1])
    for row in others:
        cell = results.cell(row.name, score.name)
        if cell.values:
            series.append(Series(row.name, ends, (cell.mean, cell.mean)))
    return Chart(
        title="Accuracy against temperature",
        x=f"temperature of {list_words(list(lines))}",
        y=f"{score.words}, %",
        series=tuple(series),
        log_x=True,
    )


def _maps(study: Study, results: Results) -> Iterable[Chart]:
    """Yield the t-SNE map of each row that has one, with its uniformity and tolerance."""
    for row in study.rows:
        for evaluation in results.evaluations.get((row.name, results.sets[0]), ())[:1]:
            if "map" in evaluation:
                values = [f"{name} {results.cell(row.name, name).mean:.2f}" for name in ("-U", "T")]
                title = f"t-SNE map of test images, {row.name}: {', '.join(values)}"
                yield map_chart(title, evaluation["map"])


def references(study: Study, results: Results) -> dict[str, Cell]:
    """Return the scores without training, keyed by name; empty if they were not measured."""
    evaluations = results.evaluations.get((study.rows[0].name, results.sets[0]), ()) if results.sets else ()
    measured = [evaluation["references"] for evaluation in evaluations if "references" in evaluation]
    if not measured:
        return {}
    # An untrained encoder depends on the seed; pixels, and weights from a file, do not.
    return {
        name: Cell(tuple(m[key] for m in (measured if key == "untrained" else measured[:1])))
        for key, name in score_of(study).references.items()
        if all(key in m for m in measured)
    }


def _table_with_references(study: Study, results: Results) -> Block:
    (block,) = table(study, results)
    assert isinstance(block, Table)
    score = score_of(study)
    names = (score.words, *(quantity.name for quantity in score.quantities[1:]))
    units = (f", {quantity.unit}" if quantity.unit else "" for quantity in score.quantities)
    columns = tuple(f"{name}{unit}" for name, unit in zip(names, units, strict=True))
    empty: tuple[Number | str, ...] = ("–",) * (len(columns) - 1)
    rows = tuple(
        (name, (Number(ours=cell.mean, spread=cell.spread, count=len(cell.values)), *empty))
        for name, cell in references(study, results).items()
    )
    title = "Mean ± standard deviation (number of seeds)" if results.seeds > 1 else "Results of one seed"
    return replace(block, title=title, columns=columns, rows=block.rows + rows)


def learned(study: Study, results: Results) -> tuple[str, ...]:
    """Return sentences that say which losses are ahead, what training gains, and which runs collapsed."""
    collapsed = " ".join(collapse_sentences(study, results))
    lines = _lines(study)
    # One line and other losses: is any of them above the line's best temperature?
    compare = compare_with_best_temperature if list(lines) == ["NT-Xent"] else compare_accuracies
    best = (
        () if compare is compare_with_best_temperature else (best_temperature(study, results, name) for name in lines)
    )
    return (
        compare(study, results),
        *best,
        *_compare_with_references(study, results),
        *([collapsed] if collapsed else []),
    )


def compare_accuracies(study: Study, results: Results) -> str:
    """Say which losses score higher than others by more than chance."""
    score = score_of(study)
    cells = {row.name: results.cell(row.name, score.name) for row in study.rows}
    measured = sorted((name for name in cells if cells[name].values), key=lambda name: -cells[name].mean)
    if not measured:
        return f"No run has a score yet: the data needs {score.test_samples}, or no run is done."
    if len(study.rows) == 1:
        return f"There is nothing to compare {measured[0]} with: --losses takes several losses, separated by commas."
    if results.seeds == 1:
        return (
            f"With one seed it is unknown how much of a difference in {score.short} is chance, so no loss is preferred "
            "here; --seeds 3 trains each loss with three seeds, and takes three times as long."
        )
    if not score.hits:
        return (
            f"{measured[0]} has the highest mean of {score.words}; whether a difference is chance is not tested for it."
        )
    hits = hits_of(results, measured, score)
    if len(hits) < 2:
        return "Too few runs are done to compare the losses: each needs at least two seeds."
    found = differences(hits)
    text = in_words(list(hits), found)
    count = len(next(iter(hits.values()))[0])
    evidence = f"{score.words} on {count:,} {score.counted_samples}, {results.seeds} seeds"
    unclear = [difference.chance for difference in found if not difference.clear]
    if unclear:
        evidence += f"; here, differences of up to {max(unclear):.1f} points can be chance"
    text = f"{text} ({evidence})."
    left_out = [row.name for row in study.rows if row.name not in hits]
    return f"{text} Not compared, with fewer than two runs done: {', '.join(left_out)}." if left_out else text


def best_temperature(study: Study, results: Results, line: str) -> str:
    """Say at which temperature a loss scores highest, and which of its other temperatures are below it by more than chance."""
    score, rows = score_of(study), {row.name: row for row in _lines(study)[line]}
    cells = {name: cell for name in rows if (cell := results.cell(name, score.name)).values}
    best = max(cells, key=lambda name: cells[name].mean, default="")
    if not best:
        return f"No temperature of {line} has a score yet."
    spread = f" ± {cells[best].spread:.2f}" if len(cells[best].values) > 1 else ""
    text = f"The best temperature of {line} is {rows[best].x:g}: {score.words} {cells[best].mean:.2f}{spread} %"
    hits = hits_of(results, list(cells), score) if score.hits and results.seeds > 1 else {}
    if best not in hits or len(hits) < 2:
        return f"{text}; whether the others are below it by more than chance is not known from these runs."
    found = {d.second: d for d in differences(hits, reference=best) if d.first == best}
    below = [f"{rows[name].x:g}" for name in hits if name in found and found[name].clear]
    similar = [f"{rows[name].x:g}" for name in hits if name != best and f"{rows[name].x:g}" not in below]
    parts = [f"{list_words(below)} {'is' if len(below) == 1 else 'are'} below it by more than chance"] if below else []
    parts += [f"{list_words(similar)} may be as good"] if similar else []
    if not below:  # otherwise "the best" would claim more than is known
        text = text.replace("The best temperature", "The temperature with the highest mean", 1)
    return f"{text}; {', and '.join(parts)}."


def compare_with_best_temperature(study: Study, results: Results) -> str:
    """Say which losses are above or below NT-Xent at its best temperature by more than chance."""
    score = score_of(study)
    cells = {row.name: results.cell(row.name, score.name) for row in study.rows}
    line = [row.name for row in study.rows if row.series == "NT-Xent" and cells[row.name].values]
    hits = hits_of(results, [name for name in cells if cells[name].values], score)
    best = max(line, key=lambda name: cells[name].mean, default="")
    if best not in hits or len(hits) < 2:
        return compare_accuracies(study, results)  # this sentence says what is missing
    found = differences(hits, reference=best)
    above = [d for d in found if d.clear and d.second == best]
    below = [d for d in found if d.clear and d.first == best]
    mean = f"{cells[best].mean:.2f} ± {cells[best].spread:.2f}"
    text = f"The most accurate temperature of NT-Xent is {best.removeprefix('NT-Xent ')}: {mean} %. "
    if above:
        text += f"{_with_points([d.first for d in above], above, '+')} above it by more than chance."
    else:
        text += "No other loss is above it by more than chance."
        nearest = max((d for d in found if d.second == best), key=lambda d: d.points, default=None)
        if nearest is not None:
            text += (
                f" The nearest is {nearest.first} with +{nearest.points:.1f} points, and up to {nearest.chance:.1f} can be"
                " chance."
            )
    if below:
        text += f" {_with_points([d.second for d in below], below, '-')} below it by more than chance."
    count = len(next(iter(hits.values()))[0])
    return f"{text} ({score.words} on {count:,} {score.counted_samples}, {results.seeds} seeds.)"


def _with_points(names: Sequence[str], found: Sequence[Difference], sign: str) -> str:
    """Return "A (+1.2 points) and B (+0.9) are"."""
    words = [f"{name} ({sign}{d.points:.1f} points)" for name, d in zip(names, found, strict=True)]
    return f"{list_words(words)} {'is' if len(words) == 1 else 'are'}"


def _margin(trained: float, untrained: float, results: Results, score: Score) -> float:
    """Return the largest difference between two shares of the test samples that can be chance; 0 if their number is unknown."""
    hits = hits_of(results, sorted(results.rows), score) if score.hits else {}
    return difference_margin(trained, untrained, len(next(iter(hits.values()))[0])) if hits else 0.0


def _compare_with_references(study: Study, results: Results) -> tuple[str, ...]:
    """Say what training gains: the scores without training, and the range of the losses' scores."""
    without, score = references(study, results), score_of(study)
    scores = [cell.mean for row in study.rows if (cell := results.cell(row.name, score.name)).values]
    if not without or not scores:
        return ()
    low, high = min(scores), max(scores)
    names = [score.baseline, *(f"with the {name}" for name in list(without)[1:])]
    parts = [f"{cell.mean:.1f} % {name}" for name, cell in zip(names, without.values(), strict=True)]
    text = f"{score.words} is {', '.join(parts)}, and {low:.1f} to {high:.1f} % after training."
    best = max(cell.mean for cell in without.values())
    margin = _margin(high, best, results, score)
    if high <= best:
        text += " Training is not yet above all of these: use more --epochs, or other --views."
    elif high - best <= margin:
        text += f" The best loss is above these by less than can be chance ({margin:.1f} points): use more --epochs."
    return (text,)
