"""SwAV and DINO again, as plain loops over complex numbers, written from the papers. Shares nothing with the package.

Scores are nested lists: views of samples of similarities to prototypes. Codes are read from `held`, since they are under a
stop-gradient, and scores from `now`: the imaginary part of f(x + ih) is h f'(x), exact to the last digits.
"""

from __future__ import annotations

from cmath import exp, log
from collections.abc import Callable

Rows = list[list[complex]]  # samples of scores
Oracle = Callable[[list[Rows], list[Rows]], complex]


def sinkhorn(rows: Rows, epsilon: float, iterations: int, stored: Rows | None = None) -> Rows:
    """Scale e^{s/ε} so that each prototype gets the same share of all samples and each sample is one in all, in turn."""
    q = [[exp(s / epsilon) for s in row] for row in [*rows, *(stored or [])]]
    samples, prototypes = len(q), len(q[0])
    for _ in range(iterations):
        for k in range(prototypes):
            total = sum(row[k] for row in q)
            for row in q:
                row[k] /= total * prototypes
        for row in q:
            total = sum(row)
            for k in range(prototypes):
                row[k] /= total * samples
    return [[x * samples for x in row] for row in q[: len(rows)]]


def swav(
    temperature: float, epsilon: float, iterations: int, *, stored: list[Rows] | None = None, views: int | None = None
) -> Oracle:
    """`views` is the number of views that have codes."""

    def oracle(now: list[Rows], held: list[Rows]) -> complex:
        count = len(now) if views is None else views
        queues = stored or [[] for _ in range(count)]
        codes = [sinkhorn(held[w], epsilon, iterations, queues[w]) for w in range(count)]
        return swapped(codes, now, temperature)

    return oracle


def dino(target: list[Rows], center: list[complex], temperature: float, teacher_temperature: float) -> Oracle:
    def oracle(now: list[Rows], held: list[Rows]) -> complex:
        codes = [[softmax([(s - c) / teacher_temperature for s, c in zip(row, center, strict=True)]) for row in view]
                 for view in target]  # fmt: skip
        return swapped(codes, now, temperature)

    return oracle


def swapped(codes: list[Rows], scores: list[Rows], temperature: float) -> complex:
    """The mean cross-entropy between the codes of a view and the prediction of any other view."""
    values = []
    for w, code in enumerate(codes):
        for v, view in enumerate(scores):
            if v != w:
                for q, s in zip(code, view, strict=True):
                    p = softmax([x / temperature for x in s])
                    values.append(-sum(a * log(b) for a, b in zip(q, p, strict=True)))
    return sum(values) / len(values)


def softmax(xs: list[complex]) -> list[complex]:
    top = max(x.real for x in xs)
    powers = [exp(x - top) for x in xs]
    return [power / sum(powers) for power in powers]
