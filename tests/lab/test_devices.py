"""`--device`: the device that commands compute on."""

from __future__ import annotations

import re
from concurrent.futures import ProcessPoolExecutor

import pytest
import torch
from commands import error_message

from contrapose.child_processes import process_context
from contrapose.lab.cli.commands import COMMANDS
from contrapose.lab.devices import DeviceOption, own_device, selected_device, use_device
from contrapose.lab.studies.executors import _start_worker
from contrapose.lab.training import Run


@pytest.mark.parametrize("name", ["train", "evaluate", "embed", "map", "compare", "search", "detect"])
def test_commands_that_compute_take_a_device(name: str) -> None:
    assert issubclass(COMMANDS[name].load(), DeviceOption)


def test_a_device_is_not_part_of_a_run() -> None:
    assert "device" not in Run().describe()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("gpu", "device: expected cpu, cuda or a GPU's number, such as cuda:0, got 'gpu'"),
        ("cpu:1", "got 'cpu:1'"),
        ("cuda:", "got 'cuda:'"),
        ("cuda:-1", "got 'cuda:-1'"),
        ("mps", "device: mps is not supported, because metrics are computed in float64"),
    ],
)
def test_unknown_devices_are_refused(name: str, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)), use_device(name):
        pass


def test_a_missing_gpu_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with pytest.raises(
        ValueError, match=r"device: cuda is not available, since .*; use --device cpu, or omit --device"
    ):
        use_device("cuda").__enter__()
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(
        ValueError, match="cuda:2 does not exist: there are 2 GPUs, numbered from 0; use --device cuda:1"
    ):
        use_device("cuda:2").__enter__()
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ValueError, match="torchrun started several processes, each with its own; use --device cuda"):
        use_device("cuda:1").__enter__()


def test_the_cpu_of_a_machine_with_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    chosen: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert own_device() == torch.device("cuda:0")
    with use_device("cpu"):
        assert own_device() == torch.device("cpu")
    with use_device("cuda:1"):
        assert own_device() == torch.device("cuda:1")
    with use_device("cuda"):
        monkeypatch.setenv("LOCAL_RANK", "1")
        assert own_device() == torch.device("cuda:1")
    assert chosen == [torch.device(name) for name in ("cuda:0", "cuda:1", "cuda:1")]
    assert selected_device() == ""


@pytest.mark.thorough
def test_processes_of_a_comparison_use_the_selected_device() -> None:
    start = ("cpu", None, None)
    with ProcessPoolExecutor(1, mp_context=process_context(), initializer=_start_worker, initargs=start) as pool:
        assert pool.submit(selected_device).result() == "cpu"


def test_a_command_refuses_an_unknown_device(capsys: pytest.CaptureFixture[str]) -> None:
    assert "device: expected cpu" in error_message(
        capsys, "embed", "nowhere", "digits", "-o", "x.npz", "--device", "gpu"
    )
