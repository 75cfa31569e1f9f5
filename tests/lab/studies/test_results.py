"""A number of an older run says beside it which images it is of, and a mean over anchors has its error."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from contrapose.lab.report.render import as_html, as_markdown
from contrapose.lab.studies import find
from contrapose.lab.studies.claims import FAILS, HOLDS, UNDECIDED
from contrapose.lab.studies.collect import collect, document, verdicts
from contrapose.lab.studies.measures import Metric, NearestNeighbours, RecordedMetric
from contrapose.lab.studies.results import Cell, Results
from contrapose.lab.studies.run_directory import RunDirectory

RECORDED = Path(__file__).parents[3] / "results" / "runs"
NT_XENT = RunDirectory(RECORDED / "cifar10.npz-nt_xent-03d0e03e")
SAMPLE = "a sample of 2,000 test images"


def test_older_names_say_which_images_they_are_of() -> None:
    assert Metric("tolerance", "projector").older_keys(SAMPLE) == {"tolerance_whole": "", "tolerance": SAMPLE}
    assert Metric("tolerance", "encoder").older_keys(SAMPLE) == {"encoder_tolerance": SAMPLE}
    bank = Metric("separation_n1", "projector", "bank").older_keys(SAMPLE)
    assert bank == {"separation_n1_whole": "all test images", "separation_n1": SAMPLE}
    assert NearestNeighbours(1, "uniform").older_keys(SAMPLE) == {}


def test_a_recorded_run_says_what_it_holds() -> None:
    last = NT_XENT.records()[-1]
    assert Metric("uniformity", "projector").read(NT_XENT) == (last["uniformity"], SAMPLE)
    assert Metric("separation_n1", "projector", "bank").read(NT_XENT) == (last["separation_n1"], SAMPLE)
    assert RecordedMetric("uniformity").read(NT_XENT) == (last["uniformity"], "")
    assert Metric("uniformity", "encoder").read(NT_XENT).value is None
    assert "recorded only for the projector's output" in Metric("uniformity", "encoder").missing_reason(NT_XENT)


def test_the_report_says_it_beside_the_number() -> None:
    plan = find("behaviour/figure5").select_rows(["τ = 0.2"]).plan("short", ["cifar10=data/cifar10.npz"])
    page = document([plan], 1, RECORDED)
    for text in (as_markdown(page), as_html(page)):
        assert f"of {SAMPLE}" in text
        assert "T: tolerance (projector" in text


def test_a_verdict_from_an_older_quantity_says_so_in_its_line() -> None:
    plan = find("behaviour/table1").plan("short", ["cifar10=data/cifar10.npz"])
    evidence = {verdict.statement: verdict.evidence for verdict in verdicts(plan, collect(plan, 1, RECORDED))}
    probe = "a probe of images without augmentation, last epoch"
    for statement, form in {
        "HardSimple is above Simple in -U": SAMPLE,
        "HardSimple is above Simple in accuracy": probe,
    }.items():
        assert evidence[statement].endswith(f"; older runs: not the study's own quantity, but that of {form}")
    page = as_markdown(document([plan], 1, RECORDED))
    assert all(text in page for text in evidence.values())
    own = find("dystress/table3").plan("short", ["cifar10=data/cifar10.npz"], settings={"norm_views": "together"})
    assert not any("older" in verdict.evidence for verdict in verdicts(own, collect(own, 1, RECORDED)))


def test_the_error_of_a_measure(tmp_path: Path) -> None:
    errors = {"metric:uniformity_error:encoder:test": 0.5, "attraction_gap_error": 0.25}
    (tmp_path / "evaluations.json").write_text(json.dumps(errors))
    assert Metric("uniformity", "encoder").read_error(RunDirectory(tmp_path)) == 0.5
    assert RecordedMetric("attraction_gap").read_error(RunDirectory(tmp_path)) == 0.25
    assert NearestNeighbours(1, "uniform").read_error(RunDirectory(tmp_path)) is None
    assert Cell(values=(1.0, 2.0), errors=(0.3, 0.4)).error == pytest.approx(0.25)


def bias_results(error: float, *, other: float) -> Results:
    cells = {
        (row, "bias", "digits"): Cell(values=(value,), errors=(error,))
        for row, value in {"base": 0.5, "-gaussian_blur": other}.items()
    }
    return Results(sets=("digits",), rows=frozenset({"base", "-gaussian_blur"}), cells=cells)


@pytest.mark.parametrize(
    ("error", "other", "outcome"), [(0.001, 0.52, HOLDS), (0.02, 0.52, UNDECIDED), (0.001, 0.4, FAILS)]
)
def test_a_bias_is_judged_by_its_sampling_error(error: float, other: float, outcome: str) -> None:
    verdict = find("balanced/figure3").claims[1](bias_results(error, other=other))
    assert verdict.outcome == outcome
    assert f"base 0.500 ± {error:.3f}" in verdict.evidence


def gap_results(gaps: list[float], **errors: list[float]) -> Results:
    records = [
        {"epoch": epoch, "attraction_gap": gap, "repulsion_gap": gap + 1}
        | {f"{name}_gap_error": values[epoch] for name, values in errors.items()}
        for epoch, gap in enumerate(gaps)
    ]
    row = find("balanced/figure6").rows[0].name
    return Results(sets=("digits",), rows=frozenset({row}), records={(row, "digits"): (records,)})


def test_a_gap_is_judged_by_its_sampling_error() -> None:
    falls, _, larger = find("balanced/figure6").claims
    gaps = [0.2, 0.15, 0.11, 0.1, 0.1, 0.1]
    assert falls(gap_results(gaps)).outcome == HOLDS
    assert falls(gap_results(gaps)).evidence == "from 0.200 to 0.100, 0.000 in the last fifth"
    precise, rough = (gap_results(gaps, attraction=[error] * 6, repulsion=[error] * 6) for error in (0.001, 0.01))
    assert falls(precise).outcome == HOLDS
    assert "from 0.200 ± 0.001 to 0.100 ± 0.001" in falls(precise).evidence
    assert falls(rough).outcome == UNDECIDED
    assert larger(precise).evidence == "at 6 of 6 epochs, least difference 1.000 ± 0.001"
