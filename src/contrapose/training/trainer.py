"""The trainer: order, steps, records and checkpoints of one run."""

from __future__ import annotations

import json
import math
import time
import warnings
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from contrapose.evaluation import Measures
from contrapose.frameworks import Embed
from contrapose.training import checkpoint
from contrapose.training.build import build, build_loss, prepare
from contrapose.training.checks import check_samples
from contrapose.training.collapse import follow_collapse
from contrapose.training.context import StepContext
from contrapose.training.continuation import continued_run, record_extension, recorded_run
from contrapose.training.defaults import resolve
from contrapose.training.eager import EagerSteps
from contrapose.training.graphed import GraphedSteps, graph_obstacle
from contrapose.training.kept import keep, keep_best, lost_weights
from contrapose.training.model import Model, model_of
from contrapose.training.optimisers import optimiser
from contrapose.training.precision import check_bf16
from contrapose.training.processes import any_requested, join_process_group, own_device, synchronise_batch_norms
from contrapose.training.recording import RecordedMeasure, recorded_measures
from contrapose.training.records import append, drop_records_after, environment, read_records, write_json_atomically
from contrapose.training.run import Run
from contrapose.training.sources import check_init, check_same_data, describe_data, find_file
from contrapose.training.state import collect, restore
from contrapose.training.stops import Diverged, Stopped, StopRequests, signals
from contrapose.training.threads import choose_threads, fixed_threads, with_fixed_threads
from contrapose.validate import check_directory
from contrapose.workers import TIMEOUT, worker_failures

T = TypeVar("T")


@dataclass(frozen=True)
class Progress:
    """One step, for a progress display."""

    epoch: int  # from 1
    step: int  # from 1, over all epochs
    steps: int  # of the whole training
    loss: float  # of this step
    images_per_second: float  # over the last steps


@dataclass
class Trainer:
    """A run in a directory: started, or resumed from its newest checkpoint."""

    run: Run  # what to train
    folder: Path  # directory of its settings, records and checkpoints
    watch: Callable[[Progress], None] = lambda progress: None  # called after each step
    say: Callable[[str], None] = print  # called with each message
    data_root: Path | None = None  # directory of downloaded data sets; None: data
    workers: int = 0  # processes that decode images of a streamed folder
    worker_timeout: float = TIMEOUT  # seconds without a batch from the workers before the training fails
    device: torch.device = field(default_factory=own_device)  # by default a GPU if there is one, else the CPU
    fast: bool = True  # on a GPU, the whole step in one CUDA graph
    on_evaluation: Callable[[], None] = lambda: None  # called before each evaluation, which may take long
    concurrent_runs: int = 0  # other runs on the device meanwhile, noted in the records beside the seconds
    extend: bool = False  # continue a run with fewer epochs that the directory holds

    def __post_init__(self) -> None:
        self.rank, self.world_size = join_process_group()
        self.run = resolve(
            self.run,
            self.device,
            say=self.say if self.rank == 0 else lambda text: None,
            folder=self.folder,
            world_size=self.world_size,
        )
        self._check_settings()
        requested = self.run
        self.data_path = requested.data  # run.json keeps the path with which the run was started
        self._continue_run()
        self.threads = choose_threads(self.folder, self.run.threads, self.world_size)
        check_bf16(self.device, self.run.precision, self.say)
        # A run that is resumed keeps its tokenizer: another one would give its weights other tokens.
        self.split = prepare(requested, self.data_root, folder=self.folder if self.recorded is not None else None)
        if requested.data != self.run.data:
            check_same_data(self.split, requested, self.folder)
        check_samples(self.run, self.split)
        with fixed_threads(self.threads):
            self.context = self._build()
        # Only now is anything written: a run with bad settings leaves no directory behind.
        self._claim_folder()
        self.steps: EagerSteps | GraphedSteps = EagerSteps(self.context)
        self.requests = StopRequests()  # replaced when training starts: several runs may share one list
        self.step = 0
        self.saved_at, self.saved_step, self.saving_seconds = -math.inf, 0, 0.0  # of the last checkpoint
        self.partial_epoch = (0.0, 0.0)  # of an epoch that was interrupted: the sum of its losses, and its seconds
        self.record: dict[str, Any] | None = None  # of the last epoch

    def _check_settings(self) -> None:
        run = self.run
        if run.batch % self.world_size:
            raise ValueError(
                f"batch: {run.batch} {run.kind.noun} cannot be shared equally by {self.world_size} processes"
            )
        if self.world_size > 1 and run.norm_splits > 1:
            raise ValueError(f"norm_splits: {self.world_size} processes synchronise their batch norms; leave it at 1")
        check_directory("out", self.folder)
        check_init(run, self.folder)

    def _continue_run(self) -> None:
        """Continue the run that the directory holds; refuse another one."""
        self.recorded = recorded_run(self.folder)
        if self.recorded is not None:
            self.run = continued_run(self.run, self.recorded, self.folder, extend=self.extend)

    def _claim_folder(self) -> None:
        """Write the settings: from here on the directory holds this run."""
        path = self.folder / "run.json"
        if self.rank or self.recorded is not None:
            return
        with suppress(OSError, ValueError):  # there is none, or one that another process did not finish
            if json.loads(path.read_text()) == self.run.describe():
                return
        self.folder.mkdir(parents=True, exist_ok=True)
        write_json_atomically(self.folder / "environment.json", environment(self.device) | {"threads": self.threads})
        write_json_atomically(path, self.run.describe())

    def _build(self) -> StepContext:
        """Build the networks, the loss and the optimiser."""
        run, samples = self.run, len(self.split.train)
        labels, ids = self.split.train.labels, self.split.train.ids
        # The weights are drawn on the CPU, so that a seed gives the same ones on any device.
        network = build(replace(run, init=find_file(run.init, self.folder)), samples).to(self.device)
        run.kind.prepare(network)
        learner: nn.Module = Embed(network) if run.contrast == "whole" else network
        if self.world_size > 1:
            synchronise_batch_norms(network, self.device)  # in place, so that `learner` has them too
            # Buffers are equal on all processes: they come from gathered batches and synchronised statistics.
            with warnings.catch_warnings():  # torch 2.15 has a new name for this argument
                warnings.simplefilter("ignore", FutureWarning)
                learner = DistributedDataParallel(learner, broadcast_buffers=False)
        criterion = build_loss(run, samples).to(self.device)
        # Of images with captions it is a `CaptionModel`, which has the methods that a training needs.
        self.model: Model = model_of(run, network, self.device, folder=self.folder)
        self.model.use_workers(self.workers, timeout=self.worker_timeout)
        # One module for all that a checkpoint holds beside the optimiser: its names are the keys of the checkpoint.
        self.saved_state = nn.ModuleDict({"network": network, "criterion": criterion})
        return StepContext(
            run=run,
            device=self.device,
            network=network,
            learner=learner,
            criterion=criterion,
            optimiser=optimiser(run, network, criterion),
            scaler=torch.amp.GradScaler(self.device.type, enabled=run.precision == "fp16"),
            reader=self.model.reader(self.split.train),  # evaluation shares it: one copy of the data on the device
            views=self.model.views,
            samples=samples,
            ids=None if ids is None else ids.to(self.device),
            labels=labels.to(self.device) if run.needs_labels and labels is not None else None,
            steps_per_epoch=samples // (run.batch * run.accumulate * run.parts),
            rank=self.rank,
            world_size=self.world_size,
            say=self.say,
            must_stop=self.must_stop,
        )

    @property
    def steps_per_epoch(self) -> int:
        """Optimiser steps in an epoch."""
        return self.context.steps_per_epoch

    @property
    def total_steps(self) -> int:
        """Optimiser steps in the whole training."""
        return self.run.epochs * self.steps_per_epoch

    @property
    def complete(self) -> bool:
        """Whether the last step is done."""
        return self.step == self.total_steps

    def train(self) -> dict[str, float]:
        """Train to the end, from the newest checkpoint if there is one, and return the final scores."""
        with worker_failures(), signals() as requests:
            return drain(self.training(requests))

    def training(self, requests: StopRequests) -> Generator[None, None, dict[str, float]]:
        """Train in parts: yield after each epoch and, with a CUDA graph, whenever the GPU has work for a while.

        Several runs can take turns this way. `requests` collects the signals that ask for an end.
        """
        self.requests = requests
        return with_fixed_threads(self._training(), self.threads)

    def _training(self) -> Generator[None, None, dict[str, float]]:
        self._resume()
        self._choose_steps()
        network, criterion, scores = self.context.network, self.context.criterion, dict[str, float]()
        while not self.complete:
            if self.must_stop():  # a signal came while other runs had their turn
                self._stop()
            epoch = self.step // self.steps_per_epoch
            criterion.epoch = epoch + 1
            network.begin_epoch(epoch, self.run.epochs)
            loss, seconds = yield from self._epoch(epoch)
            record: dict[str, Any] = {"epoch": epoch + 1, "step": self.step, "loss": loss, "seconds": seconds}
            record |= {"beside": self.concurrent_runs} if self.concurrent_runs else {}
            record |= self.context.batch_metrics() if self.rank == 0 else {}
            self.record = record
            self._keep(epoch + 1)
            # Before the evaluation, which can take long. The checkpoint has the record: after a signal or a kill only the
            # evaluation is repeated.
            if any(self._due_evaluations(epoch + 1)) or self._checkpoint_is_due():
                self._save()
            scores = self._evaluate_and_append(record)
            if self.must_stop():
                self._stop()
            yield
        with self._stops_immediately():
            return scores or self.evaluate()

    @contextmanager
    def _stops_immediately(self) -> Iterator[None]:
        """In this block, which changes no weights, a signal ends the training; with several processes, after the block.

        One process that ended alone would leave the others waiting for it.
        """
        with nullcontext() if self.world_size > 1 else self.requests.immediate():
            yield

    def _evaluate_and_append(self, record: dict[str, Any]) -> dict[str, float]:
        """Evaluate if it is time, and append the record of the epoch; return the scores."""
        scores, (is_time, due) = dict[str, float](), self._due_evaluations(record["epoch"])
        if is_time or due:
            try:
                with self._stops_immediately():
                    if self.rank == 0:
                        self.on_evaluation()
                    if is_time:
                        scores = self.evaluate()
                        record |= scores | self._measures()
                    # On all processes: a probe can take longer than the others would wait for rank 0 in their next
                    # collective.
                    for measure in due:
                        record |= self._take(measure)
            except Stopped:
                self._stop()  # the weights are saved: the message names their step
        if self.rank == 0:
            if self.run.keep_best:
                self._keep_best(record)
            message = follow_collapse(record, read_records(self.folder), self.run, evaluated=is_time)
            if message:
                self.say(message)
            append(self.folder, record)
        return scores

    def _due_evaluations(self, epoch: int) -> tuple[bool, list[RecordedMeasure]]:
        """Return whether the weights after an epoch are evaluated, and the further measures of its record."""
        measures = [m for m in recorded_measures(self.run.record) if m.is_due(epoch, self.run.epochs)]
        return epoch % self.run.knn_every == 0 or epoch == self.run.epochs, measures

    def _take(self, measure: RecordedMeasure) -> dict[str, float]:
        """Take a measure of the current weights. STS is not defined if all embeddings are equal: say so and go on."""
        try:
            return self.model.take(measure, self.split)
        except ValueError as error:
            if not measure.sts:
                raise
            self.say(f"no {measure.text.rpartition('@')[0]} after step {self.step}: {error}")
            return {}

    def _keep(self, epoch: int) -> None:
        """Keep the weights of encoder and projector if the run's settings name this epoch."""
        if self.rank == 0 and epoch in self.run.keep:
            keep(self.folder, self.context.network, epoch=epoch, step=self.step)

    def _keep_best(self, record: dict[str, Any]) -> None:
        """Keep the weights if they are the best so far; say at the end if the records lack the number."""
        name, network = self.run.keep_best, self.context.network
        if self.complete and name not in record:
            self.say(f"keep_best: the records have no {name!r}, so no weights were kept; they have {', '.join(record)}")
        keep_best(self.folder, network, record, name=name, keep_always=self.run.keep)

    def _resume(self) -> None:
        """Load the newest checkpoint, if there is one, and make the records agree with it."""
        resumed = self.load_latest()
        if self.rank:
            return
        for name in ("checkpoints", "kept"):  # a finished run writes no further one, which would sweep them
            checkpoint.remove_unfinished(self.folder / name)
        self.run.kind.keep(self.folder, self.context.network.encoder, self.split, self.context.views)
        write_json_atomically(self.folder / "data.json", describe_data(self.split, self.data_path))
        if self.recorded is not None and self.recorded.epochs != self.run.epochs:
            self.say(record_extension(self.recorded, self.run, self.folder, self.step, self.steps_per_epoch))
            self.recorded = self.run
        elif resumed:
            self.say(f"finished at step {self.step}" if self.complete else f"resuming after step {self.step}")
        passed = [epoch for epoch in self.run.keep if epoch * self.steps_per_epoch <= self.step]
        for message in lost_weights(self.folder, passed):
            self.say(message)
        steps = drop_records_after(self.folder, self.step)
        if self.record is not None and self.step not in steps:  # killed after the checkpoint and before the record
            self._evaluate_and_append(self.record)

    def _choose_steps(self) -> None:
        """On a GPU, capture the whole step in a CUDA graph if possible, and say which way is taken."""
        if self.device.type != "cuda" or not self.fast:
            return
        obstacle = graph_obstacle(self.context)
        if obstacle:
            self.say(f"running eagerly, since {obstacle}")
            return
        self.say("using one CUDA graph for the whole step; the first steps compile it")
        self.steps = GraphedSteps(self.context)
        # Networks are compiled for the batch size of training; evaluation must not compile them again for its own.
        self.model.evaluate_in(lambda: torch.compiler.set_stance("force_eager"))

    def _epoch(self, epoch: int) -> Generator[None, None, tuple[float, float]]:
        """Take the rest of an epoch's steps and return the epoch's mean loss and its seconds."""
        first, start = self.step % self.steps_per_epoch, time.perf_counter()
        total, before = self.partial_epoch if first else (0.0, 0.0)
        begun, images = self.step - first, self.run.batch * self.run.accumulate

        def watch(step: int, loss: float, rate: float) -> None:
            if self.rank == 0:
                self.watch(Progress(epoch + 1, begun + step, self.total_steps, loss, rate * images))

        for loss in (yield from self.steps.epoch(epoch, first, watch)):
            total += loss  # one by one, so that a resumed epoch has the same mean to the last digit
            self.step += 1
        seconds = before + time.perf_counter() - start
        if self.step % self.steps_per_epoch:  # interrupted; a complete epoch is recorded first
            self.partial_epoch = total, seconds
            self._stop()
        return total / self.steps_per_epoch, seconds

    def evaluate(self) -> dict[str, float]:
        """Return the kNN accuracy of the encoder's features, if there are labels."""
        try:
            return self.model.evaluate(self.split)
        except ValueError as error:  # features that are not finite: running statistics can diverge before the loss does
            epoch = self.step // self.steps_per_epoch
            raise Diverged(f"no accuracy after epoch {epoch}: {error}; start over with a lower --lr") from error

    def _measures(self) -> dict[str, float]:
        """Return the metrics of the embedding as it is now, and those of the encoder's features as `encoder_NAME`."""
        if self.rank or not self.run.metrics:
            return {}
        epoch = self.step // self.steps_per_epoch
        source = self.split.train if self.run.metrics_on == "train" else self.split.held_out
        try:
            return self.model.measure_outputs(source, Measures(self.run.metrics))
        except ValueError as error:
            self.say(f"no metrics after epoch {epoch}: {error}")
            return {}

    def must_stop(self) -> bool:
        """Return whether a signal came, to this process or to another one of the run's."""
        self.requests.listen_again()
        return any_requested(self.requests, self.device, self.world_size)

    def _stop(self) -> NoReturn:
        """Save what is not saved yet, and end."""
        if self.step != self.saved_step:
            self._save()
        number = self.requests[0]
        raise Stopped(
            f"stopped by signal {number} after step {self.step}; run the same command again to resume", number
        )

    def _checkpoint_is_due(self) -> bool:
        """Return whether it is time for a checkpoint: all of them together take a hundredth of the time at most."""
        return time.perf_counter() - self.saved_at > 100 * self.saving_seconds

    def _save(self) -> None:
        if self.rank:
            return
        start = time.perf_counter()
        # Rank 0 alone writes: parameters and buffers are equal on all processes.
        tensors = collect(self.saved_state, self.context.optimiser) | self._other_tensors(self.step)
        record = None if self.step % self.steps_per_epoch else self.record
        checkpoint.save(self.folder / "checkpoints", checkpoint.Checkpoint(self.step, tensors, record))
        self.saved_at, self.saved_step = time.perf_counter(), self.step
        self.saving_seconds = self.saved_at - start

    def _other_tensors(self, step: int) -> dict[str, torch.Tensor]:
        """Return what a checkpoint of a step holds beside the state: the gradients' scale, and the part of an epoch."""
        scaler = self.context.scaler.state_dict()  # empty unless it is enabled
        tensors = {f"scaler.{name}": torch.tensor(scaler[name]) for name in ("scale", "_growth_tracker") if scaler}
        if step % self.steps_per_epoch:
            tensors["part"] = torch.tensor(self.partial_epoch, dtype=torch.float64)
        return tensors

    def load_latest(self) -> bool:
        """Load the newest checkpoint that verifies; return False if there is none."""
        saved = checkpoint.latest(self.folder / "checkpoints", self.say)
        if saved is None:
            return False
        check_same_data(self.split, replace(self.run, data=self.data_path), self.folder)
        try:
            if saved.step > self.total_steps:
                raise ValueError(f"the run has {self.total_steps} steps")
            restore(self.saved_state, self.context.optimiser, saved.tensors, self._other_tensors(saved.step))
        except ValueError as error:
            raise ValueError(
                f"out: the checkpoint of step {saved.step} in {self.folder} does not fit the run's settings: {error}; "
                "use another --out to start over"
            ) from error
        if "scaler.scale" in saved.tensors:
            scaler = self.context.scaler
            state = {name: saved.tensors[f"scaler.{name}"].item() for name in ("scale", "_growth_tracker")}
            scaler.load_state_dict(scaler.state_dict() | state)
        if "part" in saved.tensors:
            loss, seconds = saved.tensors["part"].tolist()
            self.partial_epoch = loss, seconds
        self.step = self.saved_step = saved.step
        self.record = None if saved.record is None else dict(saved.record)
        return True


def drain(work: Generator[None, None, T]) -> T:
    """Run all parts of a generator and return its value."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            value: T = end.value
            return value
