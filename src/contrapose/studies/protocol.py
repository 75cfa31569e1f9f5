"""Say in words what each study measures, and what its table or figure in the paper measures.

`contrapose study protocols` prints the page; docs/studies.md is its output.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from contrapose.evaluation import FINE_TUNING, PROBES
from contrapose.studies.detection import describe_detection
from contrapose.studies.measures import fine_tuning_recipe
from contrapose.studies.study import PAPERS, Plan, Quantity, Row, Study, StudyData
from contrapose.studies.transfer import describe_transfer
from contrapose.training import Run

_WEIGHTS = {
    "softmax": "votes weighted by similarity",
    "uniform": "majority vote",
    "distance": "votes weighted by distance",
}
_METRICS = {
    "uniformity": "uniformity",
    "tolerance": "tolerance",
    "alignment": "alignment of two views",
    "alignment_class": "alignment of images of one class",
    "interclass_uniformity": "inter-class uniformity",
    "conditional_entropy": "conditional entropy H(X⁻|X)",
    "prototype_bias_single": "prototype bias (Eq. 51)",
    "attraction_gap": "gap of the attracting bound",
    "repulsion_gap": "corrected gap of the repelling bound",
    "repulsion_gap_printed": "printed gap of the repelling bound",
    "separation_positive": "similarity of a view to its own image",
    "separation_gap": "gap between the positive and the nearest negative",
}
_IMAGES = {
    "test": "all test images",
    "train": "all training images",
    "bank": "new views of all training images against the memory bank",
}
_SAMPLED = {"test": "test", "train": "training"}
_OTHERS = {
    "step_seconds": "seconds of a training step, the median epoch",
    "map": "t-SNE of the projector's output on 1,000 test images",
    "histograms": "similarities of two views, of one class and of two classes, before and after training, of the projector's "
    "output on 2,000 test images",
    "few_shot": "class-mean accuracy of a linear SVM on as many images of each class as the smallest has",
    "entropy": "conditional entropy H(X⁻|X) of the projector's output after each epoch, all test images in mini-batches of the "
    "training's size M",
    "entropy_deficit": "what H lacks to its maximum ln(M - 1)",
    "own_class_weight": "weights of one query's positives and negatives beside their images; mean weight of negatives of a "
    "query's own class",
    "positive_ratio": "t-SNE of one query's positives and negatives at three epochs; distance to positives as a share of that "
    "to negatives",
    "negative_variation": "variation of the distances to negatives",
    "long_tail": "class-mean accuracy of a linear SVM on the long-tailed training set",
}


def describe_measure(measure: str, run: Run) -> str:
    """Return in words what is measured of a run: the quantity, of which output, on which images."""
    kind, *options = measure.removeprefix("-").split(":")
    if kind == "start":
        return f"before training: {describe_measure(':'.join(options), run)}"
    bank = "the images trained on" if run.probe == "train" else "all training images"
    if kind == "best":
        every = "every epoch" if run.knn_every == 1 else f"every {run.knn_every} epochs"
        return f"{describe_measure(f'knn:{run.knn}:softmax', run)}, best epoch, evaluated {every}"
    if kind == "knn_top1":
        return f"{describe_measure(f'knn:{run.knn}:softmax', run)}, last epoch"
    if kind in ("knn", "knn_top5"):
        k, weights = options
        return f"{k}-NN accuracy of the encoder's output, {_WEIGHTS[weights]}, neighbours from {bank}"
    if kind.startswith("linear"):
        probe = replace(PROBES[options[0]], best="_best" in kind)
        return f"accuracy of a linear probe of the encoder's output on {bank}: {probe.describe()}"
    if kind == "fine_tune":
        recipe = FINE_TUNING[fine_tuning_recipe(run.encoder)]
        return f"accuracy after fine-tuning on all training images: {recipe.describe()}"
    if kind == "transfer":
        return describe_transfer(measure)
    if kind == "metric":
        name, space, images = options
        return f"{_metric(name)} of the {space}'s output, {_IMAGES[images]}"
    if kind == "detection":
        return describe_detection(*options)
    if kind in _OTHERS:
        return _OTHERS[kind]
    space, images = ("encoder" if kind.startswith("encoder_") else "projector"), _SAMPLED[run.metrics_on]
    return f"{_metric(kind.removeprefix('encoder_'))} of the {space}'s output, {run.metrics:,} random {images} images"


def _metric(name: str) -> str:
    if name.startswith("separation_n"):
        return "similarity to the nearest negatives"
    return _METRICS.get(name, name.replace("_", " "))


def describe_quantities(plan: Plan) -> list[str]:
    """Return what each quantity of a study measures at a scale, "NAME: words", with the names of equal ones together."""
    names: dict[str, list[str]] = {}
    row, study_data, run = next(plan.cells(1), (None, None, None))
    if row is not None and study_data is not None and run is not None:
        for quantity in plan.study.quantities:
            words = describe_measure(plan.measure(quantity, study_data, row), run)
            names.setdefault(words, []).append(quantity.name)
    return [f"{', '.join(filter(None, group))}: {words}".removeprefix(": ") for words, group in names.items()]


def describe_study(study: Study) -> tuple[str, str, str]:
    """Return what the paper measures, what the study measures at the paper scale, and the difference or "same"."""
    if study.diagram:
        return study.title, "nothing to measure", ""
    if study.missing:
        return study.title, "nothing", f"cannot run: {study.missing}"
    if study.analytic:
        return study.title, "the same, computed without training", _difference(study)
    plan = study.plan("paper")
    quantities = [quantity for quantity in study.quantities if not quantity.extra]
    ours = [_describe_quantity(quantity, plan) for quantity in quantities]
    papers = [quantity.paper or words for quantity, words in zip(quantities, ours, strict=True)]
    extras = [f"also {_describe_quantity(quantity, plan)}" for quantity in study.quantities if quantity.extra]
    measured = ["the same"] if papers == ours else ours
    return _join(papers), _join([*measured, *extras]), _difference(study)


def _describe_quantity(quantity: Quantity, plan: Plan) -> str:
    """Return in words what is measured; by data set if it differs between them, and of all rows if those differ."""
    words: dict[str, list[str]] = {}
    for study_data in plan.sets:
        rows = [row for row in plan.study.rows if not row.missing]
        description = _join(_describe_cell(quantity, study_data, row, plan) for row in rows)
        words.setdefault(description, []).append(study_data.name)
    if len(words) == 1:
        return next(iter(words))
    return "; ".join(f"{', '.join(names)}: {description}" for description, names in words.items())


def _describe_cell(quantity: Quantity, study_data: StudyData, row: Row, plan: Plan) -> str:
    return describe_measure(plan.measure(quantity, study_data, row), plan.run(row, study_data))


def _difference(study: Study) -> str:
    """Return the differences in words; "same" if there are none."""
    rows = [row.name for row in study.rows if row.missing]
    sentences = [f"{', '.join(rows)}: printed only." for _ in rows[:1]] + list(study.differences)
    other = any(quantity.paper for quantity in study.quantities)
    return " ".join(sentences) or ("the quantity itself" if other else "same")


def _join(words: Iterable[str]) -> str:
    return "; ".join(dict.fromkeys(words))


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
