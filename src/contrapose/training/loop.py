"""The training loop."""

from __future__ import annotations

import json
import math
import time
import warnings
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from contrapose.evaluation import KNN, Measures, features
from contrapose.evaluation.features import at_once
from contrapose.losses import Loss
from contrapose.losses.objective import with_state
from contrapose.losses.parse import parse
from contrapose.metrics import penalties
from contrapose.modalities.images.images import Images
from contrapose.modalities.images.stream import TIMEOUT, Files, whole, worker_deaths
from contrapose.modalities.images.views import Views
from contrapose.pairs import Pairs, unit
from contrapose.training import checkpoint
from contrapose.training.build import build, check_same_images, prepare
from contrapose.training.captured import Captured, why_not
from contrapose.training.optimisers import optimiser
from contrapose.training.plain import Plain
from contrapose.training.processes import any_asked, join, own_device, synchronised
from contrapose.training.records import append, environment, forget_after, write_whole
from contrapose.training.run import Run
from contrapose.training.stops import Stopped, signals

T = TypeVar("T")
COLLAPSED = 0.05  # a spread below this share of a uniform embedding's


@dataclass(frozen=True)
class Progress:
    """One step, for whoever watches."""

    epoch: int
    step: int
    steps: int
    loss: float
    images_per_second: float


@dataclass
class Trainer:
    """A run in a directory: started, or taken up where it was left."""

    run: Run
    folder: Path
    watch: Callable[[Progress], None] = lambda progress: None
    say: Callable[[str], None] = print
    data_root: Path | None = None
    workers: int = 0
    worker_timeout: float = TIMEOUT  # seconds without a batch from the workers before the training fails
    device: torch.device = field(default_factory=own_device)
    fast: bool = True  # on a GPU, the whole step in one graph
    beside: int = 0  # other runs on the device meanwhile: for whoever reads the records' seconds

    def __post_init__(self) -> None:
        self.rank, self.world = join()
        if self.run.batch % self.world:
            raise ValueError(f"batch: {self.run.batch} images cannot be shared equally by {self.world} processes")
        if self.world > 1 and self.run.norm_splits > 1:
            raise ValueError(f"norm_splits: {self.world} processes synchronise their batch norms; leave it at 1")
        if self.folder.exists() and not self.folder.is_dir():
            raise ValueError(f"out: {self.folder} is a file; a run needs a directory")
        self._refuse_another()
        if self.run.precision == "bf16" and self.device.type == "cpu":
            self._check_bf16()
        self.split = prepare(self.run, self.data_root)
        self.views = Views.named(self.run.views, self.run.view_count)
        size = len(self.split.train)
        if self.run.batch * self.run.accumulate > size:
            wanted = self.run.batch * self.run.accumulate
            fits = 2 ** int(math.log2(max(2, size // self.run.accumulate)))
            raise ValueError(
                f"batch: {wanted} images for a step are more than the {size} of the data set (--batch {fits} would do)"
            )
        if self.split.probe is not None and self.run.knn > len(self.split.probe):
            raise ValueError(
                f"knn: {self.run.knn} neighbours are more than the {len(self.split.probe)} labelled images"
            )
        if self.run.framework == "memory-bank":
            self.run.check_hardest(size - 1)
        self.steps_per_epoch = size // (self.run.batch * self.run.accumulate)
        self._claim()
        self.network = build(self.run, size).to(self.device).to(memory_format=torch.channels_last)
        self.learner: nn.Module = self.network
        if self.world > 1:
            synchronised(self.network, self.device)
            # Buffers are equal on all processes: they come from gathered batches and synchronised statistics.
            with warnings.catch_warnings():  # torch 2.15 has another name for it, which earlier ones do not know
                warnings.simplefilter("ignore", FutureWarning)
                self.learner = DistributedDataParallel(self.network, broadcast_buffers=False)
        objective, state = with_state(parse(self.run.loss, self.run.data), size)
        self.criterion = Loss(objective, state=state).to(self.device)
        self.whole = nn.ModuleDict({"network": self.network, "criterion": self.criterion})
        self.optimiser = optimiser(self.run, self.network)
        train = self.split.train
        self.moved: dict[Images, Tensor] = {}
        self.pixels = self._resident(train) if isinstance(train, Images) else None
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=self.run.precision == "fp16")
        self.step, self.neighbours = 0, self.run.knn
        self.steps: Plain | Captured = Plain(self)
        self.saved, self.saving = -math.inf, 0.0  # when the last checkpoint was written, and how long that took
        self.saved_step = 0
        self.latest: Pairs | None = None  # the last batch's
        self.part = (0.0, 0.0)  # of an epoch that was stopped: its losses so far, added up, and its seconds

    def _check_bf16(self) -> None:
        """Say so where the CPU has no bf16 instructions, in place of torch's warning about each product that it redirects."""
        if not torch.ops.mkldnn._is_mkldnn_bf16_supported():
            warnings.filterwarnings("ignore", message="mkldnn_matmul failed")
            self.say("precision: this CPU has no bf16 instructions, so bf16 is slower here than --precision fp32")

    def _refuse_another(self) -> None:
        """The directory must not hold another run; one that has left nothing but its settings may go."""
        path = self.folder / "run.json"
        if not path.exists() or not (
            (self.folder / "records.jsonl").exists() or (self.folder / "checkpoints").exists()
        ):
            return
        here, there = vars(self.run), vars(Run.load(path))
        differing = sorted(name for name in here if here[name] != there[name])
        if differing:
            changes = ", ".join(f"{k} is {there[k]!r} there and {here[k]!r} here" for k in differing)
            raise ValueError(f"out: {self.folder} holds another run: {changes}. Choose another directory.")

    def _claim(self) -> None:
        """From here on the directory holds this run."""
        path = self.folder / "run.json"
        if self.rank == 0 and not (path.exists() and json.loads(path.read_text()) == self.run.describe()):
            self.folder.mkdir(parents=True, exist_ok=True)
            write_whole(self.folder / "environment.json", environment(self.device))
            write_whole(path, self.run.describe())

    def train(self) -> dict[str, float]:
        """Train to the end, from the last checkpoint if there is one; the final scores."""
        with worker_deaths(), signals() as asked:
            return drain(self.training(asked))

    def training(self, asked: list[int]) -> Generator[None, None, dict[str, float]]:
        """The same in parts: it stops after each epoch and, with a graph, wherever the GPU has work for a while.

        Who does several runs in turns goes on with another one there. `asked` holds the signals that came.
        """
        found = self.load_latest()
        here = {"images": len(self.split.train), "fingerprint": self.split.train.fingerprint}
        if found:
            check_same_images(self.run, self.folder, here)
        if self.rank == 0:
            write_whole(self.folder / "data.json", here)
            forget_after(self.folder, self.step)
            if found:
                self.say(f"finished at step {self.step}" if self.complete else f"resuming after step {self.step}")
        self._choose_path()
        total = self.run.epochs * self.steps_per_epoch
        scores: dict[str, float] = {}
        while self.step < total:
            if self.must_stop(asked):  # a signal came while others had their turn
                self._stop(asked)
            epoch = self.step // self.steps_per_epoch
            self.criterion.epoch = epoch + 1
            self.network.begin(epoch / self.run.epochs)
            loss, seconds = yield from self._epoch(epoch, asked)
            record: dict[str, Any] = {"epoch": epoch + 1, "step": self.step, "loss": loss, "seconds": seconds}
            record |= ({"beside": self.beside} if self.beside else {}) | self._penalties()
            if (epoch + 1) % self.run.knn_every == 0 or self.step == total:
                scores = self.evaluate()
                record |= scores | self._measures()
            # First the record, then the checkpoint: what is lost between them is done, and recorded, again.
            if self.rank == 0:
                append(self.folder, record)
            if self.step == total or self._due():
                self._save()
            if self.must_stop(asked):
                self._stop(asked)
            yield
        return scores or self.evaluate()

    def _choose_path(self) -> None:
        """On a GPU, the whole step in one graph where that is possible; a word about it there."""
        if self.device.type != "cuda" or not self.fast:
            return
        reason = why_not(self)
        self.say(
            f"step by step, since {reason}"
            if reason
            else "the whole step in one CUDA graph, compiled in the first steps"
        )
        if not reason:
            self.steps = Captured(self)

    def _epoch(self, epoch: int, asked: list[int]) -> Generator[None, None, tuple[float, float]]:
        """The epoch's mean loss and its seconds."""
        first, start = self.step % self.steps_per_epoch, time.perf_counter()
        total, before = self.part if first else (0.0, 0.0)
        begun, images = self.step - first, self.run.batch * self.run.accumulate

        def watch(place: int, loss: float, rate: float) -> None:
            steps = self.run.epochs * self.steps_per_epoch
            if self.rank == 0:
                self.watch(Progress(epoch + 1, begun + place, steps, loss, rate * images))

        for loss in (yield from self.steps.epoch(epoch, first, asked, watch)):
            total += loss  # one by one: a resumed epoch's mean is the same to the last digit
            self.step += 1
        seconds = before + time.perf_counter() - start
        if self.step % self.steps_per_epoch:  # stopped; an epoch that is complete is recorded first
            self.part = total, seconds
            self._stop(asked)
        return total / self.steps_per_epoch, seconds

    def loss_of(self, seen: list[Tensor], index: Tensor) -> Tensor:
        """Encoder, pairs, objective; low precision ends before the loss."""
        with self._autocast():
            pairs = self.learner(seen, index)
        loss: Tensor = self.criterion(pairs)
        self.latest = pairs
        return loss

    def _autocast(self) -> torch.autocast:
        dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(self.run.precision)
        return torch.autocast(self.device.type, dtype=dtype, enabled=dtype is not None)

    def _penalties(self) -> dict[str, float | None]:
        """What the loss did to the similarities of the epoch's last batch; nothing where they are too many to look at."""
        if self.rank or self.latest is None or math.prod(self.latest.shape) > 2**25:
            return {}
        self.criterion.eval()  # a look moves no state
        found = penalties(self.criterion, self.latest).summary()
        self.criterion.train()
        return found

    def _measures(self) -> dict[str, float]:
        """The metrics of the embedding as it is now."""
        if self.rank or not self.run.metrics:
            return {}
        try:
            found = self.measure(Measures(self.run.metrics))
        except ValueError as error:
            self.say(f"no metrics after epoch {self.step // self.steps_per_epoch}: {error}")
            return {}
        if found["feature_std"] < COLLAPSED:
            self.say(
                f"the embedding has collapsed: its spread is {found['feature_std']:.3f} of a uniform one's "
                f"(epoch {self.step // self.steps_per_epoch}); a lower learning rate or a higher temperature may help"
            )
        return found

    @property
    def held_out(self) -> Images | Files:
        """The test images, or the training images where there are no others."""
        return self.split.test if self.split.test is not None else self.split.train

    def measure(self, how: Measures) -> dict[str, float]:
        """Metrics of the projector's output on the test images, or the training images where there are no others."""
        self.network.eval()
        return how(self.embed, self.held_out, self.views.recipes[0], self.device)

    def embed(self, images: Tensor) -> Tensor:
        """Encoder and projector, in evaluation mode."""
        with self._as_it_is():
            found: Tensor = self.network.projector(self.network.encoder(images))
        return found.float()

    @contextmanager
    def _as_it_is(self) -> Iterator[None]:
        """For evaluation: on a GPU in the run's precision, and without compiling networks for other batches."""
        with ExitStack() as stack:
            if self.device.type == "cuda":
                stack.enter_context(self._autocast())
            if isinstance(self.steps, Captured):
                stack.enter_context(torch.compiler.set_stance("force_eager"))
            yield

    def sample_embeddings(self, count: int) -> tuple[Tensor, Tensor | None, tuple[str, ...]]:
        """Unit embeddings, labels and class names of a fixed random sample of the test (or training) images."""
        self.network.eval()
        recipe = self.views.recipes[0]
        sample = Measures(count).sample(self.held_out, recipe)
        pixels = sample.pixels.split(at_once(self.device, recipe.size))
        z = features(self.embed, pixels, recipe, self.device)
        return unit(z), sample.labels, sample.classes

    def features(self, images: Images | Files) -> Tensor:
        """The encoder's features of a whole data set, not augmented."""
        recipe = self.views.recipes[0]
        batch = at_once(self.device, recipe.size)
        self.network.eval()
        pixels = (
            self._resident(images).split(batch)
            if isinstance(images, Images)
            else whole(images, recipe, batch=batch, workers=self.workers, timeout=self.worker_timeout)
        )
        with self._as_it_is():
            return features(self.network.features, pixels, recipe, self.device)

    def _resident(self, images: Images) -> Tensor:
        """Their pixels on the device, where they stay: training and evaluations come to them again and again."""
        if images not in self.moved:
            self.moved[images] = images.pixels.to(self.device)
        return self.moved[images]

    def labelled_features(self) -> tuple[Tensor, Tensor, Tensor, Tensor] | None:
        """Features and labels to classify by, then those to be classified; None where there are no labels."""
        probe, test = self.split.probe, self.split.test
        if probe is None or test is None or probe.labels is None or test.labels is None:
            return None
        labels = probe.labels.to(self.device), test.labels.to(self.device)
        return self.features(probe), labels[0], self.features(test), labels[1]

    def evaluate(self) -> dict[str, float]:
        """kNN accuracy of the encoder's features, where there are labels."""
        found = self.labelled_features()
        if found is None:
            return {}
        scores = KNN(self.neighbours)(*found)
        return {f"knn_{name}": score for name, score in scores.items()}

    def _due(self) -> bool:
        """Whether a checkpoint is worth its time: all of them together take a hundredth at most."""
        return time.perf_counter() - self.saved > 100 * self.saving

    @property
    def complete(self) -> bool:
        """Whether the last step is done."""
        return self.step == self.run.epochs * self.steps_per_epoch

    def must_stop(self, asked: list[int]) -> bool:
        """Whether a signal came, to this process or to another one of the run's."""
        return any_asked(asked, self.device, self.world)

    def _stop(self, asked: list[int]) -> NoReturn:
        """Save what is not saved yet, and end."""
        if self.step != self.saved_step:
            self._save()
        where = f"stopped by signal {asked[0]} after step {self.step}; the same command goes on from there"
        raise Stopped(where, asked[0])

    def _save(self) -> None:
        if self.rank:
            return
        start = time.perf_counter()
        tensors = checkpoint.collect(self.whole, self.optimiser)
        if self.scaler.is_enabled():
            state = self.scaler.state_dict()
            tensors |= {f"scaler.{name}": torch.tensor(state[name]) for name in ("scale", "_growth_tracker")}
        if self.step % self.steps_per_epoch:
            tensors["part"] = torch.tensor(self.part, dtype=torch.float64)
        checkpoint.save(self.folder / "checkpoints", checkpoint.Checkpoint(self.step, tensors))
        self.saved, self.saved_step = time.perf_counter(), self.step
        self.saving = self.saved - start

    def load_latest(self) -> bool:
        """Take up the newest checkpoint that verifies; False where there is none."""
        found = checkpoint.latest(self.folder / "checkpoints", self.say)
        if found is None:
            return False
        checkpoint.restore(self.whole, self.optimiser, found.tensors)
        if "scaler.scale" in found.tensors:
            kept = {name: found.tensors[f"scaler.{name}"].item() for name in ("scale", "_growth_tracker")}
            self.scaler.load_state_dict(self.scaler.state_dict() | kept)
        if "part" in found.tensors:
            loss, seconds = found.tensors["part"].tolist()
            self.part = loss, seconds
        self.step = self.saved_step = found.step
        return True


def drain(work: Generator[None, None, T]) -> T:
    """All parts of a work, one after the other, and what it gives."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            value: T = end.value
            return value
