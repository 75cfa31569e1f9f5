"""Copies among documents, by their values or by ids."""

from __future__ import annotations

import pytest
import torch

from contrapose.mining import copies
from contrapose.mining.copies import first_copies


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("chunk", [1, 2**22])
def test_the_first_of_equal_rows(dtype: torch.dtype, chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copies, "_CHUNK", chunk)
    rows = torch.randn(6, 4, dtype=dtype)[[0, 1, 1, 2, 0, 3, 1, 4]]
    rows[3, 0], rows[7] = 0.0, rows[3]
    rows[7, 0] = -0.0
    assert first_copies(rows, None).tolist() == [0, 1, 1, 3, 0, 5, 1, 3]


def test_rows_with_the_same_hash_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copies, "_hash", lambda rows: torch.zeros(len(rows), dtype=torch.long))
    rows = torch.tensor([[1.0, 2.0], [2.0, 1.0], [1.0, 2.0]])
    assert first_copies(rows, None).tolist() == [0, 1, 0]


def test_the_first_of_equal_ids() -> None:
    rows = torch.randn(5, 2)
    assert first_copies(rows, torch.tensor([7, -1, 7, 3, -1])).tolist() == [0, 1, 0, 3, 1]
