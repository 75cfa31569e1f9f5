"""Steps one by one, as they are written: on any device, on several processes, with images from disk, in any precision."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING

from torch import Tensor

from contrapose.modalities.images.images import Images
from contrapose.modalities.images.stream import crops
from contrapose.randomness import permutation
from contrapose.training.optimisers import gradient_norm, learning_rate
from contrapose.training.stops import Diverged

if TYPE_CHECKING:
    from contrapose.training.loop import Trainer

Batch = tuple[Tensor, list[Tensor]]  # which images, and their views


class Plain:
    """Epochs of a trainer's run, step by step."""

    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer

    def epoch(
        self, epoch: int, first: int, asked: list[int], watch: Callable[[int, float, float], None]
    ) -> Generator[None, None, list[float]]:
        """Losses of the epoch's steps from `first` on, up to the last or to a signal.

        `watch` is told after each: steps done, its loss, steps a second.
        """
        start, losses = time.perf_counter(), list[float]()
        batches = self.batches(epoch, first)
        for place in range(first, self.trainer.steps_per_epoch):
            losses.append(self.one(islice(batches, self.trainer.run.accumulate), epoch, place))
            watch(place + 1, losses[-1], len(losses) / (time.perf_counter() - start))
            if self.trainer.must_stop(asked):
                break
        yield from ()  # it stops nowhere: nothing works while it waits
        return losses

    def batches(self, epoch: int, first: int) -> Iterator[Batch]:
        """This process's share of each batch, from the epoch's `first` step on."""
        trainer, run, several = self.trainer, self.trainer.run, self.trainer.run.accumulate
        train, count = trainer.split.train, trainer.steps_per_epoch * several
        order = permutation(len(train), run.seed, epoch, device=trainer.device)[: count * run.batch]
        shares = order.view(count, trainer.world, -1)[first * several :, trainer.rank]
        if isinstance(train, Images):
            assert trainer.pixels is not None
            for index in shares:
                yield index, trainer.views(trainer.pixels[index], index, seed=run.seed, epoch=epoch)
            return
        cut = crops(
            train,
            trainer.views,
            shares.tolist(),
            seed=run.seed,
            epoch=epoch,
            workers=trainer.workers,
            timeout=trainer.worker_timeout,
        )
        for index, parts in zip(shares, cut, strict=True):
            moved = [part.to(trainer.device) for part in parts]
            yield index, trainer.views.finish(moved, index, seed=run.seed, epoch=epoch)

    def one(self, batches: Iterable[Batch], epoch: int, place: int) -> float:
        """One step: the gradient of each batch, the optimiser, and what follows it."""
        trainer, run, scaler = self.trainer, self.trainer.run, self.trainer.scaler
        step = epoch * trainer.steps_per_epoch + place
        trainer.network.train()
        for group in trainer.optimiser.param_groups:
            group["lr"] = learning_rate(run, step, trainer.steps_per_epoch)
        trainer.optimiser.zero_grad()
        value, images = 0.0, []
        for index, seen in batches:
            loss = trainer.loss_of(seen, index) / run.accumulate
            scaler.scale(loss).backward()
            trainer.network.after_batch()
            value += float(loss.detach())
            images += index[:16].tolist()
        scaler.unscale_(trainer.optimiser)
        norm = gradient_norm(run, trainer.network)
        if not math.isfinite(value) or not (bool(norm.isfinite()) or scaler.is_enabled()):
            what = "loss" if not math.isfinite(value) else "gradient"
            raise Diverged(
                f"the {what} of step {step + 1} (epoch {epoch + 1}) is not finite; the weights are those before it. "
                f"Its images are {images} …"
            )
        scaler.step(trainer.optimiser)
        scaler.update()
        trainer.network.after_step()
        return value
