"""Global contrastive loss with moving averages (SogCLR, Yuan et al.; iSogCLR, Qiu et al.; FastCLIP, Wei et al.)."""

from __future__ import annotations

from functools import partial
from inspect import signature
from typing import Any

import torch
from torch import Tensor

from contrapose.embeddings import State
from contrapose.losses.finish import finish
from contrapose.losses.objective import Settings, Softness, objective
from contrapose.pairs import AnyPairs, cross
from contrapose.pairs.negatives import Negatives
from contrapose.reduce import Count, Expectation, LogSumExp, Scale
from contrapose.temperature import (
    LearnedTemperature,
    MovingAverage,
    PerSample,
    Schedule,
    Temperature,
    temperature_logit,
)
from contrapose.temperature.per_sample import START_TEMPERATURE, log_moving_average, log_relative_mean
from contrapose.validate import check_number

__all__ = ["fastclip", "isogclr", "sogclr"]

# Settings of iSogCLR's state that users write as settings of the objective: isogclr(rho=0.3).
_STATE_SETTINGS = tuple(name for name in signature(PerSample).parameters if name not in ("size", "adapt"))


def _make_state(adapt: bool, settings: Settings, samples: int) -> tuple[Settings, State | None]:
    """Return the objective's own settings, and a state built from the other settings; None if no state is needed."""
    # With γ = 1, SogCLR's default, the average covers only the current batch, and no state is needed. iSogCLR always stores
    # temperatures.
    if not adapt and settings.get("gamma", 1.0) == 1:
        own = {name: value for name, value in settings.items() if name not in ("towers", "scale")}
        if "scale" in settings:
            own["temperature"] = settings["scale"] * settings.get("temperature", 0.1)
        return own, None
    state_settings = {name: settings[name] for name in _STATE_SETTINGS if name in settings}
    objective_settings = {name: value for name, value in settings.items() if name not in state_settings}
    return objective_settings, PerSample(samples, adapt=adapt, **state_settings)


def _untrained_state(settings: Settings, anchors: int) -> dict[str, Any]:
    """Return the keyword arguments of `isogclr` before training: initial temperatures and no average."""
    initial = float(settings.get("temperature", 0.1)) * float(settings.get("scale", 1.0))
    temperature = torch.full((anchors,), initial, dtype=torch.float64)
    return {"temperature": temperature, "log_average": torch.full((anchors,), -torch.inf, dtype=torch.float64)}


def _scaled(value: float, settings: Settings, positive: float) -> float:
    return value * float(settings.get("scale", 1.0))


@objective(provided=("log_average",), make_state=partial(_make_state, False), state_settings=("towers", "scale"))
def sogclr(
    pairs: AnyPairs,
    *,
    temperature: Temperature = 0.1,
    log_average: Tensor | None = None,
    gamma: float = 1.0,
    negatives: Negatives = None,
    reduction: str = "mean",
) -> Tensor:
    """-s⁺ + (1/N) Σ_k sg[e^{s_k/τ}/u] s_k with u = (1-γ) u_old + γ mean_k e^{s_k/τ} (SogCLR).

    The gradient is τ times DCL's gradient, with each anchor's normaliser averaged over epochs. `log_average` (n,) is
    log u_old, or -inf if there is no average yet. `PerSample` stores it together with iSogCLR's temperatures:
    `sogclr(pairs, **state.settings(pairs))`. Several positives are averaged. For two towers such as image and text, use
    `PerSample(size, towers=2)`, `two_views(a, b)` and `negatives=other_views()`; the loss is the sum of both directions.
    LibAUC's loss for two towers averages e^{(s_k - s⁺)/τ} instead, with the positive inside the exponent: the same for γ = 1,
    another normaliser for γ < 1.

    pairs         the result of `two_views`, `views`, `cross`, `queue`, `bank` or `from_similarities`
    temperature   τ: a number, one per anchor (n,), a function of similarity (`cosine(0.07, 0.2)`) or `learned(…)`
    log_average   log u_old of each anchor (n,); default: none yet
    gamma         γ in (0, 1]: weight of this batch in the average
    negatives     which candidates are negatives: `other_views()`, `hardest(k)`, … or a tuple of them; default: all
    reduction     "mean" or "sum" over anchors, or "none" for one value per anchor (n,)
    """
    _check_average(pairs, log_average, gamma)
    logit = temperature_logit(temperature, pairs.shape[0])
    total, pull, count = pairs.reduce(LogSumExp(logit), Expectation(logit, detach=True), Count(), negatives=negatives)
    log_g = total.detach() - count.log()
    # In logarithms, since e^{s/τ} overflows in float32 at low temperatures.
    log_u = log_g if log_average is None else log_moving_average(log_average.to(log_g), log_g, gamma)
    values = (log_g - log_u).exp() * pull - pairs.positives().mean(1)
    # The authors' loss is the sum over an image's views, whereas `finish` averages over anchors.
    return finish(values * pairs.view_count, reduction)


@objective(
    provided=("log_average",),
    make_state=partial(_make_state, True),
    state_settings=_STATE_SETTINGS,
    untrained=_untrained_state,
    softness=Softness(start=0.1, nominal=_scaled),
)
def isogclr(
    pairs: AnyPairs,
    *,
    temperature: Tensor | None = None,
    log_average: Tensor | None = None,
    gamma: float = 0.8,
    negatives: Negatives = None,
    reduction: str = "mean",
) -> Tensor:
    """`sogclr` with one temperature per image, which `PerSample` stores and adapts (iSogCLR, Qiu et al.).

    pairs         the result of `two_views`, `views`, `cross`, `queue`, `bank` or `from_similarities`
    temperature   τ of each anchor, (n,)
    log_average   log u_old of each anchor (n,), as in `sogclr`
    gamma         γ in (0, 1]: weight of this batch in the average
    negatives     which candidates are negatives: `other_views()`, `hardest(k)`, … or a tuple of them; default: all
    reduction     "mean" or "sum" over anchors, or "none" for one value per anchor (n,)
    """
    if temperature is None or log_average is None:
        raise ValueError(
            "temperature, log_average: expected the values from a PerSample state: "
            "Loss(isogclr, state=PerSample(number_of_images)), or isogclr(pairs, **state.settings(pairs))"
        )
    return sogclr(
        pairs, temperature=temperature, log_average=log_average, gamma=gamma, negatives=negatives, reduction=reduction
    )


def _make_average(settings: Settings, samples: int) -> tuple[Settings, State | None]:
    """Return the settings of `fastclip`, and its averages; None for γ = 1, where they cover only the current batch."""
    own = {name: value for name, value in settings.items() if name not in ("gamma", "towers")}
    if settings.get("gamma") == 1:
        return own | {"gamma": 1.0}, None
    return own, MovingAverage(samples, **{name: settings[name] for name in ("gamma", "towers") if name in settings})


@objective(
    provided=("log_average",),
    make_pairs=partial(cross, symmetric=True),
    make_state=_make_average,
    state_settings=("towers",),
)
def fastclip(
    pairs: AnyPairs,
    *,
    temperature: float | Tensor | LearnedTemperature = START_TEMPERATURE,
    rho: float = 8.0,
    log_average: Tensor | None = None,
    gamma: float = 0.8,
    negatives: Negatives = None,
    reduction: str = "mean",
) -> Tensor:
    """V τ (log u + ρ), u = (1-γ) u_old + γ mean_k e^{(s_k - s⁺)/τ}, V views (FastCLIP v3, RGCL-g, arXiv 2407.01445).

    The gradient is that of τ (log g + ρ), g = mean_k e^{(s_k - s⁺)/τ}, with u in place of g as the denominator: τ ∇g / u for
    the networks, and log u + ρ + τ ∂g/∂τ / u for the temperature, one learned number. ρ > 0 keeps it from growing: the
    temperature settles where the negatives' weights have a relative entropy of about ρ. With γ = 1 it is τ (`dcl` - log N + ρ),
    N the number of negatives.

    `MovingAverage` stores log u: `Loss("fastclip", state=MovingAverage(number_of_pairs))`. On two towers,
    `fastclip(image, text)` or `cross(image, text, symmetric=True)`, V is 2: the paper's sum of both directions. The authors
    train with γ = `decay(1.0, 0.2)`. Several positives are averaged inside g.

    pairs         the result of `two_views`, `cross`, …, or two tensors (m, d), one per side
    temperature   τ: a number, one per anchor (n,) or `learned(…)`
    rho           ρ
    log_average   log u_old of each anchor (n,); default: none yet
    gamma         γ in (0, 1]: weight of this batch in the average
    negatives     which candidates are negatives: `other_views()`, `hardest(k)`, … or a tuple of them; default: all
    reduction     "mean" or "sum" over anchors, or "none" for one value per anchor (n,)
    """
    check_number("rho", rho)
    _check_average(pairs, log_average, gamma)
    logit = temperature_logit(temperature, pairs.shape[0])
    if not isinstance(logit, Scale):
        raise ValueError(f"temperature: expected a number, one per anchor or learned(…), got {temperature!r}")
    tau = 1 / logit.factor
    log_g = log_relative_mean(pairs, logit, negatives)
    held = log_g.detach()
    log_u = held if log_average is None else log_moving_average(log_average.to(held), held, gamma)
    # The second term is 0; its gradient is that of g, over u.
    through = (tau.detach() if isinstance(tau, Tensor) else tau) * (held - log_u).exp() * (log_g - held)
    return finish(pairs.view_count * (tau * (log_u + rho) + through), reduction)


def _check_average(pairs: AnyPairs, log_average: Tensor | None, gamma: float) -> None:
    """Raise ValueError unless γ is a number in (0, 1] and there is one average for each anchor, or none."""
    if isinstance(gamma, Schedule):
        raise ValueError("gamma: a schedule needs an epoch: pass gamma=schedule.at(epoch)")
    check_number("gamma", gamma, above=0.0, most=1.0)
    if log_average is not None and (not isinstance(log_average, Tensor) or log_average.shape != (pairs.shape[0],)):
        actual = tuple(log_average.shape) if isinstance(log_average, Tensor) else type(log_average).__name__
        raise ValueError(f"log_average: expected one number per anchor ({pairs.shape[0]},), got {actual}")
