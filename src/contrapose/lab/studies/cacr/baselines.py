"""The methods that CACR's ImageNet tables compare it with: settings for ImageNet, and for CIFAR-10 as its replacement.

Most of these methods' numbers in Tables 4, 7 and 16 come from Chen & He (SimSiam), who used each method's own settings.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from contrapose.lab.frameworks import FRAMEWORK_DEFAULTS
from contrapose.lab.studies.baselines import baseline_settings
from contrapose.lab.studies.study import Settings

# Rows start from a MoCo preset, so settings that other frameworks ignore or refuse are reset.
_DEFAULTS: Settings = {"framework": "simclr", **FRAMEWORK_DEFAULTS}
_OF_THE_TABLE = ("data", "epochs", "knn")


@dataclass(frozen=True)
class Baseline:
    """A method: the METHOD of its presets METHOD/imagenet and METHOD/cifar10, and the changes that its rows make to them."""

    method: str
    changes: Settings = field(default_factory=dict)  # on ImageNet
    small_changes: Settings = field(default_factory=dict)  # on CIFAR-10
    local_crops: int = 0

    @property
    def settings(self) -> Settings:
        """The settings on ImageNet, except the data and the epochs, which the table sets."""
        return {**_DEFAULTS, **baseline_settings(self.method, "imagenet", without=_OF_THE_TABLE), **self.changes}

    @property
    def small_settings(self) -> Settings:
        """The settings on CIFAR-10, for the small and short scales."""
        return {**_DEFAULTS, **baseline_settings(self.method, "cifar10", without=_OF_THE_TABLE), **self.small_changes}


def _with_batch(method: str, batch: int) -> Settings:
    """Return the batch size, and the preset's learning rate scaled in proportion to the batch size."""
    known = baseline_settings(method, "imagenet")
    return {"batch": batch, "lr": known["lr"] * batch / known["batch"]}


# BYOL's learning rate per 256 images, weight decay and momentum, by number of epochs, from the authors' configuration.
_BYOL_BATCH = 4096
_BYOL_LENGTHS = {100: (0.45, 1e-6, 0.99), 300: (0.3, 1e-6, 0.99), 1000: (0.2, 1.5e-6, 0.996)}


def byol_settings(epochs: int) -> Settings:
    """Return BYOL's settings that depend on the epochs; between two published numbers of epochs, use the larger one's.

    >>> byol_settings(800)["momentum"]
    0.996
    """
    length = min((known for known in _BYOL_LENGTHS if known >= epochs), default=max(_BYOL_LENGTHS))
    rate, weight_decay, momentum = _BYOL_LENGTHS[length]
    return {"lr": rate * _BYOL_BATCH / 256, "weight_decay": weight_decay, "momentum": momentum}


# From SwAV's scripts for batches of 4,096, without a queue. Without multi-crop, crops cover SimCLR's range of areas.
_SWAV: Settings = {"batch": 4096, "lr": 4.8, "warmup": 10.0, "queue": _DEFAULTS["queue"], "queue_start": 0}
# What the authors' code calls multi-crop are additional full-size views, all of which are used in training.
_ALL_ANCHORS: Settings = {"anchor_views": 0}
# Keyed by the names in the tables, with the batch sizes of Table 4.
BASELINES: Mapping[str, Baseline] = {
    "BYOL": Baseline("byol", {"batch": _BYOL_BATCH, **byol_settings(100)}),
    "Barlow Twins": Baseline("barlow-twins", _with_batch("barlow-twins", 1024)),
    "SimSiam": Baseline("simsiam", _with_batch("simsiam", 256)),
    "SwAV": Baseline("swav", {**_SWAV, "views": "simclr"}),
    "SwAV (multi-crop)": Baseline("swav", {**_SWAV, "views": "swav"}, local_crops=6),
    "FNC (multi-crop)": Baseline("fnc", _ALL_ANCHORS, _ALL_ANCHORS),
    "SimCLRv2": Baseline("simclr-v2"),
}
# The methods without negatives in Tables 4, 7 and 16; not every table has all of them.
WITHOUT_NEGATIVES = ("Barlow Twins", "SimSiam", "SwAV", "SwAV (multi-crop)", "BYOL")
