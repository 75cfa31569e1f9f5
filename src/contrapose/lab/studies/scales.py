"""Describe how a study's scale differs from the paper, by comparing its runs with those of the paper scale."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

from contrapose.lab.frameworks import FRAMEWORK_DEFAULTS, FRAMEWORKS
from contrapose.lab.studies.measures import RecordedMetric
from contrapose.lab.studies.study import Plan, Study, StudyData
from contrapose.lab.training import Run

# Settings whose values are shown, in this order. Other settings are listed without values, to keep the line short.
_SHOWN = ("epochs", "encoder", "batch", "view_count", "imbalance", "limit", "precision", "metrics")
_WORDS = {
    "view_count": "views of an image",
    "limit": "training images",
    "metrics": "metric images",
    "views": "augmentation",
    "lr": "learning rate",
    "text_encoder": "encoder of captions",
    "text_length": "tokens of a caption",
    "size": "size of the views",
    "knn": "k of k-NN",
    "head": "projector",
    "width": "width of the embeddings",
    "predictor": "width of the predictor",
    "momentum_schedule": "rise of the momentum",
    "lr_drop": "factor of the schedule's drops",
    "loss": "values in the loss",
    "keep": "kept epochs",
    "extra_metrics": "recorded measures",
    "constant_predictor_lr": "learning rate of the predictor",
}
# Settings that are not reported: they follow from the data or the epochs, or set how often a run is evaluated.
_IGNORED = ("data", "classes", "eval_data", "stream", "milestones", "seed", "knn_every")
_MOST_VALUES = 2  # if a setting has more values than this, they are shown as a range
Change = tuple[Any, Any]  # a setting's value at the paper scale, and at this scale


def describe_changes(plan: Plan) -> str:
    """Return a plan's data sets and its changes to the paper's settings, such as "on CIFAR-10; epochs 200 → 50"."""
    plan, paper = replace(plan, substitutes={}), plan.study.plan("paper")
    changes = _changes(plan, paper) if plan != paper else {}
    if not _uses_sample(plan.study):
        changes.pop("metrics", None)
    shown = [_describe_setting(name, changes[name]) for name in _SHOWN if name in changes]
    others = [_WORDS.get(name, name.replace("_", " ")) for name in changes if name not in _SHOWN]
    parts = (_describe_data_sets(plan, paper), ", ".join(shown), f"other {', '.join(others)}" if others else "")
    text = "; ".join(part for part in parts if part)
    return text.replace("training images", f"training {plan.study.kind.noun}")


def _uses_sample(study: Study) -> bool:
    """Return whether a quantity is a recorded metric, which is measured on a sample of the images."""
    return any(isinstance(quantity.measure, RecordedMetric) for quantity in study.quantities)


def _describe_data_sets(ours: Plan, paper: Plan) -> str:
    kept = [study_data.name for study_data in ours.sets]
    missing = [study_data.name for study_data in paper.sets if study_data.name not in kept]
    # Separated by slashes, since some names contain commas, such as "CIFAR-10, exponential".
    without = f", without {' / '.join(missing)}" if 0 < len(missing) < len(paper.sets) else ""
    return f"on {' / '.join(kept)}{without}"


def _changes(ours: Plan, paper: Plan) -> dict[str, list[Change | None]]:
    """Return the changes of each setting that differs, one per pair of runs; None if a pair has equal values."""
    pairs = [
        (paper.run(row, paper_data), run)
        for row, study_data, run in ours.cells(1)
        for paper_data in _counterparts(paper, study_data)
    ]
    changes = {field.name: [_change(field.name, *pair) for pair in pairs] for field in fields(Run)}
    return {name: values for name, values in changes.items() if name not in _IGNORED and any(values)}


def _counterparts(paper: Plan, study_data: StudyData) -> Sequence[StudyData]:
    """Return the paper's data set with that name; all of its data sets if this one replaces them, such as the digits."""
    return [known for known in paper.sets if known.name == study_data.name] or paper.sets


def _change(name: str, paper: Run, ours: Run) -> Change | None:
    """Return the values of a setting in two runs if they differ and the runs' framework uses the setting."""
    before, after = getattr(paper, name), getattr(ours, name)
    row = FRAMEWORKS[ours.framework]
    is_used = name not in FRAMEWORK_DEFAULTS or (row.uses(name) and name not in row.unused(row.settings_of(ours)))
    return (before, after) if before != after and is_used else None


def _describe_setting(name: str, changes: Sequence[Change | None]) -> str:
    """Return a setting and its changes, such as "epochs 400 → 100, 200 → 50"."""
    before_by_after: dict[Any, list[Any]] = {}
    for change in dict.fromkeys(changes):
        if change is not None:
            before_by_after.setdefault(change[1], []).append(change[0])
    if len(before_by_after) > _MOST_VALUES:
        before = [value for values in before_by_after.values() for value in values]
        text = f"{_values(before)} → {_values(list(before_by_after))}"
    else:
        text = ", ".join(f"{_values(before)} → {_values([after])}" for after, before in before_by_after.items())
    return f"{_WORDS.get(name, name)} {text}" + (" in some runs" if None in changes else "")


def _values(values: Sequence[Any]) -> str:
    """Return values as text; many numbers as a range."""
    ordered = sorted(set(values))
    names = [{0: "all", "": "none"}.get(value, str(value)) for value in ordered]
    if len(names) <= _MOST_VALUES or isinstance(ordered[0], str):
        return " or ".join(names)
    return f"{names[0]} to {names[-1]}"
