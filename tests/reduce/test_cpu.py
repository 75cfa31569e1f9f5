"""The path of a constant temperature on the CPU: pairs of the same sample are left out wherever a block lies."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import normalize

from contrapose.losses import nt_xent
from contrapose.pairs import cross, two_views
from contrapose.reduce import cpu, rows
from contrapose.reduce.block import Selection
from contrapose.reduce.comparisons import Comparison
from contrapose.reduce.cpu import _clear_same_samples


@given(samples=st.integers(2, 12), views=st.integers(1, 3), known=st.booleans(), data=st.data())
def test_pairs_of_the_same_sample_are_cleared(samples: int, views: int, known: bool, data: st.DataObject) -> None:
    total = samples * views
    ids = torch.arange(total) % samples

    def some_rows() -> slice:
        start = data.draw(st.integers(0, total - 1))
        return slice(start, data.draw(st.integers(start + 1, total)))

    block = Comparison(some_rows(), some_rows(), both=False)
    selection = Selection(ids, ids, [], None, samples if known else 1)
    e = _clear_same_samples(torch.ones(block.height, block.width), block, selection)
    assert torch.equal(e == 0, ids[block.rows, None] == ids[block.columns])


def dense(a: Tensor, b: Tensor, *, temperature: float, views: bool) -> Tensor:
    """Return NT-Xent of two views, or of queries and their candidates, from the whole matrix."""
    a, b = normalize(a, dim=1), normalize(b, dim=1)
    if not views:
        s = a @ b.T / temperature
        return (s.logsumexp(1) - s.diagonal()).mean()
    z = torch.cat([a, b])
    s = (z @ z.T / temperature).fill_diagonal_(-torch.inf)
    return (s.logsumexp(1) - s.roll(len(a), 1).diagonal()).mean()


@pytest.mark.parametrize("views", [True, False])
@pytest.mark.parametrize("kept", [True, False])
def test_values_and_gradients_of_a_kept_and_a_recomputed_matrix(
    kept: bool, views: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not kept:
        monkeypatch.setattr(rows, "_CPU", replace(rows._CPU, kept=0))
        monkeypatch.setattr(cpu, "_BLOCK", 8)
    leaves = [torch.randn(13, 5, dtype=torch.float64, requires_grad=True) for _ in range(2)]
    called = []

    def noted(anchor: Tensor, pool: Tensor, selection: Selection, factor: float, *, keep: bool) -> Tensor:
        called.append(keep)
        return cpu.log_sum_exp(anchor, pool, selection, factor, keep=keep)

    monkeypatch.setattr(rows, "log_sum_exp", noted)
    ours = nt_xent((two_views if views else cross)(*leaves), temperature=0.3)
    expected = dense(*leaves, temperature=0.3, views=views)
    assert called == [kept]  # it is this path that is tested
    torch.testing.assert_close(ours, expected, rtol=1e-12, atol=0)
    for own, other in zip(torch.autograd.grad(ours, leaves), torch.autograd.grad(expected, leaves), strict=True):
        torch.testing.assert_close(own, other, rtol=1e-10, atol=1e-13)
