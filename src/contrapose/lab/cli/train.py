"""`contrapose train` and `presets`."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from tyro.conf import arg

from contrapose.lab.cli.display import training_display
from contrapose.lab.cli.progress import format_duration
from contrapose.lab.cli.run_options import RunOptions
from contrapose.lab.modalities.progress import allow_progress_bars
from contrapose.lab.training import PRESETS, Run, Trainer, resolve
from contrapose.lab.training.checkpoints.kept import best_epoch
from contrapose.lab.training.collapse import describe_collapse
from contrapose.lab.training.locks import lock_directory
from contrapose.lab.training.options import make_run
from contrapose.lab.training.processes import leave_process_group, own_device
from contrapose.lab.training.records.extra_metrics import recorded_measures
from contrapose.lab.training.records.files import read_records
from contrapose.lab.training.sources import check_init
from contrapose.lab.training.stops import ignore_closed_output
from contrapose.lab.workers import TIMEOUT
from contrapose.validate import check_directory


@dataclass(frozen=True)
class Train:
    """Train an encoder, by default on the built-in digits. Run the same command again to resume an interrupted run.

    `--loss` also selects the framework and the head that the loss needs, unless options or the preset set them.
    """

    given: Annotated[RunOptions, arg(name="")]
    preset: str = ""
    """Start from a paper's settings, such as dystress/cifar10, behaviour/cifar10, cacr/cifar10-k4, balanced/cifar10 or
    byol/cifar10 (`contrapose presets` lists all). Other options override the preset."""
    out: Path | None = None
    """Directory of the run; default: a directory in runs/ with a name derived from the settings."""
    data_root: Path = Path("data")
    """Directory of downloaded data sets; missing ones are downloaded to it."""
    workers: int = 2
    """Number of processes that decode images, with --stream. It affects the speed but not the results."""
    worker_timeout: float = TIMEOUT
    """Seconds to wait for a batch from the workers before training fails. Increase it for very slow disks."""
    extend: bool = False
    """Continue the run in --out to more --epochs than it was started with. From the current step on, a cosine learning rate
    then follows the schedule for the new total number of epochs."""

    def __call__(self) -> None:
        """Train, with a progress bar on a terminal."""
        requested = make_run(self.given, preset=self.preset, log=_ignore if _rank() else ignore_closed_output(print))
        with training_display(noun=requested.kind.noun, silent=_rank() > 0) as display, ExitStack() as stack:
            on_step, log = ignore_closed_output(display.show_step), ignore_closed_output(display.print_line)
            # An unknown name must raise an error before a directory or lock is created.
            requested.kind.check_data(requested.data)
            if requested.eval_data:
                requested.kind.check_data(requested.eval_data, "eval_data")
            world_size = int(os.environ.get("WORLD_SIZE", "1"))
            run = resolve(requested, own_device(), log=log, folder=self.out, world_size=world_size)
            folder = self.out or Path("runs") / run.name
            check_init(run, folder)
            check_directory("out", folder)
            if self.extend and not (folder / "run.json").exists():
                raise ValueError(
                    f"extend: {folder} does not contain a run; use --out to give the directory of the run to extend"
                )
            # Only rank 0 takes the lock: if every torchrun process tried, all but one would be refused.
            if not _rank() and not stack.enter_context(lock_directory(folder)):
                raise ValueError(
                    f"out: another process is training in {folder}; wait until it ends, or use another --out"
                )
            with allow_progress_bars():
                trainer = Trainer(
                    run,
                    folder,
                    on_step=on_step,
                    log=log,
                    on_evaluation=ignore_closed_output(display.show_evaluation),
                    data_root=self.data_root,
                    workers=self.workers,
                    worker_timeout=self.worker_timeout,
                    stop_if_solved="views" in requested.auto_settings,  # views that the user has chosen are kept
                    extend=self.extend,
                )
            for note in trainer.split.notes:
                log(note)
            log(
                f"{len(trainer.split.train):,} {run.kind.noun} of {trainer.split.train.name} on {trainer.device}, into {folder}"
            )
            if trainer.device.type == "cpu":
                display.on_estimate = lambda seconds: log(_how_to_shorten(run, seconds))
            scores = trainer.train()
            for name, score in scores.items():
                how = f"last epoch, {run.knn} neighbours" if name.startswith("knn") else "last epoch"
                log(f"{name:10} {score:6.2f} %   ({how})")
            if not scores and not run.extra_metrics:
                log(f"no score: {run.data} {run.kind.unscored}")
            for line in _recorded_scores(run, read_records(folder)):
                log(line)
            best = best_epoch(folder, run.keep_best)
            if best is not None:
                log(
                    f"{run.keep_best:10} {best[1]:6.2f}     (best epoch, {best[0]}, whose weights are kept: --epoch {best[0]})"
                )
            log(f"run        {folder}")
            collapse = describe_collapse(trainer.run, read_records(folder))
            if collapse:  # last, so that the scores are not taken for a success
                log(collapse)
        leave_process_group()


def _recorded_scores(run: Run, records: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield a line for each of the last epoch's scores that only the run's modality has, with a score without training."""
    for measure in recorded_measures(run.extra_metrics, run.kind.recorded):
        if not measure.own or not records:
            continue
        evaluation = run.kind.recorded[measure.own]
        for name, baseline in evaluation.baseline(measure.argument).items():
            if name in records[-1]:
                score = f"{name:10} {records[-1][name]:6.2f}"
                yield f"{score}     (last epoch; {evaluation.baseline_name}, without training: {baseline:.2f})"


def _ignore(text: str) -> None:
    """Ignore a message, because rank 0 prints it."""


def _rank() -> int:
    """Return the rank of this process under torchrun, else 0. Only rank 0 prints and holds the lock."""
    return int(os.environ.get("RANK", "0"))


def _how_to_shorten(run: Run, seconds: float) -> str:
    """Return a message with the estimated training time and, if it is long, options that shorten it."""
    text = f"the training takes about {format_duration(seconds)} on this CPU"
    if seconds < 120:
        return text
    options = [f"--epochs {max(1, run.epochs // 3)}", *(["--size 32"] if run.size > 32 else [])]
    return f"{text}; to shorten it: {' or '.join(options)}"


@dataclass(frozen=True)
class Presets:
    """List the presets: the papers' training settings, for `train --preset`."""

    def __call__(self) -> None:
        """Print one line per preset, with its main settings."""
        for name, settings in PRESETS.items():
            summary = " ".join(
                f"{key}={settings[key]}" for key in ("encoder", "loss", "optimiser", "lr", "batch", "epochs")
            )
            print(f"{name:32} {summary}")
