"""Hostile and damaged .pth files are refused in one line, before they take memory."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch

from contrapose.lab.memory_budget import VARIABLE
from contrapose.lab.networks.foreign import convert


def save(path: Path, content: Any) -> Path:
    torch.save(content, path)
    return path


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ({"a": torch.zeros(1).expand(2**28)}, "would take 1 GiB of memory"),
        ({"a": torch.zeros(1).expand(2**40)}, "would take 4,096 GiB of memory"),
        ({"a": torch.eye(3).to_sparse()}, "'a': expected a tensor of plain numbers, got a torch.sparse_coo tensor"),
        ({"a": torch.zeros(3, device="meta")}, "'a': expected a tensor of plain numbers, got a meta tensor"),
        ({3: torch.zeros(3)}, "holds no named tensors; expected a state_dict"),
        ({"\ud800": torch.zeros(3)}, r"expected printable names of tensors, got '\ud800'"),
        ({"__metadata__": torch.zeros(3)}, "expected printable names of tensors, got '__metadata__'"),
    ],
)
@pytest.mark.filterwarnings("ignore:Validating sparse tensor:UserWarning")
def test_files_that_are_no_plain_tensors_are_refused(content: Any, expected: str, tmp_path: Path) -> None:
    path = save(tmp_path / "a.pth", content)
    with pytest.raises(ValueError, match=rf"^import: .*{path}") as error:
        convert(path)
    assert expected in str(error.value)
    assert "\n" not in str(error.value)


def test_a_file_that_unpacks_to_much_more_is_refused_before_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = save(tmp_path / "large.pth", {"a": torch.zeros(2**20)})
    with zipfile.ZipFile(path) as plain, zipfile.ZipFile(tmp_path / "a.pth", "w", zipfile.ZIP_DEFLATED) as packed:
        for name in plain.namelist():
            packed.writestr(name, plain.read(name))
    monkeypatch.setenv(VARIABLE, "0.001")
    monkeypatch.setattr(torch, "load", lambda *args, **options: pytest.fail("it was read"))
    with pytest.raises(ValueError, match=r"import: the content of .* would take 1 GiB of memory"):
        convert(tmp_path / "a.pth")


def test_names_of_other_types_are_left_out_and_old_files_are_read(tmp_path: Path) -> None:
    content = {"module.a": torch.arange(3), 3: torch.zeros(3)}
    assert convert(save(tmp_path / "a.pth", content))["a"].tolist() == [0, 1, 2]
    torch.save(content, tmp_path / "b.pth", _use_new_zipfile_serialization=False)
    assert convert(tmp_path / "b.pth")["a"].tolist() == [0, 1, 2]
