"""Report blocks and claims about queries with their positives and negatives (Figures 6 and 7 of the CACR paper)."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

from contrapose.lab.report.document import Block, Chart, Thumbnail, Thumbnails, points
from contrapose.lab.studies.claims import Claim, computed_claim
from contrapose.lab.studies.measures.queries import POSITIVES
from contrapose.lab.studies.report_blocks import table
from contrapose.lab.studies.results import Results
from contrapose.lab.studies.study import Study

# Names of the means of Figure 7.
DISTANCES = {
    "positive_ratio": "distance to positives / to negatives",
    "negative_variation": "variation of the distances to negatives",
}


def _first(results: Results, row: str, key: str) -> Any:
    """Return an evaluation of the row's first run on the first data set; None if it has not been evaluated."""
    for data_set in results.sets[:1]:
        for evaluations in results.evaluations.get((row, data_set), ())[:1]:
            return evaluations.get(key)
    return None


def show_weights(study: Study, results: Results) -> list[Block]:
    """Return the images and weights of one query's positives and negatives, a chart of the weights, and the table."""
    blocks: list[Block] = []
    for row in study.rows:
        found = _first(results, row.name, "query_weights")
        if found is not None:
            blocks += [_images(study, found), _weight_chart(found["weights"])]
    return blocks + table(study, results)


def _images(study: Study, found: Mapping[str, Any]) -> Thumbnails:
    query, count = found["query"], len(found["weights"])
    positives = tuple(
        _thumbnail(entry["view"], f"π⁺ = {entry['weight']:.3f}", f"positive of weight {entry['weight']:.3f}")
        for entry in sorted(found["positives"], key=lambda entry: -entry["weight"])
    )
    groups = [
        ("Query, and the image that it is a view of", (
            _thumbnail(query["view"], "query", f"query: a view of an image of class {query['class']}"),
            _thumbnail(query["image"], query["class"], f"image of class {query['class']}"),
        )),
        ("Its positives: other views of the image", positives),
    ]  # fmt: skip
    for kind, words in (("nearest", "largest"), ("farthest", "smallest")):
        groups.append((f"Negatives of the {words} weights, of {count}", _negatives(found[kind], "view")))
        groups.append(("Their images", _negatives(found[kind], "image")))
    return Thumbnails(study.title, tuple(groups))


def _negatives(entries: list[Mapping[str, Any]], picture: str) -> tuple[Thumbnail, ...]:
    named = [(entry, f"π⁻ = {entry['weight']:.4f}" if picture == "view" else entry["class"]) for entry in entries]
    return tuple(
        _thumbnail(entry[picture], caption, f"negative of class {entry['class']} and weight {entry['weight']:.4f}")
        for entry, caption in named
    )


def _thumbnail(png: str, caption: str, alt: str) -> Thumbnail:
    return Thumbnail(image=base64.b64decode(png), caption=caption, alt=alt)


def _weight_chart(weights: list[float]) -> Chart:
    ranks = [(float(rank), weight) for rank, weight in enumerate(weights, 1)]
    equal = points("equal weights", [(1.0, 1 / len(weights)), (float(len(weights)), 1 / len(weights))], printed=True)
    return Chart(
        title="Weights of the query's negatives, from the largest to the smallest",
        x="rank",
        y="π⁻",
        series=(points("π⁻", ranks), equal),
    )


def own_class_weighs_more(row: str) -> Claim:
    """Claim that negatives from a query's own class weigh more than average, by two standard errors over queries."""

    def decide(results: Results) -> tuple[bool | None, str]:
        outcomes, evidence = [], []
        for data_set in results.sets:
            for found in results.evaluations.get((row, data_set), ()):
                if "own_class_weight" in found:
                    mean, error = found["own_class_weight"], found["own_class_weight_error"]
                    outcomes.append(None if abs(mean - 1) <= 2 * error else mean > 1)
                    evidence.append(f"{data_set}: {mean:.3f} ± {error:.3f} times an equal weight")
        outcome = False if False in outcomes else True if outcomes and None not in outcomes else None
        return outcome, "; ".join(evidence) or "nothing has run"

    return computed_claim("negatives of the query's own class weigh more than others, in the mean over queries", decide)


def show_maps(study: Study, results: Results) -> list[Block]:
    """Return the t-SNE of one query at each kept epoch, and the table."""
    blocks: list[Block] = []
    for row in study.rows:
        for found in _first(results, row.name, "query_map") or ():
            places = [(float(x), float(y)) for x, y in found["points"]]
            series = (
                points("negatives", places[1 + POSITIVES :], points=True),
                points("positives", places[1 : 1 + POSITIVES], points=True),
                points("query", places[:1]),
            )
            title = f"{row.name}, epoch {found['epoch']}"
            blocks.append(Chart(title=title, x="", y="", series=series, alt=f"t-SNE of a query: {title}"))
    return blocks + table(study, results)


def falls_during_training(row: str, name: str) -> Claim:
    """Claim that a mean over queries is lower after the last kept epoch than after the first."""

    def decide(results: Results) -> tuple[bool | None, str]:
        epochs = _first(results, row, "query_map")
        if not epochs or len(epochs) < 2:
            return None, "fewer than two epochs"
        values = ", ".join(f"{found[name]:.3f} at epoch {found['epoch']}" for found in epochs)
        return epochs[-1][name] < epochs[0][name], values

    return computed_claim(f"{row}: {DISTANCES[name]} falls", decide)
