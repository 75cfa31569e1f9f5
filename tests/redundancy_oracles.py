"""The losses of redundancy again, as plain loops over complex numbers, written from the papers. Shares nothing with the package.

An oracle takes all views of a batch twice, like those in `oracles`: `now`, and `held`, from which it reads whatever the paper
puts under a stop-gradient. The imaginary part of f(x + ih) is h f'(x), which no subtraction blurs: `gradient` is exact to the
last digits.
"""

from __future__ import annotations

from cmath import cos as complex_cos
from cmath import log, sqrt
from cmath import sin as complex_sin
from collections.abc import Callable
from math import atan2, cos, exp, sin

Rows = list[list[complex]]  # samples of features
Oracle = Callable[[list[Rows], list[Rows]], complex]
STEP = 1e-30


def value(oracle: Oracle, views: list[Rows]) -> float:
    return oracle(views, views).real


def gradient(oracle: Oracle, views: list[Rows]) -> list[list[list[float]]]:
    """Return the derivative with respect to every number of every view."""

    def derivative(v: int, i: int, k: int) -> float:
        now = [[list(row) for row in view] for view in views]
        now[v][i][k] += STEP * 1j
        return oracle(now, views).imag / STEP

    return [
        [[derivative(v, i, k) for k in range(len(row))] for i, row in enumerate(view)] for v, view in enumerate(views)
    ]


def over_pairs(loss: Callable[[Rows, Rows, Rows, Rows], complex]) -> Oracle:
    """Average a loss of two views, now and held, over all pairs of views."""

    def oracle(now: list[Rows], held: list[Rows]) -> complex:
        values = [loss(now[v], now[w], held[v], held[w]) for v in range(len(now)) for w in range(v + 1, len(now))]
        return sum(values) / len(values)

    return oracle


def barlow_twins(weight: float) -> Oracle:
    def loss(z1: Rows, z2: Rows, held1: Rows, held2: Rows) -> complex:
        a, b = standardised(z1), standardised(z2)
        m, d, total = len(a), len(a[0]), 0j
        for k in range(d):
            for j in range(d):
                c = sum(a[i][k] * b[i][j] for i in range(m)) / m
                total += (1 - c) ** 2 if k == j else weight * c**2
        return total

    return over_pairs(loss)


def vicreg(invariance: float, variance: float, covariance: float) -> Oracle:
    def own(z: Rows) -> complex:
        m, d, x, total = len(z), len(z[0]), centred(z), 0j
        for k in range(d):
            for j in range(d):
                c = sum(x[i][k] * x[i][j] for i in range(m)) / (m - 1)
                if k != j:
                    total += covariance * c**2 / d
                elif 1 - sqrt(c + 1e-4).real > 0:
                    total += variance / 2 * (1 - sqrt(c + 1e-4)) / d
        return total

    def loss(z1: Rows, z2: Rows, held1: Rows, held2: Rows) -> complex:
        m, d = len(z1), len(z1[0])
        squares = sum((z1[i][k] - z2[i][k]) ** 2 for i in range(m) for k in range(d))
        return invariance * squares / (m * d) + own(z1) + own(z2)

    return over_pairs(loss)


def w_mse(*parts: slice, shrinkage: float = 0.0) -> Oracle:
    def loss(z1: Rows, z2: Rows, held1: Rows, held2: Rows) -> complex:
        total = 0j
        for part in parts:
            for x, y in zip(whitened(z1[part], shrinkage), whitened(z2[part], shrinkage), strict=True):
                total += 2 - 2 * dot(x, y) / sqrt(dot(x, x)) / sqrt(dot(y, y))
        return total / len(z1)

    return over_pairs(loss)


def zero_cl(form: str, ridge: float) -> Oracle:
    def features(z1: Rows, z2: Rows, held1: Rows, held2: Rows) -> complex:
        matrices = [inverse_root(standardised(held), ridge) for held in (held1, held2)]
        a, b = (times(standardised(z), w) for z, w in zip((z1, z2), matrices, strict=True))
        return sum((1 - sum(x[k] * y[k] for x, y in zip(a, b, strict=True)) / len(a)) ** 2 for k in range(len(a[0])))

    def loss(*views: Rows) -> complex:
        total = features(*views) if form != "instance" else 0j
        return total + (features(*(transposed(view) for view in views)) if form != "feature" else 0j)

    return over_pairs(loss)


def arb(*groups: list[int], ridge: float) -> Oracle:
    """`groups` are the features that share a base."""

    def aligned(z: Rows, held: Rows) -> complex:
        total = 0j
        for group in groups:
            base = [[row[k] for k in group] for row in standardised(held)]
            base = times(base, inverse_root(base, ridge))
            for place, k in enumerate(group):
                c = sum(x[k] * b[place] for x, b in zip(standardised(z), base, strict=True)) / len(z)
                total += (1 - c) ** 2
        return total

    return over_pairs(lambda z1, z2, held1, held2: aligned(z1, held2) + aligned(z2, held1))


def koleo(eps: float) -> Oracle:
    def unit(z: Rows) -> Rows:
        return [[x / sqrt(dot(row, row)) for x in row] for row in z]

    def oracle(now: list[Rows], held: list[Rows]) -> complex:
        values = []
        for z, fixed in zip(map(unit, now), map(unit, held), strict=True):
            total = 0j
            for i in range(len(z)):
                others = [j for j in range(len(z)) if j != i]
                # The nearest neighbour is a choice: it has no derivative.
                near = min(others, key=lambda j: sum(abs(a - b) ** 2 for a, b in zip(fixed[i], fixed[j], strict=True)))
                difference = [a - b for a, b in zip(z[i], z[near], strict=True)]
                total -= log(sqrt(dot(difference, difference)) + eps)
            values.append(total / len(z))
        return sum(values) / len(values)

    return oracle


def sigreg(directions: list[list[float]], points: int, limit: float) -> Oracle:
    """The statistic of Epps and Pulley of each projection, integrated from -limit to limit by the trapezoidal rule."""
    step = limit / (points - 1)
    ts = [-limit + i * step for i in range(2 * points - 1)]

    def integrand(x: list[complex], t: float) -> complex:
        normal = exp(-(t**2) / 2)
        real, imaginary = (sum(f(t * a) for a in x) / len(x) for f in (complex_cos, complex_sin))
        return ((real - normal) ** 2 + imaginary**2) * normal

    def oracle(now: list[Rows], held: list[Rows]) -> complex:
        values = []
        for z in now:
            for a in directions:
                x = [sum(p * q for p, q in zip(row, a, strict=True)) for row in z]
                f = [integrand(x, t) for t in ts]
                values.append(len(z) * sum((f[i] + f[i + 1]) / 2 * step for i in range(len(f) - 1)))
        return sum(values) / len(values)

    return oracle


def dot(a: list[complex], b: list[complex]) -> complex:
    return sum(x * y for x, y in zip(a, b, strict=True))


def transposed(z: Rows) -> Rows:
    return [list(column) for column in zip(*z, strict=True)]


def times(a: Rows, b: Rows) -> Rows:
    return [[sum(x * b[j][k] for j, x in enumerate(row)) for k in range(len(b[0]))] for row in a]


def centred(z: Rows) -> Rows:
    means = [sum(column) / len(z) for column in transposed(z)]
    return [[x - mean for x, mean in zip(row, means, strict=True)] for row in z]


def standardised(z: Rows) -> Rows:
    x = centred(z)
    deviations = [sqrt(sum(value**2 for value in column) / len(z) + 1e-5) for column in transposed(x)]
    return [[value / deviation for value, deviation in zip(row, deviations, strict=True)] for row in x]


def whitened(z: Rows, shrinkage: float) -> Rows:
    """Multiply by the inverse of the Cholesky factor of the covariance."""
    x, d = centred(z), len(z[0])
    factor = [[0j] * d for _ in range(d)]
    for i in range(d):
        for j in range(i + 1):
            c = sum(row[i] * row[j] for row in x) / (len(z) - 1)
            rest = (1 - shrinkage) * c + shrinkage * (i == j) - sum(factor[i][k] * factor[j][k] for k in range(j))
            factor[i][j] = sqrt(rest) if i == j else rest / factor[j][j]
    result: Rows = []
    for row in x:
        solved: list[complex] = []
        for i in range(d):
            solved.append((row[i] - sum(factor[i][k] * solved[k] for k in range(i))) / factor[i][i])
        result.append(solved)
    return result


def inverse_root(z: Rows, ridge: float) -> Rows:
    """Return (zᵀz/n + εI)^{-1/2} of real rows, from eigenvectors by Jacobi's rotations."""
    d = len(z[0])
    a = [[sum((row[i] * row[j]).real for row in z) / len(z) for j in range(d)] for i in range(d)]
    vectors = [[float(i == j) for j in range(d)] for i in range(d)]
    for _ in range(10):  # sweeps; each squares what is left beside the diagonal
        for p in range(d):
            for q in range(p + 1, d):
                angle = atan2(2 * a[p][q], a[q][q] - a[p][p]) / 2
                c, s = cos(angle), sin(angle)
                for row in (*a, *vectors):
                    row[p], row[q] = c * row[p] - s * row[q], s * row[p] + c * row[q]
                a[p], a[q] = (
                    [c * x - s * y for x, y in zip(a[p], a[q], strict=True)],
                    [s * x + c * y for x, y in zip(a[p], a[q], strict=True)],
                )
    roots = [(max(a[k][k], 0.0) + ridge) ** -0.5 for k in range(d)]
    return [[sum(u[k] * roots[k] * v[k] for k in range(d)) + 0j for v in vectors] for u in vectors]
