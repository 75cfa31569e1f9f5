"""One call of a criterion: which of its arguments are embeddings, labels and ids, and the same call for other rows."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from contrapose.doctor.quiet import CannotAsk

_ID_NAMES = ("ids", "indices", "index", "idx")
_MOST_VIEWS = 16  # a tensor (V, m, d) or (m, V, d) with more views is not taken for embeddings


class NotRead(ValueError):
    """Raised if the arguments of a criterion have no embeddings; the message says what was received."""


@dataclass(frozen=True, eq=False)
class Call:
    """The arguments of one call of a criterion, with the embeddings among them."""

    sides: tuple[Tensor, ...]  # the embeddings (n, d) of each view, tower or column
    labels: Tensor | None  # (n,) classes, or None
    ids: Tensor | None  # (n,) data-set indices, or None
    leaves: tuple[Any, ...]  # all arguments, in a flat list
    spec: TreeSpec  # how `leaves` are nested in the call
    places: tuple[int, ...]  # the position of each side in `leaves`; the same position for all views of a 3-D tensor
    stack_dim: int | None  # the dimension of the views if one tensor holds all of them
    views_only: bool  # whether all sides show the same samples; otherwise sides after the second are explicit negatives
    kept: Tensor | None = None  # (n,) rows of the batch that this call has; None for all of them

    @property
    def rows(self) -> int:
        """Number of rows of each side."""
        return len(self.sides[0])

    @property
    def groups(self) -> Tensor | None:
        """The sample or class of each row (n,), on the sides' device: rows of one group are no negatives of each other."""
        device = self.sides[0].device
        if self.labels is not None:
            return self.labels.to(device)
        if len(self.sides) == 1:
            return None
        return torch.arange(self.rows, device=device) if self.ids is None else self.ids.to(device)

    def subset(self, most: int) -> Call:
        """Return the call for at most `most` embeddings in all, drawn without the global random generators."""
        count = most // len(self.sides)
        if self.rows <= count:
            return self
        generator = torch.Generator().manual_seed(self.rows)
        if len(self.sides) > 1 or self.labels is None:
            kept = torch.randperm(self.rows, generator=generator)[:count].sort().values
        else:  # whole classes, since a row alone would have no positive
            _, classes, sizes = self.labels.cpu().unique(return_inverse=True, return_counts=True)
            order = torch.randperm(len(sizes), generator=generator)
            position = torch.empty_like(order)
            position[order] = sizes[order].cumsum(0)  # rows up to and including each class
            kept = (position[classes] <= count).nonzero().flatten()
            kept = torch.arange(count) if len(kept) < 2 else kept
        return self._take(kept.to(self.sides[0].device))

    def subset_to_ask(self, most: int) -> Call:
        """Return the call for at most `most` embeddings, for the criterion; raise CannotAsk if its indices would be wrong."""
        part = self.subset(most)
        return self if part is self else part._renumbered(self.rows)

    def _renumbered(self, rows: int) -> Call:
        """Return the call with targets that are rows of the batch, such as torch.arange(m), as rows of what is left of it."""
        leaves = list(self.leaves)
        for i, leaf in enumerate(leaves):
            if not isinstance(leaf, Tensor) or leaf.is_floating_point() or leaf.dtype == torch.bool or i in self.places:
                continue
            is_square = leaf.ndim == 2 and len(leaf) == leaf.shape[1] == self.rows
            if leaf.ndim and leaf.numel() > 1 and len(leaf) != self.rows and not is_square:
                # Out of range, they would end the whole process on a GPU.
                raise CannotAsk("the criterion gets numbers of rows, and a look asks about some of the rows only")
            if self._is_target(leaf, rows):
                leaves[i] = leaf.argsort().argsort()
        return replace(self, leaves=tuple(leaves))

    def _is_target(self, leaf: Tensor, rows: int) -> bool:
        """Return whether integers are rows of the batch: all different, below their number, and no data-set indices."""
        if leaf.ndim != 1 or len(self.sides) == 1 or (self.ids is not None and torch.equal(leaf, self.ids)):
            return False
        return len(leaf.unique()) == len(leaf) and bool((leaf >= 0).all() and (leaf < rows).all())

    def _take(self, kept: Tensor) -> Call:
        def rows(value: Any) -> Any:
            if not isinstance(value, Tensor) or value.ndim == 0 or len(value) != self.rows:
                return value
            index = kept.to(value.device)
            is_square = value.shape[:2] == (self.rows, self.rows)
            return value[index][:, index] if is_square else value[index]

        places = set(self.places)
        return Call(
            sides=tuple(side[kept] for side in self.sides),
            labels=rows(self.labels),
            ids=rows(self.ids),
            # Sides are replaced in each call of the criterion, so these are never read.
            leaves=tuple(leaf if i in places else rows(leaf) for i, leaf in enumerate(self.leaves)),
            spec=self.spec,
            places=self.places,
            stack_dim=self.stack_dim,
            views_only=self.views_only,
            kept=kept,
        )

    def ask(self, criterion: Callable[..., Any], sides: Sequence[Tensor]) -> Tensor:
        """Return the criterion's value for other embeddings, as a scalar."""
        leaves = list(self.leaves)
        if self.stack_dim is not None:
            leaves[self.places[0]] = torch.stack(list(sides), dim=self.stack_dim)
        else:
            for place, side in zip(self.places, sides, strict=True):
                leaves[place] = side
        arguments, keywords = tree_unflatten(leaves, self.spec)
        return scalar(criterion(*arguments, **keywords))


def scalar(value: Any) -> Tensor:
    """Return the loss in what a criterion returned: a tensor, or a dictionary or tuple that has it first; summed if needed."""
    if isinstance(value, Mapping):
        value = next((v for k, v in value.items() if "loss" in str(k)), next(iter(value.values()), None))
    if isinstance(value, tuple | list) and value:
        value = value[0]
    if not isinstance(value, Tensor):
        raise TypeError(f"the criterion returned {type(value).__name__}, not a tensor")
    return value if value.ndim == 0 else value.mean()


def read_call(criterion: Callable[..., Any], arguments: Sequence[Any], keywords: Mapping[str, Any]) -> Call:
    """Find the embeddings, labels and ids in the arguments of a criterion; raise NotRead if there are no embeddings."""
    leaves, spec = tree_flatten((tuple(arguments), dict(keywords)))
    first = next((i for i, leaf in enumerate(leaves) if _is_embedding(leaf)), None)
    if first is None:
        received = ", ".join(type(value).__name__ for value in (*arguments, *keywords.values())) or "nothing"
        raise NotRead(f"expected embeddings (m, d), got {received}")
    lengths = {len(leaf) for leaf in leaves if _is_index(leaf)}
    labels, ids = _indices(criterion, arguments, keywords)
    lead = leaves[first]
    if lead.ndim == 3:
        by_labels = len(lead) in lengths and lead.shape[1] not in lengths
        dim = 1 if by_labels or (lead.shape[1] < len(lead) and len(lead) not in (2,)) else 0
        if lead.shape[dim] > _MOST_VIEWS:
            raise NotRead(f"expected embeddings (m, d) or (views, m, d), got shape {tuple(lead.shape)}")
        sides, places = lead.unbind(dim), (first,) * lead.shape[dim]
        return Call(sides, labels, ids, tuple(leaves), spec, places, dim, views_only=True)
    places = tuple(i for i, leaf in enumerate(leaves) if _is_embedding(leaf) and leaf.shape == lead.shape)
    sides = tuple(leaves[i] for i in places)
    return Call(sides, labels, ids, tuple(leaves), spec, places, None, views_only=len(sides) == 2)


def _is_embedding(value: Any) -> bool:
    return (
        isinstance(value, Tensor) and value.is_floating_point() and value.ndim in (2, 3) and min(value.shape[-2:]) > 1
    )


def _is_index(value: Any) -> bool:
    integer = isinstance(value, Tensor) and not value.is_floating_point() and not value.is_complex()
    return integer and value.ndim == 1 and value.dtype != torch.bool


def _indices(
    criterion: Callable[..., Any], arguments: Sequence[Any], keywords: Mapping[str, Any]
) -> tuple[Tensor | None, Tensor | None]:
    """Return labels and ids: integer vectors among the arguments, told apart by the names of the parameters."""
    function = criterion.forward if isinstance(criterion, nn.Module) else criterion
    try:
        named = dict(inspect.signature(function).bind_partial(*arguments, **keywords).arguments)
    except (TypeError, ValueError):  # a function in C, or arguments that do not fit
        named = dict(keywords)
    for value in [*named.values()]:  # what **keywords and *arguments of the function received
        if isinstance(value, Mapping):
            named |= value
        elif isinstance(value, tuple | list):
            named |= {f"argument {i}": inner for i, inner in enumerate(value)}
    vectors = {name: value for name, value in named.items() if _is_index(value)}
    ids = next((value for name, value in vectors.items() if name in _ID_NAMES), None)
    labels = next((value for name, value in vectors.items() if name not in _ID_NAMES), None)
    return labels, ids
