"""The similarity of each anchor's k-th hardest negative. Sorting would need the matrix; here passes over it count.

Each pass counts the negatives above eight thresholds per anchor and keeps the interval that holds the k-th: eight passes make
it as narrow as float32 resolves. In a large pool most of them are saved. A sample of the columns, which costs little, gives an
interval that almost surely holds the k-th; one pass narrows it to a few hundred negatives; another collects these, and the k-th
is found among them. Anchors for which the sample misled are found by the eight passes, which cost nothing where all are found.
Nothing is read from the device, so that all of this can be captured in a CUDA graph.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from contrapose.reduce.block import Selection
from contrapose.reduce.kernels import BAND
from contrapose.reduce.launch import Launch, Tile, launch, specialisation
from contrapose.reduce.reduction import part
from contrapose.reduce.threshold_kernels import collect_kernel, count_kernel, select_kernel

_LOWEST, _HIGHEST = -1.01, 1.01  # products of rounded unit vectors may exceed ±1 a little
_PASSES = 8
_SAMPLE = 2048  # columns of the sample
_DEVIATIONS = 5.5  # half of the sample's interval, in standard deviations of the rank that a sample finds
MIN_COLUMNS, MIN_ROWS = 16384, 4096  # smaller problems are searched by the eight passes
_ROWS = 8192  # anchors whose negatives are collected at a time: they take memory
_MARGIN = 2 * BAND.value  # collected beyond the interval, since ties at the threshold count
_COUNT_TILE: Tile = (64, 64, 4, 2)
_COLLECT_TILE: Tile = (64, 32, 4, 3)
_SPLITS = 8  # programs that divide the columns of a row when negatives are collected
SLOTS = 16  # negatives that each place of a tile can collect; an anchor that needs more is left to the eight passes
_DEPTH = 128  # coordinates per step of a product


@dataclass(frozen=True, eq=False)
class _Search:
    """Rows z against columns p: some anchors against the candidates they share."""

    z: Tensor
    p: Tensor
    row_id: Tensor
    column_id: Tensor
    precision: str
    id_numbers: tuple[int, int] = (1, 0)

    def sample(self) -> _Search:
        """Return the same rows against every so many-th column."""
        stride = max(1, len(self.p) // _SAMPLE)
        return _Search(
            self.z, self.p[::stride].contiguous(), self.row_id, self.column_id[::stride].contiguous(), self.precision
        )

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
        Launch(tile, self.z, self.p, self.z.shape[1], self.precision, ids=self.id_numbers, depth=depth, splits=splits)(
            kernel, self.row_id, self.column_id, *buffers, numbers=(), DEPTH=depth, **constants
        )

    def counts(self, low: Tensor, step: Tensor, unresolved: Tensor) -> Tensor:
        """Return (n, 8): the number of negatives at or above low + k · step, k = 0…7; undefined where all is resolved."""
        splits = Launch(_COUNT_TILE, self.z, self.p, self.z.shape[1], self.precision).splits
        counts = low.new_empty((splits, len(low), 8), dtype=torch.int32)
        self.launch(count_kernel, low, step, unresolved, counts)
        return counts.sum(0)


def thresholds(z: Tensor, p: Tensor, selection: Selection, precision: str) -> tuple[Tensor, Tensor] | None:
    """Return each anchor's similarity to its k-th hardest negative, and the weight of ties there: weights sum to k."""
    if selection.hardest is None:
        return None
    kept = selection.kept_counts(torch.int64)
    found = []
    for rows, columns in selection.runs:
        ids = part(selection.anchor_id, rows), part(selection.pool_id, columns)
        numbers = selection.id_numbers(rows, columns)
        found.append(_find(_Search(part(z, rows), part(p, columns), *ids, precision, numbers), part(kept, rows)))
    threshold, tie_weight = (torch.cat(values) for values in zip(*found, strict=True))
    return threshold, tie_weight


def _find(search: _Search, k: Tensor) -> tuple[Tensor, Tensor]:
    low = torch.full((len(k),), _LOWEST, device=k.device)
    if len(search.p) < MIN_COLUMNS or len(k) < MIN_ROWS:
        return _ties(search, _bisect(search, low, k, _PASSES)[0], k)
    threshold, tie_weight, resolved = _find_by_sample(search, k)
    missing = ~resolved
    exact, exact_weight = _ties(search, _bisect(search, low, k, _PASSES, missing)[0], k, missing)
    return torch.where(missing, exact, threshold), torch.where(missing, exact_weight, tie_weight)


def _bisect(
    search: _Search, low: Tensor, k: Tensor, passes: int, unresolved: Tensor | None = None
) -> tuple[Tensor, float]:
    """Return a lower bound of each row's k-th largest similarity, and how far below it may be."""
    width = _HIGHEST - _LOWEST
    unresolved = torch.ones_like(k, dtype=torch.bool) if unresolved is None else unresolved
    for _ in range(passes):
        width /= 8
        reached = search.counts(low, torch.full_like(low, width), unresolved) >= k[:, None]
        low = low + width * (reached.sum(1) - 1).clamp(min=0)
    return low, width


def _ties(search: _Search, low: Tensor, k: Tensor, unresolved: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return the thresholds and the weight of negatives within the band of ties."""
    unresolved = torch.ones_like(k, dtype=torch.bool) if unresolved is None else unresolved
    counts = search.counts(low - BAND.value, torch.full_like(low, 2 * BAND.value), unresolved)
    above, ties = counts[:, 1], counts[:, 0] - counts[:, 1]
    return low, ((k - above) / ties.clamp(min=1)).clamp(0, 1).float()


def _find_by_sample(search: _Search, k: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return thresholds, weights of ties, and whether each row's k-th negative was found, (n,) each."""
    low, high = _sample_interval(search, k)
    step = (high - low) / 7
    reached = (search.counts(low, step, torch.ones_like(k, dtype=torch.bool)) >= k[:, None]).sum(1) - 1  # -1: below low
    start = torch.where(reached < 0, _LOWEST, low + reached * step)
    end = torch.where(reached < 0, low, torch.where(reached == 7, _HIGHEST, start + step))
    start, end = start - _MARGIN, end + _MARGIN
    threshold, tie_weight, resolved = (
        torch.empty_like(low),
        torch.empty_like(low),
        torch.empty_like(k, dtype=torch.bool),
    )
    values = low.new_empty((min(len(low), _ROWS), _SPLITS, SLOTS, _COLLECT_TILE[1]))
    for first in range(0, len(low), _ROWS):
        rows = slice(first, min(first + _ROWS, len(low)))
        outputs = threshold[rows], tie_weight[rows], resolved[rows]
        _select(search.part(rows), k[rows], (start[rows], end[rows]), values, outputs)
    return threshold, tie_weight, resolved


def _select(
    search: _Search, k: Tensor, interval: tuple[Tensor, Tensor], values: Tensor, outputs: tuple[Tensor, Tensor, Tensor]
) -> None:
    """Find each row's k-th largest similarity within its interval: write it, the weight of ties, and whether it was found."""
    threshold, tie_weight, resolved = outputs
    columns = _COLLECT_TILE[1]
    collected = k.new_zeros((len(k), _SPLITS, columns), dtype=torch.int32)
    above = k.new_zeros((_SPLITS, len(k)), dtype=torch.int32)
    sizes = {"PARTS": _SPLITS, "SLOTS": SLOTS}
    search.launch(
        collect_kernel, *interval, values, collected, above, tile=_COLLECT_TILE, splits=_SPLITS, **sizes
    )  # fmt: skip
    rank = (k - above.sum(0)).int()
    buffers, rows = (values, collected, rank, *interval, threshold, tie_weight), 2
    launch(
        select_kernel, (-(-len(k) // rows), 1, 1), (*buffers, len(k)), specialisation(buffers, (len(k),)),
        sizes | {"COLUMNS": columns, "ROWS": rows}, near=values, warps=4, stages=1,
    )  # fmt: skip
    found, fullest = collected.sum((1, 2)), collected.amax((1, 2))
    torch.logical_and((rank >= 1) & (rank <= found), fullest <= SLOTS, out=resolved)


def _sample_interval(search: _Search, k: Tensor) -> tuple[Tensor, Tensor]:
    """Return an interval for each row that almost surely holds its k-th largest similarity, from a sample of columns."""
    sample = search.sample()
    size = len(sample.p)
    rank = k.double() * (size / len(search.p))
    # The number of sampled negatives above the k-th is nearly binomial.
    deviation = _DEVIATIONS * (rank * (1 - rank / size)).clamp(min=0).sqrt() + 1
    lowest = torch.full((len(k),), _LOWEST, device=k.device)
    low, _ = _bisect(sample, lowest, (rank + deviation).ceil(), _PASSES // 2)
    high, width = _bisect(sample, lowest, (rank - deviation).floor().clamp(min=1), _PASSES // 2)
    low = torch.where(rank + deviation >= size, _LOWEST, low)
    return low, torch.where(rank - deviation < 1, _HIGHEST, high + width)
