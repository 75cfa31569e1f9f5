"""Losses, probes and data sets of the balanced-loss paper."""

from __future__ import annotations

from contrapose.studies.study import Quantity, Settings, StudyData
from contrapose.training import PRESETS

SIMCLR = "simclr(temperature=0.5)"
BALANCED = "balanced(alpha={}, weight={})"
SGD_PROBE = Quantity(name="SGD probe", measure="linear:balanced-cifar")
LARS_PROBE = Quantity(name="LARS probe", measure="linear:balanced-imagenet")

CIFAR_PRESET, IMAGENET_PRESET = "balanced/cifar10", "balanced/imagenet"
IMAGENET = StudyData(name="ImageNet", data="imagenet", changes={"stream": True})
# For studies that have CIFAR-10's preset and ImageNet as a second data set.
IMAGENET_SETTINGS: Settings = {
    **{key: value for key, value in PRESETS[IMAGENET_PRESET].items() if key not in ("data", "loss")},
    "stream": True,
}
# Small and short scale: the paper's CIFAR-10 settings, for studies of ImageNet too, so that runs are shared.
SMALL_SCALE: Settings = PRESETS[CIFAR_PRESET]
SHORT_SCALE: Settings = {"epochs": 25}  # an eighth, since a grid has 32 runs
