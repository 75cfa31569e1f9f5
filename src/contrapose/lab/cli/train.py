"""`contrapose train` and `presets`."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from contrapose.lab.cli.commands import COMMAND_LINE
from contrapose.lab.cli.config_option import ConfigOption, with_config
from contrapose.lab.cli.display import training_display
from contrapose.lab.cli.dry_run import dry_run
from contrapose.lab.cli.progress import format_duration
from contrapose.lab.devices import own_device
from contrapose.lab.jobs.description import JobDescription, check_executor, read_description
from contrapose.lab.jobs.resumable import Resumable, run_command_line
from contrapose.lab.modalities.progress import allow_progress_bars
from contrapose.lab.settings import Settings
from contrapose.lab.training import PRESETS, Run, Trainer, resolve
from contrapose.lab.training.checkpoints.kept import best_epoch
from contrapose.lab.training.collapse import describe_collapse
from contrapose.lab.training.findings import findings_in
from contrapose.lab.training.locks import lock_directory
from contrapose.lab.training.negatives import describe_negatives
from contrapose.lab.training.options import make_run
from contrapose.lab.training.processes import check_world_size, leave_process_group
from contrapose.lab.training.records.extra_metrics import recorded_measures
from contrapose.lab.training.records.files import read_records
from contrapose.lab.training.records.recorder import parse_sinks
from contrapose.lab.training.run import AUTO
from contrapose.lab.training.score_baselines import BASELINE_CHOICES, Baselines, describe_no_gain, score_baselines
from contrapose.lab.training.shards import check_shard
from contrapose.lab.training.sources import check_init
from contrapose.lab.training.stops import ignore_closed_output
from contrapose.lab.workers import TIMEOUT, default_workers
from contrapose.validate import check_count, check_directory, check_known, check_number

# The options of `train` itself that a config file may set, with their types in the file.
_IN_CONFIG = {
    "temperature": "str",
    "out": "str",
    "data_root": "str",
    "workers": "int",
    "worker_timeout": "float",
    "device": "str",
    "pack": "bool",
    "log": "str",
}


@dataclass(frozen=True)
class Train(ConfigOption):
    """Train an encoder, by default on the built-in digits. Run the same command again to resume an interrupted run.

    `--loss` also selects the framework and the head that the loss needs, unless options or the preset set them.
    """

    common: ClassVar[Mapping[str, str]] = {
        "data": "Name of a data set, folder of images, file of texts",
        "loss": "Method or objective, such as dystress or byol",
        "temperature": "Temperature of the loss",
        "encoder": "Encoder, such as resnet18 or timm:NAME",
        "views": "Augmentation recipe",
        "epochs": "Passes over the data",
        "batch": "Batch size",
        "lr": "Peak learning rate",
        "preset": "A paper's settings (`contrapose presets` lists all)",
        "config": "Options from a TOML file, or a run's run.json",
        "out": "Directory of the run (default: runs/NAME)",
        "device": "cpu, cuda or one GPU, such as cuda:1",
        "dry_run": "Print settings, memory and time; do not train",
    }
    dry_run: bool = False
    """Print the settings, the data, the number of negatives, and estimates of memory and time, without training."""
    preset: str = ""
    """Start from a paper's settings, such as dystress/cifar10, behaviour/cifar10, cacr/cifar10-k4, balanced/cifar10 or
    byol/cifar10 (`contrapose presets` lists all). Other options override the preset."""
    temperature: str = ""
    """Temperature of the loss: a number, or LOW:HIGH for cosine(LOW, HIGH), a function of similarity. It becomes part of the
    loss: --loss nt_xent --temperature 0.2 is --loss "nt_xent(temperature=0.2)"."""
    out: Path | None = None
    """Directory of the run; default: a directory in runs/ with a name derived from the settings."""
    data_root: Path | None = None
    """Directory of downloaded data sets; missing ones are downloaded to it. Default: data."""
    pack: bool = False
    """Copy a folder's images, decoded and resized, once to a file in the user's cache folder (CONTRAPOSE_CACHE), which this and
    later runs read at once, even if it is larger than the memory. It affects the speed but not the results; --stream is not
    needed."""
    workers: int | None = None
    """Number of processes that decode images, with --stream; default: one for each core that the run may use. It affects the
    speed but not the results."""
    worker_timeout: float | None = None
    """Seconds to wait for a batch from the workers, or for a sign of life from the other processes of a run on several GPUs,
    before training fails; default: 300. Increase it for very slow disks."""
    baselines: str = "auto"
    """Scores without training to print beside the run's scores: raw pixels or tf-idf, the untrained encoder, and chance.
    Each takes the time of one evaluation at the end. auto: all of them for up to 100,000 labelled samples, and chance for
    more; all; none."""
    shard: bool = False
    """With several processes: divide parameters, gradients and the optimiser's state among them (FSDP2), for networks that do not
    fit. Results and checkpoints are the same, up to rounding, and can be continued without --shard."""
    recompute: bool = False
    """Compute the activations inside an encoder's blocks again in the backward pass instead of keeping them: a tenth of the
    activations for up to a third more time, with the same results. For encoders with blocks without batch norms, such as ViTs,
    ConvNeXts and all encoders of sentences."""
    executor: str = "local"
    """Where to train: local, in this process; slurm:FILE, in a job that submitit submits to Slurm, and submits again after
    preemption and at the time limit; or local:FILE, in a job on this machine, for trying a file. FILE is TOML with lines such as
    hours = 24, nodes = 2 and gpus_per_node = 4 (docs/several-gpus.md). A job needs --out."""
    log: str = ""
    """What shows the records of each epoch beside TensorBoard, separated by commas: wandb, trackio. Both keep them on this
    machine, unless their own variables, such as WANDB_MODE, say otherwise. It does not affect the results."""
    extend: bool = False
    """Continue the run in --out to more --epochs than it was started with. From the current step on, a cosine learning rate
    then follows the schedule for the new total number of epochs."""

    def __call__(self) -> None:
        """Train, with a progress bar on a terminal; with --dry-run, print what would be done."""
        with with_config(self, _IN_CONFIG) as (options, config):
            options.train(config)

    def train(self, config: Settings) -> None:
        """Train with the settings in a config file and on the command line."""
        log_choice = _ignore if _rank() else ignore_closed_output(print)
        check_known("baselines", self.baselines, BASELINE_CHOICES)
        check_executor(self.executor, "local", "slurm:FILE", "local:FILE")
        job = None if self.executor == "local" else read_description(self.executor)
        requested = make_run(
            self.given, preset=self.preset, config=config, temperature=self.temperature, log=log_choice
        )
        trainer_options = self._trainer_options()
        with training_display(silent=_rank() > 0) as display, ExitStack() as stack:
            on_step, log = ignore_closed_output(display.show_step), ignore_closed_output(display.print_line)
            # An unknown name must raise an error before a directory or lock is created.
            requested.kind.check_data(requested.data)
            if requested.eval_data:
                requested.kind.check_data(requested.eval_data, "eval_data")
            world_size = int(os.environ.get("WORLD_SIZE", "1"))
            if job is not None:
                world_size = job.world_size
            run = resolve(requested, own_device(), log=log, folder=self.out, world_size=world_size)
            for name in self.given.keys() - requested.auto_settings:  # `resolve` logs those
                if self.given[name] == AUTO.get(name):
                    log(f"--{name} {self.given[name]} means that it is chosen for the data: {getattr(run, name)}")
            folder = self.out or Path("runs") / run.name
            check_init(run, folder)
            check_directory("out", folder)
            if self.extend and not (folder / "run.json").exists():
                raise ValueError(
                    f"extend: {folder} does not contain a run; use --out to give the directory of the run to extend"
                )
            if self.dry_run:
                dry_run(run, folder, extend=self.extend, log=log, **trainer_options)
                return
            if job is not None:
                self._submit(job, run)
                return
            # Only rank 0 takes the lock: if every torchrun process tried, all but one would be refused.
            if not _rank() and not stack.enter_context(lock_directory(folder)):
                raise ValueError(
                    f"out: another process is training in {folder}; wait until it ends, or use another --out"
                )
            with allow_progress_bars():
                for line in run.kind.pack_to_cache(run, run.view_maker()) if self.pack else ():
                    log(line)
                trainer = Trainer(
                    run,
                    folder,
                    on_step=on_step,
                    log=log,
                    on_evaluation=ignore_closed_output(display.begin_evaluation),
                    stop_if_solved="views" in requested.auto_settings,  # views that the user has chosen are kept
                    extend=self.extend,
                    **trainer_options,
                )
            for note in trainer.split.notes:
                log(note)
            train, display.noun = trainer.split.train, run.kind.sample_noun(trainer.split.train)
            log(f"{len(train):,} {display.noun} of {train.name} on {trainer.device}, into {folder}")
            if "(" not in run.loss:
                log(f"loss {run.loss}: {run.objective}")
            log(f"negatives: {describe_negatives(trainer)}")
            where, shorter = "CPU" if trainer.device.type == "cpu" else "GPU", _shorter_runs(requested, trainer)
            display.on_estimate = lambda seconds: log(_how_to_shorten(seconds, where, shorter))
            scores = trainer.train()
            # In all processes: if only rank 0 did this, the others could wait too long for it in their last collective.
            baselines = score_baselines(
                trainer.model, trainer.split, scores, choice=self.baselines, save=not _rank(), log=log
            )
            for line in _summary(trainer, scores, baselines, folder):
                log(line)
        leave_process_group()

    def _submit(self, job: JobDescription, run: Run) -> None:
        """Submit a job that executes this command, and print how to follow and cancel it."""
        if self.out is None:  # the default name depends on the device, and the job's may differ from this one
            raise ValueError("out: a job needs --out, the directory of its run, which also gets the job's log")
        check_world_size(run, job.world_size)
        if self.shard:
            check_shard(run)
        work = Resumable(run_command_line, *COMMAND_LINE.get(), "--executor", "local")
        submitted = job.submit([work], self.out / "jobs", name=self.out.name)[0]
        where = "Slurm" if job.cluster == "slurm" else "this machine"
        print(f"job        {submitted.job_id} on {where}: {job.in_words()}, for up to {job.hours:g} h at a time")
        print(f"log        {submitted.paths.stdout}")
        print(f"cancel     {job.how_to_cancel(submitted)}    (saves the last step; the same command resumes)")

    def _trainer_options(self) -> dict[str, Any]:
        """Return the options that `Trainer` takes; raise ValueError if they are out of range."""
        workers = default_workers() if self.workers is None else self.workers
        timeout = TIMEOUT if self.worker_timeout is None else self.worker_timeout
        check_count("workers", workers, least=0)
        check_number("worker_timeout", timeout, above=0)
        if self.dry_run and int(os.environ.get("WORLD_SIZE", "1")) > 1:
            raise ValueError("dry_run: expected one process, but torchrun started several; run it without torchrun")
        sinks = parse_sinks(self.log)
        return {
            "data_root": self.data_root,
            "workers": workers,
            "worker_timeout": timeout,
            "sinks": sinks,
            "shard": self.shard,
            "recompute": self.recompute,
        }


def _summary(trainer: Trainer, scores: Mapping[str, float], baselines: Baselines, folder: Path) -> Iterator[str]:
    """Yield lines on the scores beside their baselines, then on what is wrong, so that scores are not taken for a success."""
    run = trainer.run
    for name, score in scores.items():
        how = f"last epoch, {run.knn} neighbours" if name.startswith("knn") else "last epoch"
        others = [f"{baseline} {found[name]:.2f}" for baseline, found in baselines.items() if name in found]
        yield f"{name:10} {' · '.join([f'{score:6.2f} %', *others])}   ({how})"
    if not scores and not run.extra_metrics:
        yield f"no score: {run.data} {run.kind.unscored}"
    records = read_records(folder)
    yield from _recorded_scores(run, records)
    best = best_epoch(folder, run.keep_best)
    if best is not None:
        epoch, score = best
        yield f"{run.keep_best:10} {score:6.2f}     (best epoch, {epoch}, whose weights are kept: --epoch {epoch})"
    yield f"run        {folder}"
    nothing = describe_no_gain(trainer.model, trainer.split, scores, baselines)
    if nothing:
        yield f"{nothing}; {run.kind.how_to_improve}"
    found = [finding.name for finding in findings_in(records)]
    if found:
        yield f"doctor     {', '.join(found)}; for details: contrapose doctor {folder}"
    collapse = describe_collapse(run, records)
    if collapse:
        yield collapse


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


def _how_to_shorten(seconds: float, where: str, shorter: Sequence[str]) -> str:
    """Return a message with the estimated training time and, if it is long, options that shorten it."""
    text = f"the training takes about {format_duration(seconds)} on this {where}"
    return f"{text}; to shorten it: {' or '.join(shorter)}" if seconds >= 120 and shorter else text


def _shorter_runs(requested: Run, trainer: Trainer) -> list[str]:
    """Return options with which the run, as the user requested it, would be at most about half as long; none if it resumes."""
    run, samples = trainer.run, len(trainer.split.train)
    if trainer.recorded is not None:  # another run would start over, and may take longer than the rest of this one
        return []
    changes: list[dict[str, int]] = []
    if run.epochs > 1:
        changes.append({"epochs": max(1, run.epochs // 3)})
    if run.epochs < 3 and samples // 3 >= run.batch * run.accumulate * run.epoch_slices:
        # With fewer images, more epochs would be chosen.
        fixed = {"epochs": run.epochs} if "epochs" in requested.auto_settings else {}
        changes.append({**fixed, "limit": samples // 3})
    if run.size > 32:
        changes.append({"size": 32})
    return [
        " ".join(f"--{name} {value}" for name, value in change.items()) for change in changes if _can_train(run, change)
    ]


def _can_train(run: Run, change: Settings) -> bool:
    """Return whether the run can be trained with other settings: its encoder may need larger images, its warm-up more epochs."""
    try:
        resolve(replace(run, **change), own_device(), log=_ignore)
    except ValueError:
        return False
    return True


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
