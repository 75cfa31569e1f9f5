"""What training looks for by itself: the findings in a run's records, and `contrapose doctor RUN`."""

from __future__ import annotations

import base64
import json
import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from commands import error_message, printed_lines
from framework_cases import FRAMEWORK_CASES
from run_files import records, weights
from tiers import first

from contrapose.doctor import Finding
from contrapose.embeddings import Embeddings, within_batch
from contrapose.lab.training import Run, Stopped, Trainer, make_run
from contrapose.lab.training.findings import _REMEDIES, RunDoctor, findings_in, looks_in
from contrapose.lab.training.progress import Progress
from contrapose.lab.training.records.files import append, read_records

RUN = Run(limit=128, batch=32, epochs=3, knn_every=3, knn=5, metrics=0, threads=1)
LOW = {"loss": "nt_xent(temperature=0.001)"}


def trained(folder: Path, **changes: Any) -> tuple[Trainer, list[str]]:
    lines: list[str] = []
    trainer = Trainer(Run(**{**vars(RUN), **changes}), folder, log=lines.append)
    trainer.train()
    return trainer, lines


def test_a_finding_is_printed_once_and_recorded(tmp_path: Path) -> None:
    _, lines = trained(tmp_path / "run", **LOW)
    (line,) = (line for line in lines if line.startswith("warning: temperature too low (step 8)"))
    assert "higher --temperature" in " ".join(line.split())
    read = read_records(tmp_path / "run")
    assert [look.step for look in looks_in(read)] == [4, 8, 12]
    assert [finding.name for finding in findings_in(read)] == ["temperature too low"]
    assert [len(record["doctor"]["findings"]) for record in read] == [0, 1, 0]


@pytest.mark.thorough
def test_epochs_between_evaluations_are_not_looked_at(tmp_path: Path) -> None:
    trained(tmp_path / "run", epochs=6, warmup=0.5)
    assert [record["epoch"] for record in records(tmp_path / "run") if "doctor" in record] == [1, 2, 3, 6]


def test_looks_change_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    changes = {"loss": "isogclr", "encoder": "tiny"}
    trained(tmp_path / "looked", **changes)
    monkeypatch.setattr(RunDoctor, "look_after", lambda *arguments, **keywords: {})
    trained(tmp_path / "not", **changes)
    assert weights(tmp_path / "looked") == weights(tmp_path / "not")
    assert not any("doctor" in record for record in records(tmp_path / "not"))


@pytest.mark.thorough
def test_a_resumed_run_remembers(tmp_path: Path) -> None:
    """The second look makes the finding; the first one comes from the records."""
    trained(tmp_path / "whole", **LOW)
    run, lines = Run(**{**vars(RUN), **LOW}), list[str]()

    def stop_after_the_first_epoch(progress: Progress) -> None:
        if progress.step == 4:
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(Stopped):
        Trainer(run, tmp_path / "run", stop_after_the_first_epoch, lines.append).train()
    assert len(read_records(tmp_path / "run")) == 1
    for _ in range(2):
        Trainer(run, tmp_path / "run", log=lines.append).train()
    assert records(tmp_path / "run") == records(tmp_path / "whole")
    assert sum(line.startswith("warning: temperature too low") for line in lines) == 1


@pytest.mark.thorough
def test_a_stop_during_an_evaluation_loses_no_finding(tmp_path: Path) -> None:
    """The look is then in the checkpoint's record, which is not yet among the records."""
    changes = {**LOW, "knn_every": 1}
    trained(tmp_path / "whole", **changes)
    run, lines, evaluations = Run(**{**vars(RUN), **changes}), list[str](), list[int]()

    def stop_in_the_second() -> None:
        evaluations.append(1)
        if len(evaluations) == 2:
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(Stopped):
        Trainer(run, tmp_path / "run", log=lines.append, on_evaluation=stop_in_the_second).train()
    assert len(read_records(tmp_path / "run")) == 1
    Trainer(run, tmp_path / "run", log=lines.append).train()
    assert sum(line.startswith("warning: temperature too low") for line in lines) == 1
    assert records(tmp_path / "run") == records(tmp_path / "whole")


@pytest.mark.parametrize(
    ("moving", "expected"),
    first(1, [("encoder", "frozen part"), ("", "weights do not change"), ("encoder projector", None)]),
)
def test_parts_that_do_not_train(moving: str, expected: str | None, tmp_path: Path) -> None:
    trainer, _ = trained(tmp_path / "run")
    network, doctor = trainer.context.network, trainer.doctor
    doctor.resume([])
    found = set()
    for step in range(1000, 1400, 50):
        with torch.no_grad():
            for name in moving.split():
                for parameter in getattr(network, name).parameters():
                    parameter += 0.001
        found |= {finding["name"] for finding in doctor.look(step)["doctor"]["findings"]}
    assert found & {"frozen part", "weights do not change"} == ({expected} if expected else set())


@pytest.mark.thorough
def test_parts_without_parameters_are_not_frozen(tmp_path: Path) -> None:
    trainer, _ = trained(tmp_path / "run", head="none")
    assert {*trainer.doctor.doctor.parts} == {"the encoder"}


@pytest.mark.thorough
def test_samples_of_a_bank_are_numbers_in_the_data(tmp_path: Path) -> None:
    trainer, _ = trained(tmp_path / "run", **FRAMEWORK_CASES["memory-bank"])
    trainer.context.ids = torch.full((128,), 999)
    finding = Finding(name="duplicates", severity="warning", seen="", means="", do="", rows=((0, 1),))
    latest = trainer.context.latest
    assert latest is not None
    assert latest.ids is not None
    assert trainer.doctor._for_a_run(finding).rows == (tuple(latest.ids[:2].tolist()),)


def test_a_mistake_in_a_look_does_not_end_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: Any) -> None:
        raise IndexError("no such row")

    monkeypatch.setattr(RunDoctor, "_criterion", fail)
    _, lines = trained(tmp_path / "run")
    assert "doctor: no look after step 4: IndexError: no such row" in lines


def test_remedies_name_losses_that_there_are() -> None:
    losses = [text for remedy in _REMEDIES.values() for text in re.findall(r"--loss ('[^']+'|\w+)", remedy)]
    assert len(losses) == 3
    for loss in losses:
        make_run({"data": "digits", "loss": loss.strip("'")}, log=lambda text: None)


@pytest.mark.thorough
@pytest.mark.parametrize("case", FRAMEWORK_CASES)
def test_every_framework_is_looked_at(case: str, tmp_path: Path) -> None:
    trainer, _ = trained(tmp_path / "run", **FRAMEWORK_CASES[case])
    looks = looks_in(read_records(tmp_path / "run"))
    assert [look.step for look in looks] == [4, 8, 12]
    assert not trainer.doctor.doctor.left_out.keys() & {"this look", "all checks"}
    for look in looks:
        assert (look.action is not None) != bool(look.not_asked)
        assert all(side.finite and side.requires_grad for side in look.sides)


@pytest.mark.thorough
@pytest.mark.parametrize("copies", [False, True])
def test_samples_are_named_and_shown(copies: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Embeddings in which rows 0 and 16, 1 and 17, ... of the batch are alike, of samples in another order."""
    trainer, lines = trained(tmp_path / "run")
    context, index = trainer.context, torch.arange(63, 31, -1)
    if copies:  # samples 63 and 127 have one id
        context.ids = torch.arange(128) % 64
    alike = torch.randn(16, 64, generator=torch.Generator().manual_seed(0)).repeat(2, 1)
    z = alike + 0.2 * torch.randn(2, 32, 64, generator=torch.Generator().manual_seed(1))
    context.latest = Embeddings(z=z, ids=index, compare=within_batch)
    for step in (16, 20):
        entry = trainer.doctor.look(step)
        append(tmp_path / "run", {"epoch": step // 4, "step": step, "loss": 1.0, "seconds": 1.0, **entry})
    assert trainer.doctor.doctor.looks[-1].action is not None
    (finding,) = (f for f in findings_in(read_records(tmp_path / "run")) if f.name == "false negatives")
    assert finding.rows[:2] == ((63, 47), (62, 46))
    assert "such as samples 63 and 47, 62 and 46" in " ".join(lines[-1].split())
    assert printed_lines(capsys, "doctor", str(tmp_path / "run"))[-1].startswith("page ")
    page = (tmp_path / "run" / "doctor.html").read_text()
    shown = base64.b64encode(
        trainer.run.kind.previews(trainer.split.train.subset([62]), context.views)[0].image
    ).decode()
    assert f'{shown}" alt="sample 62"' in page


def test_doctor_of_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "run"
    trained(folder, **LOW)
    lines = printed_lines(capsys, "doctor", str(folder), "-o", str(tmp_path / "page.html"))
    assert lines[0] == "12 steps, 3 looks, 1 finding"
    assert lines[1] == "warning: temperature too low (step 8)"
    page = (tmp_path / "page.html").read_text()
    assert "<svg" in page
    assert "temperature too low" in page


def test_what_cannot_be_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "run"
    trained(folder)
    assert "run.json cannot be read" in error_message(capsys, "doctor", str(tmp_path / "nothing"))
    lines = [json.loads(line) for line in (folder / "records.jsonl").read_text().splitlines()]
    earlier = "".join(json.dumps({k: v for k, v in line.items() if k != "doctor"}) + "\n" for line in lines)
    (folder / "records.jsonl").write_text(earlier)
    assert "nothing was looked at" in error_message(capsys, "doctor", str(folder))
