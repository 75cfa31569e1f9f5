"""Row reductions over a similarity matrix, one block of rows at a time.

Every objective is plain autograd on a few numbers per anchor: statistics of its similarities to its negatives. They are
computed here, block by block, so that only a small part of the matrix exists at any time. A small matrix is kept for
the backward pass, a large one is computed again. Memory then grows with the number of embeddings and not with its
square.

`reduce_rows`, in `rows`, selects one of these implementations:

    cpu         on a CPU, the log-sum-exp of s / τ with τ a number: few passes over the matrix
    rows        on any device, blocks of rows for every other statistic, temperature and choice of negatives
    fused       on a GPU, widths up to 256: Triton kernels that keep a row's gradient in registers
    tiled       on a GPU, widths up to 2,048, and both directions of two sides: tiles, and matrix products for the gradient
    view_loss   on a GPU, two views to the mean cross-entropy: the same kernels as one node of the graph
    sigmoid     on a GPU, a sigmoid loss and its gradient in one pass over the tiles
    thresholds  on a GPU, the similarity of each anchor's k-th hardest negative
"""

from contrapose.reduce.block import ALL, Block, Selection, Source
from contrapose.reduce.exponent import KernelProfile
from contrapose.reduce.logit import Divided, Hardened, Logit, Scale
from contrapose.reduce.means import group_counts, group_sums
from contrapose.reduce.rows import (
    PATHS,
    PRECISIONS,
    cross_entropy_of_views,
    memory,
    path,
    reduce_rows,
    sigmoid_loss_of_views,
    sum_rows,
)
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
    "sigmoid_loss_of_views",
    "softplus",
    "sum_rows",
]
