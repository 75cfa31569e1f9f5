"""The similarity of each anchor's k-th hardest negative, found by counting instead of sorting, which would need the matrix.

Each pass counts the negatives above eight thresholds per anchor and keeps the interval that holds the k-th negative; after
eight passes the interval is as narrow as float32 resolves. In a large pool one pass is enough: a sample of the columns gives an
interval that almost surely holds the k-th negative, the pass collects the few per cent of negatives in it, and the k-th is
found among them. Anchors whose interval was wrong are searched by the eight passes, which cost nothing if there are no such
anchors. Nothing is read from the device, so a CUDA graph can capture the whole search.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from contrapose.reduce.block import Selection
from contrapose.reduce.fused.launch import RowLaunch, Tile
from contrapose.reduce.hardest.kernels import (
    HIGHEST,
    LOWEST,
    collect_kernel,
    count_kernel,
    interval_kernel,
    select_kernel,
)
from contrapose.reduce.kernel_launch import launch_kernel, specialisation
from contrapose.reduce.request import part

_PASSES = 8
MIN_COLUMNS, MIN_ROWS = 16384, 4096  # smaller problems are searched by the eight passes
_MAX_COLUMNS = 2**22  # so are larger problems: each position of a tile counts to 2¹⁵
_STRIDE = 8  # one in this many columns is in the sample
_SAMPLE = 32768  # maximum number of columns in a sample
_DEVIATIONS = 5.5  # half of the sample's interval, in standard deviations of the rank that a sample finds
_COUNT_TILE: Tile = (64, 64, 4, 2)
_COLLECT_TILE: Tile = (64, 64, 4, 3)
_SPLITS, _MOST_SPLITS = 4, 8  # programs that divide the columns of a row when negatives are collected
SLOTS = 32  # negatives that each position of a tile can collect; an anchor that needs more is left to the eight passes
_FILLED = 9  # average number of filled slots per position: if there would be more, the number of splits is doubled
_COLLECTED = 2**25  # slots in memory, 128 MiB: anchors are searched in groups that need no more
_DEPTH = 128  # coordinates per step of a product
_COARSE = 16  # share of the sample in which the interval is first searched for
_NEAR = 8  # ranks in the sample by which an interval may be too wide
_WARPS = 4  # of kernels that hold all numbers of a row


@dataclass(frozen=True, eq=False)
class _Search:
    """A search in rows z against columns p: some anchors against the candidates that they share."""

    z: Tensor
    p: Tensor
    row_id: Tensor
    column_id: Tensor
    precision: str
    id_numbers: tuple[int, int] = (1, 0)

    def part(self, rows: slice) -> _Search:
        """Return some of the rows against all columns."""
        period, shift = self.id_numbers
        return replace(
            self,
            z=part(self.z, rows),
            row_id=part(self.row_id, rows),
            id_numbers=(period, (shift - rows.start) % period),
        )

    def launch(
        self, kernel: object, *buffers: Tensor, tile: Tile = _COUNT_TILE, splits: int | None = None, **constants: int
    ) -> None:
        """Call the kernel with the ids and these buffers."""
        width = self.z.shape[1]
        depth = min(1 << (width - 1).bit_length(), _DEPTH if self.precision == "bf16" else _DEPTH // 2)
        RowLaunch(
            tile, self.z, self.p, self.z.shape[1], self.precision, ids=self.id_numbers, depth=depth, splits=splits
        )(kernel, self.row_id, self.column_id, *buffers, numbers=(), DEPTH=depth, **constants)

    def counts(self, low: Tensor, step: Tensor, unresolved: Tensor) -> Tensor:
        """Return (n, 8): the number of negatives at or above low + k · step, k = 0…7; undefined where all is resolved."""
        splits = RowLaunch(_COUNT_TILE, self.z, self.p, self.z.shape[1], self.precision).splits
        counts = low.new_empty((splits, len(low), 8), dtype=torch.int32)
        self.launch(count_kernel, low, step, unresolved, counts)
        return counts.sum(0)


@dataclass(frozen=True, eq=False)
class _Sample:
    """A sample of the columns, in half precision, and the two ranks between which each row's k-th negative should lie."""

    p: Tensor
    column_id: Tensor
    more: Tensor  # (n,): the k-th negative is almost surely larger than the `more`-th largest of the sample
    fewer: Tensor  # (n,): and almost surely smaller than the `fewer`-th

    @classmethod
    def of(cls, search: _Search, k: Tensor) -> _Sample:
        columns = len(search.p)
        stride = max(_STRIDE, -(-columns // _SAMPLE))
        p = search.p[::stride].half()
        rank = k.double() * (len(p) / columns)
        # The number of sampled negatives above the k-th is nearly binomial.
        deviation = _DEVIATIONS * (rank * (1 - rank / len(p))).clamp(min=0).sqrt() + 1
        fewer = (rank - deviation).floor().clamp(min=0)
        return cls(p, search.column_id[::stride].contiguous(), (rank + deviation).ceil().int(), fewer.int())

    def intervals(self, search: _Search, rows: slice) -> tuple[Tensor, Tensor]:
        """Return an interval for each of these rows that almost surely holds its k-th largest similarity."""
        similarities = search.z.half() @ self.p.T
        low, high = torch.empty((2, len(similarities)), device=self.p.device).unbind()
        buffers = similarities, search.row_id, self.column_id, part(self.more, rows), part(self.fewer, rows), low, high
        sizes, size = (len(self.p),), 1 << (len(self.p) - 1).bit_length()
        constants = {"SIZE": size, "COARSE": min(_COARSE, size), "NEAR": _NEAR}
        launch_kernel(
            interval_kernel, (len(low), 1, 1), (*buffers, *sizes), specialisation(buffers, sizes), constants,
            near=low, warps=_WARPS, stages=1,
        )  # fmt: skip
        return low, high


def thresholds(z: Tensor, p: Tensor, selection: Selection, precision: str) -> tuple[Tensor, Tensor]:
    """Return each anchor's similarity to its k-th hardest negative, and k, (n,) each."""
    assert selection.hardest is not None
    kept = selection.kept_counts(torch.int64)
    found = []
    for rows, columns in selection.runs:
        ids = part(selection.anchor_id, rows), part(selection.pool_id, columns)
        numbers = selection.id_numbers(rows, columns)
        search = _Search(part(z, rows), part(p, columns), *ids, precision, numbers)
        most = int(selection.hardest(torch.tensor([len(search.p)])))  # computed on the host: no synchronisation
        found.append(_find(search, part(kept, rows), most))
    return torch.cat(found), kept.float()


def _find(search: _Search, k: Tensor, most: int) -> Tensor:
    """Return the thresholds; no anchor's k is larger than `most`."""
    low = torch.full((len(k),), LOWEST.value, device=k.device)
    if not MIN_COLUMNS <= len(search.p) <= _MAX_COLUMNS or len(k) < MIN_ROWS:
        return _bisect(search, low, k)
    threshold, resolved = _find_by_sample(search, k, most)
    return torch.where(resolved, threshold, _bisect(search, low, k, ~resolved))


def _bisect(search: _Search, low: Tensor, k: Tensor, unresolved: Tensor | None = None) -> Tensor:
    """Return each row's k-th largest similarity, or a number less than 1.3e-7 below it."""
    width = HIGHEST.value - LOWEST.value
    unresolved = torch.ones_like(k, dtype=torch.bool) if unresolved is None else unresolved
    for _ in range(_PASSES):
        width /= 8
        reached = search.counts(low, torch.full_like(low, width), unresolved) >= k[:, None]
        low = low + width * (reached.sum(1) - 1).clamp(min=0)
    return low


def _find_by_sample(search: _Search, k: Tensor, most: int) -> tuple[Tensor, Tensor]:
    """Return thresholds, and whether each row's k-th negative was found, (n,) each."""
    sample = _Sample.of(search, k)
    splits = _splits(most, len(search.p), len(sample.p))
    threshold = torch.empty(len(k), device=k.device)
    resolved = torch.empty_like(k, dtype=torch.bool)
    group = max(1, _COLLECTED // (splits * SLOTS * _COLLECT_TILE[1]))
    for first in range(0, len(k), group):
        rows = slice(first, min(first + group, len(k)))
        some = search.part(rows)
        _select(some, k[rows], sample.intervals(some, rows), splits, (threshold[rows], resolved[rows]))
    return threshold, resolved


def _splits(k: int, columns: int, sampled: int) -> int:
    """Return how many programs share the columns, so that each position of their tiles has enough slots."""
    share = min(1.0, k / columns)
    interval = 2 * (_DEVIATIONS * (share * (1 - share) * sampled) ** 0.5 + 1) * columns / sampled
    return _SPLITS if interval <= _SPLITS * _COLLECT_TILE[1] * _FILLED else _MOST_SPLITS


def _select(
    search: _Search, k: Tensor, interval: tuple[Tensor, Tensor], splits: int, outputs: tuple[Tensor, Tensor]
) -> None:
    """Find each row's k-th largest similarity within its interval: write it, and whether it was found."""
    columns = _COLLECT_TILE[1]
    sizes = {"PARTS": splits, "SLOTS": SLOTS}
    values = torch.empty((len(k), splits, SLOTS, columns), device=k.device)
    collected = torch.empty((len(k), splits, columns), dtype=torch.int32, device=k.device)
    above = torch.empty((splits, len(k)), dtype=torch.int32, device=k.device)
    search.launch(
        collect_kernel, *interval, values, collected, above, tile=_COLLECT_TILE, splits=splits, FAST=k.is_cuda, **sizes
    )  # fmt: skip
    buffers = values, collected, above, k, *interval, *outputs
    launch_kernel(
        select_kernel, (len(k), 1, 1), (*buffers, len(k)), specialisation(buffers, (len(k),)),
        sizes | {"COLUMNS": columns}, near=values, warps=_WARPS, stages=1,
    )  # fmt: skip
