"""The precision of a run is chosen for the device, unless a preset or the user names it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from contrapose.lab.cli import main
from contrapose.lab.training import make_run, resolve
from contrapose.lab.training.precision import choose_precision, log_slow_precision
from contrapose.lab.training.run import Run
from contrapose.lab.workers import default_workers

CPU, GPU = torch.device("cpu"), torch.device("cuda")
OPEN: dict[str, Any] = {
    "data": "cifar10",
    "views": "simclr-cifar",
    "encoder": "tiny",
    "epochs": 1,
    "batch": 8,
    "lr": 0.1,
}


@pytest.fixture
def gpu_with_bf16(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: True)


@pytest.mark.usefixtures("gpu_with_bf16")
def test_bf16_is_chosen_for_a_gpu_and_said() -> None:
    said: list[str] = []
    run = resolve(make_run(OPEN), GPU, log=said.append)
    assert run.precision == "bf16"
    assert said == [
        "precision bf16: chosen for training on a GPU; each can be set (contrapose train --help-all)",
    ]
    assert resolve(make_run(OPEN | {"precision": "fp32"}), GPU, log=said.append).precision == "fp32"
    assert make_run({}, preset="dystress/cifar10").precision == "fp32"  # as its authors have it
    assert len(said) == 1


def test_fp32_on_a_cpu_is_not_mentioned() -> None:
    said: list[str] = []
    assert resolve(make_run(OPEN), CPU, log=said.append) == Run(**OPEN)
    assert said == []


def test_a_gpu_without_bf16_computes_in_fp32(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: including_emulation)
    assert choose_precision(GPU) == "fp32"


@pytest.mark.usefixtures("gpu_with_bf16")
def test_a_stored_run_keeps_its_precision(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text(json.dumps(Run(**OPEN).describe()))
    assert resolve(make_run(OPEN), GPU, folder=tmp_path, log=lambda text: None).precision == "fp32"


@pytest.mark.usefixtures("gpu_with_bf16")
def test_a_slow_precision_is_said() -> None:
    said: list[str] = []
    log_slow_precision(GPU, "fp32", said.append)
    log_slow_precision(GPU, "bf16", said.append)
    log_slow_precision(CPU, "fp32", said.append)
    assert len(said) == 1
    assert "--precision bf16 is faster" in said[0]


@pytest.mark.parametrize("option", [["--precision", "auto"], ["--set", "precision=auto"], ["--set", "epochs=0"]])
def test_a_study_has_no_open_settings(option: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["study", "run", "behaviour/figure9", *option])
    assert "a study needs a fixed value" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("cores", "processes", "workers"), [(16, "1", 16), (16, "4", 4), (2, "1", 2), (1, "1", 0), (4, "4", 0)]
)
def test_workers_share_the_cores(monkeypatch: pytest.MonkeyPatch, cores: int, processes: str, workers: int) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda process: set(range(cores)))
    monkeypatch.setenv("LOCAL_WORLD_SIZE", processes)
    assert default_workers() == workers
