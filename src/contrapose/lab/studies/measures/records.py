"""Measures that a run records during training."""

from __future__ import annotations

from dataclasses import dataclass

from contrapose.lab.studies.measures.classifiers import NearestNeighbours
from contrapose.lab.studies.measures.measure import Measure, Words
from contrapose.lab.studies.run_directory import Reading, RunDirectory
from contrapose.lab.training import Run


@dataclass(frozen=True)
class RecordEntry(Measure):
    """An entry of the last record, identified by its name."""

    name: str
    words: Words | None = None  # None: use the name

    @property
    def key(self) -> str:
        """Return the name."""
        return self.name

    def describe(self, run: Run) -> Words:
        """Return the description of the entry."""
        return self.words or Words(self.name.replace("_", " "), ", last epoch")


@dataclass(frozen=True)
class RecordedKNN(Measure):
    """kNN accuracy from the records, with the run's number of neighbours, after the last or the best epoch."""

    best: bool = False

    @property
    def key(self) -> str:
        """Return the name of the entry in the records; the best accuracy has no separate entry."""
        return "best:knn_top1" if self.best else "knn_top1"

    def describe(self, run: Run) -> Words:
        """Describe the classifier and the epoch."""
        words = NearestNeighbours(run.knn, "softmax").describe(run)
        if not self.best:
            return Words(f"{words.text}, last epoch")
        every = "epoch" if run.knn_every == 1 else f"{run.knn_every} epochs"
        return Words(words.what, f"{words.of}, best epoch, evaluated every {every}")

    def read(self, directory: RunDirectory) -> Reading:
        """Return the accuracy in the last record, or the highest accuracy in all records."""
        if not self.best:
            return super().read(directory)
        values = [record["knn_top1"] for record in directory.records() if record.get("knn_top1") is not None]
        return Reading(max(values, default=None))


@dataclass(frozen=True)
class StepSeconds(Measure):
    """Seconds per training step in the median epoch, for a run that has its device to itself."""

    kind = "step_seconds"
    summary = Words("seconds of a training step, in the median epoch")

    def read(self, directory: RunDirectory) -> Reading:
        """Return the seconds; nothing for a run that shared its device, since its times are not meaningful."""
        records = directory.records()
        if not records or any(record.get("beside") for record in records):
            return Reading()
        seconds = sorted(record["seconds"] for record in records)
        return Reading(float(seconds[len(seconds) // 2] / max(1, records[0]["step"])))

    def missing_reason(self, directory: RunDirectory) -> str:
        """Return why a trained run was not timed."""
        return "timed beside other runs"
