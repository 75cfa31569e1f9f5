"""A file of weights is as readable as other new files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from contrapose.lab.networks.weight_files import write_tensors


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o007, 0o660)])
def test_permissions_follow_the_umask(umask: int, mode: int, tmp_path: Path) -> None:
    path, tied = tmp_path / "weights.safetensors", torch.ones(2, 3)
    before = os.umask(umask)
    try:
        write_tensors(path, {"a": tied, "b": tied})
        assert os.umask(umask) == umask  # it is left as it was
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == mode
    assert load_file(path)["b"].equal(tied)
