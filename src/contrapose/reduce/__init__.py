"""Statistics of each anchor's negatives, without the similarity matrix.

Every objective is plain autograd on a few numbers per anchor: statistics of its similarities to its negatives. One of four
engines computes these statistics, so that only a small part of the matrix exists at any time. Memory then grows with the
number of embeddings instead of its square.

    blocks   on any device, every statistic, temperature and choice of negatives: blocks of rows
    cpu      on a CPU, the log-sum-exp of s / τ with τ a number: few passes over the matrix
    fused    on a GPU, widths up to 256: Triton kernels that keep a row's gradient in registers
    tiled    on a GPU, widths up to 2,048, and both directions of two sides: tiles, and matrix products for the gradient

An engine consists of two plain functions (`engine`). Two autograd functions call them (`autograd`): statistics of rows, and
the loss of two views in one node. `choose_engine` chooses the engine, and `chosen_engines` shows the choices and the reasons.
Two cases need no engine: similarity values and small matrices use plain autograd, and means come from sums of embeddings.
Several prefixes of the same embeddings (`nested`) can share one pass of `tiled`; `one_pass_obstacle` says why they do not.
"""

from contrapose.reduce.autograd import cross_entropy_of_views, reduce_rows, sigmoid_loss_of_views, sum_rows
from contrapose.reduce.block import ALL, Block, Ceiling, KernelInputs, NestedPrefixes, Prefix, Selection, Source
from contrapose.reduce.choose import EngineChoice, choose_engine, chosen_engines
from contrapose.reduce.exponent import KernelProfile
from contrapose.reduce.known_results import KnownResults
from contrapose.reduce.logit import HardnessLogit, Logit, Scale, TemperatureLogit
from contrapose.reduce.means import group_counts, group_sums
from contrapose.reduce.path import PATHS, PRECISIONS, memory, path
from contrapose.reduce.soft import Differences, GuideProducts, Scores, SoftSums
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
    SumOfSquares,
    of_rows,
    softplus,
)

__all__ = [
    "ALL",
    "PATHS",
    "PRECISIONS",
    "Block",
    "Ceiling",
    "Count",
    "Differences",
    "EngineChoice",
    "Expectation",
    "GuideProducts",
    "HardnessLogit",
    "KernelInputs",
    "KernelProfile",
    "KnownResults",
    "LogSumExp",
    "Logit",
    "Maximum",
    "Mean",
    "Nearest",
    "NestedPrefixes",
    "Prefix",
    "Scale",
    "Scores",
    "Selection",
    "SoftSums",
    "SoftplusSum",
    "Source",
    "Statistic",
    "Sum",
    "SumOfSquares",
    "TemperatureLogit",
    "choose_engine",
    "chosen_engines",
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
