"""Results of engines from a pass without gradients, reused when the same statistics are computed with gradients.

In a ring, the backward pass builds the graph of each block of candidates again. Engines return and save only numbers per anchor,
besides their operands. If these numbers are kept, the graph is built without computing the similarities again.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from contrapose.reduce.engine import AnyEngine, Needs, Operands, Tensors


@dataclass(frozen=True, eq=False)
class _Call:
    """One call of an engine."""

    engine: AnyEngine
    values: Tensors
    saved: tuple[Tensor | int, ...]  # an operand is given by its number, since a later call has its own


@dataclass(eq=False)
class KnownResults:
    """The results of each call of an engine, in order: `keep` records them, and `use` returns them to the same calls."""

    calls: list[_Call] = field(default_factory=list)
    used: int | None = None  # how many calls have been repeated; None while results are kept

    @contextmanager
    def keep(self) -> Iterator[None]:
        """Keep the results of all calls in this context, which must be without gradients."""
        with _in_use(self):
            yield

    @contextmanager
    def use(self) -> Iterator[None]:
        """Give the same calls, in the same order, the results that are kept."""
        self.used = 0
        with _in_use(self):
            yield

    def forward(self, engine: AnyEngine, operands: Operands, request: Any, needs: Needs) -> tuple[Tensors, Tensors]:
        """Return the results of the engine's `forward`: computed and recorded, or those recorded before."""
        if self.used is None:
            values, saved = engine.forward(operands, request, needs)
            if engine.is_repeatable:
                self.calls.append(_Call(engine, _detached(values), tuple(_number(x, operands) for x in saved)))
            return values, saved
        if not engine.is_repeatable:
            return engine.forward(operands, request, needs)
        call, self.used = self.calls[self.used], self.used + 1
        assert call.engine is engine
        return _detached(call.values), tuple(operands[x] if isinstance(x, int) else x for x in call.saved)  # type: ignore[misc]


_KNOWN: ContextVar[KnownResults | None] = ContextVar("known", default=None)


@contextmanager
def _in_use(results: KnownResults) -> Iterator[None]:
    token = _KNOWN.set(results)
    try:
        yield
    finally:
        _KNOWN.reset(token)


def _detached(values: Tensors) -> Tensors:
    # An output of an autograd function belongs to one graph.
    return tuple(value.detach() for value in values)


def _number(x: Tensor, operands: Operands) -> Tensor | int:
    numbers = [number for number, operand in enumerate(operands) if operand is x]
    return numbers[0] if numbers else x.detach()


def forward(engine: AnyEngine, operands: Operands, request: Any, needs: Needs) -> tuple[Tensors, Tensors]:
    """Return the results of the engine's `forward`; in the context of `KnownResults.use`, without computing them."""
    known = _KNOWN.get()
    return (
        engine.forward(operands, request, needs) if known is None else known.forward(engine, operands, request, needs)
    )
