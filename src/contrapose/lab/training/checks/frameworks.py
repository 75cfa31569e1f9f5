"""Check that a run's framework suits its data, its loss and its other settings.

These functions are called while a `Run` is created, so `run` has all settings as fields, but `Run` cannot be imported here.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from contrapose.lab.frameworks import FRAMEWORKS, FrameworkSettings, frameworks_with
from contrapose.lab.settings import rule_of
from contrapose.lab.training.method_settings import METHOD_SETTINGS, method_name
from contrapose.losses.objective import added_to, provided_to, traits_of
from contrapose.losses.parse import parse
from contrapose.pairs import Hardest


def check_framework(run: Any) -> None:
    """Check the framework's settings, and that the framework has as many negatives as the loss requires."""
    row = FRAMEWORKS[run.framework]
    _check_towers(run)
    row.check(run)
    _check_takes(run)
    _check_grad_cache(run)
    if run.view_count < row.least_views:
        raise ValueError(
            f"view_count: {run.framework} needs at least {row.least_views} views of each sample, got {run.view_count}"
        )
    _check_other_frameworks(run)
    if "views" in run.auto_settings:
        return
    views = run.view_maker().count  # raises ValueError for an unknown recipe
    if "batch" in run.auto_settings:
        return
    # `hardest(k)` with too few negatives is reported now rather than in the first step.
    negatives = row.negatives(run, views)
    if negatives is not None:
        check_hardest(run, negatives)


def check_hardest(run: Any, negatives: int) -> None:
    """Raise ValueError if the loss selects more hardest negatives per anchor than the framework has."""
    chosen = parse(run.loss, run.loss_data).keywords.get("negatives")
    for choice in chosen if isinstance(chosen, tuple) else (chosen,):
        if isinstance(choice, Hardest) and choice.k is not None and choice.k > negatives:
            raise ValueError(f"loss: {choice!r} asks for more than the {negatives} negatives that {run.framework} has")


def _check_towers(run: Any) -> None:
    """Raise ValueError if the framework's number of encoders is not what the data needs."""
    row, expected = FRAMEWORKS[run.framework], run.kind.tower_count
    if row.tower_count != expected:
        suited = next(other.name for other in FRAMEWORKS.values() if other.tower_count == expected)
        encoders = "one encoder" if row.tower_count == 1 else "two encoders"
        raise ValueError(
            f"framework: {row.name} has {encoders}, and the data is {run.modality}; use --framework {suited}"
        )


def _check_takes(run: Any) -> None:
    """Raise ValueError if the loss takes inputs that the framework does not offer."""
    row, chosen, method = FRAMEWORKS[run.framework], parse(run.loss), method_name(run.loss)
    traits = traits_of(chosen.func)
    if method == "nnclr" != row.name:  # NNCLR's loss is NT-Xent; only the pairs from its framework make it NNCLR
        raise ValueError(f"loss: nnclr pairs nearest neighbours, and {row.name} does not; use --framework nnclr")
    if "targets" in provided_to(chosen):
        raise ValueError(
            f"loss: {run.loss} needs soft targets in each step, which no data set has; call contrapose.Loss in a loop of your own"
        )
    for _, term in added_to(chosen):
        added = traits_of(term.func)
        # What a teacher adds to the embeddings does not disturb a regulariser of `Embeddings`.
        if (added.takes == "assignments" and "assignments" not in row.offers) or (
            added.needs_target and not row.has_target
        ):
            raise ValueError(f"loss: {run.framework} does not make what {term.func.__name__} in {run.loss!r} takes")
    if row.suits(traits):
        return
    suited = [other.name for other in FRAMEWORKS.values() if other.suits(traits)]
    own = METHOD_SETTINGS.get(method, {}).get("framework")
    hint = f"use --framework {own if own in suited else suited[0]}"
    if traits.takes not in row.offers:
        offered = " and ".join(row.offers)
        raise ValueError(f"loss: {run.loss} takes {traits.takes}, and {row.name} offers {offered} only; {hint}")
    if traits.needs_target:
        what = "a teacher" if traits.takes == "assignments" else "a predictor and a target without gradient"
        raise ValueError(f"loss: {run.loss} needs {what}, which {row.name} does not have; {hint}")
    raise ValueError(f"loss: {run.loss} takes the {traits.takes} of one network, and {row.name} has two; {hint}")


def _check_grad_cache(run: Any) -> None:
    """Raise ValueError for GradCache where it is impossible, or where it would only change the run's name."""
    if not run.grad_cache:
        return
    if run.accumulate == 1:
        raise ValueError("grad_cache: --grad-cache needs several batches per step; set --accumulate to at least 2")
    supported = [row.name for row in FRAMEWORKS.values() if row.supports_grad_cache]
    if run.framework not in supported:
        raise ValueError(
            f"grad_cache: --grad-cache works only with --framework {', '.join(supported)}; the framework is {run.framework}"
        )


def _check_other_frameworks(run: Any) -> None:
    """Raise ValueError for a setting of another framework, which would change the run's name but nothing else."""
    row = FRAMEWORKS[run.framework]
    for setting in fields(FrameworkSettings):
        is_checked = not (row.uses(setting.name) or rule_of(setting).ignored_elsewhere)
        if is_checked and getattr(run, setting.name) != setting.default:
            raise ValueError(
                f"{setting.name}: it is for {', '.join(frameworks_with(setting.name))}; the framework is {run.framework}"
            )
