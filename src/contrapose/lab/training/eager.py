"""Eager training steps, for any device, any precision, several processes and streamed data."""

from __future__ import annotations

import math
import time
from collections.abc import Generator, Iterable, Iterator
from itertools import islice

import torch.distributed as dist

from contrapose.lab.training.context import Batch, OnStep, StepContext
from contrapose.lab.training.optimisers import gradient_norm, learning_rate, set_learning_rate
from contrapose.lab.training.stops import Diverged
from contrapose.reduce.hardware import unchanged_onednn
from contrapose.validate import NotFinite


class EagerSteps:
    """Trains a run's epochs eagerly, operation by operation."""

    def __init__(self, context: StepContext) -> None:
        self.context = context

    def epoch(self, epoch: int, first: int, on_step: OnStep) -> Generator[None, None, list[float]]:
        """Take the epoch's steps from `first` on, until the epoch or a signal ends them, and return their losses."""
        context, losses, start = self.context, list[float](), time.perf_counter()
        batches = self.batches(epoch, first)
        for step in range(first, context.steps_per_epoch):
            with unchanged_onednn():  # so that a resumed run computes its first step like an uninterrupted one
                losses.append(self.step(islice(batches, context.run.accumulate), epoch, step))
            on_step(step + 1, losses[-1], len(losses) / (time.perf_counter() - start))
            if context.must_stop():
                break
        yield from ()  # makes this a generator, as in `GraphedSteps`, although eager steps never yield
        return losses

    def batches(self, epoch: int, first: int) -> Iterator[Batch]:
        """Yield this process's part of each batch, from step `first` of the epoch on."""
        context, run = self.context, self.context.run
        count = context.steps_per_epoch * run.accumulate
        shares = context.order(epoch).view(count, context.world_size, -1)[first * run.accumulate :, context.rank]
        yield from zip(shares, context.reader.train(shares.tolist(), seed=run.seed, epoch=epoch), strict=True)

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
