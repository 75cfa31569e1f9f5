"""How statistics are grouped for kernels: which of them can be computed in one pass."""

from __future__ import annotations

import pytest
import torch

from contrapose.reduce import Expectation, LogSumExp, Scale, Statistic
from contrapose.reduce.request import group_by_exponent, share_exponential

ONCE, TWICE = Scale(5.0), Scale(10.0)


@pytest.mark.parametrize(
    ("one", "two", "shared"),
    [
        (LogSumExp(ONCE), LogSumExp(TWICE), True),
        (LogSumExp(ONCE), Expectation(TWICE), False),
        (Expectation(ONCE), LogSumExp(TWICE), False),
        (LogSumExp(ONCE), LogSumExp(Scale(50.0)), False),  # too large for a constant shift
        (LogSumExp(Scale(50.0)), LogSumExp(ONCE), False),
    ],
)
def test_two_log_sum_exps_of_bounded_multiples_share_a_pass(one: Statistic, two: Statistic, shared: bool) -> None:
    groups = group_by_exponent((one, two), torch.zeros(3, 2))
    assert groups is not None
    first, second = groups
    assert first is not None
    assert second is not None
    assert share_exponential(first, second) is shared
