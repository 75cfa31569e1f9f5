"""What a study is: a table or figure of a paper, the runs behind it, the printed numbers and the claim they make.

    Row        one line of a table, or one point of a curve: what differs between its runs and the others'
    Quantity   what is measured of a run
    On         a data set
    Study      rows × quantities × data sets at a scale, what to show of them, and claims that are computed

Scales: `smoke` (seconds on a CPU, the built-in digits), `small` (one GPU, CIFAR, a shortened schedule where it says so),
`paper` (the printed settings).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from contrapose.report.document import Block
from contrapose.studies.claims import Claim
from contrapose.studies.results import Results
from contrapose.training import PRESETS, Run
from contrapose.validate import check_known

SCALES = ("smoke", "small", "paper")
PAPERS = {
    "dystress": "Manna et al.: Dynamically Scaled Temperature in Self-Supervised Contrastive Learning",
    "behaviour": "Wang, Liu: Understanding the Behaviour of Contrastive Loss",
    "cacr": "Zheng et al.: Contrastive Attraction and Contrastive Repulsion for Representation Learning",
    "balanced": "Lee: Understanding Self-supervised Contrastive Learning through Supervised Objectives",
}
Settings = Mapping[str, Any]

# Seconds on a CPU: the built-in digits and a tiny network, with the method of the study.
SMOKE: Settings = {
    "data": "digits", "limit": 160, "views": "digits", "encoder": "tiny", "head": "simclr", "optimiser": "adamw", "lr": 0.004,
    "schedule": "cosine", "milestones": (), "warmup": 0.0, "weight_decay": 1e-4, "epochs": 2, "batch": 32, "queue": 64,
    "norm_splits": 1, "precision": "fp32", "knn": 5, "knn_every": 2, "metrics": 48,
}  # fmt: skip
# One GPU: the printed settings on CIFAR-10 in bf16, every metric each tenth of the run.
SMALL: Settings = {"precision": "bf16", "norm_splits": 1, "metrics": 2000}


@dataclass(frozen=True)
class Row:
    """A method, or a point on an axis."""

    name: str
    changes: Settings = field(default_factory=dict)  # of the study's settings
    printed: Mapping[str, float] = field(default_factory=dict)  # the paper's numbers, by `column(quantity, data set)`
    x: float | tuple[float, float] | None = None  # where it stands on an axis (or two)
    series: str = ""  # the curve that it belongs to
    missing: str = ""  # what is not built, so that it cannot run
    small: Settings = field(default_factory=dict)  # what differs at the small scale


@dataclass(frozen=True)
class Quantity:
    """What is measured: an entry of the run's last record, or an evaluation (see `measures`).

    A leading "-" turns its sign: "-uniformity" is what Wang & Liu show.
    """

    name: str  # may be empty, where there is one
    measure: str
    unit: str = "%"


@dataclass(frozen=True)
class On:
    """A data set, and what differs on it."""

    name: str
    data: str = "cifar10"
    changes: Settings = field(default_factory=dict)


CIFAR10, CIFAR100 = On("CIFAR-10"), On("CIFAR-100", "cifar100")
Show = Callable[["Study", Results], list[Block]]


@dataclass(frozen=True)
class Study:
    """A table or a figure, by the paper's own numbering."""

    name: str
    title: str  # what it shows
    claim: str  # what the paper says, in one sentence
    preset: str = ""  # the printed settings that its runs start from
    rows: tuple[Row, ...] = ()
    quantities: tuple[Quantity, ...] = ()
    sets: tuple[On, ...] = (CIFAR10,)
    show: Show | None = None  # what to draw; without it, the table
    claims: tuple[Claim, ...] = ()
    small: Settings = field(default_factory=dict)  # what differs at the small scale, beside the data
    note: str = ""  # where the paper is corrected, or ours differs
    missing: str = ""  # what is not built, so that none of it can run
    schema: bool = False  # a drawing or a cross-reference: there is nothing to measure
    base: Settings = field(default_factory=dict)  # settings of its own, in place of a preset
    values: Mapping[str, Mapping[str, float]] = field(default_factory=dict)  # by data set: {names} in a loss

    @property
    def paper(self) -> str:
        """Whose it is; nothing, if it is nobody's."""
        return PAPERS.get(self.name.split("/")[0], "")

    @property
    def analytic(self) -> bool:
        """Whether it needs no training."""
        return not self.rows

    def only(self, rows: Sequence[str]) -> Study:
        """With some of its rows alone: those are run, shown and judged. None are named: with all."""
        kept = tuple(row for row in self.rows if row.name in rows)
        if not rows or len(kept) == len(self.rows):
            return self
        if not kept:
            raise ValueError(f"rows: {self.name} has none of these; `contrapose study show {self.name}` names them")
        note = f"{len(kept)} of its {len(self.rows)} rows alone, and judged by them."
        return replace(self, rows=kept, note=f"{self.note} {note}".strip())

    def at(self, scale: str, data: Sequence[str] = ()) -> Plan:
        """The study at a scale; `data` gives other data sets: NAME=PATH says where one is, a name or path alone replaces all."""
        check_known("scale", scale, SCALES, cutoff=0.4)
        if self.missing:
            raise ValueError(f"{self.name}: {self.missing}")
        return Plan(self, scale, self._sets(scale, data))

    def _sets(self, scale: str, data: Sequence[str]) -> tuple[On, ...]:
        where, alone = self._given(data)
        if alone:
            stems = {Path(given).name.split(".")[0]: given for given in alone}
            own = tuple(replace(on, data=stems[on.data]) for on in self.sets if on.data in stems)
            return own or tuple(On(stem, given, _tail(self.sets[0])) for stem, given in stems.items())
        if scale == "smoke" and not where:
            return (On("digits", "digits", _tail(self.sets[0])),)
        if scale in ("smoke", "small"):  # what is at hand, and CIFAR-10 in place of what does not fit
            near = tuple(on for on in self.sets if on.data in where or (scale == "small" and on.data == "cifar10"))
            return tuple(replace(on, data=where.get(on.data, on.data)) for on in near) or (
                On(f"CIFAR-10 for {self.sets[0].name}", where.get("cifar10", "cifar10"), _tail(self.sets[0])),
            )
        return tuple(replace(on, data=where.get(on.data, on.data)) for on in self.sets)

    def _given(self, data: Sequence[str]) -> tuple[dict[str, str], list[str]]:
        """NAME=PATH by name, and what stands alone."""
        known, where, alone = {on.data for on in self.sets} | {"cifar10"}, {}, []
        for given in data:
            name, equals, path = given.partition("=")
            if equals and name in known:
                where[name] = path
            elif equals and not Path(given).exists():
                raise ValueError(
                    f"data: expected PATH or NAME=PATH with a name of {', '.join(sorted(known))}, got {given!r}"
                )
            else:
                alone.append(given)
        stems = [Path(given).name.split(".")[0] for given in alone]
        if len(set(stems)) < len(stems):
            raise ValueError(
                f"data: {' and '.join(alone)} would have the same name in the report; give them one after the other"
            )
        return where, alone


def _tail(on: On) -> dict[str, Any]:
    """What goes with another data set: its imbalance."""
    return {key: value for key, value in on.changes.items() if key == "imbalance"}


@dataclass(frozen=True)
class Plan:
    """A study at a scale: which runs, and which evaluations of them."""

    study: Study
    scale: str
    sets: tuple[On, ...]

    def on(self, sets: Sequence[str]) -> Plan:
        """On some of its data sets alone. None are named: on all."""
        for name in sets:
            check_known("sets", name, [on.name for on in self.sets])
        return replace(self, sets=tuple(on for on in self.sets if on.name in sets)) if sets else self

    def run(self, row: Row, on: On, seed: int = 0) -> Run:
        """The run behind a cell."""
        changes = {**on.changes, **row.changes}
        settings: dict[str, Any] = {**(PRESETS[self.study.preset] if self.study.preset else {}), **self.study.base}
        if self.scale == "smoke":
            settings |= {**changes, **SMOKE, **_small_enough(changes)}
        elif self.scale == "small":
            settings |= {**SMALL, **self.study.small, **changes, **row.small}
            settings["knn_every"] = max(1, settings["epochs"] // 10)
        else:
            settings |= changes
        if self.study.values:
            settings["loss"] = settings["loss"].format(**self._values(on))
        return Run(**{**settings, "data": on.data, "seed": seed})

    def _values(self, on: On) -> Mapping[str, float]:
        """What the data set decides; the first one's values where it is another."""
        known = self.study.values
        return known.get(on.name.split(",")[0], next(iter(known.values())))

    def cells(self, seeds: int) -> Iterator[tuple[Row, On, Run]]:
        """Every run of the study, with where it belongs; what is not built is left out."""
        for row in self.study.rows:
            if not row.missing:
                for on in self.sets:
                    for seed in range(seeds):
                        yield row, on, self.run(row, on, seed)

    def wanted(self, seeds: int) -> dict[str, Run]:
        """The runs by name: cells that share a run share it here."""
        return {run.name: run for _, _, run in self.cells(seeds)}

    @property
    def measures(self) -> tuple[str, ...]:
        """What is measured of every run."""
        return tuple(dict.fromkeys(quantity.measure.removeprefix("-") for quantity in self.study.quantities))


def _small_enough(changes: Settings) -> dict[str, Any]:
    """What a smoke run keeps of the differences: all but sizes that its data does not have."""
    dropped = ("views", "encoder", "head", "milestones", "data", "lr", "queue", "precision", "schedule")
    kept = {key: value for key, value in changes.items() if key not in dropped}
    if "imbalance" in kept:  # enough for a batch after thinning out
        kept["limit"] = 1000
    if "epochs" in kept:
        kept["epochs"] = min(3, max(1, round(kept["epochs"] / 100)))
        kept["knn_every"] = kept["epochs"]
    if "batch" in kept:
        kept["batch"] = max(8, min(64, kept["batch"] // 16))
    if "view_count" in kept:
        kept["view_count"] = min(3, kept["view_count"])
    return kept
