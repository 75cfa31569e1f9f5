"""Say in words what each study measures, and what its table or figure in the paper measures.

`contrapose study protocols` prints the page; docs/studies.md is its output.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from contrapose.lab.studies.differences import list_words
from contrapose.lab.studies.measures import Words
from contrapose.lab.studies.measures.initial_model import BEFORE
from contrapose.lab.studies.study import PAPERS, Plan, Quantity, Row, Study, StudyData


def describe_quantities(plan: Plan) -> list[str]:
    """Return what each quantity of a study measures at a scale, "NAME: words", with the names of equal ones together."""
    names: dict[str, list[str]] = {}
    row, study_data, run = next(plan.cells(1), (None, None, None))
    if row is not None and study_data is not None and run is not None:
        for quantity in plan.study.quantities:
            words = plan.measure(quantity, study_data, row).describe(run).text
            names.setdefault(words, []).append(quantity.name)
    return [_named(", ".join(filter(None, group)), words) for words, group in names.items()]


def _named(name: str, words: str) -> str:
    """Return "NAME: words", without the name if the words begin with it."""
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
    """Return in words what is measured; by data set if it differs between them, and of all rows if those differ."""
    names: dict[tuple[Words, ...], list[str]] = {}  # of data sets
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
    """Return what is measured too; in short if it is a measured quantity in the last epoch, or before training."""
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
    """Return the differences in words; "same" if there are none."""
    other = any(quantity.paper for quantity in study.quantities)
    return " ".join(study.differences) or ("the quantity itself" if other else "same")


def _join(descriptions: Iterable[Words]) -> str:
    """Return descriptions as one text; those of the same outputs and images are joined to "A and B of …"."""
    names: dict[tuple[str, str], dict[str, None]] = {}
    for what, of in descriptions:
        names.setdefault((of, "" if of else what), {})[what] = None
    return "; ".join(f"{list_words(list(group))}{of}" for (of, _), group in names.items())


def protocol_page(studies: Iterable[Study]) -> str:
    """Return the page in Markdown: one table per paper, one line per study."""
    lines = [
        "# What each study measures",
        "",
        "What the table or figure of the paper measures, what the study of the same name measures at the paper scale, and",
        "the difference. Made by `contrapose study protocols`; `contrapose study show NAME` has the other scales.",
    ]
    paper = ""
    for study in studies:
        if study.paper != paper:
            paper = study.paper
            lines += [
                "",
                f"## {paper}",
                "",
                "| study | the paper measures | we measure | difference |",
                "|---|---|---|---|",
            ]
        cells = (study.name, *describe_study(study))
        lines.append(f"| {' | '.join(cell.replace('|', '∣') for cell in cells)} |")
    assert paper in PAPERS.values()
    return "\n".join(lines) + "\n"
