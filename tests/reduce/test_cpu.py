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
from contrapose.reduce import LogSumExp, Scale, chosen_engines, cpu, softplus
from contrapose.reduce.block import Selection
from contrapose.reduce.cpu import _clear_same_samples
from contrapose.reduce.matrix_blocks import MatrixBlock
from contrapose.reduce.path import CPU_MEMORY


@given(samples=st.integers(2, 12), views=st.integers(1, 3), known=st.booleans(), data=st.data())
def test_pairs_of_the_same_sample_are_cleared(samples: int, views: int, known: bool, data: st.DataObject) -> None:
    total = samples * views
    ids = torch.arange(total) % samples

    def some_rows() -> slice:
        start = data.draw(st.integers(0, total - 1))
        return slice(start, data.draw(st.integers(start + 1, total)))

    block = MatrixBlock(some_rows(), some_rows())
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
        monkeypatch.setattr(cpu, "CPU_MEMORY", replace(CPU_MEMORY, kept=0))
        monkeypatch.setattr(cpu, "_BLOCK", 8)
    leaves = [torch.randn(13, 5, dtype=torch.float64, requires_grad=True) for _ in range(2)]
    with chosen_engines() as chosen:
        pairs = (two_views if in_views else cross)(*leaves)
        ours = nt_xent(pairs, temperature=0.3)
    expected = dense(*leaves, temperature=0.3, in_views=in_views)
    assert [choice.name for choice in chosen] == ["cpu"]  # it is this engine that is tested
    selection = Selection(pairs.anchor_id, pairs.pool_id, pairs.candidate_runs)
    assert cpu.request_sums(pairs.anchor, pairs.pool, selection, 1.0).keep == kept
    torch.testing.assert_close(ours, expected, rtol=1e-12, atol=0)
    for own, other in zip(torch.autograd.grad(ours, leaves), torch.autograd.grad(expected, leaves), strict=True):
        torch.testing.assert_close(own, other, rtol=1e-10, atol=1e-13)


def in_three_nodes(pairs: Pairs, temperature: float) -> Tensor:
    """Return the mean cross-entropy of two views from the nodes of normalisation, log-sum-exp and cross-entropy."""
    logit = Scale(1 / temperature)
    (total,) = pairs.reduce(LogSumExp(logit))
    return softplus(total[:, None] - logit(pairs.positives())).mean()


@pytest.mark.parametrize("samples", [2, 40])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("stacked", [True, False])
@pytest.mark.parametrize("in_a_panel", [True, False])
def test_one_node_has_the_values_of_two(
    in_a_panel: bool, stacked: bool, dtype: torch.dtype, samples: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mean cross-entropy of two views, beside log-sum-exp and cross-entropy one after the other."""
    if not in_a_panel:
        monkeypatch.setattr(cpu, "_PANEL", 1)
    z = torch.randn(2, samples, 5, dtype=dtype, requires_grad=True)

    def pairs() -> Pairs:
        return views(z) if stacked else two_views(z[0], z[1])

    with torch.autocast("cpu", torch.bfloat16):
        one = nt_xent(pairs(), temperature=0.3)
    assert one.grad_fn is not None
    assert one.grad_fn.name() == "LossOfViewsBackward"
    several = in_three_nodes(pairs(), temperature=0.3)
    torch.testing.assert_close(one, several)
    (gradient,), (expected,) = torch.autograd.grad(one, z), torch.autograd.grad(several, z)
    assert gradient.dtype == dtype
    torch.testing.assert_close(gradient, expected)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_the_gradient_of_the_unit_vectors(reduction: str) -> None:
    """`pairs.anchor` is in the graph on every path: the positives of `two_views` are a function of the views beside it."""
    z = torch.randn(2, 6, 4, dtype=torch.float64, requires_grad=True)
    pairs = two_views(z[0], z[1])
    loss = nt_xent(pairs, temperature=0.3, reduction=reduction)
    (through_negatives,) = torch.autograd.grad(loss, pairs.anchor, retain_graph=True)
    anchor, positives = pairs.anchor.detach().requires_grad_(), pairs.positives().detach()[:, 0] / 0.3
    s = (anchor @ anchor.T / 0.3).masked_fill(pairs.anchor_id[:, None] == pairs.anchor_id, -torch.inf)
    rows = torch.logaddexp(s.logsumexp(1), positives) - positives
    expected = rows.mean() if reduction == "mean" else rows.sum()
    torch.testing.assert_close(through_negatives, torch.autograd.grad(expected, anchor)[0])


def test_one_node_with_a_view_that_needs_no_gradient() -> None:
    z, fixed = torch.randn(6, 4, requires_grad=True), torch.randn(6, 4)
    one, several = two_views(z, fixed), two_views(z, fixed)
    (gradient,) = torch.autograd.grad(nt_xent(one, temperature=0.3), z)
    (expected,) = torch.autograd.grad(in_three_nodes(several, temperature=0.3), z)
    torch.testing.assert_close(gradient, expected)
    with torch.no_grad():
        assert nt_xent(two_views(z, fixed), temperature=0.3).grad_fn is None


def test_pairs_that_were_made_without_gradients_pass_none_on() -> None:
    z = torch.randn(6, 4, requires_grad=True)
    with torch.no_grad():
        pairs = two_views(z, torch.randn(6, 4))
    assert not nt_xent(pairs, temperature=0.3).requires_grad
