"""`contrapose demo`."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

from tyro.conf import arg

from contrapose.lab.cli import exits
from contrapose.lab.cli.compare import show_results
from contrapose.lab.cli.progress import progress_display
from contrapose.lab.cli.study import check_seeds, run_plans
from contrapose.lab.counts import count_of
from contrapose.lab.devices import own_device
from contrapose.lab.studies.collect import collect
from contrapose.lab.studies.demo import SIZES, Size, demo, largest_size, measure_step_seconds, page
from contrapose.lab.studies.execute import run_tasks
from contrapose.lab.studies.task import Task
from contrapose.lab.training import load
from contrapose.lab.training.build import prepare
from contrapose.lab.training.threads import available_cores
from contrapose.lab.training.weights import export
from contrapose.validate import check_directory, check_number


@dataclass(frozen=True)
class Demo:
    """Show the uniformity-tolerance dilemma in five minutes on a CPU: nine losses on small digits, with a report."""

    seeds: int | None = None
    """Number of runs per loss; by default 3, or 1 if --minutes leaves too little time."""
    jobs: int | None = None
    """Number of runs at a time; by default one per core, or two on a GPU."""
    minutes: float | None = None
    """Approximate time limit in minutes (default 5). The amount of training is adapted to the speed of this machine."""
    runs_dir: Path = Path("runs")
    """Directory of all runs."""
    out: Annotated[Path, arg(aliases=["-o"])] = Path("reports")
    """Directory of the report."""

    def size(self) -> Size:
        """Return the size of a demo that was started earlier, or the largest size that this machine completes in time."""
        sizes = tuple(replace(size, seeds=self.seeds or size.seeds) for size in SIZES)
        started = [size for size in sizes if (self.runs_dir / size.pretraining_run().name).is_dir()]
        if started and self.minutes is None:
            return started[0]
        if own_device().type == "cuda":
            return sizes[0]
        step, jobs = measure_step_seconds(), self.jobs or available_cores()
        size = largest_size(sizes, step, jobs, self.minutes or 5.0)
        minutes = max(1, round(size.seconds(step, jobs) / 60))
        print(
            f"A training step takes {1000 * step:.0f} ms on this machine. Training on {size.digits:,} digits for "
            f"{count_of(size.pretraining_epochs, 'epoch')}, then {count_of(size.epochs, 'epoch')} with each of nine losses, "
            f"{'one seed' if size.seeds == 1 else f'{size.seeds} seeds'}: about {minutes} min (--minutes changes it)"
        )
        if not size.conclusive:
            shown = next(s.seconds(step, jobs) for s in reversed(sizes) if s.conclusive)
            needed = math.ceil(shown / 60)
            print(f"This is too short to tell whether the dilemma holds. To see it: contrapose demo --minutes {needed}")
        return size

    def __call__(self) -> None:
        """Train one encoder, continue training it with every loss, and write the report."""
        if self.seeds is not None:
            check_seeds(self.seeds)
        check_directory("runs_dir", self.runs_dir)
        check_directory("out", self.out)
        if self.jobs is not None:
            check_number("jobs", self.jobs, least=1)
        if self.minutes is not None:
            check_number("minutes", self.minutes, above=0)
        size = self.size()
        pretraining = Task(size.pretraining_run(), (), self.runs_dir)
        weights = pretraining.folder / "encoder.safetensors"
        print("Training one encoder first; every loss then continues from it.", flush=True)
        with progress_display(1) as display:
            if run_tasks([pretraining], display):
                raise SystemExit(exits.FAILED)
        # Written each time, from a verified checkpoint, and renamed when complete: the runs that start from this path never check
        # the file's content.
        temporary = weights.with_suffix(".half")
        export(load(pretraining.folder).encoder, temporary)
        temporary.rename(weights)
        plan = demo(weights, size, prepare(pretraining.run))
        jobs = self.jobs or (None if own_device().type == "cuda" else available_cores())
        failures = run_plans([plan], size.seeds, self.runs_dir, data_root=Path("data"), jobs=jobs)
        results = collect(plan, size.seeds, self.runs_dir)
        show_results(plan, results, page(plan, results, self.runs_dir), self.out / "demo")
        if failures:
            raise SystemExit(exits.FAILED)
