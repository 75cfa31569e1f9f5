"""The budget: what a file may take by its size, numbers in configurations, and models that are counted while they are built."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from torch import nn

from contrapose.lab.memory_budget import (
    BUDGET,
    EXPANSION,
    OverBudget,
    allowance,
    check_allocation,
    check_numbers,
    model_budget,
)


def test_a_large_file_may_take_more(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (allowance(), allowance(1000), allowance(BUDGET)) == (BUDGET, BUDGET, EXPANSION * BUDGET)
    check_allocation(BUDGET, "it")
    with pytest.raises(
        OverBudget, match=r"^it would take 1 GiB of memory, more than the 0.5 GiB .* set CONTRAPOSE_FILE_BUDGET=1"
    ):
        check_allocation(BUDGET + 1, "it")
    with pytest.raises(OverBudget, match="more than a billion GiB") as error:
        check_allocation(10**400, "it")
    assert "CONTRAPOSE_FILE_BUDGET" not in str(error.value)
    monkeypatch.setenv("CONTRAPOSE_FILE_BUDGET", "1")
    check_allocation(BUDGET + 1, "it")
    for text in ("much", "inf"):
        monkeypatch.setenv("CONTRAPOSE_FILE_BUDGET", text)
        with pytest.raises(ValueError, match="CONTRAPOSE_FILE_BUDGET: expected a number of GiB, such as 4, got"):
            allowance()


def test_numbers_at_any_depth() -> None:
    path = Path("config.json")
    check_numbers({"a": [1, {"b": 2**20}], "c": 1e300, "d": None, "e": True}, path)
    for content in ({"n": 10**9}, {"n": [[10**9]]}, {"a": {"n": -(10**9)}}):
        with pytest.raises(OverBudget, match=r"encoder: n in config\.json would take 239 GiB"):
            check_numbers(content, path)


def test_a_model_is_counted_while_it_is_built() -> None:
    with pytest.raises(OverBudget, match="the model would take"), model_budget("the model"):
        nn.ModuleList(nn.Linear(1024, 1024) for _ in range(1000))
    with model_budget("the model"):
        nn.Linear(1024, 1024)
        other = threading.Thread(target=nn.ModuleList, args=([nn.Identity()] * 100_000,))  # of another thread
        other.start()
        other.join()
    nn.ModuleList([nn.Identity()] * 40_000)  # after the block
