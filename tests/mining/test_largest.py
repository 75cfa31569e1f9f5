"""The largest values of each row beside Python's sort, with ties, on rows that are long enough to be read in groups."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from contrapose.mining.largest import largest


def sorted_columns(row: list[float], k: int) -> list[int]:
    return sorted(range(len(row)), key=lambda column: (-row[column], column))[:k]


@given(
    columns=st.sampled_from([1, 7, 63, 64, 65, 640, 1000, 3001]),
    k=st.integers(1, 12),
    levels=st.sampled_from([1, 2, 5, 50, 10**6]),
    seed=st.integers(0, 10**6),
)
def test_values_and_columns_are_those_of_a_sort(columns: int, k: int, levels: int, seed: int) -> None:
    """Few levels make ties, most of them at the last chosen value."""
    k = min(k, columns)
    generator = torch.Generator().manual_seed(seed)
    values = torch.randint(levels, (3, columns), generator=generator).double()
    value, column = largest(values, k)
    assert column.tolist() == [sorted_columns(row, k) for row in values.tolist()]
    assert torch.equal(value, values.gather(1, column))


@pytest.mark.parametrize("k", [1, 3, 5])
def test_values_that_do_not_count_come_last(k: int) -> None:
    values = torch.full((2, 2000), -torch.inf)
    values[0, [1900, 3]], values[1, [5, 80, 81]] = 1.0, torch.tensor([2.0, 3.0, 2.0])
    value, column = largest(values, k)
    assert column[0, : min(k, 2)].tolist() == [3, 1900][:k]
    assert column[1, : min(k, 3)].tolist() == [80, 5, 81][:k]
    assert bool((value[0, 2:] == -torch.inf).all())


def test_values_after_the_last_whole_group_are_found() -> None:
    values = torch.arange(1000.0).expand(2, -1)  # 15 groups of 64, and 40 columns
    assert largest(values, 2)[1].tolist() == [[999, 998]] * 2
    values = values.clone().index_fill_(1, torch.tensor(999), 0.0)
    assert largest(values, 1)[1].tolist() == [[998]] * 2
