"""Share runs between studies: a run that records or keeps more takes the place of a run that needs less.

Runs whose settings differ only in what they record and keep have the same weights, so one of them is enough.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from contrapose.lab.studies.measures import Evaluation
from contrapose.lab.studies.run_directory import RunDirectory
from contrapose.lab.studies.study import Plan
from contrapose.lab.training import Run

_EVALUATIONS = ("metrics", "metrics_on", "knn_every")  # the images and the epochs of the evaluations in the records
_RECORDING = {"extra_metrics", "keep", *_EVALUATIONS}  # settings that do not change how a run is trained


def share_runs(plans: Sequence[Plan], seeds: int, root: Path) -> list[Plan]:
    """Return the plans with runs replaced by runs that record or keep more, so that no weights are trained twice.

    A run is replaced by a finished run in the directory `root`, else by a run that another plan needs, else by an unfinished run.
    """
    needs = [(number, run) for number, plan in enumerate(plans) for run in plan.runs(seeds).values()]
    existing = _existing_runs([run for _, run in needs], root)
    done = [run for run in existing if RunDirectory(root / run.name).trained(run.epochs)]
    chosen: list[Run] = []
    substitutes = [dict[str, Run]() for _ in plans]
    reads_records = [any(not isinstance(q.measure, Evaluation) for q in plan.study.quantities) for plan in plans]
    # Runs with the most in their records are chosen first, so that they can serve the others.
    needs.sort(key=lambda need: (reads_records[need[0]], len(need[1].extra_metrics) + len(need[1].keep)), reverse=True)
    for number, needed in needs:
        candidates = [
            run for group in (done, chosen, existing, [needed]) for run in sorted(group, key=lambda run: run != needed)
        ]
        exact = reads_records[number]
        serving = next(run for run in candidates if serves(run, needed, same_evaluations=exact))
        chosen.append(serving)
        if serving != needed:
            substitutes[number][needed.name] = serving
    return [replace(plan, substitutes=own) for plan, own in zip(plans, substitutes, strict=True)]


def serves(run: Run, needed: Run, *, same_evaluations: bool) -> bool:
    """Return whether a run has the weights of another run, and at least its extra metrics and kept epochs.

    same_evaluations   whether the evaluations in the records must be of the same images and epochs, because a study reads them
    """
    names = vars(run).keys() - (_RECORDING if not same_evaluations else _RECORDING - {*_EVALUATIONS})
    return (
        all(getattr(run, name) == getattr(needed, name) for name in names)
        and {*run.extra_metrics} >= {*needed.extra_metrics}
        and {*run.keep} >= {*needed.keep}
    )


def _existing_runs(needed: Sequence[Run], root: Path) -> list[Run]:
    """Return the runs in a directory that have the data, loss and seed of a needed run."""
    wanted = {(run.data, run.loss, run.seed) for run in needed}
    runs = []
    for path in sorted(root.glob("*/run.json")):
        settings = RunDirectory(path.parent).settings()
        # Reading JSON is cheap; only `Run.load` checks all settings.
        if tuple(settings.get(name) for name in ("data", "loss", "seed")) in wanted:
            with suppress(ValueError):  # a damaged or unknown run is reported when it is trained
                runs.append(Run.load(path))
                if runs[-1].name != path.parent.name:  # a user's --out, or a run that was extended to more epochs
                    del runs[-1]
    return runs
