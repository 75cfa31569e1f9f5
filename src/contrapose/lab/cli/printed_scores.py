"""Scores on the command line: rounded JSON on stdout, and a table of metrics with explanations on stderr."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any

from contrapose.lab.evaluation import explain_metric

_DIGITS = 6  # significant: more than any evaluation can reproduce on another machine


def print_scores(scores: Mapping[str, Any]) -> None:
    """Print scores as one JSON object on stdout, where other programs may read it."""
    print(json.dumps({name: rounded(value) for name, value in scores.items()}))


def rounded(value: Any) -> Any:
    """Return a number with six significant digits; other values unchanged.

    >>> rounded(46.00000083), rounded(0.123456789), rounded(12)
    (46.0, 0.123457, 12)
    """
    return float(f"{value:.{_DIGITS}g}") if isinstance(value, float) else value


def print_metrics(metrics: Mapping[str, float]) -> None:
    """Print each metric of the projector's output with an explanation, beside its value for the encoder's, to stderr."""
    names = [name for name in metrics if not name.startswith("encoder_")]
    width = max(map(len, names), default=0)
    print(f"{'metric':{width}} {'projector':>10} {'encoder':>10}", file=sys.stderr)
    for name in names:
        encoder = metrics.get(f"encoder_{name}")
        cells = [f"{value:10.4g}" if value is not None else f"{'':10}" for value in (metrics[name], encoder)]
        print(f"{name:{width}} {' '.join(cells)}  {explain_metric(name)}".rstrip(), file=sys.stderr)
