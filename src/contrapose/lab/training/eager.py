"""Eager training steps, for any device, any precision, several processes and streamed data.

On a GPU, views and encoders are compiled within these steps when the run is long enough for that to pay.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from itertools import islice
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from contrapose.lab.cuda.graphs import WARMUP_STEPS
from contrapose.lab.modalities.source import StagedReader
from contrapose.lab.training.compilation import LONG_EPOCH, Compilation
from contrapose.lab.training.context import Batch, OnStep, StepContext
from contrapose.lab.training.optimisers import gradient_norm, learning_rate, set_learning_rate
from contrapose.lab.training.stops import Diverged
from contrapose.reduce.hardware import unchanged_onednn
from contrapose.validate import NotFinite

_WINDOW = 20  # steps between decisions whether to compile, which all processes take together


class EagerSteps:
    """Trains a run's epochs eagerly, operation by operation.

    compiles   whether to compile views and encoders as soon as that pays; there must be no `compilation_obstacle`
    """

    def __init__(self, context: StepContext, *, compiles: bool = False) -> None:
        self.context, self.compilation = context, Compilation(context) if compiles else None
        self.views: Callable[..., list[Tensor]] | None = None  # compiled
        self.done = 0  # steps since the start or since the compilation

    def epoch(self, epoch: int, first: int, on_step: OnStep) -> Generator[None, None, list[float]]:
        """Take the epoch's steps from `first` on, until the epoch or a signal ends them, and return their losses."""
        context, losses, start = self.context, list[float](), time.perf_counter()
        batches = self.batches(epoch, first)
        timed: tuple[int, float] | None = None  # the first step that is timed, and when it began
        for step in range(first, context.steps_per_epoch):
            if (step - first) % _WINDOW == 0 and self._compile_if_it_pays(epoch, step, timed):
                batches, timed = self.batches(epoch, step), None
            if timed is None and self.done >= WARMUP_STEPS:
                timed = step, time.perf_counter()
            with unchanged_onednn():  # so that a resumed run computes its first step like an uninterrupted one
                losses.append(self.step(islice(batches, context.run.accumulate), epoch, step))
            self.done += 1
            on_step(step + 1, losses[-1], len(losses) / (time.perf_counter() - start))
            if context.must_stop():
                break
        if timed is not None and self.compilation is not None:
            self.compilation.measure(first + len(losses) - timed[0], time.perf_counter() - timed[1])
        yield from ()  # makes this a generator, as in `GraphedSteps`, although eager steps never yield
        return losses

    def compile(self) -> None:
        """Compile views and encoders; the next steps do it."""
        assert self.compilation is not None
        self.views, self.done = self.compilation.compile(), 0

    def _compile_if_it_pays(self, epoch: int, step: int, timed: tuple[int, float] | None) -> bool:
        """Compile before this step of the epoch if that pays, in all processes or in none; return whether it was done."""
        if self.compilation is None or self.compilation.is_compiled:
            return False
        if timed is not None and time.perf_counter() - timed[1] > LONG_EPOCH:
            self.compilation.measure(step - timed[0], time.perf_counter() - timed[1])
        pays = self.compilation.pays(epoch * self.context.steps_per_epoch + step)
        if pays:
            self.compile()
        return pays

    def batches(self, epoch: int, first: int) -> Iterator[Batch]:
        """Yield this process's part of each batch, from step `first` of the epoch on."""
        context, run = self.context, self.context.run
        count = context.steps_per_epoch * run.accumulate
        shares = context.order(epoch).view(count, context.world_size, -1)[first * run.accumulate :, context.rank]
        if self.views is None:
            yield from zip(shares, context.reader.train(shares.tolist(), seed=run.seed, epoch=epoch), strict=True)
            return
        # Compiled code is for tensors of one shape, and would be compiled again for each new number.
        seed, number = (torch.tensor(value, device=context.device) for value in (run.seed, epoch))
        for index, source in zip(shares, self._sources(shares, epoch), strict=True):
            yield index, self.views(source, index, seed=seed, epoch=number)

    def _sources(self, shares: Tensor, epoch: int) -> Iterator[Any]:
        """Yield what the views of each batch are made of, in tensors of one shape."""
        reader = self.context.reader
        if reader.resident is not None:
            yield from (reader.resident[index] for index in shares)
        else:
            assert isinstance(reader, StagedReader)
            yield from reader.stage(shares.tolist(), seed=self.context.run.seed, epoch=epoch)

    def step(self, batches: Iterable[Batch], epoch: int, step: int) -> float:
        """Take one step and return its loss: compute all batches' gradients, run the optimiser, update the other state."""
        context, run, scaler = self.context, self.context.run, self.context.scaler
        number = epoch * context.steps_per_epoch + step
        context.network.train()
        set_learning_rate(context.optimiser, learning_rate(run, number, context.steps_per_epoch))
        context.optimiser.zero_grad()
        value, samples = self._whole(batches) if run.grad_cache else self._separate(batches)
        self._average_criterion()
        scaler.unscale_(context.optimiser)  # clipping and the check below need the true gradient
        norm = gradient_norm(context.parameters(), run.grad_clip, each=run.grad_clip_each)
        # An infinite gradient is normal in fp16: the gradient scaler skips the step and lowers its scale.
        if not math.isfinite(value) or not (bool(norm.isfinite()) or scaler.is_enabled()):
            what = "loss" if not math.isfinite(value) else "gradient"
            raise Diverged(
                f"the {what} in step {number + 1} (epoch {epoch + 1}) is not finite; the weights are those before this step. "
                f"Its {run.kind.noun} are {samples} …"
            )
        scaler.step(context.optimiser)
        scaler.update()
        context.network.after_step()
        return value

    def _separate(self, batches: Iterable[Batch]) -> tuple[float, list[int]]:
        """Average the gradients of separately contrasted batches; return the mean loss and some sample indices per batch."""
        context, value, samples = self.context, 0.0, list[int]()
        for index, views in batches:
            samples += index[:16].tolist()
            try:
                loss = context.loss(views, index) / context.run.accumulate
            except NotFinite:
                return math.nan, samples
            context.scaler.scale(loss).backward()
            # Only after the backward pass, which still reads the queue or bank.
            context.network.update(context.latest)
            value += float(loss.detach())  # waits for the device; a graphed step does not
        return value, samples

    def _whole(self, batches: Iterable[Batch]) -> tuple[float, list[int]]:
        """Compute the gradient over all batches, contrasted with each other; return the loss and some samples per batch."""
        context, step = self.context, list(batches)
        samples = [number for index, _ in step for number in index[:16].tolist()]
        try:
            loss = context.whole_loss(step)
        except NotFinite:
            return math.nan, samples
        context.scaler.scale(loss).backward()
        context.network.update(context.latest)
        return float(loss.detach()), samples

    def _average_criterion(self) -> None:
        """Average a learned temperature's gradient over processes, as DistributedDataParallel does for the network."""
        if self.context.world_size > 1:
            for parameter in self.context.criterion.parameters():
                if parameter.grad is not None:
                    dist.all_reduce(parameter.grad)
                    parameter.grad /= self.context.world_size
