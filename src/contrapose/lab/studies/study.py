"""Define what a study is: one table or figure of a paper, with its runs, the paper's numbers and the paper's claims.

    Row        one line of a table or one point on a curve: the settings that are specific to its runs
    Quantity   what is measured in a run
    StudyData  a data set, and the settings that go with it
    Study      rows × quantities × data sets, what the report shows, and claims to decide
    Plan       a study at a scale: the runs to train

Scales: `smoke` (seconds on a CPU, the built-in digits), `short` (one GPU, CIFAR-10, usually a quarter of the epochs),
`small` (one GPU, CIFAR-10 and CIFAR-100, the printed epochs where a run then takes minutes) and `paper` (the printed
settings). For sentences and images with captions, a built-in set and the user's files take the place of these data sets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import product
from pathlib import Path
from typing import Any

from contrapose.lab.frameworks import FRAMEWORK_DEFAULTS, FrameworkSettings, used_settings
from contrapose.lab.modalities import Modality, modality
from contrapose.lab.report.document import Block
from contrapose.lab.settings import Settings as Settings  # re-exported for the studies
from contrapose.lab.settings import rule_of
from contrapose.lab.studies.claims import Claim
from contrapose.lab.studies.files import data_name, needed_files, with_paths, without_missing_files
from contrapose.lab.studies.measures import Evaluation, Measure
from contrapose.lab.studies.measures.classifiers import SMOKE_PROBE_EPOCHS
from contrapose.lab.studies.measures.downstream import MADE
from contrapose.lab.studies.results import Results
from contrapose.lab.training import PRESETS, Run
from contrapose.validate import check_known

SCALES = ("smoke", "short", "small", "paper")
PAPERS = {
    "dystress": "Manna et al.: Dynamically Scaled Temperature in Self-Supervised Contrastive Learning",
    "behaviour": "Wang, Liu: Understanding the Behaviour of Contrastive Loss",
    "cacr": "Zheng et al.: Contrastive Attraction and Contrastive Repulsion for Representation Learning",
    "balanced": "Lee: Understanding Self-supervised Contrastive Learning through Supervised Objectives",
}
# Framework settings that are capped at the smoke scale
_SMALL_VALUES = {
    setting.name: rule_of(setting).small for setting in fields(FrameworkSettings) if rule_of(setting).small
}

# Smoke scale: seconds on a CPU, with the built-in digits and a tiny network, trained with the study's own method.
SMOKE: Settings = {
    "data": "digits", "limit": 160, "views": "digits", "encoder": "tiny", "head": "simclr", "optimiser": "adamw", "lr": 0.004,
    "schedule": "cosine", "milestones": (), "warmup": 0.0, "weight_decay": 1e-4, "epochs": 2, "batch": 32, "norm_splits": 1,
    "precision": "fp32", "knn": 5, "knn_every": 2, "metrics": 48,
    **{name: small for name, small in _SMALL_VALUES.items() if small < FRAMEWORK_DEFAULTS[name]},
}  # fmt: skip
# Small and short scales: one GPU, bf16; all metrics are computed ten times per run.
SMALL: Settings = {"precision": "bf16", "norm_splits": 1, "metrics": 2000}
# Data sets that a scale uses without a path from the user: torchvision downloads them.
_DOWNLOADED: Mapping[str, tuple[str, ...]] = {"short": ("cifar10",), "small": ("cifar10", "cifar100")}
_COUNTED = ("index", "pareto", "uniform")  # imbalance rules whose counts are specific to one data set


@dataclass(frozen=True)
class Row:
    """A method of a table, or a point on an axis."""

    name: str
    changes: Settings = field(default_factory=dict)  # settings that differ from the study's
    changes_on: Mapping[str, Settings] = field(
        default_factory=dict
    )  # further changes on some data sets, keyed by data set
    printed: Mapping[str, float] = field(
        default_factory=dict
    )  # the paper's numbers, keyed by `column(quantity, data set)`
    x: float | tuple[float, float] | None = None  # position on one axis, or on two
    series: str = ""  # the curve that the point belongs to
    small_settings: Settings = field(default_factory=dict)  # further changes at the small and short scales
    short_settings: Settings = field(default_factory=dict)  # further changes at the short scale
    local_crops: int = 0  # multi-crop: number of local crops in addition to the data set's views, at every scale
    measures: tuple[Evaluation, ...] = ()  # evaluations that are not in the table, such as `Map()`
    measure_changes: Mapping[str, str] = field(
        default_factory=dict
    )  # fields in which the row's measures differ from the study's


@dataclass(frozen=True)
class Quantity:
    """What is measured: an entry of the run's last record, or an evaluation after training (see `measures`)."""

    name: str  # may be empty if the study has only one quantity
    measure: Measure
    unit: str = "%"
    negated: bool = False  # such as -U, the positive number that Wang & Liu plot
    paper: str = ""  # what the paper measures instead, in words; empty if it measures the same
    extra: bool = False  # measured in addition to the paper's quantity, such as the last epoch in addition to the best


@dataclass(frozen=True)
class StudyData:
    """A data set, and the settings that differ on it."""

    name: str
    data: str = "cifar10"
    changes: Settings = field(default_factory=dict)
    measures: Mapping[Measure, Measure] = field(
        default_factory=dict
    )  # measures that replace those of the quantities on this data set


CIFAR10, CIFAR100 = StudyData(name="CIFAR-10"), StudyData(name="CIFAR-100", data="cifar100")
Show = Callable[["Study", Results], list[Block]]


@dataclass(frozen=True)
class Study:
    """A table or a figure, named by the paper's own numbering."""

    name: str
    title: str  # what it shows
    claim: str  # what the paper says about it, in one sentence
    preset: str = ""  # the paper's settings, which its runs start from
    rows: tuple[Row, ...] = ()
    quantities: tuple[Quantity, ...] = ()
    sets: tuple[StudyData, ...] = (CIFAR10,)
    show: Show | None = None  # the charts and tables of the report; by default one table
    claims: tuple[Claim, ...] = ()
    small_settings: Settings = field(default_factory=dict)  # changes at the small and the short scale
    short_settings: Settings = field(default_factory=dict)  # further changes at the short scale
    note: str = ""  # corrections to the paper, and our choices where the paper does not say
    differences: tuple[str, ...] = ()  # remaining differences from the paper at the paper scale, one sentence each
    diagram: bool = False  # a drawing, a taxonomy or a cross-reference: there is nothing to measure
    base: Settings = field(default_factory=dict)  # settings of its own, used instead of or on top of a preset
    # Values for the {placeholders} in a loss and in `extra_metrics`, by data set: the values that the paper tunes.
    loss_values: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    @property
    def paper(self) -> str:
        """Return authors and title of the paper; empty for a study that belongs to no paper, such as the demo."""
        return PAPERS.get(self.name.split("/")[0], "")

    @property
    def kind(self) -> Modality[Any]:
        """Return the modality of its runs."""
        return modality(str({**PRESETS.get(self.preset, {}), **self.base}.get("modality", Run.modality)))

    @property
    def analytic(self) -> bool:
        """Return whether the study needs no training."""
        return not self.rows

    def select_rows(self, names: Sequence[str]) -> Study:
        """Return the study with only these rows; claims are decided by these rows too. Without names, all rows are kept."""
        kept = tuple(row for row in self.rows if row.name in names)
        if not names or len(kept) == len(self.rows):
            return self
        if not kept:
            raise ValueError(f"rows: {self.name} has none of these; `contrapose study show {self.name}` names them")
        note = f"{len(kept)} of its {len(self.rows)} rows only; the claims are decided by these rows."
        return replace(self, rows=kept, note=f"{self.note} {note}".strip())

    def with_sentences(self, *, notes: Mapping[str, bool], differences: Mapping[str, bool]) -> Study:
        """Return the study with further sentences added to its note and to its differences."""
        note = " ".join(filter(None, (self.note, *(text for text, applies in notes.items() if applies))))
        more = tuple(text for text, applies in differences.items() if applies)
        return replace(self, note=note, differences=(*self.differences, *more))

    def plan(self, scale: str, data: Sequence[str] = (), *, settings: Settings | None = None) -> Plan:
        """Return the study at a scale.

        `data` changes the data sets: NAME=PATH gives the path of one data set; a name or path by itself replaces all data sets.
        `settings` are changed in all runs whose framework uses them, and are part of the runs' names.
        """
        check_known("scale", scale, SCALES, cutoff=0.4)
        paths, replacements = self._parse_data(data)
        known = self.downstream_names
        made = [name for name, measure in known.items() if scale == "smoke" and name in measure.synthetic_data]
        downstream = {**dict.fromkeys(made, MADE), **{name: path for name, path in paths.items() if name in known}}
        study = self._on_built_in_data(downstream) if scale == "smoke" else self
        own = {name: path for name, path in paths.items() if name in self.own_names}
        sets = self._sets_at(scale, own, replacements)
        return Plan(study=study, scale=scale, sets=sets, settings=settings or {}, downstream=downstream)

    @property
    def own_names(self) -> set[str]:
        """Return the names of the data that runs are trained on, or evaluated on during training."""
        files = {name for study_data in self.sets for name in needed_files(study_data.changes)}
        downloaded = set() if self.kind.smoke_settings else {"cifar10"}
        return {study_data.data for study_data in self.sets} | files | downloaded

    @property
    def downstream_names(self) -> dict[str, Measure]:
        """Return the names of the data that encoders are evaluated on after training, each with a measure that needs it."""
        measures = (measure_of(quantity.measure, row) for row in self.rows for quantity in self.quantities)
        return {name: measure for measure in measures for name in measure.needs_data}

    def _on_built_in_data(self, downstream: Mapping[str, str]) -> Study:
        """Return the study with only the transfer measures whose data is given; if none is, with one measure on the digits."""
        stand_ins = {quantity: quantity.measure.on_built_in_data() for quantity in self.quantities}
        others = [quantity for quantity, measure in stand_ins.items() if measure is None]
        transfers = [(quantity, measure) for quantity, measure in stand_ins.items() if measure is not None]
        kept = [quantity for quantity, _ in transfers if not quantity.measure.missing_data(downstream)]
        replaced = [replace(q, name=f"digits for {q.name}", measure=measure) for q, measure in transfers[:1]]
        return replace(self, quantities=(*others, *(kept or replaced)))

    def _sets_at(self, scale: str, paths: Mapping[str, str], replacements: Sequence[str]) -> tuple[StudyData, ...]:
        """Return the data sets that a scale uses, with the user's paths."""
        if self.kind.smoke_settings:
            return self._user_sets_at(scale, paths, replacements)
        imbalance = _imbalance(self.sets[0])
        if replacements:
            stems = {data_name(text): text for text in replacements}
            # some/cifar100.npz is recognised as the study's own CIFAR-100, so that its printed numbers still apply.
            own = tuple(_located(known, stems) for known in self.sets if known.data in stems)
            return own or tuple(StudyData(name=stem, data=text, changes=imbalance) for stem, text in stems.items())
        if scale == "smoke" and not paths:
            return (StudyData(name="digits", data="digits", changes=imbalance),)
        sets = self.sets
        if scale != "paper":  # only the user's data; if there is none, the data that this scale downloads
            given = tuple(s for s in sets if s.data in paths)
            sets = given or tuple(s for s in sets if s.data in _DOWNLOADED.get(scale, ()))
            # A study with only ImageNet runs on CIFAR-10 instead, and the data set's name says so.
            substitute = StudyData(name=f"CIFAR-10 for {self.sets[0].name}", data="cifar10", changes=imbalance)
            sets = sets or (substitute,)
        return tuple(_located(known, paths) for known in sets)

    def _user_sets_at(self, scale: str, paths: Mapping[str, str], replacements: Sequence[str]) -> tuple[StudyData, ...]:
        """Return the data sets if nothing can be downloaded, as for texts: above the smoke scale, they are the user's files."""
        sources = {data_name(text): text for text in replacements}
        given = [known for known in self.sets if known.data in paths]
        if scale == "smoke" and not (given or sources):
            built_in = str(self.kind.smoke_settings["data"])
            sources = {built_in: built_in}
        # The paper's data set comes first. The last one, which may be the same, replaces it at the other scales.
        sets = given or [self.sets[0 if scale == "paper" else -1]]
        sets = [replace(sets[0], name=name, data=text) for name, text in sources.items()] or sets
        if scale == "smoke":  # without the user's files, a run starts from scratch and is evaluated at its last step
            sets = [replace(known, changes=without_missing_files(known.changes, paths)) for known in sets]
        return tuple(_located(known, paths) for known in sets)

    def _parse_data(self, data: Sequence[str]) -> tuple[dict[str, str], list[str]]:
        """Split the user's arguments into {NAME: PATH} and paths without a name, which replace all data sets."""
        known = self.own_names | {*self.downstream_names}
        paths: dict[str, str] = {}
        replacements = []
        for text in data:
            name, equals, path = text.partition("=")
            if equals and name in known:
                paths[name] = path
            elif equals and not Path(text).exists():  # a path may itself contain "="
                raise ValueError(
                    f"data: expected PATH or NAME=PATH, where NAME is one of {', '.join(sorted(known))}, got {text!r}"
                )
            else:
                replacements.append(text)
        if len({data_name(text) for text in replacements}) < len(replacements):
            raise ValueError(
                f"data: {' and '.join(replacements)} would have the same name in the report; run the study once for each"
            )
        return paths, replacements


def measure_of(measure: Measure, row: Row) -> Measure:
    """Return a measure of the study with the row's own values of its fields."""
    return replace(measure, **row.measure_changes)


def _located(study_data: StudyData, paths: Mapping[str, str]) -> StudyData:
    """Return a data set with the user's paths to its images and to the files that its runs need."""
    changes = with_paths(study_data.changes, paths)
    return replace(study_data, data=paths.get(study_data.data, study_data.data), changes=changes)


def _imbalance(study_data: StudyData) -> dict[str, Any]:
    """Return the settings that a replacing data set inherits: the imbalance rule, and what a probe is trained on.

    The other settings are specific to the original data set.
    """
    changes = study_data.changes
    counted = str(changes.get("imbalance", "")).split(":")[0] in _COUNTED
    return {
        key: changes[key] for key in ("imbalance", "probe") if key in changes and not (counted and key == "imbalance")
    }


@dataclass(frozen=True)
class Plan:
    """A study at a scale: its runs, and what is measured in them."""

    study: Study
    scale: str
    sets: tuple[StudyData, ...]
    settings: Settings = field(default_factory=dict)  # the user's changes to all runs
    downstream: Mapping[str, str] = field(default_factory=dict)  # paths of the downstream data that the user gave
    # Runs that record more, keyed by the name of the run that they take the place of (see `shared_runs`)
    substitutes: Mapping[str, Run] = field(default_factory=dict)

    def select_data_sets(self, names: Sequence[str]) -> Plan:
        """Return the plan with only these data sets. Without names, all data sets are kept."""
        for name in names:
            check_known("sets", name, [study_data.name for study_data in self.sets])
        return replace(self, sets=tuple(s for s in self.sets if s.name in names)) if names else self

    def run(self, row: Row, study_data: StudyData, seed: int = 0) -> Run:
        """Return the run whose results fill a cell of the table."""
        study = self.study
        changes = {**study_data.changes, **row.changes, **row.changes_on.get(study_data.name, {})}
        settings: dict[str, Any] = {**(PRESETS[study.preset] if study.preset else {}), **study.base}
        # The choice of classes and images is specific to the data set, which another one may have replaced.
        settings = {key: value for key, value in settings.items() if key not in ("classes", "imbalance")}
        if self.scale == "smoke":
            settings |= {**changes, **(study.kind.smoke_settings or SMOKE), **_smoke_changes(changes)}
            settings |= {name: min(settings[name], most) for name, most in _SMALL_VALUES.items() if name in settings}
            settings["extra_metrics"] = tuple(_short_probe(item) for item in settings.get("extra_metrics", ()))
        elif self.scale in ("short", "small"):
            settings |= {**SMALL, **self.scale_settings, **changes, **self._settings_at_scale(row)}
            settings["knn_every"] = max(1, settings["epochs"] // 10)
        else:
            settings |= changes
        # The study's settings and the user's need not be of this row's framework.
        settings = dict(used_settings({**settings, **self.settings}, str(settings.get("framework", Run.framework))))
        if row.local_crops:
            settings["views"] += f"+local{row.local_crops}"
        if study.loss_values:
            values = self._loss_values(study_data)
            settings["loss"] = settings["loss"].format(**values)
            settings["extra_metrics"] = tuple(item.format(**values) for item in settings.get("extra_metrics", ()))
        run = Run(**{**settings, "data": study_data.data, "seed": seed})
        return self.substitutes.get(run.name, run) if self.substitutes else run

    @property
    def scale_settings(self) -> Settings:
        """Return the settings that the study changes at this scale in all rows."""
        return self._settings_at_scale(self.study) if self.scale in ("short", "small") else {}

    def _settings_at_scale(self, owner: Study | Row) -> Settings:
        return {**owner.small_settings, **(owner.short_settings if self.scale == "short" else {})}

    def _loss_values(self, study_data: StudyData) -> Mapping[str, float]:
        """Return the values of a loss's placeholders; data sets that the study does not list use those of the first."""
        known = self.study.loss_values
        # "CIFAR-10, exponential" is a subsampled CIFAR-10 and uses the same values.
        return known.get(study_data.name.split(",")[0], next(iter(known.values())))

    def cells(self, seeds: int) -> Iterator[tuple[Row, StudyData, Run]]:
        """Yield every run of the study with its row and data set."""
        for row, study_data, seed in product(self.study.rows, self.sets, range(seeds)):
            yield row, study_data, self.run(row, study_data, seed)

    def runs(self, seeds: int) -> dict[str, Run]:
        """Return the runs, keyed by name. Cells with the same settings share one run."""
        return {run.name: run for _, _, run in self.cells(seeds)}

    def measure(self, quantity: Quantity, study_data: StudyData, row: Row) -> Measure:
        """Return the measure of a quantity for a row and a data set."""
        measure = measure_of(study_data.measures.get(quantity.measure, quantity.measure), row)
        return measure.at_smoke_scale() if self.scale == "smoke" else measure

    def measures(self, study_data: StudyData, row: Row) -> tuple[Measure, ...]:
        """Return the measures for a row's runs on a data set, without measures whose data is not given."""
        measures = [self.measure(quantity, study_data, row) for quantity in self.study.quantities]
        unique = dict.fromkeys((*measures, *row.measures))
        return tuple(measure for measure in unique if not measure.missing_data(self.downstream))


def _short_probe(item: str) -> str:
    """Return an item of `Run.extra_metrics` with a shortened linear probe, such as "linear:PROBE:5@10"."""
    return item.replace("@", f":{SMOKE_PROBE_EPOCHS}@") if item.startswith("linear") else item


def _smoke_changes(changes: Settings) -> dict[str, Any]:
    """Return the changes that a smoke run keeps: the method, without sizes and schedules that 160 digits do not allow."""
    dropped = (
        *("views", "encoder", "text_encoder", "head", "data", "queue", "precision"),
        *("optimiser", "lr", "weight_decay", "schedule", "milestones", "warmup"),
    )
    kept = {key: value for key, value in changes.items() if key not in dropped}
    if "imbalance" in kept:  # with subsampled classes, 160 images would become fewer than a batch
        kept["limit"] = 1000
    if "epochs" in kept:
        kept["epochs"] = min(3, max(1, round(kept["epochs"] / 100)))
        kept["knn_every"] = kept["epochs"]
    if "keep" in kept:
        kept["keep"] = tuple(range(1, int(kept.get("epochs") or SMOKE["epochs"]) + 1))
    if "batch" in kept:
        kept["batch"] = max(8, min(64, kept["batch"] // 16))
    if "view_count" in kept:
        kept["view_count"] = min(3, kept["view_count"])
    return kept
