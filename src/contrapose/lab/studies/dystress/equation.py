"""Figure 2 of the DySTreSS paper: solutions of the differential equation for τ(s), computed without training.

The solution is τ(s) = s / log(δK s + C), with C = -c. δ is the gradient of a negative pair, and K = Σ e^{s/τ} over the other
negatives, which is about their number, since most similarities are near 0. Only the product δK matters.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from contrapose.lab.report.document import Block, Chart, Series
from contrapose.lab.studies.claims import Claim, computed_claim
from contrapose.lab.studies.results import Results
from contrapose.lab.studies.study import Study
from contrapose.temperature import ode_constant, ode_solution

_TAU_MAX = 0.2
_LIMIT = (
    math.exp(-1 / _TAU_MAX) / _TAU_MAX
)  # largest δK for which the left half falls from s = -1 on; beyond it, τ rises first
# A batch of 128 images has 254 negatives: with that K, the limit is at δ = 1.3e-4.
_DELTAS, _K = (1e-5, 3e-5, 1e-4, 3e-4, 1e-3), 254
_KS, _DELTA = (25, 100, 254, 1000, 4000), 1e-4
_DISTANCES = torch.linspace(0.01, 1, 100, dtype=torch.float64)  # |s|; the solution is not defined at 0
Curve = tuple[Tensor, Tensor]  # s and τ(s) of one half


def _half(end: int, delta_k: float, constant: float) -> Curve:
    """Return the solution for s < 0 (end = -1) or s > 0 (end = 1), only where τ is positive; the curve may be empty."""
    s = end * _DISTANCES
    inside = delta_k * s + constant
    s = s[inside > 1] if end > 0 else s[(inside > 0) & (inside < 1)]
    return s, ode_solution(s, delta_k=delta_k, constant=constant)


def _halves(delta_k: float) -> tuple[Curve, Curve]:
    """Return both halves of the solution with τ(±1) = τ_max; each half has its own constant."""
    left, right = (_half(end, delta_k, ode_constant(delta_k=delta_k, high=_TAU_MAX, at=end)) for end in (-1, 1))
    return left, right


def _constants(count: int, delta_k: float) -> list[float]:
    """Return constants from C⁻ to C⁺ in equal ratios, without constants for which τ has a pole (δK s + C = 1)."""
    low, high = (ode_constant(delta_k=delta_k, high=_TAU_MAX, at=end) for end in (-1, 1))
    constants = [low * (high / low) ** (k / (count - 1)) for k in range(count)]
    return [constant for constant in constants if abs(constant - 1) > delta_k]


def _series(name: str, curve: Curve) -> Series:
    s, order = curve[0].sort()
    return Series(name, tuple(s.tolist()), tuple(curve[1][order].tolist()))


def _both(name: str, delta_k: float) -> Series:
    """Return both halves as one curve, which passes close to (0, 0)."""
    left, right = _halves(delta_k)
    return _series(name, (torch.cat([left[0], right[0]]), torch.cat([left[1], right[1]])))


_SWEEP_DELTA_K = 0.3 * _LIMIT


def _show_solutions(study: Study, results: Results) -> list[Block]:
    """Return solutions for several constants, for several δ and for several K."""
    constants = []
    for constant in _constants(9, _SWEEP_DELTA_K):
        halves = (_half(end, _SWEEP_DELTA_K, constant) for end in (-1, 1))
        constants += [_series(f"C = {constant:.3g}", half) for half in halves if len(half[0])]
    delta = [_both(f"δ = {delta:g}", delta * _K) for delta in _DELTAS]
    k = [_both(f"K = {k}", _DELTA * k) for k in _KS]
    charts = {
        f"Constants from C⁻ to C⁺, δK = {_SWEEP_DELTA_K:.2g}": constants,
        f"τ(±1) = {_TAU_MAX:g}, K = {_K}": delta,
        f"τ(±1) = {_TAU_MAX:g}, δ = {_DELTA:g}": k,
    }
    return [
        Chart(title=title, x="cosine similarity", y="temperature", series=tuple(series))
        for title, series in charts.items()
    ]


def _against(curve: Curve) -> Tensor:
    """Return the similarities at which τ does not fall for s < 0 or does not rise for s > 0."""
    s, tau = curve
    return s[1:][tau.diff() / s.diff() * s[1:] <= 0]


def _fall_and_rise(what: str, solutions: Callable[[], Iterable[tuple[str, Curve]]]) -> Claim:
    """Claim that every solution falls on the left half and rises on the right half."""

    def decide(results: Results) -> tuple[bool, str]:
        curves = [(name, curve) for name, curve in solutions() if len(curve[0])]
        wrong = [(name, against) for name, curve in curves if len(against := _against(curve))]
        spans = [f"{name} from s = {float(s.min()):.2f} to {float(s.max()):.2f}" for name, s in wrong]
        return not wrong, f"against it: {'; '.join(spans)}" if wrong else f"{len(curves)} halves"

    return computed_claim(f"τ(s) falls for s < 0 and rises for s > 0, {what}", decide)


def _of_constants() -> Iterable[tuple[str, Curve]]:
    for constant in _constants(41, _SWEEP_DELTA_K):
        for end in (-1, 1):
            yield f"C = {constant:.3g}", _half(end, _SWEEP_DELTA_K, constant)


def _at(values: Iterable[tuple[str, float]]) -> Iterable[tuple[str, Curve]]:
    """Yield both halves at each (name, δK), with τ(±1) = τ_max."""
    for name, delta_k in values:
        for half in _halves(delta_k):
            yield name, half


def _every_delta_k() -> list[tuple[str, float]]:
    return [(f"δ = {d:g}", d * _K) for d in _DELTAS] + [(f"K = {k}", _DELTA * k) for k in _KS]


def _positive_on_both_halves(results: Results) -> tuple[bool, str]:
    constants = _constants(41, _SWEEP_DELTA_K)
    whole = [
        [len(_half(end, _SWEEP_DELTA_K, constant)[0]) == len(_DISTANCES) for constant in constants] for end in (-1, 1)
    ]
    left, right = whole
    evidence = f"on the left half at {sum(left)} of {len(constants)}, on the right half at {sum(right)}"
    return all(left) and all(right), evidence


def _ends_at_tau_max(results: Results) -> tuple[bool, str]:
    one = torch.ones(1, dtype=torch.float64)
    # c⁺ = -δK - e^{1/τ_max} as printed, and C = -c.
    ends = [
        float(ode_solution(one, delta_k=delta_k, constant=delta_k + math.exp(1 / _TAU_MAX)))
        for _, delta_k in _every_delta_k()
    ]
    return all(math.isclose(end, _TAU_MAX) for end in ends), f"τ(1) from {min(ends):.5f} to {max(ends):.5f}"


FIGURE2 = Study(
    name="dystress/figure2",
    title="Solutions of the differential equation for τ(s)",
    claim="For any constant in [c⁻, c⁺], and for different δ and K, τ(s) falls on the left half and rises on the right.",
    show=_show_solutions,
    claims=(
        _fall_and_rise("for constants from C⁻ to C⁺ without a pole, where τ > 0", _of_constants),
        computed_claim("each of these constants gives τ > 0 on both halves", _positive_on_both_halves),
        _fall_and_rise(
            f"for δ from {_DELTAS[0]:g} to {_DELTAS[-1]:g} at K = {_K}",
            lambda: _at((f"δ = {delta:g}", delta * _K) for delta in _DELTAS),
        ),
        _fall_and_rise(
            f"for K from {_KS[0]} to {_KS[-1]} at δ = {_DELTA:g}",
            lambda: _at((f"K = {k}", _DELTA * k) for k in _KS),
        ),
        _fall_and_rise(
            "for those of these δ and K with δK < e^(-1/τ)/τ",
            lambda: _at((name, delta_k) for name, delta_k in _every_delta_k() if delta_k < _LIMIT),
        ),
        computed_claim("τ(1) = τ_max with c⁺ as printed", _ends_at_tau_max),
    ),
    note=f"τ_max is {_TAU_MAX:g}. The left half falls only while δK < e^(-1/τ)/τ at τ_max ({_LIMIT:.3f}); beyond that it "
    "first rises from s = -1. τ is positive only where δK s + C is below 1 for s < 0 and above 1 for s > 0, so each "
    "half has its own constants, and τ has a pole if C is within δK of 1. The sign of c⁺ in Equation 15 is corrected. "
    "The paper gives no values of δ and K.",
)
