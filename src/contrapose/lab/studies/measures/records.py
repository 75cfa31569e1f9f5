"""Measures that a run records while it is trained."""

from __future__ import annotations

from dataclasses import dataclass

from contrapose.lab.studies.measures.classifiers import NearestNeighbours
from contrapose.lab.studies.measures.measure import Measure, Words
from contrapose.lab.studies.run_directory import Reading, RunDirectory
from contrapose.lab.training import Run


@dataclass(frozen=True)
class RecordEntry(Measure):
    """An entry of the last record, by its name there."""

    name: str
    words: Words | None = None  # None: the name

    @property
    def key(self) -> str:
        """Return the name."""
        return self.name

    def describe(self, run: Run) -> Words:
        """Return the words of the entry."""
        return self.words or Words(self.name.replace("_", " "), ", last epoch")


@dataclass(frozen=True)
class RecordedKNN(Measure):
    """kNN accuracy of the records, with the neighbours of the run, after the last epoch or after the best one."""

    best: bool = False

    @property
    def key(self) -> str:
        """Return the entry of the records; the best one has no entry of its own."""
        return "best:knn_top1" if self.best else "knn_top1"

    def describe(self, run: Run) -> Words:
        """Return the classifier and the epoch."""
        words = NearestNeighbours(run.knn, "softmax").describe(run)
        if not self.best:
            return Words(f"{words.text}, last epoch")
        every = "epoch" if run.knn_every == 1 else f"{run.knn_every} epochs"
        return Words(words.what, f"{words.of}, best epoch, evaluated every {every}")

    def read(self, directory: RunDirectory) -> Reading:
        """Return the accuracy of the last record, or the largest of all records that have one."""
        if not self.best:
            return super().read(directory)
        values = [record["knn_top1"] for record in directory.records() if record.get("knn_top1") is not None]
        return Reading(max(values, default=None))


@dataclass(frozen=True)
class StepSeconds(Measure):
    """Seconds of a training step in the median epoch, of a run that has its device to itself."""

    kind = "step_seconds"
    summary = Words("seconds of a training step, in the median epoch")

    def read(self, directory: RunDirectory) -> Reading:
        """Return the seconds; nothing for a run that shared its device, whose times mean little."""
        records = directory.records()
        if not records or any(record.get("beside") for record in records):
            return Reading()
        seconds = sorted(record["seconds"] for record in records)
        return Reading(float(seconds[len(seconds) // 2] / max(1, records[0]["step"])))

    def missing_reason(self, directory: RunDirectory) -> str:
        """Return why a trained run was not timed."""
        return "timed beside other runs"
