"""Say in words what each study measures, and what its table or figure in the paper measures.

`contrapose study protocols` prints the page; docs/studies.md is its output.
"""

from __future__ import annotations

from collections.abc import Iterable

from contrapose.evaluation import PROBES
from contrapose.studies.study import PAPERS, Study
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
    "repulsion_gap": "gap of the repelling bound, corrected",
    "repulsion_gap_printed": "gap of the repelling bound, as printed",
    "separation_positive": "similarity of a view to its own image",
    "separation_gap": "gap between the positive and the nearest negative",
}
_IMAGES = {"test": "all test images", "train": "all training images"}
_OTHERS = {
    "step_seconds": "seconds of a training step, the median epoch",
    "map": "t-SNE of the projector's output on 1,000 test images",
    "histograms": "similarities of two views, of one class and of two classes, before and after training",
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
    bank = "the images trained on" if run.probe == "train" else "all training images"
    if kind in ("knn_top1", "knn", "knn_top5"):
        k, weights = options if options else (str(run.knn), "softmax")
        return f"{k}-NN accuracy of the encoder's output, {_WEIGHTS[weights]}, neighbours from {bank}"
    if kind in ("linear", "linear_top5"):
        return f"accuracy of a linear probe of the encoder's output on {bank}: {PROBES[options[0]].describe()}"
    if kind == "metric":
        name, space, images = options
        return f"{_metric(name)} of the {space}'s output, {_IMAGES[images]}"
    if kind in _OTHERS:
        return _OTHERS[kind]
    space = "encoder" if kind.startswith("encoder_") else "projector"
    return f"{_metric(kind.removeprefix('encoder_'))} of the {space}'s output, a sample of {run.metrics} test images"


def _metric(name: str) -> str:
    if name.startswith("separation_n"):
        return "similarity to the nearest negatives"
    return _METRICS.get(name, name.replace("_", " "))


def describe_study(study: Study) -> tuple[str, str, str]:
    """Return what the paper measures, what the study measures at the paper scale, and the difference or "same"."""
    if study.diagram:
        return study.title, "nothing to measure", ""
    if study.missing:
        return study.title, "nothing", f"cannot run: {study.missing}"
    if study.analytic:
        return study.title, "the same, computed without training", _difference(study)
    run = next(run for _, _, run in study.plan("paper").cells(1))
    ours = [describe_measure(quantity.measure, run) for quantity in study.quantities]
    papers = [quantity.paper or words for quantity, words in zip(study.quantities, ours, strict=True)]
    return _join(papers), "the same" if papers == ours else _join(ours), _difference(study)


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
