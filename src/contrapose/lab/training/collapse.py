"""Signs of collapse in a run's records: outputs that are all nearly equal, or that use a single dimension.

Standard deviation (`feature_std`) and effective rank are measured on unit vectors at each evaluation. While a run is collapsed,
its records have `collapsed_since`, the epoch in which the collapse began.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from inspect import signature
from typing import Any

from contrapose.lab.frameworks import FRAMEWORKS
from contrapose.lab.training.run import Run
from contrapose.losses.parse import parse

# In the runs in results/, no evaluation is below 0.23 (deviation) and 5.1 (rank); untrained networks have at least 0.07 and 3.
DEVIATION = 0.05  # below this fraction of the deviation of evenly spread outputs, outputs are nearly equal
RANK = 2.0  # below this effective rank, outputs lie on little more than one line
_LEAST_WIDTH = 8  # an embedding with fewer dimensions may have a low rank and be healthy
# Before this step, evaluation uses batch-norm running statistics that still depend on the untrained network: 0.9³² = 0.03.
_SETTLED_STEPS = 32
_OUTPUTS = {
    "": "the projector's outputs",
    "encoder_": "the encoder's outputs",
}  # keyed by the prefix of the metrics' names
# Remedies for a collapse besides a lower learning rate, keyed by objective.
_REMEDIES = {
    "vicreg": "a larger variance_weight and covariance_weight",
    "barlow_twins": "a larger weight",
    "w_mse": "a larger --batch",
    "zero_cl": "a larger --batch",
    "arb": "a larger --batch",
}
MEANING = (
    "feature_std is 1 if outputs are spread evenly over the sphere and 0 if all are equal; effective_rank is the number of "
    f"dimensions in use; below {DEVIATION:g} or {RANK:g}, the training has collapsed"
)


def collapsed_outputs(record: Mapping[str, Any], run: Run) -> list[str]:
    """Return a description of each collapsed output, with its deviation and rank; empty if no output has collapsed.

    record   metrics of an evaluation, keyed by name; without them, the last batch's deviation is used
    run      settings of the run
    """
    # A supervised embedding with few classes may have a low rank without being collapsed: two classes are two opposite points.
    rank_counts = not run.needs_labels and not 0 < run.width < _LEAST_WIDTH
    collapsed = []
    for prefix, outputs in _OUTPUTS.items():
        deviation, rank = record.get(f"{prefix}feature_std"), record.get(f"{prefix}effective_rank")
        if deviation is None and not prefix:
            deviation = record.get("batch_feature_std")
        if deviation is not None and deviation < DEVIATION:
            collapsed.append(f"{outputs} are nearly equal ({_numbers(deviation, rank)})")
        elif rank_counts and rank is not None and rank < RANK:
            collapsed.append(f"{outputs} lie on little more than one line ({_numbers(deviation, rank)})")
    return collapsed


def _numbers(deviation: float | None, rank: float | None) -> str:
    numbers = {"feature_std": deviation, "effective_rank": rank}
    return ", ".join(f"{name} {value:.2g}" for name, value in numbers.items() if value is not None)


def follow_collapse(record: dict[str, Any], earlier: Sequence[Mapping[str, Any]], run: Run, *, evaluated: bool) -> str:
    """Add `collapsed_since` to a record if the run is collapsed; return a message if a collapse begins or ends, else "".

    record      the record of the last trained epoch
    earlier     the records before it, or those that `records_to_follow` returned
    run         settings of the run
    evaluated   whether the record contains an evaluation; if not, the state of the previous record is carried over
    """
    since = earlier[-1].get("collapsed_since") if earlier else None
    known = record.keys() & {"feature_std", "encoder_feature_std", "batch_feature_std"}
    if not evaluated or not known or record["step"] < _SETTLED_STEPS:
        record |= {} if since is None else {"collapsed_since": since}
        return ""
    if collapsed_outputs(record, run):
        record["collapsed_since"] = since or _first_epoch(record, earlier)
        return describe_collapse(run, [record]) if since is None else ""
    if since is None:
        return ""
    numbers = _numbers(record.get("feature_std", record.get("batch_feature_std")), record.get("effective_rank"))
    return f"no longer collapsed after epoch {record['epoch']} (projector's outputs: {numbers})"


def records_to_follow(earlier: Sequence[Mapping[str, Any]], record: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the records up to this one that `follow_collapse` needs; for a healthy run, only the last epoch's record."""
    needed = {name: record[name] for name in ("epoch", "batch_feature_std", "collapsed_since") if name in record}
    is_healthy = record.get("batch_feature_std", 1.0) >= DEVIATION
    return [needed] if is_healthy else [*earlier, needed]


def _first_epoch(record: Mapping[str, Any], earlier: Sequence[Mapping[str, Any]]) -> int:
    """Return the epoch in which a collapse began, from the batch deviation in each record, because evaluations are rare."""
    epoch = int(record["epoch"])
    for before in (record, *reversed(earlier)):
        if before.get("batch_feature_std", 1.0) >= DEVIATION:
            break
        epoch = int(before["epoch"])
    return epoch


def describe_collapse(run: Run, records: Sequence[Mapping[str, Any]]) -> str:
    """Return which outputs have collapsed in the last record, since when, and possible remedies; empty if none has."""
    if not records or "collapsed_since" not in records[-1]:
        return ""
    outputs, since = "; ".join(collapsed_outputs(records[-1], run)), records[-1]["collapsed_since"]
    return f"the training has collapsed since epoch {since}: {outputs}; {_advice(run)}"


def _advice(run: Run) -> str:
    objective = parse(run.loss).func
    # The framework is looked up first, because lightly's form of BYOL uses SimSiam's loss.
    remedy = FRAMEWORKS[run.framework].collapse_remedy or _REMEDIES.get(getattr(objective, "__name__", ""), "")
    if not remedy and "temperature" in signature(objective).parameters:
        remedy = "a higher temperature"
    return f"start over in another --out with a lower --lr ({run.lr / 3:.2g}{f'), or {remedy}' if remedy else ')'}"


def collapse_in_words(records: Sequence[Mapping[str, Any]]) -> str:
    """Return when a run was collapsed, such as "collapsed from epoch 3 on"; empty if it was never collapsed."""
    collapsed = [record for record in records if "collapsed_since" in record]
    if not collapsed:
        return ""
    since = collapsed[-1]["collapsed_since"]
    if "collapsed_since" in records[-1]:
        return f"collapsed from epoch {since} on"
    return f"collapsed from epoch {since} to {collapsed[-1]['epoch']}, then recovered"
