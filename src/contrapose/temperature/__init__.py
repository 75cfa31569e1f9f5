"""How sharply: a temperature is a positive number, one for each anchor, or a function of similarity.

0.5                          one for all
tensor of shape (n,)         one for each anchor (`uncertainty`, `PerSample`)
cosine(0.07, 0.2)            a function of similarity (DySTreSS)
CosineSchedule(0.1, 1.0)     a number for each epoch: `.at(epoch)`
learned(0.1)                 a parameter, in `Loss`
"""

from contrapose.temperature.adaptive import adaptive, uncertainty
from contrapose.temperature.learned import LearnedTemperature, learned
from contrapose.temperature.ode import ode_constant, ode_solution
from contrapose.temperature.per_sample import PerSample
from contrapose.temperature.profile import (
    Profile,
    cosine,
    exponential,
    exponential_legacy,
    linear,
    monotonic_cosine,
)
from contrapose.temperature.schedule import CosineSchedule, Schedule
from contrapose.temperature.to_logit import Temperature, temperature_logit

__all__ = [
    "CosineSchedule",
    "LearnedTemperature",
    "PerSample",
    "Profile",
    "Schedule",
    "Temperature",
    "adaptive",
    "cosine",
    "exponential",
    "exponential_legacy",
    "learned",
    "linear",
    "monotonic_cosine",
    "ode_constant",
    "ode_solution",
    "temperature_logit",
    "uncertainty",
]
