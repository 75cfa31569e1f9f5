"""Explain how a loss will behave, before anything is trained: its curves, and a description of them in words.

>>> Subject.of("nt_xent(temperature=0.1)").at_scale(2.0).settings
{'temperature': 0.2}
"""

from contrapose.explanation.curves import (
    Sweep,
    false_negative_push,
    ode_curves,
    positive_pull,
    relative_penalty,
    sweep,
    typical_negatives,
)
from contrapose.explanation.subject import Explainable, Subject
from contrapose.explanation.words import words

__all__ = [
    "Explainable",
    "Subject",
    "Sweep",
    "false_negative_push",
    "ode_curves",
    "positive_pull",
    "relative_penalty",
    "sweep",
    "typical_negatives",
    "words",
]
