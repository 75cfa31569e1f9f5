"""Losses, probes and data sets of the balanced-loss paper."""

from __future__ import annotations

from contrapose.lab.studies.measures import LinearProbe, NearestNeighbours
from contrapose.lab.studies.study import Quantity, Settings, StudyData
from contrapose.lab.training import PRESETS

SIMCLR = "simclr(temperature=0.5)"
BALANCED = "balanced(alpha={}, weight={})"
# The paper's probe uses SGD on CIFAR-10 and LARS on ImageNet.
SGD_PROBE = Quantity(name="linear probe", measure=LinearProbe("balanced-cifar-crops"))
LARS_PROBE = Quantity(name="linear probe", measure=LinearProbe("balanced-imagenet-crops"))
IMAGENET_PROBE = {SGD_PROBE.measure: LARS_PROBE.measure}  # for studies that use both data sets
KNN = Quantity(name="k-NN", measure=NearestNeighbours(1, "uniform"))
IMAGENET_KNN = {KNN.measure: NearestNeighbours(200, "uniform")}
PROBE_NOTE = (
    "The paper does not say how the probe's images are augmented; we use the crops and flips in SimSiam's code."
)

CIFAR_PRESET, IMAGENET_PRESET = "balanced/cifar10", "balanced/imagenet"
IMAGENET = StudyData(name="ImageNet", data="imagenet", changes={"stream": True})
# For studies that start from CIFAR-10's preset and have ImageNet as a second data set.
IMAGENET_SETTINGS: Settings = {
    **{key: value for key, value in PRESETS[IMAGENET_PRESET].items() if key not in ("data", "loss")},
    "stream": True,
}
# Small and short scales: studies on ImageNet also use the paper's CIFAR-10 settings, so that studies can share runs.
SMALL_SCALE: Settings = PRESETS[CIFAR_PRESET]
SHORT_SCALE: Settings = {"epochs": 25}  # an eighth of the paper's epochs, since a grid has 32 runs
