"""Past runs: their settings, progress and scores, read from their files without loading networks or data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple

from contrapose.lab.training.checkpoints.checkpoint import newest_first
from contrapose.lab.training.locks import is_locked
from contrapose.lab.training.records.files import read_last_records, read_object

# The score that represents a run, in order of preference, and its name in tables. The table is here and not in the modalities,
# because importing these imports torch, and a list of runs would take seconds.
_MAIN_SCORES = {"knn_top1": "kNN", "recall@1": "recall@1", "text_to_image_recall_1": "text-to-image recall@1"}
_LOOK_BACK = 100  # records in which the last score is looked for; evaluations are rarely further apart
# The baselines that `compare` evaluates with some of its runs, by their names in evaluations.json, and their names in tables.
_REFERENCES = {
    "pixels": "raw pixels",
    "words": "tf-idf",
    "chance": "chance",
    "untrained": "untrained encoder",
    "init": "encoder before training",
}
_REQUIRED = ("data", "epochs", "loss")  # settings without which a run.json does not describe a run


class Score(NamedTuple):
    """A score that represents a run."""

    name: str  # in the records
    title: str  # in tables
    value: float


@dataclass(frozen=True)
class RunProgress:
    """How far a run, or the training of some of its weights, has come."""

    step: int
    steps: int | None  # in the whole run; None if the files do not tell
    epochs: int  # in the whole run

    @classmethod
    def read(cls, folder: Path, settings: Mapping[str, Any], step: int) -> RunProgress:
        """Return how far a step is; `settings` is the content of the run's run.json."""
        per_epoch = _steps_per_epoch(folder, settings)
        return cls(step, per_epoch and settings["epochs"] * per_epoch, settings["epochs"])

    @property
    def finished(self) -> bool:
        """Whether the last step is done; True if that is unknown."""
        return self.steps is None or self.step >= self.steps

    @property
    def epoch(self) -> float:
        """Number of epochs done, such as 1.5; all of them if the number of steps is unknown."""
        return self.step * self.epochs / self.steps if self.steps else float(self.epochs)

    def __str__(self) -> str:
        """Return the progress in words: "1.5 of 4 epochs (step 30 of 80)"."""
        steps = f" (step {self.step:,} of {self.steps:,})" if self.steps else ""
        return f"{self.epoch:.4g} of {self.epochs} epochs{steps}"


def _steps_per_epoch(folder: Path, settings: Mapping[str, Any]) -> int | None:
    """Return the number of steps in an epoch, from the last record or else the number of images; None if it is unknown."""
    record = next(read_last_records(folder), None)
    if record is not None and record["epoch"] > 0:
        return int(record["step"] // record["epoch"]) or None
    try:
        images = read_object(folder / "data.json")["images"]
        # "parts" is `epoch_slices` in run.json, which leaves out settings at their first defaults.
        return int(images // (settings["batch"] * settings.get("accumulate", 1) * settings.get("parts", 1))) or None
    except (ValueError, KeyError, TypeError, ZeroDivisionError):
        return None


@dataclass(frozen=True)
class PastRun:
    """A run in a directory."""

    folder: Path
    settings: Mapping[str, Any]  # the content of run.json
    progress: RunProgress
    state: str  # finished, stopped or training
    scores: Mapping[str, float]  # of the last evaluation
    baselines: Mapping[
        str, Mapping[str, float]
    ]  # scores without training, by the name of the baseline; empty if not recorded
    date: datetime  # when the run was last written to

    @classmethod
    def read(cls, folder: Path) -> PastRun:
        """Return the run in a directory; raise ValueError if its run.json does not describe a run."""
        settings = read_object(folder / "run.json")
        missing = [name for name in _REQUIRED if name not in settings]
        if missing or type(settings["epochs"]) is not int or settings["epochs"] < 1:
            reason = f"it has no {', '.join(missing)}" if missing else f"epochs is {settings['epochs']!r}"
            raise ValueError(f"{folder / 'run.json'} does not describe a run: {reason}")
        # Read as far as needed only: parsing the records takes most of the time that a long list of runs takes.
        records = islice(read_last_records(folder), _LOOK_BACK)
        recorded = next(records, {"epoch": 0, "step": 0})
        scores: dict[str, float] = next(filter(None, map(scores_in, chain([recorded], records))), {})
        saved = newest_first(folder / "checkpoints")
        # A killed run resumes from its newest checkpoint, which may be older than its last record. A copy without weights has
        # no checkpoints.
        step = int(saved[0].name.removeprefix("step-")) if saved else recorded["step"]
        progress = RunProgress.read(folder, settings, step)
        if progress.finished and recorded["epoch"] == settings["epochs"]:
            state = "finished"
        else:
            state = "training" if is_locked(folder) else "stopped"
        written = folder / ("records.jsonl" if recorded["step"] else "run.json")
        date = datetime.fromtimestamp(written.stat().st_mtime)
        return cls(folder, settings, progress, state, scores, _read_baselines(folder, main_score(scores)), date)

    @property
    def main_score(self) -> Score | None:
        """The score that represents the run; None if the run has no score."""
        return main_score(self.scores)

    @property
    def best_baseline(self) -> tuple[str, float] | None:
        """The name and the main score of the strongest baseline; None if none is recorded."""
        score = self.main_score
        values = {name: own[score.name] for name, own in self.baselines.items() if score and score.name in own}
        return max(values.items(), key=lambda item: item[1]) if values else None

    @property
    def state_in_words(self) -> str:
        """Whether the run is finished, or at which step it stopped."""
        steps = f"step {self.progress.step:,}"
        steps += f" of {self.progress.steps:,}" if self.progress.steps else ""
        return {"finished": "finished", "training": f"training now, {steps}"}.get(self.state, f"stopped at {steps}")


def _read_baselines(folder: Path, score: Score | None) -> dict[str, dict[str, float]]:
    """Return the scores without training that `train` or `compare` saved; empty if there are none, or if they cannot be read.

    `score` is the run's main score, which is the only one that `compare` saves.
    """
    try:
        if (folder / "baselines.json").exists():
            recorded = read_object(folder / "baselines.json").get("baselines", {})
            return {name: scores_in(scores) for name, scores in recorded.items()}
        values = read_object(folder / "evaluations.json").get("references", {}) if score else {}
        return {
            title: {score.name: float(values[key])} for key, title in _REFERENCES.items() if score and key in values
        }
    except (ValueError, AttributeError, TypeError):
        return {}


def find_runs(folder: Path) -> Iterator[PastRun | ValueError]:
    """Yield the runs in a folder, or the folder itself if it is a run, newest first; then an error for each damaged run.json."""
    paths = [folder / "run.json"] if (folder / "run.json").exists() else sorted(folder.glob("*/run.json"))
    runs, errors = [], []
    for path in paths:
        try:
            runs.append(PastRun.read(path.parent))
        except ValueError as error:
            errors.append(error)
    yield from sorted(runs, key=lambda run: run.date, reverse=True)
    yield from errors


def scores_in(record: Mapping[str, Any]) -> dict[str, float]:
    """Return the scores in a record: accuracies, recalls and correlations, without losses and metrics of embeddings."""
    return {name: value for name, value in record.items() if is_score(name) and isinstance(value, int | float)}


def is_score(name: str) -> bool:
    """Return whether an entry of a record is a score, which is higher for a better encoder."""
    return name.startswith(("knn_", "recall@", "linear", "sts", "sickr")) or "_recall_" in name


def main_score(scores: Mapping[str, float]) -> Score | None:
    """Return the score that represents a run; None if there are no scores."""
    if not scores:
        return None
    name = next((name for name in _MAIN_SCORES if name in scores), next(iter(scores)))
    return Score(name, _MAIN_SCORES.get(name, name), scores[name])
