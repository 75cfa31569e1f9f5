"""Few-shot classification: training on a few images per class, which also choose the learning rate and the weight decay.

The protocol is that of ELEVATER (Li et al. 2022): linear probing or fine-tuning with SGD, repeated with several samples.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from statistics import mean

import torch
from torch import Tensor, nn

from contrapose.lab.evaluation.features import features
from contrapose.lab.evaluation.finetune import FineTune
from contrapose.lab.evaluation.scores import score
from contrapose.lab.modalities import Source, ViewMaker
from contrapose.lab.modalities.progress import progress_bar, without_progress_bars
from contrapose.lab.networks.encoder import Encoder
from contrapose.lab.workers import TIMEOUT
from contrapose.randomness import permutation, sample_classes


def n_shot(labels: Tensor, shots: int, *, seed: int = 0, classes: Sequence[str] = ()) -> Tensor:
    """Return the indices of `shots` random samples per class, class by class.

    labels    class numbers (N,); or 0 and 1 for each class, (N, C): samples are then drawn until every class has enough
    shots     samples per class
    seed      random seed of the draw
    classes   class names, for the error message about a class with too few samples
    """
    if shots < 1:
        raise ValueError(f"shots: expected at least 1, got {shots}")
    if labels.ndim == 2:
        return _multi_label_shots(labels, shots, seed, classes)
    counts = labels.bincount().tolist()
    for c, count in enumerate(counts):
        _check_enough(count, shots, c, classes)
    return sample_classes(labels, [shots] * len(counts), seed)


def _multi_label_shots(labels: Tensor, shots: int, seed: int, classes: Sequence[str]) -> Tensor:
    """Return images in random order, skipping those whose classes all have enough images already."""
    for c, count in enumerate(labels.sum(0).tolist()):
        _check_enough(int(count), shots, c, classes)
    counts, drawn = torch.zeros(labels.shape[1]), []
    for index in permutation(len(labels), seed).tolist():
        present = labels[index].cpu() > 0
        if bool((counts[present] < shots).any()):
            counts += present
            drawn.append(index)
    return torch.tensor(drawn)


def _check_enough(count: int, shots: int, c: int, classes: Sequence[str]) -> None:
    if count < shots:
        name = repr(classes[c]) if c < len(classes) else str(c)
        raise ValueError(f"shots: class {name} has {count} training images, fewer than the {shots} to draw")


@dataclass(frozen=True)
class FewShotResult:
    """The test score for each random sample of shots, and the learning rate and weight decay chosen on this sample."""

    scores: tuple[float, ...]  # per cent
    choices: tuple[tuple[float, float], ...]  # (learning rate, weight decay)

    @property
    def mean(self) -> float:
        """Return the mean score over the samples."""
        return mean(self.scores)


@dataclass(frozen=True)
class FewShot:
    """Train on `shots` images per class, without augmentation, and score on all test images.

    For each pair of learning rate and weight decay, a classifier is trained without the last shot of each class and scored on
    these last shots. The pair with the best score (at a tie, the lower loss) is used for training again with all shots.
    Features are standardised, as in ELEVATER.
    """

    shots: int = 5  # images per class
    samples: int = 3  # number of random samples, with seeds 0, 1, …
    training: FineTune = field(
        default_factory=lambda: FineTune(epochs=50, batch=32)
    )  # all settings but the two chosen ones
    lrs: tuple[float, ...] = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1)  # ELEVATER's
    weight_decays: tuple[float, ...] = (1e-6, 1e-4, 1e-2, 1.0)  # four of ELEVATER's first seven

    def __post_init__(self) -> None:
        if self.shots < 2:
            raise ValueError(
                f"shots: expected at least 2, one of them to choose the learning rate on, got {self.shots}"
            )
        if self.samples < 1 or not self.lrs or not self.weight_decays:
            raise ValueError("samples, lrs, weight_decays: expected at least one of each")

    def __call__(
        self,
        encoder: Encoder,
        train: Source,
        test: Source,
        *,
        views: ViewMaker,
        fine_tune: bool,
        metric: str = "accuracy",
        device: torch.device | str = "cpu",
        workers: int = 0,
        timeout: float = TIMEOUT,
    ) -> FewShotResult:
        """Return the scores on `test`; `encoder` is not changed.

        train, test         labelled data sets
        views               how inputs are made
        fine_tune           whether to train the encoder too; otherwise only a linear classifier on its features is trained
        metric              a name in `METRICS`
        workers, timeout    processes that decode images on disk, and seconds to wait for them
        """
        if train.labels is None or test.labels is None:
            raise ValueError("few-shot classification needs labelled training and test images")
        device = torch.device(device)
        frozen = copy.deepcopy(encoder).to(device).eval()

        def inputs(source: Source) -> Iterator[Tensor]:
            batches = source.reader(views, device, workers=workers, timeout=timeout).plain()
            return batches if fine_tune else (features(frozen, [batch]) for batch in batches)

        # Features of the test images are computed once; the images themselves may not fit in memory.
        test_features = [] if fine_tune else list(inputs(test))
        test_labels, results = test.labels.to(device), []
        trainings = self.samples * (len(self.lrs) * len(self.weight_decays) + 1)
        with progress_bar(f"{self.shots}-shot training runs", trainings) as advance, without_progress_bars():
            for seed in range(self.samples):
                index = n_shot(train.labels, self.shots, seed=seed, classes=train.classes)
                sample, labels = torch.cat(list(inputs(train.subset(index)))), train.labels[index].to(device)
                body = frozen if fine_tune else None
                make = self._network_maker(body, encoder.width, labels, device=device, seed=seed)
                pair = self.choose(make, sample, labels, metric=metric, seed=seed, on_training=advance)
                network = self._fit(make(), sample, labels, pair=pair, seed=seed)
                logits = self.training.predict(network, inputs(test) if fine_tune else test_features)
                results.append((score(metric, logits, test_labels), pair))
                advance()
        return FewShotResult(tuple(value for value, _ in results), tuple(pair for _, pair in results))

    def choose(
        self,
        make: Callable[[], nn.Module],
        inputs: Tensor,
        labels: Tensor,
        *,
        metric: str = "accuracy",
        seed: int = 0,
        on_training: Callable[[], None] = lambda: None,
    ) -> tuple[float, float]:
        """Return the learning rate and the weight decay with the best score on the last shot of each class.

        make          builds an untrained network that takes the inputs
        inputs        inputs of the shots, class by class
        labels        labels of the shots
        on_training   called after each training run
        """
        held = torch.arange(len(labels), device=labels.device) % self.shots == self.shots - 1
        ranked = []
        for lr in self.lrs:
            for weight_decay in self.weight_decays:
                network = self._fit(make(), inputs[~held], labels[~held], pair=(lr, weight_decay), seed=seed)
                logits = self.training.predict(network, [inputs[held]])
                loss = float(self.training.loss(logits, labels[held]))
                # A network that diverged has no finite logits to compare.
                value = score(metric, logits, labels[held]) if math.isfinite(loss) else -math.inf
                ranked.append((value, -loss if math.isfinite(loss) else -math.inf, lr, weight_decay))
                on_training()
        *_, lr, weight_decay = max(ranked, key=lambda entry: entry[:2])
        return lr, weight_decay

    def _network_maker(
        self, encoder: Encoder | None, width: int, labels: Tensor, *, device: torch.device, seed: int
    ) -> Callable[[], nn.Module]:
        """Return a function that builds a classifier of images or, without an encoder, of features."""

        def make() -> nn.Module:
            # All pairs of learning rate and weight decay start from the same weights, so that only the pair makes a difference.
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(seed)
                classifier = nn.Linear(width, self.training.outputs(labels))
            body = [copy.deepcopy(encoder).requires_grad_()] if encoder is not None else []
            return nn.Sequential(*body, nn.BatchNorm1d(width, affine=False), classifier).to(device)

        return make

    def _fit(
        self, network: nn.Module, inputs: Tensor, labels: Tensor, *, pair: tuple[float, float], seed: int
    ) -> nn.Module:
        training = replace(self.training, lr=pair[0], weight_decay=pair[1])

        def batches(epoch: int) -> Iterator[tuple[Tensor, Tensor]]:
            for batch in training.epoch_batches(len(inputs), seed, epoch):
                index = torch.as_tensor(batch, device=inputs.device)
                yield index, inputs[index]

        training.fit(network, labels, batches, seed=seed)
        return network
