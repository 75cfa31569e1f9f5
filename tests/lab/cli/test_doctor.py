"""`contrapose doctor`: a check of the installation."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from commands import printed_lines

from contrapose import __version__
from contrapose.lab.cli import doctor


def test_it_names_versions_engines_and_the_machine(capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed_lines(capsys, "doctor", "--device", "cpu")
    found = {line[:14].strip(): line[15:] for line in lines}
    assert found["contrapose"].startswith(f"{__version__}, Python 3.")
    assert f"torch {torch.__version__.split('+')[0]}" in found["packages"]
    assert found["device"].startswith("cpu; no GPU is used: torch is built ")
    assert found["CUDA graphs"] == "off: there is no GPU"
    losses = [line for line in lines if line.startswith("loss")]
    assert "rows of width 128, τ = 0.1: cpu: a log-sum-exp" in losses[0]
    assert len(losses) == 4
    assert found["threads"].startswith(f"{torch.get_num_threads()} for ")
    assert "torchvision" in found["decoders"]
    assert found["disk"].endswith(str(Path.cwd()))


@pytest.mark.parametrize(
    ("installed", "expected"),
    [
        ({}, "none: Pillow is not installed"),
        ({"pillow": "1"}, "Pillow 1; JPEG files are read faster with torchvision"),
        ({"pillow": "1", "torchvision": "2"}, "torchvision 2 for JPEG, Pillow 1 for other files"),
    ],
)
def test_decoders(installed: dict[str, str], expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_version", lambda package: installed.get(package, ""))
    assert doctor._decoders() == expected
