"""Temperatures: a positive number, one for each anchor, or a function of similarity.

0.5                          one number for all anchors
tensor of shape (n,)         one number per anchor (`uncertainty`, `PerSample`)
cosine(0.07, 0.2)            a function of similarity (DySTreSS)
arctanh()                    the same without any number to choose (Kim & Kim)
CosineSchedule(0.1, 1.0)     a number for each epoch: `.at(epoch)`; also CosineDecay(1.0, 0.2), LinearWarmup(0.04, 0.07)
learned(0.1)                 a parameter, in `Loss`; learned(0.07, low=0.01) stays at or above 0.01 (CLIP)
learned(net, low=…, high=…)  one per anchor, predicted from its embedding, in `Loss` (TempNet)
"""

from contrapose.temperature.adaptive import adaptive as adaptive
from contrapose.temperature.adaptive import uncertainty as uncertainty
from contrapose.temperature.learned import Learned as Learned
from contrapose.temperature.learned import LearnedNumber as LearnedNumber
from contrapose.temperature.learned import LearnedTemperature as LearnedTemperature
from contrapose.temperature.learned import TemperatureNet as TemperatureNet
from contrapose.temperature.learned import learned as learned
from contrapose.temperature.learned import learned_number as learned_number
from contrapose.temperature.ode import ode_constant as ode_constant
from contrapose.temperature.ode import ode_solution as ode_solution
from contrapose.temperature.per_sample import MovingAverage as MovingAverage
from contrapose.temperature.per_sample import PerSample as PerSample
from contrapose.temperature.profile import *  # noqa: F403
from contrapose.temperature.schedule import CosineDecay as CosineDecay
from contrapose.temperature.schedule import CosineSchedule as CosineSchedule
from contrapose.temperature.schedule import LinearWarmup as LinearWarmup
from contrapose.temperature.schedule import Schedule as Schedule
from contrapose.temperature.to_logit import Temperature as Temperature
from contrapose.temperature.to_logit import temperature_logit as temperature_logit
