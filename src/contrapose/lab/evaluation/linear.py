"""Linear classification of frozen features."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from contrapose.lab.cuda.graphs import GraphedStep
from contrapose.lab.evaluation.features import check_labelled
from contrapose.lab.modalities import AUGMENTATIONS
from contrapose.lab.optim.lars import LARS
from contrapose.randomness import permutation, sample_classes
from contrapose.validate import check_known


@dataclass(frozen=True)
class Probe:
    """Settings of a linear probe.

    Scores are from the last epoch. With `best`, scores from the best epoch are reported too, as "best_top1" and "best_top5":
    several papers report these scores, although they select the epoch on the test set.

    With `augment`, the encoder sees newly augmented training samples in each epoch (`probe_augmented`); without `augment`,
    the probe is called with features of samples without augmentation.
    """

    optimiser: str = "sgd"  # sgd, adam or lars
    lr: float = 30.0  # peak learning rate
    epochs: int = 100  # passes over the features
    batch: int = 256  # features in a batch
    milestones: tuple[int, ...] = ()  # epochs at which the rate is multiplied by gamma; if empty, cosine to zero
    gamma: float = 0.1  # factor at each milestone
    best: bool = False  # whether to report the best epoch too
    augment: str = ""  # a name in `AUGMENTATIONS`, of the training samples; empty: none
    smallest_crop: float | None = 0.08  # smallest share of an image's area in "crops"; None: as in training

    def __post_init__(self) -> None:
        if self.optimiser not in ("sgd", "adam", "lars"):
            raise ValueError(f"optimiser: expected 'sgd', 'adam' or 'lars', got {self.optimiser!r}")
        if self.lr <= 0 or not math.isfinite(self.lr):
            raise ValueError(f"lr: expected a number above 0, got {self.lr!r}")
        if self.epochs < 1 or self.batch < 1:
            raise ValueError(f"epochs, batch: expected at least 1, got {self.epochs} and {self.batch}")
        if self.augment:
            check_known("augment", self.augment, AUGMENTATIONS)
        if self.smallest_crop is not None and not 0 < self.smallest_crop <= 1:
            raise ValueError(f"smallest_crop: expected a share above 0 and at most 1, got {self.smallest_crop!r}")

    def __call__(
        self, train: Tensor, train_labels: Tensor, test: Tensor, test_labels: Tensor, *, seed: int = 0
    ) -> dict[str, float]:
        """Train on (n, d) features and return top-1 and, with more than five classes, top-5 accuracy in per cent."""
        if self.augment:
            raise ValueError(
                f"augment: {self.augment!r} needs the encoder and its training samples, but features were given; "
                "use probe_augmented or Model.linear_probe"
            )
        check_labelled(train, train_labels, test, test_labels)

        def orders(epoch: int) -> list[Tensor]:
            return [permutation(len(train), seed, epoch, device=train.device)]

        classes = int(train_labels.max()) + 1
        return self.fit(train, train_labels, orders, classes=classes, test=test, test_labels=test_labels, seed=seed)

    def fit(
        self,
        features: Tensor,
        labels: Tensor,
        orders: Callable[[int], Iterable[Tensor]],
        *,
        classes: int,
        test: Tensor,
        test_labels: Tensor,
        seed: int,
    ) -> dict[str, float]:
        """Train on rows of `features` (n, d) and `labels` (n,) and return the scores.

        orders   function of the epoch that yields indices of rows, which are split into batches. It may replace the rows
                 before each yield.
        """
        layer = nn.Linear(features.shape[1], classes, device=features.device)
        # Drawn on the CPU, so that every device starts from the same weights.
        noise = torch.randn(layer.weight.shape, generator=torch.Generator().manual_seed(seed))
        with torch.no_grad():
            layer.weight.copy_(0.01 * noise)
            layer.bias.zero_()
        trainer = _LinearTrainer(layer, self._optimiser(layer), features=features, labels=labels, batch=self.batch)
        rates = []
        for epoch in range(self.epochs):
            for order in orders(epoch):
                trainer.take_steps(order, self._learning_rate(epoch))
            if self.best:  # kept on the device: reading scores in each epoch would synchronise with it
                rates.append(_hit_rates(layer, test, test_labels))
        scores = accuracy(layer, test, test_labels)
        return scores | (_in_per_cent(torch.stack(rates).amax(0), prefix="best_") if self.best else {})

    def shortened(self, epochs: int) -> Probe:
        """Return the probe with `epochs` epochs, and its milestones scaled in proportion."""
        milestones = tuple(round(milestone * epochs / self.epochs) for milestone in self.milestones)
        return replace(self, epochs=epochs, milestones=milestones)

    def describe(self) -> str:
        """Describe the settings in words."""
        schedule = describe_schedule(self.milestones, self.gamma)
        epoch = "best epoch" if self.best else "last epoch"
        area = (
            "as large as in training" if self.smallest_crop is None else f"of {self.smallest_crop:g} to 1 of the area"
        )
        name = {"sgd": "SGD", "adam": "Adam", "lars": "LARS"}[self.optimiser]
        augmented = {
            "": "no augmentation",
            "crops": f"random crops {area}, and flips",
            "flips": "random flips",
            "colours": "colour jitter and grayscale",
            "jittered": f"random crops {area}, flips, colour jitter and grayscale",
        }[self.augment]
        return f"{name} for {self.epochs} epochs, lr {self.lr:g} ({schedule}), batch {self.batch}, {augmented}, {epoch}"

    def _learning_rate(self, epoch: int) -> float:
        if self.milestones:
            return self.lr * self.gamma ** sum(epoch >= milestone for milestone in self.milestones)
        return self.lr * 0.5 * (1 + math.cos(math.pi * epoch / self.epochs))

    def _optimiser(self, layer: nn.Linear) -> torch.optim.Optimizer:
        # Inside a CUDA graph an optimiser must not read values back from the device; fused and capturable ones do not.
        cuda = layer.weight.is_cuda
        if self.optimiser == "sgd":
            return torch.optim.SGD(layer.parameters(), self.lr, momentum=0.9, fused=cuda or None)
        if self.optimiser == "adam":
            return torch.optim.Adam(
                layer.parameters(), self.lr, betas=(0.5, 0.999), eps=1e-8, fused=cuda or None, capturable=cuda
            )
        return LARS(layer.parameters(), self.lr, form="moco")


def describe_schedule(milestones: Sequence[int], gamma: float) -> str:
    """Describe the learning-rate schedule in words: drops at milestones, or a cosine if there are no milestones."""
    if not milestones:
        return "cosine schedule"
    *others, last = map(str, milestones)
    return f"× {gamma:g} after {', '.join(others)} and {last}" if others else f"× {gamma:g} after {last}"


class _LinearTrainer:
    """Trains a linear layer on rows of a tensor; on a GPU, steps are replayed as a CUDA graph.

    A step of a linear probe takes microseconds of computation, so launching its kernels one by one would dominate.
    """

    def __init__(
        self, layer: nn.Linear, optimiser: torch.optim.Optimizer, *, features: Tensor, labels: Tensor, batch: int
    ) -> None:
        self.layer, self.optimiser, self.features, self.labels, self.batch = layer, optimiser, features, labels, batch
        self.graphed_step: GraphedStep | None = None
        if features.is_cuda:
            # A graph reads its inputs from fixed addresses: indices and learning rate are copied into these tensors.
            self.index, self.lr = labels.new_zeros(batch, dtype=torch.long), features.new_zeros(())
            self.graphed_step = GraphedStep(lambda: self._step(self.index), features.device)

    def take_steps(self, order: Tensor, lr: float) -> None:
        """Train on the rows in this order, one step for each batch."""
        for group in self.optimiser.param_groups:
            group["lr"] = lr if self.graphed_step is None else self.lr
        if self.graphed_step is None:
            for index in order.split(self.batch):
                self._step(index)
            return
        self.lr.fill_(lr)
        # The graph's own stream waits for `order` and the learning rate; afterwards the current stream waits for the graph's.
        stream = self.graphed_step.stream
        stream.wait_stream(torch.cuda.current_stream(order.device))
        with torch.cuda.stream(stream):
            for index in order.split(self.batch):
                if len(index) < self.batch:  # the last batch: the graph has a fixed size
                    self._step(index)
                else:
                    self.index.copy_(index)
                    self.graphed_step()
        torch.cuda.current_stream(order.device).wait_stream(stream)

    def _step(self, index: Tensor) -> None:
        self.optimiser.zero_grad()
        cross_entropy(self.layer(self.features[index]), self.labels[index]).backward()
        self.optimiser.step()


def accuracy(
    classify: Callable[[Tensor], Tensor], inputs: Tensor, labels: Tensor, chunk: int = 10_000
) -> dict[str, float]:
    """Return top-1 and, with more than five classes, top-5 accuracy in per cent; `chunk` inputs are classified at a time."""
    return _in_per_cent(_hit_rates(classify, inputs, labels, chunk))


@torch.no_grad()
def _hit_rates(classify: Callable[[Tensor], Tensor], inputs: Tensor, labels: Tensor, chunk: int = 10_000) -> Tensor:
    """Return the share of inputs whose class is ranked first and, with more than five classes, among the first five."""
    logits = torch.cat([classify(part) for part in inputs.split(chunk)])
    hit = logits.topk(min(5, logits.shape[1]), dim=1).indices == labels[:, None]
    rates = [hit[:, 0].float().mean()] + ([hit.any(1).float().mean()] if logits.shape[1] > 5 else [])
    return torch.stack(rates)


def _in_per_cent(rates: Tensor, prefix: str = "") -> dict[str, float]:
    return {f"{prefix}{name}": 100 * rate for name, rate in zip(("top1", "top5"), rates.tolist(), strict=False)}


def few_shot(
    train: Tensor, train_labels: Tensor, test: Tensor, test_labels: Tensor, *, seed: int = 0
) -> dict[str, float]:
    """Return the accuracy of linear SVMs on normalised features, in per cent (long-tail protocol of Kukleva et al.).

    `few_shot` trains on a class-balanced subset, with as many images per class as there are in the smallest class; `long_tail`
    trains on all images. Accuracy is the mean over classes, so that frequent classes do not dominate.

    train, test                 features (n, width) to train on and (t, width) to classify
    train_labels, test_labels   class numbers of the features, (n,) and (t,)
    seed                        random seed of the subset
    """
    from sklearn.svm import LinearSVC

    check_labelled(train, train_labels, test, test_labels)
    counts = train_labels.bincount()
    if int((counts > 0).sum()) < 2:
        raise ValueError(f"train_labels: expected at least two classes to tell apart, got only {int(train_labels[0])}")
    smallest = int(counts[counts > 0].min())
    balanced = sample_classes(train_labels, [smallest] * len(counts), seed)
    subsets = {"few_shot": balanced, "long_tail": torch.arange(len(train), device=train.device)}
    scores = {}
    for name, index in subsets.items():
        unit = nn.functional.normalize
        model = LinearSVC(random_state=seed).fit(unit(train[index]).cpu().numpy(), train_labels[index].cpu().numpy())
        predicted = torch.from_numpy(model.predict(unit(test).cpu().numpy())).to(test_labels.device)
        class_accuracies = [
            float((predicted[test_labels == c] == c).float().mean()) for c in test_labels.unique().tolist()
        ]
        scores[name] = 100 * sum(class_accuracies) / len(class_accuracies)
    return scores
