"""Describe what each study measures, and what its table or figure in the paper measures.

`contrapose study protocols` prints the page; docs/studies.md is its output.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from contrapose.lab.studies.differences import list_words
from contrapose.lab.studies.measures import Words
from contrapose.lab.studies.measures.before_training import BEFORE
from contrapose.lab.studies.study import PAPERS, Plan, Quantity, Row, Study, StudyData


def describe_quantities(plan: Plan) -> list[str]:
    """Describe what each of a study's quantities measures at a scale, "NAME: words"; equal descriptions share a line."""
    names: dict[str, list[str]] = {}
    row, study_data, run = next(plan.cells(1), (None, None, None))
    if row is not None and study_data is not None and run is not None:
        for quantity in plan.study.quantities:
            words = plan.measure(quantity, study_data, row).describe(run).text
            names.setdefault(words, []).append(quantity.name)
    return [_named(", ".join(filter(None, group)), words) for words, group in names.items()]


def _named(name: str, words: str) -> str:
    """Return "NAME: words", or only the words if they begin with the name."""
    return words if words.startswith(name) else f"{name}: {words}"


def describe_study(study: Study) -> tuple[str, str, str]:
    """Return what the paper measures, what the study measures at the paper scale, and the difference or "same"."""
    if study.diagram:
        return study.title, "nothing to measure", ""
    if study.analytic:
        return study.title, "the same, computed without training", _difference(study)
    plan = study.plan("paper")
    quantities = [quantity for quantity in study.quantities if not quantity.extra]
    ours = [_quantity_words(quantity, plan) for quantity in quantities]
    papers = [
        Words(quantity.paper) if quantity.paper else words for quantity, words in zip(quantities, ours, strict=True)
    ]
    measured = "the same" if papers == ours else _join(ours)
    extras = [_quantity_words(quantity, plan) for quantity in study.quantities if quantity.extra]
    return _join(papers), "; ".join([measured, *_describe_extras(extras, ours)]), _difference(study)


def _quantity_words(quantity: Quantity, plan: Plan) -> Words:
    """Describe what is measured, separately for data sets or rows that differ."""
    names: dict[tuple[Words, ...], list[str]] = {}  # names of data sets
    for study_data in plan.sets:
        words = tuple(dict.fromkeys(_cell_words(quantity, study_data, row, plan) for row in plan.study.rows))
        names.setdefault(words, []).append(study_data.name)
    (first, *others), *more = names
    if not others and not more:
        return first
    if not more:
        return Words(_join((first, *others)))
    return Words("; ".join(f"{', '.join(group)}: {_join(words)}" for words, group in names.items()))


def _cell_words(quantity: Quantity, study_data: StudyData, row: Row, plan: Plan) -> Words:
    return plan.measure(quantity, study_data, row).describe(plan.run(row, study_data))


def _describe_extras(extras: Sequence[Words], measured: Sequence[Words]) -> list[str]:
    """Describe additional quantities; shortened if one is the last epoch's, or the untrained encoder's, value of another."""
    words, others = [known.text for known in measured], []
    shortened: dict[str, None] = {}
    for extra in extras:
        text = extra.text
        if any(known.startswith(text.replace("last epoch", "best epoch")) for known in words):
            shortened["also the last epoch's accuracy"] = None
        elif text.removeprefix(BEFORE) in words:
            shortened["also before training"] = None
        else:
            others.append(extra)
    return [*shortened, *([f"also {_join(others)}"] if others else [])]


def _difference(study: Study) -> str:
    """Return the differences from the paper in words; "same" if there are none."""
    other = any(quantity.paper for quantity in study.quantities)
    return " ".join(study.differences) or ("the quantity itself" if other else "same")


def _join(descriptions: Iterable[Words]) -> str:
    """Return descriptions as one text; descriptions with the same outputs and images are merged into "A and B of …"."""
    names: dict[tuple[str, str], dict[str, None]] = {}
    for what, of in descriptions:
        names.setdefault((of, "" if of else what), {})[what] = None
    return "; ".join(f"{list_words(list(group))}{of}" for (of, _), group in names.items())


def protocol_page(studies: Iterable[Study]) -> str:
    """Return the page in Markdown: one table per paper, one line per study."""
    lines = [
        "# What each study measures",
        "",
        "This page lists what each table or figure measures in the paper and in the study of the same name at the paper scale,",
        "the difference between the two, our choices of settings where the paper does not say, and corrections to the paper.",
        "Generated by `contrapose study protocols`; `contrapose study show NAME` describes the other scales.",
    ]
    paper = ""
    for study in studies:
        if study.paper != paper:
            paper = study.paper
            lines += [
                "",
                f"## {paper}",
                "",
                "| study | the paper measures | we measure | difference | choices and corrections |",
                "|---|---|---|---|---|",
            ]
        cells = (study.name, *describe_study(study), study.note)
        lines.append(f"| {' | '.join(cell.replace('|', '∣') for cell in cells)} |")
    assert paper in PAPERS.values()
    return "\n".join(lines) + "\n"
