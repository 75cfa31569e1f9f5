"""Commands that write a file say why they cannot, before they compute anything."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from contrapose.lab.cli import main
from contrapose.validate import check_output_file


def test_a_directory_is_not_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.save({"conv1.weight": torch.ones(1)}, tmp_path / "weights.pth")
    (tmp_path / "out.safetensors").mkdir()
    with pytest.raises(SystemExit):
        main(["import", str(tmp_path / "weights.pth"), "-o", str(tmp_path / "out.safetensors")])
    assert f"--out: {tmp_path / 'out.safetensors'} is a directory; add the name of a file" in capsys.readouterr().err


def test_a_file_below_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match="file is a file, but a directory is needed"):
        check_output_file("out", tmp_path / "file" / "x.npz")
    check_output_file("out", tmp_path / "new" / "x.npz")


@pytest.mark.thorough
def test_errors_name_the_option(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(
        ["train", "--data", "digits", "--limit", "64", "--batch", "32", "--epochs", "1", "--out", str(tmp_path / "run")]
    )
    with pytest.raises(SystemExit):
        main(["evaluate", str(tmp_path / "run"), "--knn", "10000"])
    assert "--knn: expected at most" in capsys.readouterr().err
