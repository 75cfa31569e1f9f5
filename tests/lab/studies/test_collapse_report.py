"""The report's section about signs of collapse, from records that are given."""

from __future__ import annotations

from typing import Any

from contrapose.lab.report.document import Chart, Number, Table
from contrapose.lab.studies.collapse import collapse_section, collapse_sentences
from contrapose.lab.studies.loss_comparison import learned, rows_of
from contrapose.lab.studies.results import Results
from contrapose.lab.studies.study import Plan, Row, Study

STUDY = Study(name="some/table", title="", claim="", rows=rows_of(Row(name) for name in ("a", "b", "old")))


def plan(scale: str) -> Plan:
    return Plan(study=STUDY, scale=scale, sets=())


def history(deviations: list[float], *, since: int = 0, batch: bool = True) -> list[dict[str, Any]]:
    """Return a record for each epoch, with an evaluation in every second one."""
    records = []
    for epoch, deviation in enumerate(deviations, 1):
        record: dict[str, Any] = {"epoch": epoch, "step": 100 * epoch, "loss": 1.0}
        record |= {"batch_feature_std": deviation} if batch else {}
        if epoch % 2 == 0:
            record |= {"feature_std": deviation, "effective_rank": 1 + 10 * deviation}
            record |= {"encoder_feature_std": 0.5, "encoder_effective_rank": 12.0} if batch else {}
            record |= {"collapsed_since": since} if since and epoch >= since else {}
        records.append(record)
    return records


def results(seeds: int = 1) -> Results:
    histories = {
        ("a", "mine"): (history([0.9, 0.8, 0.9, 0.9]),) * seeds,
        ("b", "mine"): (*(history([0.9, 0.8, 0.9, 0.9]),) * (seeds - 1), history([0.5, 0.2, 0.01, 0.0], since=3)),
        ("old", "mine"): (history([0.8, 0.8, 0.8, 0.8], batch=False),) * seeds,
    }
    return Results(sets=("mine",), seeds=seeds, records=histories)


def test_the_section_shows_both_outputs() -> None:
    section = collapse_section(plan("small"), results())
    assert section is not None
    assert section.title == "some/table: signs of collapse"
    assert section.name == "some-table-collapse"
    assert section.lead == "b collapsed from epoch 3 on."
    table, *charts = section.blocks
    assert isinstance(table, Table)
    assert table.columns[:2] == ("feature deviation, projector", "effective rank, projector")
    cells = dict(table.rows)
    assert [cell.ours for cell in cells["b"] if isinstance(cell, Number)] == [0.0, 1.0, 0.5, 12.0]
    assert cells["old"][2:] == ("–", "–")  # the encoder was not measured
    titles = [chart.title for chart in charts if isinstance(chart, Chart)]
    assert titles == [
        "Feature deviation of the embeddings that the loss takes, last batch of each epoch",
        "Effective rank, projector",
        "Feature deviation, encoder",
        "Effective rank, encoder",
    ]
    first = charts[0]
    assert isinstance(first, Chart)
    assert {series.name: series.y for series in first.series}["b"] == (0.5, 0.2, 0.01, 0.0)


def test_seeds_are_named() -> None:
    assert collapse_sentences(STUDY, results(seeds=2)) == ("b collapsed from epoch 3 on (seed 1).",)
    assert learned(STUDY, results(seeds=2))[-1] == "b collapsed from epoch 3 on (seed 1)."


def test_healthy_runs_and_no_runs() -> None:
    healthy = {key: records for key, records in results().records.items() if key[0] != "b"}
    section = collapse_section(plan("own"), Results(sets=("mine",), records=healthy))
    assert section is not None
    assert section.title == "Signs of collapse"
    assert section.lead == "No run was found to have collapsed."
    assert collapse_section(plan("own"), Results(sets=("mine",))) is None
    old = {("old", "mine"): results().records["old", "mine"]}
    section = collapse_section(plan("own"), Results(sets=("mine",), records=old))
    assert section is not None
    chart = section.blocks[1]
    assert isinstance(chart, Chart)
    assert chart.title == "Feature deviation, projector"
