"""The trainer: order, steps, records and checkpoints of one run."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import torch
from torch import nn

from contrapose.lab.devices import own_device
from contrapose.lab.frameworks import Embed
from contrapose.lab.modalities.source import ProcessReader
from contrapose.lab.networks.recompute import recompute_blocks
from contrapose.lab.training.build import build, build_loss, prepare
from contrapose.lab.training.checkpoints import checkpoint
from contrapose.lab.training.checkpoints.kept import KeptWeights, lost_weights
from contrapose.lab.training.checkpoints.saving import PartialEpoch, SavedTraining
from contrapose.lab.training.checks.samples import check_samples
from contrapose.lab.training.collapse import follow_collapse, records_to_follow
from contrapose.lab.training.context import StepContext
from contrapose.lab.training.continuation import claim_directory, continued_run, record_extension, recorded_run
from contrapose.lab.training.defaults import resolve
from contrapose.lab.training.eager import EagerSteps
from contrapose.lab.training.epoch_evaluation import EpochEvaluation
from contrapose.lab.training.findings import RunDoctor
from contrapose.lab.training.graphed import GraphedSteps
from contrapose.lab.training.heartbeat import rank_failures
from contrapose.lab.training.model import Model, model_of
from contrapose.lab.training.optimisers import optimiser
from contrapose.lab.training.precision import log_slow_precision
from contrapose.lab.training.processes import any_requested, check_world_size, distributed, join_process_group
from contrapose.lab.training.progress import Progress
from contrapose.lab.training.records.files import environment, read_records, write_json_atomically
from contrapose.lab.training.records.recorder import Recorder
from contrapose.lab.training.run import Run
from contrapose.lab.training.shards import check_shard, decision_of_first
from contrapose.lab.training.solved import SolvedWatch
from contrapose.lab.training.sources import check_init, check_same_data, describe_data, find_file
from contrapose.lab.training.steps import choose_steps
from contrapose.lab.training.stops import Solved, Stopped, StopRequests, signals
from contrapose.lab.training.threads import choose_threads, fixed_threads, with_fixed_threads
from contrapose.lab.workers import TIMEOUT, worker_failures
from contrapose.validate import check_directory

T = TypeVar("T")


@dataclass
class Trainer:
    """Trains a run in a directory, from the start or from the run's newest checkpoint."""

    run: Run  # what to train
    folder: Path  # directory of its settings, records and checkpoints
    on_step: Callable[[Progress], None] = lambda progress: None  # called after each step
    log: Callable[[str], None] = print  # called with each message
    data_root: Path | None = None  # directory of downloaded data sets; None: data
    workers: int = 0  # processes that decode images of a streamed folder
    worker_timeout: float = TIMEOUT  # seconds without a worker's batch or a rank's sign of life before the run fails
    device: torch.device = field(default_factory=own_device)  # default: a GPU if there is one, else the CPU
    fast: bool = True  # on a GPU, capture the whole step in one CUDA graph if possible
    on_evaluation: Callable[[], None] = lambda: None  # called before each evaluation, which may take a long time
    concurrent_runs: int = 0  # number of other runs on the device at the same time, recorded together with the seconds
    stop_if_solved: bool = False  # whether to stop, not only to log a message, if the first steps solve the task
    extend: bool = False  # whether to continue a run in the directory that was started with fewer epochs
    sinks: tuple[str, ...] = ()  # what shows the records beside TensorBoard: wandb, trackio
    shard: bool = False  # with several processes, whether to divide the network's parameters among them (FSDP2)
    recompute: bool = False  # whether to compute activations again in the backward pass, instead of keeping them

    def __post_init__(self) -> None:
        self.rank, self.world_size = join_process_group(self.folder, timeout=self.worker_timeout)
        self.stop_if_solved &= self.world_size == 1  # several processes would have to agree to stop
        self.run = resolve(
            self.run,
            self.device,
            log=self.log if self.rank == 0 else lambda text: None,
            folder=self.folder,
            world_size=self.world_size,
        )
        self._check_settings()
        requested = self.run
        self.data_path = requested.data  # run.json keeps the path with which the run was started
        self._continue_run()
        self.threads = choose_threads(self.folder, self.run.threads, self.world_size)
        log_slow_precision(self.device, self.run.precision, self.log)
        # A resumed run keeps its tokenizer, because its weights belong to the tokens of that tokenizer.
        self.split = prepare(requested, self.data_root, folder=self.folder if self.recorded is not None else None)
        if requested.data != self.run.data:
            check_same_data(self.split, requested, self.folder)
        check_samples(self.run, self.split)
        with fixed_threads(self.threads):
            self.context = self._build()
        self.saved, self.kept = SavedTraining(self.folder, self.context), KeptWeights(self.folder, self.context)
        self.recorder = Recorder(self.folder, self.sinks, self.log)
        self.evaluation = EpochEvaluation(run=self.run, model=self.model, split=self.split, log=self.log)
        self.doctor = RunDoctor(self.context, self.log)
        # Nothing is written before this point, so that a run with bad settings leaves no directory behind.
        if self.rank == 0 and self.recorded is None:
            claim_directory(self.folder, self.run, environment(self.device) | {"threads": self.threads})
        self.steps: EagerSteps | GraphedSteps = EagerSteps(self.context)
        self.requests = StopRequests()  # replaced when training starts: several runs may share one list
        self.step = 0
        self.solved = SolvedWatch(self.run, steps_per_epoch=self.steps_per_epoch)
        self.evaluation_seconds = math.inf  # seconds of the last evaluation; the first one may take a long time
        self.partial_epoch: PartialEpoch = (0.0, 0.0)
        self.record: dict[str, Any] | None = None  # record of the last epoch
        self.earlier: list[Mapping[str, Any]] = []  # earlier records that are still needed, to follow a collapse

    def _check_settings(self) -> None:
        run = self.run
        check_world_size(run, self.world_size)
        check_directory("out", self.folder)
        check_init(run, self.folder)
        if self.shard:
            check_shard(run)
        if self.shard and self.world_size == 1:
            self.log("shard: one process has nothing to divide; start several with torchrun")
            self.shard = False

    def _continue_run(self) -> None:
        """Continue the run in the directory, if there is one; raise ValueError if it is a different run."""
        self.recorded = recorded_run(self.folder)
        if self.recorded is not None:
            self.run = continued_run(self.run, self.recorded, self.folder, extend=self.extend)

    def _build(self) -> StepContext:
        """Build the networks, the loss and the optimiser."""
        run, samples = self.run, len(self.split.train)
        labels, ids = self.split.train.labels, self.split.train.ids
        # Initial weights are drawn on the CPU, so that a seed gives the same weights on any device.
        network = build(replace(run, init=find_file(run.init, self.folder)), samples).to(self.device)
        run.kind.prepare(network)
        if self.recompute:
            count = recompute_blocks(network.encoder)
            self.log(f"recompute: {count} blocks of the encoder compute their activations again in the backward pass")
        learner: nn.Module = Embed(network) if run.grad_cache else network
        if self.world_size > 1:
            learner = distributed(network, learner, self.device, divided=self.shard)
        else:
            network.join_views()
        criterion = build_loss(run, samples).to(self.device)
        self.model: Model = model_of(run, network, self.device, folder=self.folder)
        self.model.use_workers(self.workers, timeout=self.worker_timeout)
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
            steps_per_epoch=samples // (run.batch * run.accumulate * run.epoch_slices),
            rank=self.rank,
            world_size=self.world_size,
            is_sharded=self.shard,
            recomputes=self.recompute,
            log=self.log,
            must_stop=self.must_stop,
        )

    @property
    def saved_state(self) -> nn.ModuleDict:
        """Everything in a checkpoint except the optimiser state, keyed by its name in the checkpoint."""
        return self.saved.state

    @property
    def steps_per_epoch(self) -> int:
        """Number of optimiser steps per epoch."""
        return self.context.steps_per_epoch

    @property
    def total_steps(self) -> int:
        """Number of optimiser steps in the whole run."""
        return self.run.epochs * self.steps_per_epoch

    @property
    def complete(self) -> bool:
        """Whether the last step is done."""
        return self.step == self.total_steps

    def train(self) -> dict[str, float]:
        """Train to the end, from the newest checkpoint if there is one, and return the final scores."""
        with worker_failures(), rank_failures(), signals() as requests:
            return drain(self.training(requests))

    def training(self, requests: StopRequests) -> Generator[None, None, dict[str, float]]:
        """Train as a generator: yield after each epoch and, with a CUDA graph, whenever enough work is queued on the GPU.

        This lets several runs take turns. `requests` collects the signals that request a stop.
        """
        self.requests = requests
        try:
            return (yield from with_fixed_threads(self._training(), self.threads))
        finally:
            self.recorder.close()
            if isinstance(self.context.reader, ProcessReader):
                self.context.reader.close()

    def _training(self) -> Generator[None, None, dict[str, float]]:
        self._resume()
        self._choose_steps()
        network, criterion, scores = self.context.network, self.context.criterion, dict[str, float]()
        while not self.complete:
            if self.must_stop():  # a signal arrived during the turn of another run
                self._stop()
            epoch = self.step // self.steps_per_epoch
            criterion.epoch = epoch + 1
            network.begin_epoch(epoch, step=self.step, steps=self.total_steps)
            loss, seconds = yield from self._epoch(epoch)
            record: dict[str, Any] = {"epoch": epoch + 1, "step": self.step, "loss": loss, "seconds": seconds}
            record |= {"beside": self.concurrent_runs} if self.concurrent_runs else {}
            is_time, due = self.evaluation.due(epoch + 1)
            if self.rank == 0:
                record |= self.context.batch_metrics()
                record |= self.doctor.look_after(epoch + 1, self.step, evaluated=is_time)
            self.record = record
            self.kept.after_epoch(epoch + 1, self.step)
            # The checkpoint is saved before the evaluation and includes the record, so that after a signal or a kill only the
            # evaluation is repeated.
            expected = self.evaluation_seconds if is_time or due else 0.0
            if self.complete or self.saved.is_due(evaluation_seconds=expected):
                self._save()
            scores = self._evaluate_and_append(record)
            if self.must_stop():
                self._stop()
            yield
        with self._stops_immediately():
            return scores or self.evaluate()

    @contextmanager
    def _stops_immediately(self) -> Iterator[None]:
        """Let a signal end the run immediately within this block, which changes no weights.

        With several processes, the run ends only after the block: if a single process ended, the others would wait for it.
        """
        with nullcontext() if self.world_size > 1 else self.requests.immediate():
            yield

    def _evaluate_and_append(self, record: dict[str, Any]) -> dict[str, float]:
        """Evaluate if an evaluation is due, append the epoch's record, and return the scores."""
        scores, (is_time, due) = dict[str, float](), self.evaluation.due(record["epoch"])
        start = time.perf_counter()
        if is_time or due:
            try:
                with self._stops_immediately():
                    if self.rank == 0:
                        self.on_evaluation()
                    if is_time:
                        scores = self.evaluate()
                        record |= scores | self._measures()
                    # Measured in all processes: a probe on rank 0 only could exceed the time that the other processes wait in
                    # their next collective.
                    for measure in due:
                        record |= self.evaluation.take(measure, self.step)
            except Stopped:
                self._stop()  # the weights are already saved; the message names their step
            self.evaluation_seconds = time.perf_counter() - start
        self.kept.after_evaluation(record, complete=self.complete)
        if self.rank == 0:
            message = follow_collapse(record, self.earlier, self.run, evaluated=is_time)
            if message:
                self.log(message)
            self.recorder.append(record)
            self.earlier = records_to_follow(self.earlier, record)
        return scores

    def _resume(self) -> None:
        """Load the newest checkpoint, if there is one, and make the records agree with it."""
        resumed = self.load_latest()
        self.solved.is_watching = not resumed  # a run that is continued after a stop does not stop again
        is_missing = self.rank == 0 and self._resume_records(resumed)
        if self.shard:  # an evaluation needs all processes
            is_missing = decision_of_first(is_missing, self.device)
        if is_missing and self.record is not None:
            self._evaluate_and_append(self.record)

    def _resume_records(self, resumed: bool) -> bool:
        """Make the records agree with the checkpoint; return whether the last epoch's record is missing."""
        for name in ("checkpoints", "kept"):  # partial files; a finished run writes no further checkpoint
            checkpoint.remove_unfinished(self.folder / name)
        if resumed:
            checkpoint.remove_older(self.folder / "checkpoints", self.step)
        self.run.kind.keep(self.folder, self.context.network.encoder, self.split, self.context.views)
        write_json_atomically(self.folder / "data.json", describe_data(self.split, self.data_path))
        if self.recorded is not None and self.recorded.epochs != self.run.epochs:
            self.log(record_extension(self.recorded, self.run, self.folder, self.step, self.steps_per_epoch))
            self.recorded = self.run
        elif resumed:
            self.log(f"finished at step {self.step}" if self.complete else f"resuming after step {self.step}")
        passed = [epoch for epoch in self.run.keep if epoch * self.steps_per_epoch <= self.step]
        for message in lost_weights(self.folder, passed):
            self.log(message)
        steps = self.recorder.resume(self.run, self.step)
        self.earlier = []
        records = read_records(self.folder)
        for record in records:
            self.earlier = records_to_follow(self.earlier, record)
        unwritten = [] if self.record is None or self.step in steps else [self.record]  # killed after the checkpoint
        self.doctor.resume([*records, *unwritten])
        return bool(unwritten)

    def _choose_steps(self) -> None:
        """On a GPU, take the fastest steps that are possible."""
        if self.device.type != "cuda" or not self.fast:
            return
        self.steps = choose_steps(self.context)
        # Networks are compiled for the batch size of training; evaluation must not compile them again for its own.
        self.model.evaluate_in(lambda: torch.compiler.set_stance("force_eager"))

    def _epoch(self, epoch: int) -> Generator[None, None, tuple[float, float]]:
        """Take the remaining steps of an epoch; return the epoch's mean loss and duration in seconds."""
        first, start = self.step % self.steps_per_epoch, time.perf_counter()
        total, before = self.partial_epoch if first else (0.0, 0.0)
        begun, images = self.step - first, self.run.batch * self.run.accumulate

        def on_step(step: int, loss: float, rate: float) -> None:
            if self.solved.add(begun + step, loss) and not self.stop_if_solved and self.rank == 0:
                self.log(self.solved.describe(begun + step, self.split.train))
            if self.rank == 0:
                self.on_step(Progress(epoch + 1, begun + step, self.total_steps, loss, rate * images))

        for loss in (yield from self.steps.epoch(epoch, first, on_step)):
            total += loss  # one by one, so that a resumed epoch has the same mean to the last digit
            self.step += 1
        seconds = before + time.perf_counter() - start
        if self.step % self.steps_per_epoch:  # interrupted; a complete epoch is recorded first
            self.partial_epoch = total, seconds
            self._stop()
        return total / self.steps_per_epoch, seconds

    def evaluate(self) -> dict[str, float]:
        """Return the kNN accuracy of the encoder's features, if there are labels."""
        return self.evaluation.scores(self.step // self.steps_per_epoch)

    def _measures(self) -> dict[str, float]:
        """Return metrics of the current outputs; only rank 0 needs them, but with a divided network all must compute them."""
        return {} if self.rank and not self.shard else self.evaluation.metrics(self.step // self.steps_per_epoch)

    def must_stop(self) -> bool:
        """Return whether any process of the run has received a signal, or the task is solved and the run is to stop then."""
        self.requests.listen_again()
        solved = self.stop_if_solved and self.solved.is_solved and not self.complete
        return any_requested(self.requests, self.device, self.world_size) or solved

    def _stop(self) -> NoReturn:
        """Save a checkpoint if the current step is not saved yet, and raise `Stopped`."""
        if self.step != self.saved.step:
            self._save()
        if not self.requests:
            found = self.solved.describe(self.step, self.split.train)
            raise Solved(f"{found}; or run the same command again to continue nevertheless")
        number = self.requests[0]
        raise Stopped(
            f"stopped by signal {number} after step {self.step}; run the same command again to resume", number
        )

    def _save(self) -> None:
        self.saved.save(self.step, partial_epoch=self.partial_epoch, record=self.record)

    def load_latest(self) -> bool:
        """Load the newest checkpoint that passes verification; return False if there is none."""
        saved = self.saved.newest()
        if saved is None:
            return False
        check_same_data(self.split, replace(self.run, data=self.data_path), self.folder)
        try:
            self.partial_epoch = self.saved.restore(saved)
        except ValueError as error:
            raise ValueError(
                f"out: the checkpoint of step {saved.step} in {self.folder} does not fit the run's settings: {error}; "
                "use another --out to start over"
            ) from error
        self.step = saved.step
        self.record = None if saved.record is None else dict(saved.record)
        return True


def drain(work: Generator[None, None, T]) -> T:
    """Run a generator to its end and return its value."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            value: T = end.value
            return value
