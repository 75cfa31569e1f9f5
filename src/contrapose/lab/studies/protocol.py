"""Say in words what each study measures, and what its table or figure in the paper measures.

`contrapose study protocols` prints the page; docs/studies.md is its output.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from contrapose.lab.evaluation import FINE_TUNING, PROBES
from contrapose.lab.studies.captions import describe_caption_measure, is_caption_recall
from contrapose.lab.studies.detection import describe_detection
from contrapose.lab.studies.differences import list_words
from contrapose.lab.studies.measures import fine_tuning_recipe
from contrapose.lab.studies.sentences import describe_sentences
from contrapose.lab.studies.study import PAPERS, Plan, Quantity, Row, Study, StudyData, data_name
from contrapose.lab.studies.transfer import describe_transfer
from contrapose.lab.training import Run
from contrapose.lab.training.recording import recorded_measures

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
    "step_seconds": "seconds of a training step, in the median epoch",
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
_BEFORE = "before training: "
Parts = tuple[str, str]  # what is measured, and of what


def describe_measure(measure: str, run: Run) -> str:
    """Return in words what is measured of a run: the quantity, of which output, on which images."""
    return "".join(_parts(measure, run))


def _parts(measure: str, run: Run) -> Parts:
    """Return what is measured, and of what: quantities that differ in the first alone are described together."""
    kind, *options = measure.removeprefix("-").split(":")
    if kind == "start":
        return f"{_BEFORE}{describe_measure(':'.join(options), run)}", ""
    if kind == "best":
        what, of = _parts(f"knn:{run.knn}:softmax", run)
        return what, f"{of}, best epoch, evaluated every {'epoch' if run.knn_every == 1 else f'{run.knn_every} epochs'}"
    if kind == "knn_top1":
        return f"{describe_measure(f'knn:{run.knn}:softmax', run)}, last epoch", ""
    if kind in ("knn", "knn_top5"):
        k, weights = options
        what = f"{k}-NN {_accuracy(kind)}"
        return what, f" of the encoder's output, {_WEIGHTS[weights]}, neighbours from {_bank(run)}"
    if kind.startswith("linear"):
        name, *epochs = options
        probe = replace(PROBES[name], best="_best" in kind)
        probe = probe.shortened(int(epochs[0])) if epochs else probe
        of = f" of a linear probe of the encoder's output on {_bank(run)}: {probe.describe()}"
        return _accuracy(kind), of + _every(name, run)
    if kind == "metric":
        name, space, images = options
        return _metric(name), f" ({space}'s output, {_IMAGES[images]})"
    if kind in _OTHERS:
        return _OTHERS[kind], ""
    if kind == "zero_shot" or is_caption_recall(kind):
        return describe_caption_measure(measure)
    if kind in _DESCRIBED:
        return _DESCRIBED[kind](measure, run), ""
    space, images = ("encoder" if kind.startswith("encoder_") else "projector"), _SAMPLED[run.metrics_on]
    return _metric(kind.removeprefix("encoder_")), f" ({space}'s output, {run.metrics:,} random {images} images)"


_DESCRIBED: Mapping[str, Callable[[str, Run], str]] = {
    "fine_tune": lambda measure, run: (
        f"accuracy after fine-tuning on all training images: {FINE_TUNING[fine_tuning_recipe(run.encoder)].describe()}"
    ),
    "transfer": lambda measure, run: describe_transfer(measure),
    "detection": lambda measure, run: describe_detection(*measure.split(":")[1:]),
    "sentences": describe_sentences,
}


def _accuracy(kind: str) -> str:
    return "top-5 accuracy" if kind.endswith("top5") else "accuracy"


def _bank(run: Run) -> str:
    """Return the images that classifiers learn from, in words."""
    if run.probe == "train":
        return "the images trained on"
    return f"all training images{f' of {data_name(run.probe_data)}' if run.probe_data else ''}"


def _every(probe: str, run: Run) -> str:
    """Return how often a run records a linear probe, in words; empty if it is trained once, after the last epoch."""
    recorded = [measure.every for measure in recorded_measures(run.record, run.kind.recorded) if measure.probe == probe]
    return f", after every {recorded[0]} epochs of the training" if recorded else ""


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
    ours = [_quantity_parts(quantity, plan) for quantity in quantities]
    papers = [
        (quantity.paper, "") if quantity.paper else words for quantity, words in zip(quantities, ours, strict=True)
    ]
    measured = "the same" if papers == ours else _join(ours)
    extras = [_quantity_parts(quantity, plan) for quantity in study.quantities if quantity.extra]
    return _join(papers), "; ".join([measured, *_describe_extras(extras, ours)]), _difference(study)


def _quantity_parts(quantity: Quantity, plan: Plan) -> Parts:
    """Return in words what is measured; by data set if it differs between them, and of all rows if those differ."""
    names: dict[tuple[Parts, ...], list[str]] = {}  # of data sets
    for study_data in plan.sets:
        parts = tuple(dict.fromkeys(_cell_parts(quantity, study_data, row, plan) for row in plan.study.rows))
        names.setdefault(parts, []).append(study_data.name)
    (first, *others), *more = names
    if not others and not more:
        return first
    if not more:
        return _join((first, *others)), ""
    return "; ".join(f"{', '.join(group)}: {_join(parts)}" for parts, group in names.items()), ""


def _cell_parts(quantity: Quantity, study_data: StudyData, row: Row, plan: Plan) -> Parts:
    return _parts(plan.measure(quantity, study_data, row), plan.run(row, study_data))


def _describe_extras(extras: Sequence[Parts], measured: Sequence[Parts]) -> list[str]:
    """Return what is measured too; in short if it is a measured quantity in the last epoch, or before training."""
    words, others = ["".join(parts) for parts in measured], []
    shortened: dict[str, None] = {}
    for parts in extras:
        text = "".join(parts)
        if any(known.startswith(text.replace("last epoch", "best epoch")) for known in words):
            shortened["also the last epoch's accuracy"] = None
        elif text.removeprefix(_BEFORE) in words:
            shortened["also before training"] = None
        else:
            others.append(parts)
    return [*shortened, *([f"also {_join(others)}"] if others else [])]


def _difference(study: Study) -> str:
    """Return the differences in words; "same" if there are none."""
    other = any(quantity.paper for quantity in study.quantities)
    return " ".join(study.differences) or ("the quantity itself" if other else "same")


def _join(descriptions: Iterable[Parts]) -> str:
    """Return descriptions as one text; those of the same outputs and images are joined to "A and B of …"."""
    names: dict[Parts, dict[str, None]] = {}
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
