"""The interface of an engine: two plain functions that compute statistics of each anchor's negatives, and their gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

from torch import Tensor

from contrapose.reduce.unit import same_tensor

Request = TypeVar("Request")
Tensors = tuple[Tensor, ...]


class Operands(NamedTuple):
    """The operands of an engine: anchors (n, d) and pool (m, d), and both in the form that kernels read."""

    anchor: Tensor
    pool: Tensor
    z: Tensor  # the anchors in the precision of the products, padded; the anchors themselves if no kernel reads them
    p: Tensor
    numbers: Tensor | None = None  # (2,): scale and bias of a sigmoid

    @property
    def same(self) -> bool:
        """Whether anchors and pool are one tensor."""
        return same_tensor(self.anchor, self.pool)


class Needs(NamedTuple):
    """Which gradients the backward pass returns."""

    anchor: bool
    pool: bool
    learned: bool = False  # a temperature, or a bias

    @property
    def any(self) -> bool:
        """Whether there is a backward pass at all."""
        return self.anchor or self.pool or self.learned


# Gradients of the anchors (n, d), of the pool (m, d) unless it is the same tensor, and of the learned tensor
Gradients = tuple[Tensor | None, ...]


@dataclass(frozen=True)
class Engine(Generic[Request]):
    """A way to compute statistics. `request` specifies them in the engine's own form, without large tensors.

    `forward` returns the tensors that the backward pass needs, and autograd keeps them and frees them in time. An engine is
    repeatable if `backward` also works with what `forward` saves without any needs: operands and numbers per anchor.
    """

    name: str
    forward: Callable[[Operands, Request, Needs], tuple[Tensors, Tensors]]  # -> statistics, tensors for `backward`
    backward: Callable[[Request, Sequence[Tensor], Tensors, Needs], Gradients]  # saved, ∂L/∂statistics -> gradients
    is_repeatable: bool = False


AnyEngine = Engine[Any]


def plain_operands(anchor: Tensor, pool: Tensor) -> Operands:
    """Return the operands of an engine without kernels."""
    return Operands(anchor, pool, anchor, pool)
