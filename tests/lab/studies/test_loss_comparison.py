"""What a comparison says in words, from results that are given."""

from __future__ import annotations

from typing import Any

import pytest

from contrapose.lab.report.document import Chart
from contrapose.lab.studies.loss_comparison import (
    Description,
    compare_accuracies,
    comparison,
    learned,
    rows_of,
    show_comparison,
)
from contrapose.lab.studies.results import Cell, Results
from contrapose.lab.studies.study import Row, Study
from contrapose.lab.training import Run, prepare

STUDY = Study(name="compare", title="", claim="", rows=rows_of(Row(name) for name in "abc"))


def results_of(
    seeds: int = 1, images: int = 1000, references: tuple[float, float] | None = None, **accuracies: Any
) -> Results:
    """Return results in which each loss misses the first test images, as many as its accuracy leaves."""
    cells, evaluations = {}, dict[tuple[str, str], tuple[dict[str, Any], ...]]()
    for name, accuracy in accuracies.items():
        hits = "0" * (images - round(images * accuracy / 100)) + "1" * round(images * accuracy / 100)
        evaluation: dict[str, Any] = {"knn_hits": hits}
        if references:
            evaluation["references"] = {"pixels": references[0], "untrained": references[1]}
        cells[name, "kNN", "mine"] = Cell((accuracy,) * seeds)
        evaluations[name, "mine"] = (evaluation,) * seeds
    return Results(sets=("mine",), seeds=seeds, cells=cells, evaluations=evaluations)


def test_one_seed_prefers_no_loss() -> None:
    text = compare_accuracies(STUDY, results_of(a=90.0, b=60.0, c=30.0))
    assert text.startswith("With one seed it is unknown how much of a difference in accuracy is chance")
    assert "--seeds 3" in text


def test_several_seeds() -> None:
    text = compare_accuracies(STUDY, results_of(seeds=3, a=80.0, b=79.9, c=60.0))
    assert text.startswith(
        "a and b are ahead of c; there is no clear difference between a and b (kNN accuracy on 1,000 test"
    )
    assert "points can be chance)." in text
    few = compare_accuracies(STUDY, results_of(seeds=3, images=24, a=83.3, b=79.2, c=75.0))
    assert few.startswith(
        "These runs show no clear difference between a, b and c (kNN accuracy on 24 test images, 3 seeds; here, diff"
    )
    assert compare_accuracies(STUDY, results_of()).startswith("No run has a score yet")
    assert compare_accuracies(STUDY, results_of(seeds=3, a=80.0)).startswith("Too few runs are done")
    missing = compare_accuracies(STUDY, results_of(seeds=3, a=80.0, b=60.0))
    assert missing.endswith("Not compared, with fewer than two runs done: c.")


def test_a_test_set_that_has_changed_is_refused() -> None:
    results = results_of(seeds=2, a=80.0, b=70.0, c=60.0)
    shorter = {**results.evaluations, ("b", "mine"): ({"knn_hits": "1" * 999},) * 2}
    with pytest.raises(ValueError, match="data: the runs were tested on 999 to 1,000 test images"):
        compare_accuracies(STUDY, Results(sets=("mine",), seeds=2, cells=results.cells, evaluations=shorter))


def test_what_training_is_worth() -> None:
    text = learned(STUDY, results_of(references=(40.0, 50.0), a=80.0, b=70.0, c=60.0))[1]
    assert text == (
        "kNN accuracy is 40.0 % on raw pixels, 50.0 % with the untrained encoder, and 60.0 to 80.0 % after training."
    )
    nothing = learned(STUDY, results_of(references=(40.0, 85.0), a=80.0, b=70.0, c=60.0))[1]
    assert nothing.endswith("Training is not yet above all of these: use more --epochs, or other --views.")


def test_a_page_without_metrics_has_no_empty_chart() -> None:
    blocks = show_comparison(STUDY, results_of(a=80.0, b=70.0, c=60.0), Description(data="Data.", settings="Settings."))
    assert [type(block).__name__ for block in blocks] == ["Text", "Table", "Text", "Text"]


TEMPERATURES = Study(
    name="demo",
    title="",
    claim="",
    rows=rows_of(
        [*(Row(f"NT-Xent τ = {tau:g}", x=tau, series="NT-Xent") for tau in (0.1, 1.0)), Row("CACR"), Row("other")]
    ),
)


def test_losses_beside_the_best_temperature() -> None:
    accuracies: dict[str, Any] = {"NT-Xent τ = 0.1": 80.0, "NT-Xent τ = 1": 60.0, "CACR": 95.0, "other": 80.5}
    text = learned(TEMPERATURES, results_of(seeds=3, **accuracies))[0]
    assert text == (
        "The most accurate temperature of NT-Xent is τ = 0.1: 80.00 ± 0.00 %. CACR (+15.0 points) is above it by more than "
        "chance. NT-Xent τ = 1 (-20.0 points) is below it by more than chance. (kNN accuracy on 1,000 test images, 3 seeds.)"
    )
    accuracies |= {"CACR": 70.0}
    text = learned(TEMPERATURES, results_of(seeds=3, **accuracies))[0]
    assert "No other loss is above it by more than chance. The nearest is other with +0.5 points, and up to " in text
    assert "NT-Xent τ = 1 (-20.0 points) and CACR (-10.0 points) are below it by more than chance." in text
    # All losses below the best temperature: there is no nearest one above it.
    text = learned(TEMPERATURES, results_of(seeds=3, **accuracies | {"other": 75.0}))[0]
    assert "No other loss is above it by more than chance. NT-Xent" in text
    assert learned(TEMPERATURES, results_of(**accuracies))[0].startswith("With one seed it is unknown")


def test_the_best_of_several_temperatures() -> None:
    """Losses that differ in a number as temperature are one line; a sentence names its best, and the page has a chart."""
    run = Run(limit=40, batch=8)
    losses = [f"{name}(temperature={t})" for name in ("simclr", "dcl") for t in (0.1, 0.5, 1, "cosine(0.07, 0.2)")]
    study = comparison(run, [*losses, "cacr", "nt_xent(temperature=0.3)"], prepare(run)).study
    assert [(row.series, row.x) for row in study.rows] == [
        *(("simclr", 0.1), ("simclr", 0.5), ("simclr", 1.0), ("", None)),
        *(("dcl", 0.1), ("dcl", 0.5), ("dcl", 1.0), ("", None), ("", None), ("", None)),
    ]
    accuracies: dict[str, Any] = dict(zip(losses, (80.0, 79.9, 60.0, 81.0, 50.0, 70.0, 90.0, 10.0), strict=True))
    _, simclr, dcl = learned(study, results_of(seeds=3, **accuracies))
    assert simclr == (
        "The best temperature of simclr is 0.1: kNN accuracy 80.00 ± 0.00 %; 1 is below it by more than chance, "
        "and 0.5 may be as good."
    )
    assert dcl.endswith("is 1: kNN accuracy 90.00 ± 0.00 %; 0.1 and 0.5 are below it by more than chance.")
    one_seed = learned(study, results_of(**accuracies))[1]
    assert one_seed.startswith(
        "The best temperature of simclr is 0.1: kNN accuracy 80.00 %; whether the others are below"
    )
    assert learned(study, results_of())[1] == "No temperature of simclr has a score yet."
    blocks = show_comparison(study, results_of(**accuracies), Description(data="Data.", settings="Settings."))
    (chart,) = (block for block in blocks if isinstance(block, Chart))
    assert chart.x == "temperature of simclr and dcl"
    lines = {series.name: (series.x, series.y) for series in chart.series}
    assert lines["dcl"] == ((0.1, 0.5, 1.0), (50.0, 70.0, 90.0))
    assert lines["simclr(temperature=cosine(0.07, 0.2))"] == ((0.1, 1.0), (81.0, 81.0))
