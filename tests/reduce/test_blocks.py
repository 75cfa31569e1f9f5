"""Reductions in blocks equal those of the whole matrix, and do not store it."""

from __future__ import annotations

import resource
import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass

import pytest
import torch
from kinds import KINDS
from oracles import log1pexp

from contrapose import losses
from contrapose.pairs import cross, from_similarities, two_views, unit
from contrapose.pairs.negatives import Choice, hardest
from contrapose.reduce import Block, Count, Scale, SoftplusSum, choose, memory

MEASURE = """
import resource, sys, torch
from contrapose import guide_targets, nested, nt_xent, self_guided, soft_nt_xent, two_views
def step(m):
    z = torch.randn(m, 64, requires_grad=True)
    pairs = two_views(z, z.detach() + 0.1)
    LOSS.backward()
step(64)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
step(int(sys.argv[1]))
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("loss", "samples", "limit"),
    [
        ("nt_xent(pairs, temperature=0.2)", 8192, 300),  # the matrix alone is 1 GiB in float32
        # 256 MiB for each matrix, and the guide's is a second one
        ("soft_nt_xent(pairs, targets=guide_targets(two_views(torch.randn(m, 32), torch.randn(m, 32))))", 4096, 200),
        ("nested(nt_xent, dims=(32, 64))(pairs, temperature=0.2, negatives=self_guided())", 4096, 200),
    ],
)
def test_memory_does_not_grow_with_the_square(loss: str, samples: int, limit: int) -> None:
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss > 0
    mebibytes = subprocess.check_output([sys.executable, "-c", MEASURE.replace("LOSS", loss), str(samples)], text=True)
    assert int(mebibytes) < limit


@pytest.mark.parametrize("per_anchor", [False, True])
@pytest.mark.parametrize("objective", [losses.nt_xent, losses.dcl, losses.hard_negative, losses.sogclr])
def test_a_learned_temperature_gets_the_gradient_of_plain_autograd(
    objective: Callable[..., torch.Tensor], per_anchor: bool
) -> None:
    a, b = torch.randn(2, 5, 3, dtype=torch.float64)
    pairs = cross(a, b)
    own = torch.eye(5, dtype=torch.bool)
    s = unit(a) @ unit(b).T
    plain = from_similarities(s[own], s[~own].reshape(5, 4))
    gradients = []
    for compared in (pairs, plain):
        temperature = torch.full((5,) if per_anchor else (), 0.3, dtype=torch.float64, requires_grad=True)
        with memory(block=8, kept=0):
            (objective(compared, temperature=temperature) + 0 * temperature.sum()).backward()
        gradients.append(temperature.grad)
    torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-12, atol=1e-14)


def test_the_gradient_of_squares_in_blocks_is_that_of_plain_autograd() -> None:
    gradients = []
    for in_blocks in (True, False):
        z = torch.randn(2, 6, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()
        with memory(block=20, kept=0) if in_blocks else nullcontext():  # small matrices: plain autograd
            losses.spread_out(two_views(*z)).backward()
        gradients.append(z.grad)
    torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-12, atol=1e-14)


@pytest.mark.thorough
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("name", ["nt_xent", "dystress", "cacr", "hard_negative", "align_uniform", "macl"])
def test_compiled_losses_are_the_same(name: str) -> None:
    objective = losses.CATALOGUE[name]() if name == "dystress" else getattr(losses, name)

    def loss(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        value: torch.Tensor = objective(two_views(a, b))
        return value

    results = []
    for run in (loss, torch.compile(loss, backend="aot_eager")):
        a, b = torch.randn(2, 6, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).requires_grad_()
        value = run(a, b)
        results.append((value.detach(), torch.autograd.grad(value, (a, b))))
    torch.testing.assert_close(results[1], results[0], rtol=1e-12, atol=1e-14)


def test_mixed_precisions() -> None:
    a, b = torch.randn(5, 3, requires_grad=True), torch.randn(5, 3, dtype=torch.float64)
    temperature = torch.full((5,), 0.3, dtype=torch.float64, requires_grad=True)
    losses.nt_xent(cross(a, b), temperature=temperature).backward()
    assert a.grad is not None
    assert a.grad.dtype == torch.float32
    losses.nt_xent(cross(a, b.float()), temperature=temperature).backward()
    assert temperature.grad is not None
    assert temperature.grad.dtype == torch.float64


def test_second_derivatives_raise() -> None:
    a = torch.randn(5, 3, requires_grad=True)
    with pytest.raises(RuntimeError, match="first derivatives only"):
        torch.autograd.grad(losses.dcl(cross(a, torch.randn(5, 3))), a, create_graph=True)


def test_backward_twice_with_a_retained_graph() -> None:
    a = torch.randn(5, 3, requires_grad=True)
    loss = losses.nt_xent(cross(a, torch.randn(5, 3)))
    first = torch.autograd.grad(loss, a, retain_graph=True)[0]
    assert torch.equal(first, torch.autograd.grad(loss, a)[0])


@pytest.mark.parametrize("kind", sorted(set(KINDS) - {"queue_views", "similarities"}))
def test_means_need_no_similarities(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Means over a large pool are computed from sums of embeddings; values and gradients equal those of blocks."""
    raw = KINDS[kind].draw(m=6, d=3)
    results = []
    for small, limits in ((2**18, 10**9), (0, None)):
        monkeypatch.setattr(choose, "_SMALL", {False: small, True: small})
        leaves = {name: value.clone().requires_grad_() for name, value in raw.items()}
        with memory(block=limits, kept=limits) if limits else nullcontext():
            loss = losses.simple(KINDS[kind].make(leaves), weight=0.3)
            loss.backward()
        results.append([loss.detach(), *(leaf.grad for leaf in leaves.values() if leaf.grad is not None)])
    torch.testing.assert_close(results[1], results[0], rtol=1e-12, atol=1e-14)


def test_a_fraction_of_the_negatives_is_counted_exactly_in_float32() -> None:
    pairs = from_similarities(torch.rand(1), torch.rand(1, 75))
    assert float(pairs.reduce(Count(), negatives=hardest(0.72))[0]) == 54


def plain_softplus_sum(a: torch.Tensor, b: torch.Tensor, factor: float, bias: float) -> list[float]:
    similarity = (unit(a) @ unit(b).T).tolist()
    return [
        sum(log1pexp(factor * s + bias) for j, s in enumerate(row) if j != i and s < 0.5)
        for i, row in enumerate(similarity)
    ]


@dataclass(frozen=True)
class _Below(Choice):
    """Keep negatives with a similarity below one half, which may be none."""

    def __call__(self, block: Block) -> Block:
        return block.without(block.similarity >= 0.5)


@pytest.mark.parametrize(("factor", "bias"), [(1.0, 0.0), (10.0, -10.0), (200.0, 30.0)])
def test_a_sum_of_softplus_in_blocks_equals_a_plain_loop(factor: float, bias: float) -> None:
    """With one anchor whose negatives are all dropped, and for learned numbers by central differences."""
    a, b = torch.randn(2, 5, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    b[:, 2] += 4
    a[0] = b.mean(0)  # more similar than one half to every row
    assert [total == 0 for total in plain_softplus_sum(a, b, factor, bias)] == [True, *[False] * 4]
    learned = [torch.tensor(x, dtype=torch.float64, requires_grad=True) for x in (factor, bias)]
    for block, kept in ((10**9, 10**9), (8, 0), (8, 10**9)):
        with memory(block=block, kept=kept):
            statistic = SoftplusSum(Scale(learned[0]), learned[1])
            (values,) = cross(a, b).reduce(statistic, negatives=_Below(), may_be_empty=True)
            gradients = torch.autograd.grad(values.sum(), learned)
        expected = torch.tensor(plain_softplus_sum(a, b, factor, bias), dtype=torch.float64)
        torch.testing.assert_close(values, expected, rtol=1e-12, atol=1e-14)
        step = 1e-6
        for i, gradient in enumerate(gradients):
            up, down = [factor, bias], [factor, bias]
            up[i], down[i] = up[i] + step, down[i] - step
            difference = (sum(plain_softplus_sum(a, b, *up)) - sum(plain_softplus_sum(a, b, *down))) / (2 * step)
            assert float(gradient) == pytest.approx(difference, rel=1e-6, abs=1e-8)


def test_the_gradient_of_the_hardest_negative_in_blocks() -> None:
    """Against the formula itself: the reductions with and without blocks share their backward pass."""
    z = torch.randn(2, 6, 4, dtype=torch.float64, requires_grad=True)
    with memory(block=16, kept=0):
        (in_blocks,) = torch.autograd.grad(losses.triplet(two_views(z[0], z[1]), margin=3.0), z)
    units = torch.nn.functional.normalize(z.flatten(0, 1), dim=1)
    similarity, other = units @ units.T, torch.arange(12).roll(6)
    negatives = similarity.masked_fill(torch.eye(12).bool() | torch.eye(12).bool()[other], -torch.inf)
    loss = (negatives.amax(1) - similarity[torch.arange(12), other] + 3.0).mean()
    torch.testing.assert_close(in_blocks, torch.autograd.grad(loss, z)[0])
