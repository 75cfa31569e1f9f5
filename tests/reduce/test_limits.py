"""Memory on a CPU: up to which size similarities are kept for the backward pass, and how large blocks are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from contrapose.losses import CATALOGUE, nt_xent
from contrapose.pairs import cross
from contrapose.reduce import chosen_engines, unit

KEPT = 4096  # anchors and candidates whose similarities are kept: 64 MiB in float32


def queries_and_candidates(queries: int, candidates: int) -> tuple[Tensor, Tensor]:
    return torch.randn(queries, 2, requires_grad=True), torch.randn(candidates, 2, requires_grad=True)


def largest_saved(loss: Callable[[Any], Tensor], count: int) -> int:
    """Return how many numbers the largest tensor has that a loss keeps for its backward pass."""
    sizes = []

    def note(tensor: Tensor) -> Tensor:
        sizes.append(tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        loss(cross(*queries_and_candidates(count, count)))
    return max(sizes)


@pytest.mark.parametrize("name", ["nt_xent", "dystress"])  # one path of its own, and the one in blocks
def test_similarities_are_kept_up_to_64_mebibytes(name: str) -> None:
    loss = nt_xent if name == "nt_xent" else CATALOGUE[name]()
    rows_in_a_block = KEPT if name == "nt_xent" else 2**19 // KEPT
    assert largest_saved(loss, KEPT) == rows_in_a_block * KEPT
    assert largest_saved(loss, KEPT + 1) <= 4 * KEPT


class Products(TorchDispatchMode):
    """Notes the shapes of matrix products."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.shapes: set[tuple[int, ...]] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if func is torch.ops.aten.mm.default:
            self.shapes.add(tuple(result.shape))
        return result


@pytest.mark.parametrize(("queries", "candidates", "height"), [(1024, 2048, 256), (256, 2**14, 64)])
def test_a_block_takes_2_mebibytes_or_64_rows(queries: int, candidates: int, height: int) -> None:
    a, b = queries_and_candidates(queries, candidates)
    with Products() as products:
        CATALOGUE["dystress"]()(cross(a, b[:queries], negatives=b[queries:]))
    assert {shape for shape in products.shapes if shape[1] == candidates} == {(height, candidates)}


def test_small_matrices_are_left_to_autograd() -> None:
    with chosen_engines() as chosen:
        for count in (512, 513):
            CATALOGUE["dystress"]()(cross(*queries_and_candidates(count, count)))
    assert [choice.name for choice in chosen] == ["autograd", "blocks"]


@pytest.mark.parametrize("width", [3, unit._CHUNK + 1])
def test_chunks_cover_all_rows_once(width: int) -> None:
    """A chunk has as many rows as fit, and at least one."""
    count = 2 * (unit._CHUNK // width) + 5
    chunks = list(unit._chunks(count, width))
    assert [row for chunk in chunks for row in range(chunk.start, chunk.stop)] == list(range(count))
    assert {chunk.stop - chunk.start for chunk in chunks[:-1]} == {max(1, unit._CHUNK // width)}
