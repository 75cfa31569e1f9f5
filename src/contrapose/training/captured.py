"""The whole training step as one CUDA graph: images and their order on the GPU, nothing read back until an epoch is over.

Gather, augmentation, encoder, pairs, objective, backward pass, optimiser, queue, bank and momentum encoder are recorded once
and replayed. What changes from step to step (place in the epoch, learning rate) and from epoch to epoch (order, augmentation,
a temperature's schedule) is in tensors. A batch's views are made while the one before it is learned from. Augmentation and
encoders are compiled. The first steps are the same function, run as it is: it is they that make autograd, cuDNN and the
compiler ready, and they count.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Generator, Sequence
from functools import lru_cache
from importlib.util import find_spec
from itertools import repeat
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from contrapose.cuda.graphs import WARMUP_STEPS, GraphedStep
from contrapose.cuda.streams import side_stream
from contrapose.modalities.images.images import Images
from contrapose.optim.lars import LARS
from contrapose.randomness import permutation
from contrapose.training.optimisers import gradient_norm, learning_rate
from contrapose.training.stops import Diverged

if TYPE_CHECKING:
    from contrapose.training.loop import Trainer

# Steps queued before another run has its turn: a GPU takes them in this order, and overlaps neighbours. In the first turn the
# step is recorded, since the other run may undo what is compiled for this one (views are then compiled once more, for the first
# batch of an epoch).
_TURN = max(4, WARMUP_STEPS)
_WINDOW = 5 * _TURN  # steps between looks at the loss: it is of one window ago, so that nobody waits


def why_not(trainer: Trainer) -> str:
    """What stands in the way of a graph; nothing, where it can be had."""
    if trainer.device.type != "cuda":
        return "there is no GPU"
    if trainer.world > 1:
        return f"{trainer.world} processes exchange embeddings within a step"
    if not isinstance(trainer.split.train, Images):
        return "images are streamed from disk"
    if trainer.scaler.is_enabled():
        return "fp16 looks at its gradients on the way; bf16 does not"
    if not trainer.criterion.can_capture:
        return "the loss has a schedule for something else than a temperature"
    return "" if find_spec("triton") is not None else "the compiler needs Triton"


class Step:
    """One step as a function of tensors alone: it takes nothing from the host and gives nothing back."""

    def __init__(self, trainer: Trainer, views: Callable[..., list[Tensor]]) -> None:
        self.trainer, self.views = trainer, views
        run, device, steps = trainer.run, trainer.device, trainer.steps_per_epoch
        self.order = torch.zeros((steps * run.accumulate, run.batch), dtype=torch.long, device=device)
        self.rates, self.losses, self.norms = (torch.zeros(steps, device=device) for _ in range(3))
        self.place, self.epoch = (torch.zeros((), dtype=torch.long, device=device) for _ in range(2))
        self.rate, self.failed = (torch.zeros((), device=device) for _ in range(2))
        self.seed = torch.tensor(run.seed, device=device)
        self.seen: list[Tensor] = []  # the views of the batch that is next
        for group in trainer.optimiser.param_groups:
            group["lr"] = self.rate
        if trainer.optimiser.defaults.get("fused") or isinstance(trainer.optimiser, LARS):
            trainer.optimiser.found_inf = self.failed  # type: ignore[attr-defined]  # once it is 1, they do nothing
        trainer.criterion.hold_schedules(device)

    def begin(self, epoch: int, first: int) -> None:
        """What is different in each epoch; the next step is the epoch's `first`."""
        trainer, run, steps = self.trainer, self.trainer.run, self.trainer.steps_per_epoch
        order = permutation(len(trainer.split.train), run.seed, epoch, device=trainer.device)
        self.order.copy_(order[: self.order.numel()].view_as(self.order))
        rates = [learning_rate(run, epoch * steps + place, steps) for place in range(steps)]
        self.rates.copy_(torch.tensor(rates))
        self.place.fill_(first)
        self.epoch.fill_(epoch)
        trainer.criterion.refresh_schedules()
        trainer.network.train()
        self._keep(self._views(self._batch(0)))

    def _batch(self, ahead: int) -> Tensor:
        """The images of a batch of the step at `place`, or of the next step's first; after the last comes the last again."""
        number = self.place * self.trainer.run.accumulate + ahead
        return self.order.index_select(0, number.clamp(max=len(self.order) - 1).view(1))[0]

    def _views(self, index: Tensor) -> list[Tensor]:
        pixels = self.trainer.pixels
        assert pixels is not None
        return self.views(pixels[index], index, seed=self.seed, epoch=self.epoch)

    def _keep(self, made: list[Tensor]) -> None:
        """They take their places in memory, where a recorded step finds them."""
        self.seen = self.seen or [torch.empty_like(view) for view in made]
        for ours, view in zip(self.seen, made, strict=True):
            ours.copy_(view)

    def __call__(self) -> None:
        """The step at `place`, and on to the next. While a batch is learned from, the views of the one after it are made."""
        trainer, run = self.trainer, self.trainer.run
        self.rate.copy_(self.rates.index_select(0, self.place.view(1))[0])
        trainer.optimiser.zero_grad(set_to_none=True)
        values = []
        for number in range(run.accumulate):
            with side_stream(trainer.device) as join:
                coming = self._views(self._batch(number + 1))
            loss = trainer.loss_of(self.seen, self._batch(number))
            loss = loss / run.accumulate if run.accumulate > 1 else loss
            loss.backward()
            trainer.network.after_batch()
            join()
            self._keep(coming)
            values.append(loss.detach())
        value, norm = sum(values[1:], values[0]), gradient_norm(run, trainer.network)
        both = value + norm
        torch.maximum(self.failed, (both - both != 0).float(), out=self.failed)  # from the first that is not finite on
        trainer.optimiser.step()
        trainer.network.after_step()
        self.losses.index_copy_(0, self.place.view(1), value.view(1))
        self.norms.index_copy_(0, self.place.view(1), norm.view(1))
        self.place += 1

    def failed_at(self) -> int:
        """The epoch's first step whose loss or gradient was not finite; -1: none."""
        bad = (~(self.losses.isfinite() & self.norms.isfinite())).nonzero()
        return int(bad[0]) if len(bad) else -1


class Captured:
    """Epochs of a trainer's run, step after step from one graph."""

    def __init__(self, trainer: Trainer, *, compiled: bool = True) -> None:
        gc.collect()  # an earlier run's graph holds its memory until then
        self.trainer, run = trainer, trainer.run
        _compile_for(
            run.framework,
            run.encoder,
            run.head,
            run.width,
            run.norm_splits,
            run.symmetric,
            run.views,
            run.view_count,
            run.batch,
            run.precision,
        )
        self.step = Step(trainer, torch.compile(trainer.views, dynamic=False) if compiled else trainer.views)
        if compiled:
            trainer.network.compile_encoders()
        if not torch.are_deterministic_algorithms_enabled():
            torch.backends.cudnn.benchmark = True
        self.one = GraphedStep(self.step, trainer.device, trainer.say)

    def epoch(
        self, epoch: int, first: int, asked: Sequence[int], watch: Callable[[int, float, float], None]
    ) -> Generator[None, None, list[float]]:
        """Losses of the epoch's steps from `first` on, up to the last or to a signal.

        `watch` is told now and then: steps done, a recent loss, steps a second. Each time it stops, the GPU has work for a while.
        """
        self.begin(epoch, first)
        start, seen, stop = time.perf_counter(), _Lagging(self.step.losses), self.trainer.steps_per_epoch
        try:
            for place in range(first, stop):
                self.one()
                window = (place + 1 - first) % _WINDOW == 0
                if asked and (window or self.one.graph is None):
                    stop = place + 1
                    break
                if window:
                    with torch.cuda.stream(self.one.stream):
                        recent = seen.look(place)
                    if recent is not None:
                        watch(place + 1, recent, (place + 1 - first) / (time.perf_counter() - start))
                if (place + 1 - first) % _TURN == 0:
                    yield
            yield from repeat(None, _WINDOW // _TURN)  # whoever takes turns queues more before this waits
        finally:
            self.one.stream.synchronize()  # also where the run ends here: its memory goes to others
        failed = self.step.failed_at()
        if failed >= 0:
            step = epoch * self.trainer.steps_per_epoch + failed + 1
            raise Diverged(
                f"the loss or gradient of step {step} (epoch {epoch + 1}) is not finite; the weights are those before it"
            )
        losses: list[float] = self.step.losses[first:stop].tolist()
        watch(stop, losses[-1], len(losses) / (time.perf_counter() - start))
        return losses

    def begin(self, epoch: int, first: int) -> None:
        """Ready for the epoch's `first` step."""
        self.step.begin(epoch, first)
        self.one.stream.wait_stream(torch.cuda.current_stream(self.trainer.device))


@lru_cache(maxsize=1)
def _compile_for(*what: object) -> None:
    """Runs of the same networks, views and sizes share what is compiled; for others it is made anew, for their sizes alone."""
    torch._dynamo.reset()


class _Lagging:
    """Reads a loss a window after it was asked for: by then it is there."""

    def __init__(self, losses: Tensor) -> None:
        self.losses = losses
        self.asked: tuple[Tensor, torch.cuda.Event] | None = None

    def look(self, place: int) -> float | None:
        """The value asked for the last time, and a question about the present one."""
        before = self.asked
        host, event = torch.empty((), pin_memory=True), torch.cuda.Event()
        host.copy_(self.losses[place], non_blocking=True)
        event.record()
        self.asked = host, event
        if before is None:
            return None
        before[1].synchronize()
        return float(before[0])
