"""Data that encoders are evaluated on after training: which names a measure needs, and which paths the user gave for them.

The user gives it with --data NAME=PATH. "detection:voc:AP50" needs voc, "sentences:sts:sts12" needs sts,
"transfer:mura:dystress:supervised" needs mura and supervised, a file of weights, and "zero_shot:imagenet:class_names" needs
imagenet and class_names, a text file.
"""

from __future__ import annotations

from collections.abc import Mapping

MADE = "made"  # in place of the path: a small set is made for the evaluation
STAND_IN = "digits"  # what the smoke scale transfers to if no data is given; it is built in
SUPERVISED = "supervised"  # the name of the weights file
CLASS_NAMES_FILE = "class_names"
_KINDS = ("detection", "transfer", "sentences", "zero_shot")
_FILES = (SUPERVISED, CLASS_NAMES_FILE)  # which a measure needs beside its data


def downstream_names(measure: str) -> tuple[str, ...]:
    """Return the names of the data that a measure needs; empty if it needs none.

    >>> downstream_names("transfer:mura:dystress:supervised"), downstream_names("knn_top1")
    (('mura', 'supervised'), ())
    """
    kind, *options = measure.removeprefix("-").split(":")
    if kind not in _KINDS:
        return ()
    data_set, *others = options
    return tuple(name for name in (data_set, *(o for o in others if o in _FILES)) if name != STAND_IN)


def missing_data(measure: str, given: Mapping[str, str]) -> str:
    """Return which option gives the data that a measure lacks; empty if it lacks none."""
    missing = [f"{name}=PATH" for name in downstream_names(measure) if name not in given]
    return f"not given; --data {' '.join(missing)}" if missing else ""


def paths_of(measure: str, given: Mapping[str, str]) -> dict[str, str]:
    """Return the paths of the data that a measure needs, by name."""
    return {name: given[name] for name in downstream_names(measure) if name in given}


def data_key(measure: str) -> str:
    """Return the name under which a run's evaluations hold `paths_of` the measure, as they were when it was computed."""
    return f"{measure.removeprefix('-')}:data"
