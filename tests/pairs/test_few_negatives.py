"""`hardest(k)` where some anchors have fewer than k negatives: each keeps all of its own, and a warning says so once."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import warnings
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from torch import Tensor

from contrapose import cross, dcl, hardest, nt_xent, other_views, queue, simple, supcon, triplet, two_views
from contrapose.losses.parse import parse
from contrapose.pairs import AnyPairs
from contrapose.pairs import negatives as module
from contrapose.reduce import chosen_engines, path

Z1, Z2 = torch.randn(2, 7, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
IDS = torch.tensor([0, 0, 0, 0, 1, 2, 3])  # anchors of sample 0 have 6 negatives, the others have 12
PATHS = [None, "dense", "blocks", "cpu"]


@pytest.fixture(autouse=True)
def _forget_warnings() -> Iterator[None]:
    before = set(module._REPORTED)
    module._REPORTED.clear()
    yield
    module._REPORTED.clear()
    module._REPORTED.update(before)


def by_loops(z1: Tensor, z2: Tensor, ids: Tensor, k: int, temperature: float) -> Tensor:
    """NT-Xent over each anchor's k hardest negatives, or all of them if there are fewer."""
    rows = [z / z.norm() for z in (*z1, *z2)]
    m, losses = len(z1), []
    for i, row in enumerate(rows):
        s = [torch.dot(row, other) for j, other in enumerate(rows) if int(ids[i % m]) != int(ids[j % m])]
        hard = sorted(s, key=Tensor.item, reverse=True)[:k]
        positive = torch.exp(torch.dot(row, rows[(i + m) % (2 * m)]) / temperature)
        losses.append(-torch.log(positive / (positive + sum(torch.exp(value / temperature) for value in hard))))
    return torch.stack(losses)


@pytest.mark.filterwarnings("ignore:negatives. hardest")
@pytest.mark.parametrize("name", PATHS)
@pytest.mark.parametrize("k", [3, 6, 8, 12, 13, 14, 15, 64])
def test_each_anchor_keeps_its_own(k: int, name: str | None) -> None:
    z, plain = (torch.stack([Z1, Z2]).requires_grad_() for _ in range(2))
    expected = by_loops(plain[0], plain[1], IDS, k, temperature=0.3)
    with path(name) if name else nullcontext():
        pairs = two_views(*z, ids=IDS)
        each = nt_xent(pairs, temperature=0.3, negatives=hardest(k), reduction="none")
        mean = nt_xent(pairs, temperature=0.3, negatives=hardest(k))
        (ours,) = torch.autograd.grad(mean, z)
    torch.testing.assert_close(each, expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(mean, expected.mean(), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(ours, torch.autograd.grad(expected.mean(), plain)[0], rtol=1e-11, atol=1e-12)


@pytest.mark.filterwarnings("ignore:negatives. hardest")
@pytest.mark.parametrize("name", PATHS)
def test_with_k_above_the_pool_it_is_as_if_nothing_was_chosen(name: str | None) -> None:
    """The same engine, and the same numbers to the last bit, in every kind of pairs."""
    kinds: dict[str, AnyPairs] = {
        "two views": two_views(Z1, Z2),
        "ids": two_views(Z1, Z2, ids=IDS),
        "cross": cross(Z1, Z2),
        "explicit": cross(Z1, Z2, negatives=torch.randn(9, 5, dtype=torch.float64), symmetric=True),
        "queue": queue(Z1, Z2, torch.randn(9, 5, dtype=torch.float64)),
        "values": two_views(Z1, Z2).similarities(),
    }
    for pairs in kinds.values():
        for loss in (nt_xent, simple, triplet, dcl):
            with path(name) if name else nullcontext(), chosen_engines() as engines:
                assert torch.equal(loss(pairs, negatives=hardest(64)), loss(pairs))
            half = len(engines) // 2
            assert list(map(str, engines[:half])) == list(map(str, engines[half:]))


def test_sides_of_different_size() -> None:
    """With explicit negatives on one side, k can lie between the numbers of the two directions."""
    h = torch.randn(9, 5, dtype=torch.float64)
    with pytest.warns(UserWarning, match="the pool has 7 rows"):
        both = nt_xent(cross(Z1, Z2, negatives=h, symmetric=True), negatives=hardest(10), reduction="none")
    torch.testing.assert_close(both[:7], nt_xent(cross(Z1, Z2, negatives=h), negatives=hardest(10), reduction="none"))
    torch.testing.assert_close(both[7:], nt_xent(cross(Z2, Z1), reduction="none"))


def test_it_is_said_once_and_strict_refuses() -> None:
    full, last = two_views(torch.randn(40, 5), torch.randn(40, 5)), two_views(torch.randn(8, 5), torch.randn(8, 5))
    nt_xent(full, negatives=hardest(64))  # 78 negatives: nothing to say
    message = (
        r"hardest\(64\) keeps all negatives of an anchor that has fewer than 64: the pool has 16 rows.*strict=True"
    )
    with pytest.warns(UserWarning, match=message):
        nt_xent(last, negatives=hardest(64))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        nt_xent(last, negatives=hardest(64))
    nt_xent(full, negatives=hardest(64, strict=True))
    for k, reason in ((64, "the pool has 16 rows"), (15, "an anchor has 14, and the pool has 16 rows")):
        for name in PATHS:
            with path(name) if name else nullcontext(), pytest.raises(ValueError, match=f"but {reason}"):
                nt_xent(last, negatives=hardest(k, strict=True))
    chosen = parse("nt_xent(negatives=hardest(64, strict=True))").keywords["negatives"]
    assert chosen == hardest(64, strict=True) != hardest(64)
    assert repr(chosen) == "hardest(64, strict=True)"


@pytest.mark.filterwarnings("ignore:negatives. hardest")
def test_after_another_choice_and_with_labels() -> None:
    """The view choice leaves 6 rows; anchors whose candidates all have their label keep none."""
    pairs = two_views(Z1, Z2)
    chosen = nt_xent(pairs, negatives=(other_views(), hardest(9)))
    torch.testing.assert_close(chosen, nt_xent(pairs, negatives=other_views()))
    torch.testing.assert_close(nt_xent(pairs, negatives=(hardest(64), other_views())), chosen)
    labels = torch.tensor([0, 0, 0, 0, 0, 1, 1])
    torch.testing.assert_close(
        supcon(pairs, labels=labels, negatives=hardest(11)), supcon(pairs, labels=labels), rtol=1e-12, atol=0
    )
    same = torch.zeros_like(labels)
    torch.testing.assert_close(supcon(pairs, labels=same, negatives=hardest(3)), supcon(pairs, labels=same))


@pytest.mark.filterwarnings("ignore:negatives. hardest")
def test_while_a_graph_is_traced_rows_still_keep_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counts cannot be read then, so there is no warning, and nothing else changes."""
    pairs = two_views(Z1, Z2, ids=IDS)
    expected = nt_xent(pairs, temperature=0.3, negatives=hardest(8))
    module._REPORTED.clear()
    monkeypatch.setattr(module, "values_may_be_read", lambda tensor: False)
    torch.testing.assert_close(nt_xent(pairs, temperature=0.3, negatives=hardest(8)), expected, rtol=1e-12, atol=0)
    assert not module._REPORTED


INTERPRETED = """
import torch
from contrapose import hardest, nt_xent, two_views
from contrapose.reduce import path
z, ids = torch.randn(2, 6, 16), torch.tensor([0, 0, 0, 1, 2, 3])  # 6 or 10 negatives
for k in (8, 11, 64):
    results = []
    for name, dtype in (("dense", torch.float64), ("fused", torch.float32)):
        leaf = z.to(dtype, copy=True).requires_grad_()
        with path(name, precision="tf32x3" if name == "fused" else None):
            value = nt_xent(two_views(*leaf, ids=ids), temperature=0.3, negatives=hardest(k))
            value.backward()
        results.append((value.detach().double(), leaf.grad.double()))
    torch.testing.assert_close(*results, rtol=1e-5, atol=1e-6)
"""


@pytest.mark.thorough
def test_kernels_in_the_interpreter(tmp_path: Path) -> None:
    (tmp_path / "kernels.py").write_text(INTERPRETED)  # Triton reads the source of its kernels on import
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONWARNINGS": "ignore"}
    subprocess.run([sys.executable, str(tmp_path / "kernels.py")], check=True, env=environment)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.filterwarnings("ignore:negatives. hardest")
@pytest.mark.parametrize("k", [300, 500, 1020, 1022, 4000])
def test_kernels(k: int) -> None:
    """Rows with 256 or 1,022 negatives on a GPU, in value and gradient; a captured step reads nothing from the device."""
    ids = torch.arange(512).clamp(min=384) - 384  # 385 samples share one id
    leaves = [torch.randn(2, 512, 64, generator=torch.Generator().manual_seed(0)) for _ in range(2)]
    on_cpu, on_gpu = leaves[0].double().requires_grad_(), leaves[1].cuda().requires_grad_()
    expected = nt_xent(two_views(*on_cpu, ids=ids), temperature=0.1, negatives=hardest(k))
    (wanted,) = torch.autograd.grad(expected, on_cpu)
    gpu_ids = ids.cuda()

    def step() -> Tensor:
        return nt_xent(two_views(*on_gpu, ids=gpu_ids), temperature=0.1, negatives=hardest(k))

    for _ in range(3):  # kernels are compiled and tuned before the capture
        value = step()
        (ours,) = torch.autograd.grad(value, on_gpu)
    assert math.isclose(value.item(), expected.item(), rel_tol=1e-4)
    torch.testing.assert_close(ours.cpu().double(), wanted, rtol=1e-3, atol=1e-5)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):  # raises an error if anything waits for the device
        captured = step()
    graph.replay()
    assert math.isclose(captured.item(), expected.item(), rel_tol=1e-4)
