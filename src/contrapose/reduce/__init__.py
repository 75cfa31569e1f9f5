"""Row reductions over a similarity matrix, one block of rows at a time.

Every objective is plain autograd on a few numbers per anchor: statistics of its similarities to its negatives. They are
computed here, block by block, so that only a small part of the matrix exists at any time. A small matrix is kept for
the backward pass, a large one is computed again. Memory then grows with the number of embeddings and not with its
square.
"""

from contrapose.reduce.block import ALL, Block, Selection, Source
from contrapose.reduce.exponent import KernelProfile
from contrapose.reduce.logit import Divided, Hardened, Logit, Scale
from contrapose.reduce.means import group_counts, group_sums
from contrapose.reduce.rows import PATHS, PRECISIONS, cross_entropy_of_views, memory, path, reduce_rows, sum_rows
from contrapose.reduce.statistics import (
    Count,
    Expectation,
    LogSumExp,
    Maximum,
    Mean,
    Nearest,
    SoftplusSum,
    Statistic,
    Sum,
    of_rows,
    softplus,
)

__all__ = [
    "ALL",
    "PATHS",
    "PRECISIONS",
    "Block",
    "Count",
    "Divided",
    "Expectation",
    "Hardened",
    "KernelProfile",
    "LogSumExp",
    "Logit",
    "Maximum",
    "Mean",
    "Nearest",
    "Scale",
    "Selection",
    "SoftplusSum",
    "Source",
    "Statistic",
    "Sum",
    "cross_entropy_of_views",
    "group_counts",
    "group_sums",
    "memory",
    "of_rows",
    "path",
    "reduce_rows",
    "softplus",
    "sum_rows",
]
