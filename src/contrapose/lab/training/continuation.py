"""Continue training in a directory that already contains a run: resume the run, extend it to more epochs, or raise an error.

After an extension, run.json has the new number of epochs, so that the run is resumed and evaluated like any other run.
extensions.json keeps the history: the old and new number of epochs of each extension, and the step after which it applied.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from contrapose.lab.training.optimisers import learning_rate
from contrapose.lab.training.records.files import read_json, write_json_atomically
from contrapose.lab.training.run import Run


def recorded_run(folder: Path) -> Run | None:
    """Return the run in a directory; None if the directory has at most settings, which may be overwritten."""
    path = folder / "run.json"
    begun = (folder / "records.jsonl").exists() or (folder / "checkpoints").exists()
    return Run.load(path) if path.exists() and begun else None


def claim_directory(folder: Path, run: Run, environment: Mapping[str, Any]) -> None:
    """Write the run's settings and environment to the directory, which belongs to this run from now on."""
    path = folder / "run.json"
    with suppress(OSError, ValueError):  # the file is missing, or another process was killed while writing it
        if read_json(path) == run.describe():
            return
    folder.mkdir(parents=True, exist_ok=True)
    write_json_atomically(folder / "environment.json", environment)
    write_json_atomically(path, run.describe())


def continued_run(run: Run, recorded: Run, folder: Path, *, extend: bool) -> Run:
    """Return the run to train in a directory that contains `recorded`; raise ValueError if it cannot be continued as `run`.

    The two are compared as `Run` objects, because an old run.json lacks settings that were added later.
    """
    ours, theirs = vars(run), vars(recorded)
    differing = sorted(name for name in ours if ours[name] != theirs[name])
    # Data files may have moved. Their fingerprint is compared once they are loaded.
    may_differ = {"epochs", "data"} if Path(run.data).exists() and (folder / "data.json").exists() else {"epochs"}
    if not may_differ.issuperset(differing):
        changes = ", ".join(f"{k} is {theirs[k]!r} there and {ours[k]!r} here" for k in differing)
        raise ValueError(f"out: {folder} holds another run: {changes}. Choose another directory.")
    if run.epochs < recorded.epochs:
        raise ValueError(
            f"epochs: {folder} holds this run with {recorded.epochs} epochs, and a run can only be extended; "
            f"use another --out to train for {run.epochs}"
        )
    if run.epochs > recorded.epochs and not extend:
        raise ValueError(
            f"epochs: {folder} holds this run with {recorded.epochs} epochs; add --extend to continue it to {run.epochs} "
            f"epochs. {_consequence(recorded, run)}"
        )
    return replace(recorded, epochs=run.epochs)


def _consequence(before: Run, after: Run) -> str:
    """Return a sentence that says whether the extended run gives the same result as a run started with all epochs."""
    schedules = schedules_over_the_run(after)
    if not schedules:
        return f"The result is the same as training for {after.epochs} epochs from the start"
    return (
        f"The schedule of the {' and the '.join(schedules)} then spans {after.epochs} epochs, after steps on one that spanned "
        f"{before.epochs}, so the result is not that of {after.epochs} epochs from the start"
    )


def schedules_over_the_run(run: Run) -> list[str]:
    """Return the quantities whose schedules depend on the number of epochs. Temperature schedules have their own periods."""
    schedules = ["learning rate"] if run.schedule == "cosine" else []
    return schedules + (["momentum"] if run.momentum_schedule == "cosine" else [])


def record_extension(before: Run, after: Run, folder: Path, step: int, steps_per_epoch: int) -> str:
    """Add the extension to the history, then write the new run.json; return a message that says what changes."""
    if step == 0:
        write_json_atomically(folder / "run.json", after.describe())
        return f"training {after.epochs} epochs from the start, since {folder} has no checkpoint that can be read"
    extensions = read_extensions(folder)
    entry = {"from_epochs": before.epochs, "to_epochs": after.epochs, "step": step}
    # If the process was killed between writing the two files, the history already has this entry.
    if not extensions or extensions[-1]["to_epochs"] != after.epochs:
        write_json_atomically(folder / "extensions.json", [*extensions, entry])
    # A study's evaluations belong to the weights before the extension. They are renamed, so as not to be mistaken for new ones.
    evaluations = folder / "evaluations.json"
    if evaluations.exists():
        evaluations.rename(folder / f"evaluations-{before.epochs}-epochs.json")
    write_json_atomically(folder / "run.json", after.describe())
    message = f"extending the run from {before.epochs} to {after.epochs} epochs after step {step}"
    if after.schedule == "cosine":
        last, following = learning_rate(before, step - 1, steps_per_epoch), learning_rate(after, step, steps_per_epoch)
        message += f", with the learning rate going from {last:.2g} to {following:.2g}"
    return f"{message}. {_consequence(before, after)}"


def read_extensions(folder: Path) -> list[dict[str, Any]]:
    """Return the extensions of a run, oldest first."""
    path = folder / "extensions.json"
    if not path.exists():
        return []
    try:
        extensions: list[dict[str, Any]] = read_json(path)
        return [{**extension, "to_epochs": int(extension["to_epochs"])} for extension in extensions]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"out: {path} is damaged; rename it, and the run can be extended without its history"
        ) from error
