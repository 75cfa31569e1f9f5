"""The whole training step as one CUDA graph, with no synchronisation within an epoch.

Gather, augmentation, encoder, loss, backward pass, optimiser, queue, bank and momentum encoder are captured once and
replayed. Values that change between steps (position in the epoch, learning rate) or between epochs (order, augmentation, a
scheduled temperature) are stored in tensors. The views of the next batch are made while the current batch is trained on. Data
that is not on the GPU is copied to fixed addresses there before each step. Training starts at once; if the run is long enough,
augmentation and encoders are compiled later. The first steps run eagerly, to set up autograd, cuDNN and the compiler; they are
real training steps.
"""

from __future__ import annotations

import gc
import time
from collections import deque
from collections.abc import Callable, Generator
from importlib.util import find_spec
from itertools import repeat

import torch
from torch import Tensor

from contrapose.lab.cuda.graphs import WARMUP_STEPS, GraphedStep
from contrapose.lab.cuda.streams import side_stream
from contrapose.lab.modalities.source import StagedReader
from contrapose.lab.optim import LARS
from contrapose.lab.training.compilation import LONG_EPOCH, Compilation, view_function
from contrapose.lab.training.context import OnStep, StepContext
from contrapose.lab.training.optimisers import gradient_norm, learning_rate, set_learning_rate
from contrapose.lab.training.stops import Diverged

# Number of steps queued before another run gets its turn; the GPU runs the steps in this order and overlaps adjacent steps. The
# step is captured in the first turn, since another run may reset the compiled code (the views are then compiled once more, for
# the first batch of an epoch).
_TURN = max(4, WARMUP_STEPS)
_WINDOW = (
    5 * _TURN
)  # steps between checks of the loss; the loss is one window old, so that the host never waits for the GPU


def graph_obstacle(context: StepContext) -> str:
    """Return why this run cannot be captured in a CUDA graph; empty if it can."""
    if context.device.type != "cuda":
        return "there is no GPU"
    if context.run.grad_cache:
        return "with --grad-cache, the batches of a step are encoded twice"
    if context.recomputes:
        return "with --recompute, the backward pass draws random numbers again"
    if context.world_size > 1:
        return f"{context.world_size} processes exchange embeddings within a step"
    if context.reader.resident is None and not isinstance(context.reader, StagedReader):
        return "samples are neither on the GPU nor loaded in batches of one shape"
    if context.scaler.is_enabled():
        return "fp16 loss scaling checks gradients on the host (--precision bf16 does not)"
    if not context.criterion.traits.can_capture:
        return "the loss computes eigenvectors, which waits for the GPU"
    if not context.criterion.can_capture:
        return "the loss has a scheduled setting that cannot be captured"
    return "" if find_spec("triton") is not None else "the compiler needs Triton"


class TensorStep:
    """One training step that uses only device tensors: it reads nothing from the host and returns nothing to it."""

    def __init__(self, context: StepContext, views: Callable[..., list[Tensor]]) -> None:
        self.context, self.views = context, views
        run, device, steps = context.run, context.device, context.steps_per_epoch
        self.order = torch.zeros((steps * run.accumulate, run.batch), dtype=torch.long, device=device)
        self.rates, self.losses, self.norms = (torch.zeros(steps, device=device) for _ in range(3))
        self.place, self.epoch = (torch.zeros((), dtype=torch.long, device=device) for _ in range(2))
        self.rate, self.failed = (torch.zeros((), device=device) for _ in range(2))
        self.seed = torch.tensor(run.seed, device=device)
        self.ready: list[Tensor] = []  # the views of the next batch
        # What each of the next batches is made of, if samples are not on the GPU
        self.staged: list[list[Tensor]] = [[] for _ in range(run.accumulate)]
        self.coming: Generator[list[Tensor], None, None] = _nothing()
        for (
            group
        ) in context.optimiser.param_groups:  # a tensor even if constant, because LARS masks a failed step only then
            group["lr"] = torch.full((), group["lr"], device=device)
        set_learning_rate(context.optimiser, self.rate)
        if context.optimiser.defaults.get("fused") or isinstance(context.optimiser, LARS):
            context.optimiser.found_inf = self.failed  # type: ignore[attr-defined]  # once it is 1, they do nothing
        context.criterion.hold_schedules(device)

    def begin(self, epoch: int, first: int) -> None:
        """Set the values that change between epochs; the next step is step `first` of the epoch."""
        context, run, steps = self.context, self.context.run, self.context.steps_per_epoch
        self.order.copy_(context.order(epoch).view_as(self.order))
        rates = [learning_rate(run, epoch * steps + place, steps) for place in range(steps)]
        self.rates.copy_(torch.tensor(rates))
        self.place.fill_(first)
        self.epoch.fill_(epoch)
        context.criterion.refresh_schedules()
        context.network.train()
        if self.is_staged:
            assert isinstance(context.reader, StagedReader)
            batches = self.order[first * run.accumulate :].tolist()
            self.coming = context.reader.stage(batches, seed=run.seed, epoch=epoch)
            staged = next(self.coming)
            self.staged = [_keep(own, staged) for own in self.staged]
        self.ready = _keep(self.ready, self._views(self._batch(0), 0))

    @property
    def is_staged(self) -> bool:
        """Whether samples are copied to the GPU batch by batch."""
        return self.context.reader.resident is None

    def stage(self) -> None:
        """Copy what the next batches are made of to the addresses from which a captured step reads it.

        After the last batch of an epoch, what is there stays, and the views that a step makes of it are not used.
        """
        for staged, coming in zip(self.staged, self.coming, strict=False):
            _keep(staged, coming)

    def _batch(self, ahead: int) -> Tensor:
        """Return the sample indices of the batch `ahead` batches after the one at `place`; past the end, the last batch's."""
        number = self.place * self.context.run.accumulate + ahead
        return self.order.index_select(0, number.clamp(max=len(self.order) - 1).view(1))[0]

    def _views(self, index: Tensor, number: int) -> list[Tensor]:
        """Return the views of these samples, of which `staged[number]` has the data if they are not on the GPU."""
        raw = self.context.reader.resident
        source = self.staged[number] if raw is None else raw[index]
        return self.views(source, index, seed=self.seed, epoch=self.epoch)

    def __call__(self) -> None:
        """Take the step at `place` and advance. While a batch is trained on, the next batch's views are made."""
        context, run = self.context, self.context.run
        self.rate.copy_(self.rates.index_select(0, self.place.view(1))[0])
        context.optimiser.zero_grad(set_to_none=True)
        values = []
        for number in range(run.accumulate):
            with side_stream(context.device) as join:
                coming = self._views(self._batch(number + 1), number)
            loss = context.loss(self.ready, self._batch(number))
            loss = loss / run.accumulate if run.accumulate > 1 else loss
            loss.backward()
            context.network.update(context.latest)
            join()
            _keep(self.ready, coming)
            values.append(loss.detach())
        value = sum(values[1:], values[0])
        norm = gradient_norm(context.parameters(), run.grad_clip, each=run.grad_clip_each)
        both = value + norm
        torch.maximum(self.failed, (both - both != 0).float(), out=self.failed)  # stays 1 from then on
        context.optimiser.step()
        context.network.after_step()
        self.losses.index_copy_(0, self.place.view(1), value.view(1))
        self.norms.index_copy_(0, self.place.view(1), norm.view(1))
        self.place += 1

    def failed_at(self) -> int:
        """Return the first step in the epoch whose loss or gradient was not finite; -1 if there is none."""
        bad = (~(self.losses.isfinite() & self.norms.isfinite())).nonzero()
        return int(bad[0]) if len(bad) else -1


class GraphedSteps:
    """Trains a run's epochs by replaying one CUDA graph for each step."""

    def __init__(self, context: StepContext) -> None:
        _free_graphs()
        self.context = context
        self.step, self.compilation = TensorStep(context, view_function(context)), Compilation(context)
        if not torch.are_deterministic_algorithms_enabled():
            torch.backends.cudnn.benchmark = True
        self.one = GraphedStep(self.step, context.device, context.log)

    def compile(self) -> None:
        """Compile augmentation and encoders; the next steps do it, and are captured again."""
        self.step.views = self.compilation.compile()
        # The same stream is used again, because autograd's nodes for the parameters may still belong to it.
        self.one.discard()
        self.context.latest = None  # its autograd graph has memory of the discarded CUDA graph
        _free_graphs()

    def _compile_if_it_pays(self, step: int) -> None:
        """Compile if the run's steps from `step` on are expected to become shorter by more than the compilation takes."""
        if self.compilation.pays(step):
            self.compile()

    def epoch(self, epoch: int, first: int, on_step: OnStep) -> Generator[None, None, list[float]]:
        """Take the epoch's steps from `first` on, until the epoch or a signal ends them, and return their losses.

        The generator yields whenever enough work is queued on the GPU, so that another run can queue its own steps.
        """
        self.begin(epoch, first)
        start, recent_loss, stop = time.perf_counter(), _DelayedLoss(self.step.losses), self.context.steps_per_epoch
        measured: tuple[int, float] | None = None  # the first step after the capture, and when it began
        begun = deque[torch.cuda.Event]()
        try:
            for place in range(first, stop):
                if measured is None and self.one.graph is not None:
                    measured = place, time.perf_counter()
                if self.step.is_staged:
                    self._stage(begun)
                self.one()
                window = (place + 1 - first) % _WINDOW == 0
                if (window or self.one.graph is None) and self.context.must_stop():
                    stop = place + 1
                    break
                if window:
                    with torch.cuda.stream(self.one.stream):
                        recent = recent_loss.look(place)
                    if recent is not None:
                        on_step(place + 1, recent, (place + 1 - first) / (time.perf_counter() - start))
                    if measured is not None and time.perf_counter() - measured[1] > LONG_EPOCH:
                        self.compilation.measure(place + 1 - measured[0], time.perf_counter() - measured[1])
                        measured = None
                        self._compile_if_it_pays(epoch * self.context.steps_per_epoch + place + 1)
                if (place + 1 - first) % _TURN == 0:
                    yield
            yield from repeat(None, _WINDOW // _TURN)  # lets other runs queue steps before this run waits
        finally:
            self.step.coming.close()
            self.one.stream.synchronize()  # even if the run ends here, since other runs reuse its memory
        if measured is not None and stop > measured[0]:
            self.compilation.measure(stop - measured[0], time.perf_counter() - measured[1])
        failed = self.step.failed_at()
        if failed >= 0:
            step = epoch * self.context.steps_per_epoch + failed + 1
            raise Diverged(
                f"the loss or gradient in step {step} (epoch {epoch + 1}) is not finite; the weights are those before this step"
            )
        losses: list[float] = self.step.losses[first:stop].tolist()
        on_step(stop, losses[-1], len(losses) / (time.perf_counter() - start))
        return losses

    def _stage(self, begun: deque[torch.cuda.Event]) -> None:
        """Copy the next batches to the GPU, at most two steps ahead of it, since each batch needs memory there."""
        with torch.cuda.stream(self.one.stream):
            if len(begun) == 2:
                begun.popleft().synchronize()
            self.step.stage()
            begun.append(torch.cuda.Event())
            begun[-1].record()

    def begin(self, epoch: int, first: int) -> None:
        """Prepare step `first` of the epoch."""
        self._compile_if_it_pays(epoch * self.context.steps_per_epoch + first)
        self.step.begin(epoch, first)
        self.one.stream.wait_stream(torch.cuda.current_stream(self.context.device))


def _free_graphs() -> None:
    """Free the memory of graphs that are no longer used, which is as large as that of a step."""
    gc.collect()
    torch.cuda.empty_cache()


def _nothing() -> Generator[list[Tensor], None, None]:
    yield from ()


def _keep(kept: list[Tensor], tensors: list[Tensor]) -> list[Tensor]:
    """Copy tensors to the addresses of `kept`, or to new ones if it is empty, and return them."""
    kept = kept or [torch.empty_like(tensor) for tensor in tensors]
    for own, tensor in zip(kept, tensors, strict=True):
        own.copy_(tensor)
    return kept


class _DelayedLoss:
    """Reads a loss one window after it was requested, when the GPU has already computed it."""

    def __init__(self, losses: Tensor) -> None:
        self.losses = losses
        self.asked: tuple[Tensor, torch.cuda.Event] | None = None

    def look(self, place: int) -> float | None:
        """Return the loss requested by the previous call, and request the loss at `place`."""
        before = self.asked
        host, event = torch.empty((), pin_memory=True), torch.cuda.Event()
        host.copy_(self.losses[place], non_blocking=True)
        event.record()
        self.asked = host, event
        if before is None:
            return None
        before[1].synchronize()
        return float(before[0])
