"""Losses and data sets of Wang & Liu, and functions that build rows from them."""

from __future__ import annotations

from collections.abc import Mapping

from contrapose.lab.studies.behaviour.printed import TEMPERATURES
from contrapose.lab.studies.measures import LinearProbe, Metric
from contrapose.lab.studies.study import CIFAR10, CIFAR100, Quantity, Row, Settings, StudyData

PRESET = "behaviour/cifar10"
NT_XENT = "nt_xent(temperature={:g})"
HARD_CONTRASTIVE = "hard_contrastive(temperature={:g}, negatives=hardest({{hardest}}))"
# The paper uses 4095 hard negatives on every data set. A smoke run has fewer images than that, so it uses a fraction
# instead.
LOSS_VALUES: Mapping[str, Mapping[str, float]] = {"CIFAR-10": {"hardest": 4095}, "digits": {"hardest": 0.0819}}

_IMAGENET100_SETTINGS: Settings = {
    "stream": True,
    "classes": "imagenet100",
    "views": "moco-v2",
    "encoder": "resnet50",
    "weight_decay": 1e-4,
}
# The authors' code augments the probe's images differently on each data set: flips on CIFAR.
PROBE = LinearProbe("wang-liu-flips")
ACCURACY = Quantity(name="", measure=PROBE)
DATA_SETS = (
    CIFAR10,
    CIFAR100,
    StudyData(
        name="SVHN", data="svhn", changes={"views": "insdis-svhn"}, measures={PROBE: LinearProbe("wang-liu-colours")}
    ),
    StudyData(
        name="ImageNet-100",
        data="imagenet100",
        changes=_IMAGENET100_SETTINGS,
        measures={PROBE: LinearProbe("wang-liu-jittered")},
    ),
)
UNIFORMITY = Quantity(name="-U", measure=Metric("uniformity", "projector"), unit="", negated=True)
TOLERANCE = Quantity(name="T", measure=Metric("tolerance", "projector"), unit="")
# Short scale: a quarter of the epochs, with the milestones scaled accordingly.
SHORT_SCALE: Settings = {"epochs": 50, "milestones": (40, 47)}


def sweep_temperature(
    loss: str, printed: Mapping[str, tuple[float, ...]] | None = None, *, series: str = ""
) -> tuple[Row, ...]:
    """Return a row for each temperature, with the paper's number for each data set."""
    rows = []
    for index, tau in enumerate(TEMPERATURES):
        numbers = {data_set: values[index] for data_set, values in (printed or {}).items()}
        name = f"{series} τ = {tau:g}".strip()
        rows.append(Row(name=name, changes={"loss": loss.format(tau)}, printed=numbers, x=tau, series=series))
    return tuple(rows)


def axis_points(rows: tuple[Row, ...], series: str | None = None) -> list[tuple[float, str]]:
    """Return (temperature, row name) of all rows, or of one series."""
    return [(row.x, row.name) for row in rows if isinstance(row.x, float) and series in (None, row.series)]


CONTRASTIVE_ROWS, HARD_ROWS = sweep_temperature(NT_XENT), sweep_temperature(HARD_CONTRASTIVE)
