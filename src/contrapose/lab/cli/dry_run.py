"""`train --dry-run` and `compare --dry-run`: what runs would train on, and how much memory and time they would take."""

from __future__ import annotations

import resource
import shlex
import sys
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, fields, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from contrapose.lab.cli.progress import format_duration
from contrapose.lab.cli.run_options import GROUPS
from contrapose.lab.cli.tables import print_table
from contrapose.lab.counts import count_of
from contrapose.lab.studies import Plan
from contrapose.lab.studies.run_directory import RunDirectory
from contrapose.lab.training import Run, Trainer, drain
from contrapose.lab.training.continuation import continued_run, recorded_run
from contrapose.lab.training.eager import EagerSteps
from contrapose.lab.training.negatives import describe_negatives
from contrapose.lab.training.records.files import read_records
from contrapose.lab.training.threads import fixed_threads
from contrapose.lab.workers import worker_failures

_MOST_STEPS, _MOST_SECONDS = 10, 10.0  # limits on the steps that are timed
_LONG_EVALUATION = 20.0  # seconds; an evaluation that is expected to take longer is not tried


@dataclass(frozen=True)
class Measurement:
    """Duration and memory of a few real steps and of an evaluation."""

    steps: int  # number of timed steps
    step_seconds: float
    evaluation_seconds: float
    evaluated: bool  # whether an evaluation was timed, rather than derived from the steps
    memory: int  # bytes


def dry_run(run: Run, folder: Path, *, extend: bool, log: Callable[[str], None], **options: Any) -> None:
    """Log what training `run` in `folder` would do. A copy takes a few steps in a temporary directory; `folder` is not written.

    `options` are passed to `Trainer`.
    """
    recorded = recorded_run(folder)
    if recorded is not None:
        run = continued_run(run, recorded, folder, extend=extend)
    epochs_done = max((record["epoch"] for record in read_records(folder)), default=0) if recorded is not None else 0
    with TemporaryDirectory() as temporary:
        trainer = Trainer(run, Path(temporary), log=log, **options)
        for line in _describe(trainer):
            log(line)
        if epochs_done < run.epochs:
            for line in _describe_cost(trainer, measure(trainer), epochs_done):
                log(line)
    log(f"{'directory':12}{folder} ({_describe_directory(folder, recorded, epochs_done, run)})")
    log("This was a dry run: nothing was trained, and nothing was written to the directory.")


def dry_run_comparison(plan: Plan, seeds: int, root: Path, *, data_root: Path, report: Path) -> None:
    """Print what `compare` would do: a copy of one run of each loss takes a few steps in a temporary directory.

    root     directory of all runs, in which finished runs are not repeated
    report   directory of the report
    """
    cells, memory, seconds, rows = list(plan.cells(seeds)), 0, 0.0, list[tuple[str, str, str]]()
    is_open = {run.name: not RunDirectory(root / run.name).trained(run.epochs) for _, _, run in cells}
    for row in plan.study.rows:
        own = [run for other, _, run in cells if other.name == row.name]
        with TemporaryDirectory() as temporary:
            trainer = Trainer(own[0], Path(temporary), log=lambda text: None, data_root=data_root)
            if not rows:
                changed = {name for other in plan.study.rows for name in other.changes}
                print(*_describe_settings(own[0], without=changed | {"seed"}), sep="\n")
                print(*_describe_data(trainer), sep="\n", flush=True)
            duration = "done"
            if any(is_open[run.name] for run in own):
                measured = measure(trainer)
                *_, one = _training_time(trainer, measured, 0)
                memory, duration = max(memory, measured.memory), f"about {format_duration(one)}"
                seconds += one * sum(is_open[run.name] for run in own)
        rows.append((row.name, describe_negatives(trainer), duration))
    print_table(("loss", "negatives", "time of a run"), rows, details=("negatives",))
    done = len(is_open) - sum(is_open.values())
    if memory:
        print(f"{'memory':12}{_describe_memory(memory, trainer.device)}, the peak of all losses")
        print(f"{'time':12}about {format_duration(seconds)} on {trainer.device} to train one run after another")
    print(
        f"{'runs':12}{root} ({count_of(len(is_open), 'run')}, of which {done or 'none'} {'is' if done < 2 else 'are'} done)"
    )
    print(f"{'report':12}{report}")
    print("This was a dry run: nothing was trained, and nothing was written.")


def measure(trainer: Trainer) -> Measurement:
    """Take a few steps and, if it does not take long, an evaluation. The trainer must not be used to train afterwards."""
    device, ends = trainer.device, list[float]()
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)

    def enough() -> bool:
        return len(ends) > _MOST_STEPS or (len(ends) > 1 and ends[-1] - ends[0] > _MOST_SECONDS)

    trainer.context.criterion.epoch = 1
    trainer.context.network.begin_epoch(0, step=0, steps=trainer.total_steps)
    with worker_failures(), fixed_threads(trainer.threads):
        start = time.perf_counter()
        steps = EagerSteps(replace(trainer.context, must_stop=enough))
        drain(steps.epoch(0, 0, lambda step, loss, rate: ends.append(time.perf_counter())))
        # The first step, which also starts workers and fills caches, counts only if there is no other.
        timed = max(1, len(ends) - 1)
        step_seconds = (ends[-1] - (ends[0] if len(ends) > 1 else start)) / timed
        evaluation_seconds = step_seconds * _forward_steps(trainer)
        is_short = evaluation_seconds < _LONG_EVALUATION
        if is_short:
            start = time.perf_counter()
            trainer.evaluation.scores(0)
            trainer.evaluation.metrics(0)
            evaluation_seconds = time.perf_counter() - start
    return Measurement(timed, step_seconds, evaluation_seconds, is_short, _peak_memory(device))


def _forward_steps(trainer: Trainer) -> float:
    """Return how many steps take as long as encoding the evaluated samples once: a backward pass takes two forward passes."""
    run, split = trainer.run, trainer.split
    samples = sum(len(source) for source in (split.probe, split.test) if source is not None)
    return samples / (3 * run.batch * run.accumulate * trainer.context.views.count)


def _peak_memory(device: torch.device) -> int:
    """Return the peak memory in bytes: of the GPU, or of this process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_reserved(device)
    # macOS counts bytes, and Linux kibibytes.
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def _describe(trainer: Trainer) -> Iterator[str]:
    """Yield lines on the settings, the data, the negatives and the networks."""
    run, context = trainer.run, trainer.context
    yield from _describe_settings(run)
    yield from _describe_data(trainer)
    yield f"{'loss':12}{run.objective}"
    yield f"{'negatives':12}{describe_negatives(trainer)}"
    encoder, projector = (_millions(module) for module in (context.network.encoder, context.network.projector))
    trained = sum(parameter.numel() for parameter in context.parameters()) / 1e6
    yield f"{'parameters':12}encoder {encoder:.3g} M, projector {projector:.3g} M; {trained:.3g} M are trained in all"


def _describe_data(trainer: Trainer) -> Iterator[str]:
    """Yield lines on the data and the number of steps."""
    run, split = trainer.run, trainer.split
    yield f"{'data':12}{len(split.train):,} {run.kind.sample_noun(split.train)} to train on{_describe_evaluation_data(trainer)}"
    steps = trainer.steps_per_epoch
    yield f"{'steps':12}{steps:,} per epoch, {trainer.total_steps:,} in {count_of(run.epochs, 'epoch')}"


def _describe_settings(run: Run, *, without: Collection[str] = ()) -> Iterator[str]:
    """Yield the settings that are not at their defaults, in groups, except those in `without`."""
    yield "settings that differ from the defaults, as options:"
    changed = {field.name for field in fields(run) if getattr(run, field.name) != _DEFAULTS[field.name]}
    for title, names in GROUPS.items():
        options = [_as_option(name, getattr(run, name)) for name in names if name in changed.difference(without)]
        if options:
            yield f"  {title}: {' '.join(options)}"


_DEFAULTS = {field.name: field.default for field in fields(Run)}


def _as_option(name: str, value: object) -> str:
    """Return a setting as a user would type it."""
    option = name.replace("_", "-")
    if isinstance(value, bool):
        return f"--{option}" if value else f"--no-{option}"
    return f"--{option} {shlex.join(map(str, value if isinstance(value, tuple) else (value,)))}"


def _describe_evaluation_data(trainer: Trainer) -> str:
    split, noun = trainer.split, trainer.run.kind.sample_noun(trainer.split.train)
    if split.probe is not None and split.test is not None:
        classes = f" of {len(split.test.classes)} classes" if split.test.classes else ""
        return f"; kNN accuracy on {len(split.test):,} test {noun}{classes}, with {len(split.probe):,} labelled ones"
    if split.test is not None or split.retrieval is not None:
        held_out = f"{len(split.test):,} " if split.test is not None else ""
        return f", and {held_out}held-out {noun} to evaluate on"
    return "; no labels, so there is no score"


def _millions(module: torch.nn.Module) -> float:
    return sum(parameter.numel() for parameter in module.parameters()) / 1e6


def _describe_cost(trainer: Trainer, measured: Measurement, epochs_done: int) -> Iterator[str]:
    """Yield lines on memory and time, with how they were estimated."""
    run, device = trainer.run, trainer.device
    yield f"{'memory':12}{_describe_memory(measured.memory, device)}, the peak in {count_of(measured.steps, 'step')}"
    steps, evaluations, seconds = _training_time(trainer, measured, epochs_done)
    how = "measured" if measured.evaluated else "estimated from the steps"
    taken = f"{count_of(steps, 'step')} of {_format_short(measured.step_seconds)} (mean of {measured.steps})"
    evaluated = f"{count_of(evaluations, 'evaluation')} of {_format_short(measured.evaluation_seconds)} ({how})"
    yield f"{'time':12}about {format_duration(seconds)} on {device}: {taken} and {evaluated}"
    if device.type == "cuda":
        yield f"{'':12}Training captures the step in a CUDA graph where it can, and then takes less time than this."
    if run.extra_metrics:
        yield f"{'':12}The time for --extra-metrics {' '.join(run.extra_metrics)} is not included."


def _describe_memory(memory: int, device: torch.device) -> str:
    return f"{memory / 2**20:,.0f} MiB {'on the GPU' if device.type == 'cuda' else 'in this process'}"


def _training_time(trainer: Trainer, measured: Measurement, epochs_done: int) -> tuple[int, int, float]:
    """Return the number of steps and evaluations in the remaining epochs, and their duration in seconds."""
    open_epochs = range(epochs_done + 1, trainer.run.epochs + 1)
    evaluations = sum(trainer.evaluation.due(epoch)[0] for epoch in open_epochs)
    steps = len(open_epochs) * trainer.steps_per_epoch
    return steps, evaluations, steps * measured.step_seconds + evaluations * measured.evaluation_seconds


def _format_short(seconds: float) -> str:
    return f"{1000 * seconds:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"


def _describe_directory(folder: Path, recorded: Run | None, epochs_done: int, run: Run) -> str:
    if recorded is None:
        return "exists, without a run" if folder.exists() else "new"
    if epochs_done >= run.epochs:
        return "exists, and its training is finished"
    return f"exists; training would resume: {epochs_done} of {run.epochs} epochs are recorded"
