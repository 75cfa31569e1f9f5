"""Conformance checks accept our criteria and catch each kind of fault; references equal plain loops."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import tyro
from conformance import CheckLibraries, render_table
from gathering import make_failing_on_one_rank, make_info_nce, make_local_anchors, make_own_rows, make_ring_of_one
from peers import PEERS, make_dense, make_exponentials, make_lightly, make_ours
from tiers import first
from torch import Tensor

from contrapose.conformance import CHECKS, Finding, check
from contrapose.conformance.checks import Subject, make_views
from contrapose.conformance.findings import worst
from contrapose.conformance.measure import Criterion, MakeCriterion, relative_difference
from contrapose.conformance.references import REFERENCES, info_nce, nt_xent

IN_ONE_PROCESS = [name for name in CHECKS if name != "distributed"]


def verdicts(make: MakeCriterion, name: str, reference: str = "nt_xent") -> dict[str, str]:
    return {finding.case: finding.verdict for finding in check(make, reference=reference, checks=[name])}


@pytest.mark.parametrize("name", ["contrapose", "contrapose-clip"])
def test_our_criteria_pass_every_check(name: str) -> None:
    peer = PEERS[name]
    findings = check(peer.make, reference=peer.reference, checks=IN_ONE_PROCESS)
    assert {finding.check for finding in findings} == set(IN_ONE_PROCESS)
    assert [finding for finding in findings if finding.verdict != "ok"] == []


@pytest.mark.parametrize("length", [1e19, 3e19, 1e30, 1e37])
@pytest.mark.parametrize("name", ["contrapose", "contrapose-clip"])
def test_our_criteria_are_right_where_squared_lengths_overflow(name: str, length: float) -> None:
    """The check of lengths beyond float32's squares asks for a finite result; ours is the exact one."""
    peer = PEERS[name]
    z1, z2 = (z.float() * length for z in make_views(noise=1.0))
    subject = Subject(peer.make, None, REFERENCES[str(peer.reference)])
    difference = relative_difference(subject.measured(z1, z2), subject.expected(z1, z2))
    assert difference < 1e-4


@pytest.mark.parametrize("name", first(1, [name for name, peer in PEERS.items() if peer.ours]))
def test_our_gradients_in_several_processes_are_those_of_one(name: str) -> None:
    findings = PEERS[name].check("distributed")
    assert [finding.case for finding in findings] == ["2 processes", "4 processes", "2 processes, FSDP2"]
    for finding in findings:
        assert finding.verdict == "ok", finding
        assert finding.figure is not None
        assert finding.figure < 1e-12


@pytest.mark.parametrize("name", [name for name, peer in PEERS.items() if "formula" in peer.checks])
def test_installed_peers_compute_the_loss_they_are_compared_with(name: str) -> None:
    peer = PEERS[name]
    if not peer.version:
        pytest.skip(f"{peer.package} is not installed")
    assert [finding.verdict for finding in peer.check("formula")] == ["ok", "ok"]


# References, as loops over floats.


def loop_info_nce(a: list[list[float]], b: list[list[float]], tau: float) -> float:
    total = 0.0
    for i, anchor in enumerate(a):
        total -= math.log(math.exp(cosine(anchor, b[i]) / tau) / sum(math.exp(cosine(anchor, y) / tau) for y in b))
    return total / len(a)


def loop_nt_xent(a: list[list[float]], b: list[list[float]], tau: float) -> float:
    rows, m, total = a + b, len(a), 0.0
    for i, anchor in enumerate(rows):
        others = sum(math.exp(cosine(anchor, y) / tau) for k, y in enumerate(rows) if k != i)
        total -= math.log(math.exp(cosine(anchor, rows[(i + m) % (2 * m)]) / tau) / others)
    return total / len(rows)


def loop_clip(a: list[list[float]], b: list[list[float]], tau: float) -> float:
    return (loop_info_nce(a, b, tau) + loop_info_nce(b, a, tau)) / 2


def loop_siglip(a: list[list[float]], b: list[list[float]], tau: float) -> float:
    total = 0.0
    for i, x in enumerate(a):
        for j, y in enumerate(b):
            sign = 1 if i == j else -1
            total += math.log(1 + math.exp(-sign * (cosine(x, y) / tau - 10)))
    return total / len(a)


def cosine(x: list[float], y: list[float]) -> float:
    return sum(p * q for p, q in zip(x, y, strict=True)) / math.hypot(*x) / math.hypot(*y)


LOOPS: dict[str, Callable[..., float]] = {
    "nt_xent": loop_nt_xent,
    "info_nce": loop_info_nce,
    "clip": loop_clip,
    "siglip": loop_siglip,
}


@pytest.mark.parametrize("name", REFERENCES)
def test_a_reference_equals_its_loop(name: str) -> None:
    z1, z2 = torch.randn(2, 5, 3, dtype=torch.float64)
    for tau in (0.1, 0.7):
        expected = LOOPS[name](z1.tolist(), z2.tolist(), tau)
        assert float(REFERENCES[name](z1, z2, tau)) == pytest.approx(expected, rel=1e-12)


# Faults that must be found.


def test_a_wrong_temperature_is_found() -> None:
    assert set(verdicts(lambda temperature: make_ours(temperature * 1.01), "formula").values()) == {"differs"}


def test_another_loss_is_found() -> None:
    assert set(verdicts(make_ours, "formula", reference="clip").values()) == {"differs"}


def test_a_wrong_gradient_is_found() -> None:
    """Values agree, but the second view has no gradient."""

    def make(temperature: float) -> Criterion:
        return lambda z1, z2: nt_xent(z1, z2.detach(), temperature)

    assert set(verdicts(make, "formula").values()) == {"differs"}


def test_overflowing_exponentials_are_found() -> None:
    assert set(verdicts(make_exponentials, "temperature").values()) == {"not finite"}


def test_low_precision_near_convergence_is_found() -> None:
    assert verdicts(make_dense, "bf16") == {"views far apart": "ok", "views close together": "differs"}


def test_nan_from_a_zero_vector_is_found() -> None:
    def make(temperature: float) -> Criterion:
        return lambda z1, z2: nt_xent(z1, z2, temperature)  # divides by the length

    assert verdicts(make, "degenerate")["a zero vector"] == "not finite"


def test_an_exploding_gradient_of_a_zero_vector_is_found() -> None:
    (finding, *_) = check(make_dense, checks=["degenerate"])
    assert finding.case == "a zero vector"
    assert finding.verdict == "differs"
    assert finding.figure is not None
    assert finding.figure > 1e9


def test_refusing_input_is_an_answer_and_failing_on_it_is_not() -> None:
    def make(error: Exception) -> MakeCriterion:
        def criterion(z1: Tensor, z2: Tensor) -> Tensor:
            if len(z1) == 1:
                raise error
            return make_ours(0.1)(z1, z2)

        return lambda temperature: criterion

    findings = {finding.case: finding for finding in check(make(ValueError("too few")), checks=["degenerate"])}
    assert findings["one pair"].verdict == "ok"
    assert findings["one pair"].note == "refused: too few"
    assert verdicts(make(IndexError("out of range")), "degenerate")["one pair"] == "raises"


def test_copies_as_negatives_are_found() -> None:
    def make(temperature: float) -> Criterion:
        def ignores_ids(z1: Tensor, z2: Tensor, ids: Tensor | None = None) -> Tensor:
            return nt_xent(z1, z2, temperature)

        return ignores_ids

    (finding,) = check(make, checks=["duplicates"])
    assert finding.failed
    assert finding.figure is not None
    assert finding.figure > 0.01
    (finding,) = check(make_dense, checks=["duplicates"])
    assert finding.verdict == "not offered"
    assert finding.figure is not None
    assert finding.figure > 0.01


def test_a_criterion_that_raises_is_a_finding() -> None:
    def make(temperature: float) -> Criterion:
        raise ImportError("no such library")

    for name in IN_ONE_PROCESS:
        for finding in check(make, checks=[name]):
            assert finding.verdict == "raises"
            assert "no such library" in finding.note
    assert set(verdicts(lambda temperature: lambda z1, z2: z1, "formula").values()) == {"raises"}


# Several processes.


@pytest.mark.thorough
def test_a_gather_without_gradient_is_found() -> None:
    findings = check(make_info_nce, distributed=make_local_anchors, reference="info_nce", checks=["distributed"])
    assert [finding.verdict for finding in findings] == ["differs"] * 3
    assert all(finding.figure is not None and finding.figure > 0.1 for finding in findings)


@pytest.mark.thorough
def test_a_gradient_divided_by_the_world_size_is_found() -> None:
    findings = check(make_info_nce, distributed=make_own_rows, reference="info_nce", checks=["distributed"])
    assert [finding.verdict for finding in findings] == ["scaled"] * 3
    assert [finding.figure for finding in findings] == pytest.approx([0.5, 0.25, 0.5])


@pytest.mark.thorough
def test_a_ring_with_candidates_of_its_own_process_only_is_found() -> None:
    """The fault of a ring that does not travel; `contrapose-ring` passes the same check."""
    peer = replace(PEERS["contrapose-ring"], distributed=make_ring_of_one)
    assert {finding.verdict for finding in peer.check("distributed")} == {"differs"}


@pytest.mark.thorough
def test_a_failure_on_one_rank_is_a_finding() -> None:
    findings = check(make_info_nce, distributed=make_failing_on_one_rank, reference="info_nce", checks=["distributed"])
    assert [finding.verdict for finding in findings] == ["raises"] * 3
    assert "rank 1 fails" in findings[0].note


def test_a_function_that_other_processes_cannot_import_is_refused() -> None:
    with pytest.raises(ValueError, match="distributed: expected a function that is defined at the top level"):
        check(make_info_nce, distributed=lambda temperature: info_nce)


def test_unknown_names_are_refused() -> None:
    with pytest.raises(ValueError, match="did you mean 'formula'"):
        check(make_ours, checks=["formulas"])
    with pytest.raises(ValueError, match="did you mean 'nt_xent'"):
        check(make_ours, reference="ntxent")


# The command.


def test_the_worst_finding_is_shown() -> None:
    good = Finding("formula", "a", "ok", 1e-9)
    better = Finding("formula", "b", "ok", 1e-16)
    bad = Finding("formula", "c", "differs", 0.5)
    assert worst([better, good]) is good
    assert worst([good, bad, better]) is bad
    results = {"pytorch": {"formula": [good, bad], "distributed": [Finding("distributed", "x", "scaled", 0.5)]}}
    table = render_table([PEERS["pytorch"]], ["formula", "distributed"], results)
    assert "wrong 0.5" in table
    assert "× 0.5" in table


def check_libraries(*arguments: str) -> None:
    tyro.cli(CheckLibraries, args=arguments)()


def test_the_script_prints_a_table_and_writes_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "conformance.json"
    arguments = [
        "--peers",
        "contrapose",
        "pytorch-exp",
        "--checks",
        "formula",
        "duplicates",
        "temperature",
        "--details",
    ]
    check_libraries(*arguments, "--json", str(out))
    output = capsys.readouterr().out
    rows = {line.split()[0]: line for line in output.splitlines() if line.strip()}
    assert rows["contrapose"].count("ok") == 3
    assert rows["pytorch-exp"].rstrip().endswith("NaN")
    assert "no ids" in rows["pytorch-exp"]
    assert "duplicates: the batch holds one sample twice" in output
    assert "temperature 0.001: not finite" in output
    record = json.loads(out.read_text())
    assert record["versions"]["pytorch-exp"] == torch.__version__.partition("+")[0]
    assert len(record["rows"]) == 12
    assert {row["verdict"] for row in record["rows"] if row["criterion"] == "contrapose"} == {"ok"}


def test_a_peer_that_is_not_installed_is_listed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    missing = replace(PEERS["lightly"], module="no_such_module.loss", make=make_lightly)
    monkeypatch.setitem(PEERS, "lightly", missing)
    check_libraries("--peers", "lightly", "--checks", "formula")
    assert "not installed" in capsys.readouterr().out


def test_the_exit_code_is_about_our_criteria_only(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    check_libraries("--peers", "pytorch-exp", "--checks", "temperature")
    monkeypatch.setitem(PEERS, "contrapose", replace(PEERS["contrapose"], make=lambda tau: make_ours(2 * tau)))
    with pytest.raises(SystemExit) as exit_info:
        check_libraries("--peers", "contrapose", "--checks", "formula")
    assert exit_info.value.code == 1
    assert "its own criteria fail: contrapose: formula" in capsys.readouterr().err
    with pytest.raises(ValueError, match="did you mean 'lightly'"):
        check_libraries("--peers", "lightli")
