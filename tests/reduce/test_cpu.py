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
from contrapose.pairs import Pairs, cross, two_views, views
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


def dense(a: Tensor, b: Tensor, *, temperature: float, in_views: bool) -> Tensor:
    """Return NT-Xent of two views, or of queries and their candidates, from the whole matrix."""
    a, b = normalize(a, dim=1), normalize(b, dim=1)
    if not in_views:
        s = a @ b.T / temperature
        return (s.logsumexp(1) - s.diagonal()).mean()
    z = torch.cat([a, b])
    s = (z @ z.T / temperature).fill_diagonal_(-torch.inf)
    return (s.logsumexp(1) - s.roll(len(a), 1).diagonal()).mean()


@pytest.mark.parametrize("in_views", [True, False])
@pytest.mark.parametrize("kept", [True, False])
def test_values_and_gradients_of_a_kept_and_a_recomputed_matrix(
    kept: bool, in_views: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpu, "_PANEL", 100)  # more than one panel
    if not kept:
        monkeypatch.setattr(rows, "_CPU", replace(rows._CPU, kept=0))
        monkeypatch.setattr(cpu, "_BLOCK", 8)
    leaves = [torch.randn(13, 5, dtype=torch.float64, requires_grad=True) for _ in range(2)]
    called, divide = [], cpu._Sums.of

    def noted(anchor: Tensor, pool: Tensor, selection: Selection, factor: float, *, keep: bool) -> cpu._Sums:
        called.append(keep)
        return divide(anchor, pool, selection, factor, keep=keep)

    monkeypatch.setattr(cpu._Sums, "of", noted)
    ours = nt_xent((two_views if in_views else cross)(*leaves), temperature=0.3)
    expected = dense(*leaves, temperature=0.3, in_views=in_views)
    assert called == [kept]  # it is this path that is tested
    torch.testing.assert_close(ours, expected, rtol=1e-12, atol=0)
    for own, other in zip(torch.autograd.grad(ours, leaves), torch.autograd.grad(expected, leaves), strict=True):
        torch.testing.assert_close(own, other, rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize("samples", [2, 40])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("stacked", [True, False])
@pytest.mark.parametrize("in_a_panel", [True, False])
def test_one_node_has_the_values_of_three(
    in_a_panel: bool, stacked: bool, dtype: torch.dtype, samples: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mean cross-entropy of two views, beside normalisation, log-sum-exp and cross-entropy one after the other."""
    if not in_a_panel:
        monkeypatch.setattr(cpu, "_PANEL", 1)
    z = torch.randn(2, samples, 5, dtype=dtype, requires_grad=True)

    def pairs() -> Pairs:
        return views(z) if stacked else two_views(z[0], z[1])

    with torch.autocast("cpu", torch.bfloat16):
        one = nt_xent(pairs(), temperature=0.3)
    assert one.grad_fn is not None
    assert one.grad_fn.name() == ("_PanelLossBackward" if in_a_panel else "_ViewLossBackward")
    three = nt_xent(replace(pairs(), raw=None), temperature=0.3)
    assert torch.equal(one, three)
    (gradient,), (expected,) = torch.autograd.grad(one, z), torch.autograd.grad(three, z)
    assert gradient.dtype == dtype
    assert torch.equal(gradient, expected)


def test_one_node_with_a_view_that_needs_no_gradient() -> None:
    z, fixed = torch.randn(6, 4, requires_grad=True), torch.randn(6, 4)
    one, three = two_views(z, fixed), replace(two_views(z, fixed), raw=None)
    gradients = [torch.autograd.grad(nt_xent(pairs, temperature=0.3), z)[0] for pairs in (one, three)]
    assert torch.equal(*gradients)
    with torch.no_grad():
        assert nt_xent(two_views(z, fixed), temperature=0.3).grad_fn is None


def test_pairs_that_were_made_without_gradients_pass_none_on() -> None:
    z = torch.randn(6, 4, requires_grad=True)
    with torch.no_grad():
        pairs = two_views(z, torch.randn(6, 4))
    assert not nt_xent(pairs, temperature=0.3).requires_grad
