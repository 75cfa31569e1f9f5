"""Losses side by side in accuracy, uniformity and tolerance: the plan of `compare`, and the page of `compare` and `demo`."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from contrapose.modalities import Split
from contrapose.modalities.images.sheet import contact_sheet
from contrapose.modalities.images.views import Views
from contrapose.report.document import Block, Chart, Number, Picture, Series, Table, Text
from contrapose.studies.blocks import map_chart, table
from contrapose.studies.collapse import collapse_sentences
from contrapose.studies.differences import differences, in_words
from contrapose.studies.results import Cell, Results
from contrapose.studies.study import Plan, Quantity, Row, Study, StudyData
from contrapose.training import Run
from contrapose.training.method_settings import describe_settings, settings_for_loss

QUANTITIES = (
    Quantity(name="kNN", measure="knn_top1"),
    Quantity(name="-U", measure="-uniformity", unit=""),
    Quantity(name="T", measure="tolerance", unit=""),
)
DEFINITIONS = (
    "U, uniformity: the logarithm of the mean of exp(-2 · squared distance) over all pairs of embeddings; -U is larger if they"
    " are spread more evenly.",
    "T, tolerance: the mean cosine similarity of two embeddings of one class; it is larger if classes stay together.",
    "Embeddings are the projector's output on a sample of test images; kNN uses the encoder's output on all of them.",
)
PIXELS, START = "raw pixels", "before training"  # rows of the table without training


@dataclass(frozen=True)
class Description:
    """What a page says about its data and settings: a few sentences, and a contact sheet."""

    data: str
    settings: str
    sheet: bytes = b""
    frameworks: tuple[str, ...] = ()  # what each loss is trained with, where losses differ in it


def describe(run: Run, split: Split) -> Description:
    """Describe the data and the settings that the runs of a comparison share."""
    views = run.view_maker()
    test = f"{len(split.test):,} test images" if split.test is not None else "no test images"
    return Description(
        data=f"Data: {run.data}, {len(split.train):,} training images and {test}.",
        settings=f"Encoder {run.encoder}, {count_epochs(run.epochs)} in batches of {run.batch}, views {run.views}, "
        f"{run.knn} neighbours in the kNN accuracy.",
        sheet=contact_sheet(split.train, views, seed=run.seed) if isinstance(views, Views) else b"",
    )


def count_epochs(epochs: int) -> str:
    """Return a number of epochs in words."""
    return "1 epoch" if epochs == 1 else f"{epochs} epochs"


def rows_of(rows: Iterable[Row]) -> tuple[Row, ...]:
    """Return the rows with the evaluations that a comparison needs: the answer on each test image, and references once."""
    return tuple(
        replace(row, measures=(*row.measures, "knn_hits", *(("references",) if number == 0 else ())))
        for number, row in enumerate(rows)
    )


def describe_frameworks(base: Run, rows: Iterable[Row]) -> tuple[str, ...]:
    """Return which framework and head each loss is trained with, a line for all that have the same."""
    groups: dict[str, list[str]] = {}
    for row in rows:
        changes = {name: value for name, value in row.changes.items() if name != "loss"}
        words = describe_settings({"framework": base.framework, "head": base.head, **changes})
        groups.setdefault(words, []).append(row.name)
    return tuple(f"{', '.join(names)}: {words}." for words, names in groups.items())


def comparison(base: Run, losses: Sequence[str], split: Split, *, given: Collection[str] = ()) -> Plan:
    """Return the plan that compares losses on a user's data; `base` has all other settings.

    Each loss has the framework and the head that suit it, apart from the settings whose names are `given`.
    """
    study_data = StudyData(name=Path(base.data).name or base.data, data=base.data)
    framework = base.framework if "framework" in given else ""
    rows = rows_of(
        Row(name=loss, changes={"loss": loss, **settings_for_loss(loss, framework=framework, given=given)})
        for loss in losses
    )
    description = replace(describe(base, split), frameworks=describe_frameworks(base, rows))
    study = Study(
        name="compare",
        title="Accuracy, uniformity and tolerance",
        claim="Which loss suits this data?",
        rows=rows,
        quantities=QUANTITIES,
        sets=(study_data,),
        show=partial(show_dilemma, description=description),
        base={key: value for key, value in vars(base).items() if key not in ("loss", "data", "seed")},
    )
    return Plan(study=study, scale="own", sets=study.sets)


def show_dilemma(study: Study, results: Results, description: Description) -> list[Block]:
    """Return what was compared and learned, the table, the plane of uniformity and tolerance, and further charts."""
    line = [row for row in study.rows if row.series == "NT-Xent"]
    others = [row for row in study.rows if row.series != "NT-Xent"]
    seeds = "One seed" if results.seeds == 1 else f"{results.seeds} seeds"
    blocks: list[Block] = [
        Text((description.data, f"{description.settings} {seeds} for each loss.", *description.frameworks)),
        Text(learned(study, results)),
        _table_with_references(study, results),
        Text(DEFINITIONS),
    ]
    plane = _plane(results, line, others)
    blocks += [plane] if plane.series else []
    blocks += [_accuracy_chart(results, line, others)] if line else []
    blocks += _maps(study, results)
    if description.sheet:
        title = "Training images (first row) and two augmented views of each, which the losses compare"
        blocks.append(
            Picture(title, description.sheet, alt="A contact sheet of training images and their augmented views.")
        )
    return blocks


def _plane(results: Results, line: Sequence[Row], others: Sequence[Row]) -> Chart:
    series = [_uniformity_tolerance(results, line, "NT-Xent")] if line else []
    series += [_uniformity_tolerance(results, [row], row.name) for row in others]
    return Chart(
        title="Spread out, or keep classes together",
        x="-U: images spread evenly →",
        y="T: classes stay together →",
        series=tuple(s for s in series if s.x),
        alt="Each loss at its uniformity and tolerance" + ("; NT-Xent's temperatures make a line." if line else "."),
    )


def _uniformity_tolerance(results: Results, rows: Sequence[Row], name: str) -> Series:
    """Return rows as points of the plane; those of a line are labelled with their temperature."""
    names = [row.name for row in rows if results.cell(row.name, "-U").values and results.cell(row.name, "T").values]
    return Series(
        name=name,
        x=tuple(results.cell(row, "-U").mean for row in names),
        y=tuple(results.cell(row, "T").mean for row in names),
        labels=tuple(f"{row}: kNN {results.cell(row, 'kNN').mean:.1f} %" for row in names),
        annotations=tuple(row.removeprefix("NT-Xent ") for row in names if len(rows) > 1),
    )


def _accuracy_chart(results: Results, line: Sequence[Row], others: Sequence[Row]) -> Chart:
    """Return NT-Xent's accuracy over temperature, and the other losses as horizontal lines."""
    cells = [(float(row.x), results.cell(row.name, "kNN")) for row in line if isinstance(row.x, float)]
    measured = [(x, cell) for x, cell in cells if cell.values]
    series = [
        Series(
            name="NT-Xent",
            x=tuple(x for x, _ in measured),
            y=tuple(cell.mean for _, cell in measured),
            spread=tuple(cell.spread for _, cell in measured),
        )
    ]
    ends = (cells[0][0], cells[-1][0])
    for row in others:
        cell = results.cell(row.name, "kNN")
        if cell.values:
            series.append(Series(row.name, ends, (cell.mean, cell.mean)))
    return Chart(
        title="Accuracy against temperature",
        x="temperature of NT-Xent",
        y="kNN accuracy, %",
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
    """Return kNN accuracies without training, by name; empty if they were not measured."""
    evaluations = results.evaluations.get((study.rows[0].name, results.sets[0]), ()) if results.sets else ()
    measured = [evaluation["references"] for evaluation in evaluations if "references" in evaluation]
    if not measured:
        return {}
    # Pixels do not depend on the seed; the weights before training do.
    return {PIXELS: Cell((measured[0]["pixels"],)), START: Cell(tuple(m["start"] for m in measured))}


def _table_with_references(study: Study, results: Results) -> Block:
    (block,) = table(study, results)
    assert isinstance(block, Table)
    rows = tuple(
        (name, (Number(ours=cell.mean, spread=cell.spread, count=len(cell.values)), "–", "–"))
        for name, cell in references(study, results).items()
    )
    title = "Mean ± standard deviation (number of seeds)" if results.seeds > 1 else "Results of one seed"
    return replace(block, title=title, columns=("kNN accuracy, %", "-U", "T"), rows=block.rows + rows)


def learned(study: Study, results: Results) -> tuple[str, ...]:
    """Return what the runs say, in words: which losses are ahead, what training is worth, and which runs collapsed."""
    collapsed = " ".join(collapse_sentences(study, results))
    return (
        compare_accuracies(study, results),
        *_compare_with_references(study, results),
        *([collapsed] if collapsed else []),
    )


def compare_accuracies(study: Study, results: Results) -> str:
    """Return which losses are ahead of which in kNN accuracy, as far as the runs can tell."""
    cells = {row.name: results.cell(row.name, "kNN") for row in study.rows}
    measured = sorted((name for name in cells if cells[name].values), key=lambda name: -cells[name].mean)
    if not measured:
        return "No run has an accuracy yet: the data needs labelled test images, or no run is done."
    if len(study.rows) == 1:
        return f"There is nothing to compare {measured[0]} with: --losses takes several losses, separated by commas."
    if results.seeds == 1:
        return (
            "One seed cannot tell how much of a difference in accuracy is chance, so no loss is preferred here; "
            "--seeds 3 trains each loss with three seeds, and takes three times as long."
        )
    hits = _hits(results, measured)
    if len(hits) < 2:
        return "Too few runs are done to compare the losses: each needs at least two seeds."
    found = differences(hits)
    text = in_words(list(hits), found)
    evidence = f"kNN accuracy on {len(next(iter(hits.values()))[0]):,} test images, {results.seeds} seeds"
    unclear = [difference.chance for difference in found if not difference.clear]
    if unclear:
        evidence += f"; here, differences of up to {max(unclear):.1f} points can be chance"
    text = f"{text} ({evidence})."
    left_out = [row.name for row in study.rows if row.name not in hits]
    return f"{text} Not compared, with fewer than two runs done: {', '.join(left_out)}." if left_out else text


def _hits(results: Results, rows: Sequence[str]) -> dict[str, Tensor]:
    """Return whether each test image was classified correctly, bool (seeds, images), for losses with at least two seeds."""
    digits = {
        row: [
            evaluation["knn_hits"]
            for evaluation in results.evaluations[row, results.sets[0]]
            if "knn_hits" in evaluation
        ]
        for row in rows
    }
    lengths = sorted({len(text) for texts in digits.values() for text in texts})
    if len(lengths) > 1:
        raise ValueError(
            f"data: the runs were tested on {lengths[0]:,} to {lengths[-1]:,} images, so the test set has changed between them;"
            " use another --root to start over"
        )
    return {
        row: torch.tensor([[digit == "1" for digit in text] for text in texts])
        for row, texts in digits.items()
        if len(texts) > 1
    }


def _compare_with_references(study: Study, results: Results) -> tuple[str, ...]:
    """Return what training is worth: accuracies without it, and the range of the losses."""
    without = references(study, results)
    accuracies = [cell.mean for row in study.rows if (cell := results.cell(row.name, "kNN")).values]
    if not without or not accuracies:
        return ()
    pixels, start, low, high = without[PIXELS].mean, without[START].mean, min(accuracies), max(accuracies)
    text = (
        f"kNN accuracy is {pixels:.1f} % on raw pixels, {start:.1f} % with the encoder before training, and {low:.1f} to "
        f"{high:.1f} % after it."
    )
    if high <= max(pixels, start):
        text += " Training has gained nothing yet: use more --epochs, or other --views."
    return (text,)
