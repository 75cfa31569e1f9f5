"""Which blocks of a similarity matrix are computed, and whether each block serves its rows only or its columns too."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

Runs = list[tuple[slice, slice]]


@dataclass(frozen=True)
class MatrixBlock:
    """A block of the similarity matrix: some anchors against some pool rows."""

    rows: slice
    columns: slice
    serves_columns: bool = False  # whether the columns are anchors too, compared with these rows
    diagonal: bool = False  # whether the block is its own transpose

    @property
    def height(self) -> int:
        """Number of rows."""
        return int(self.rows.stop - self.rows.start)

    @property
    def width(self) -> int:
        """Number of columns."""
        return int(self.columns.stop - self.columns.start)


def both_directions(runs: Runs, same: bool) -> bool:
    """Return whether two runs are the two directions of one comparison: a with b, and b with a."""
    return same and len(runs) == 2 and runs[0] == runs[1][::-1] and runs[0][0] != runs[0][1]


def matrix_blocks(runs: Runs, *, same: bool, block: int) -> Iterator[MatrixBlock]:
    """Yield blocks of about `block` rows and columns that hold every similarity of the runs once.

    `same` means that anchors and pool are one tensor. In that case a block above the diagonal serves its columns too, and the
    blocks below the diagonal are left out; likewise for the second of two directions.
    """
    if both_directions(runs, same):
        yield from _rectangle(*runs[0], block, serves_columns=True)
        return
    for rows, columns in runs:
        if same and rows == columns:
            cuts = list(_cuts(rows, block))
            for i, down in enumerate(cuts):
                yield from (
                    MatrixBlock(down, across, serves_columns=True, diagonal=down == across) for across in cuts[i:]
                )
        else:
            yield from _rectangle(rows, columns, block, serves_columns=False)


def _rectangle(rows: slice, columns: slice, block: int, *, serves_columns: bool) -> Iterator[MatrixBlock]:
    # Few rows: more columns in a block, so that there is enough work for the whole device.
    length = block * max(1, block // (rows.stop - rows.start))
    for down in _cuts(rows, block):
        yield from (MatrixBlock(down, across, serves_columns=serves_columns) for across in _cuts(columns, length))


def _cuts(whole: slice, length: int) -> Iterator[slice]:
    for start in range(whole.start, whole.stop, length):
        yield slice(start, min(start + length, whole.stop))
