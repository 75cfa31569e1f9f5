"""The k largest values of each row, with the same columns on every device: of equal values, those in the lowest columns."""

from __future__ import annotations

import torch
from torch import Tensor

_GROUP = 64  # values whose maximum decides whether they are looked at
_TIED = 16  # parts in which rows with ties are read again, so that their keys take little memory


def largest(values: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return the k largest values of each row (n, m) in descending order, and their columns, (n, k) each.

    Of equal values, those in the lowest columns are chosen and come first. Columns of -inf, which stands for a value that does
    not count, are arbitrary. k is at most m.
    """
    value, column = _in_order(*_top(values, min(k + 1, values.shape[1])))
    if value.shape[1] > k:
        # If the next value is equal to the last chosen one, `topk` may have chosen any of several columns.
        tied = (value[:, k - 1] == value[:, k]) & (value[:, k - 1] > -torch.inf)
        value, column = value[:, :k], column[:, :k]
        rows = tied.nonzero()[:, 0]
        for part in rows.split(max(1, -(-len(rows) // _TIED))):
            column[part] = _lowest_columns(values[part], value[part], column[part])
    return value, column


def _top(values: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return the `count` largest values of each row and their columns, in any order and with any choice between equal values."""
    length = values.shape[1] // _GROUP
    if length < 4 * count:
        return values.topk(count, dim=1)
    # The largest values are in the groups with the largest maxima. One pass for the maxima and a choice among few values are
    # several times faster than a choice among all. A group is made of columns that are far apart, so that the maxima of all
    # groups are elementwise maxima of long runs.
    grouped = values[:, : length * _GROUP].unflatten(1, (_GROUP, length))
    group = grouped.amax(1).topk(count, dim=1, sorted=False).indices
    starts = length * torch.arange(_GROUP, device=values.device)
    columns = (group[:, None] + starts[:, None]).flatten(1)
    rest = torch.arange(length * _GROUP, values.shape[1], device=values.device)
    columns = torch.cat([columns, rest.expand(len(values), -1)], 1)
    top = values.gather(1, columns).topk(count, dim=1)
    return top.values, columns.gather(1, top.indices)


def _in_order(value: Tensor, column: Tensor) -> tuple[Tensor, Tensor]:
    """Sort each row by descending value; equal values by ascending column."""
    column, order = column.sort(dim=1)
    value, order = value.gather(1, order).sort(dim=1, descending=True, stable=True)
    return value, column.gather(1, order)


def _lowest_columns(values: Tensor, value: Tensor, column: Tensor) -> Tensor:
    """Return the columns of the k largest values, with the lowest columns of those that equal the smallest of them.

    values   rows (n, m)
    value    k largest values of each row, (n, k)
    column   columns of these, right where a value is larger than the last one
    """
    smallest, k = value[:, -1:], value.shape[1]
    position = torch.arange(values.shape[1], 0, -1, dtype=torch.int32, device=values.device)
    keys = torch.where(values == smallest, position, 0)
    lowest = values.shape[1] - _top(keys, k)[0].sort(dim=1, descending=True).values.long()
    larger = (value > smallest).sum(1, keepdim=True)
    place = torch.arange(k, device=values.device) - larger
    return torch.where(place < 0, column, lowest.gather(1, place.clamp(min=0)))
