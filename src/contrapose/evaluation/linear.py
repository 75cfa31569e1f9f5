"""Linear classification of frozen, cached features."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from contrapose.cuda.graphs import GraphedStep
from contrapose.evaluation.features import check_labelled
from contrapose.optim.lars import LARS
from contrapose.randomness import permutation


@dataclass(frozen=True)
class Probe:
    """Settings of a linear probe.

    Scores are those of the last epoch. With `best`, the best top-1 accuracy of all epochs is reported too, as "best_top1":
    several papers report it, although it selects the epoch on the test set.
    """

    optimiser: str = "sgd"  # sgd, adam or lars
    lr: float = 30.0  # peak learning rate
    epochs: int = 100  # passes over the features
    batch: int = 256  # features in a batch
    milestones: tuple[int, ...] = ()  # epochs at which the rate is multiplied by gamma; if empty, cosine to zero
    gamma: float = 0.1  # factor at each milestone
    best: bool = False  # whether to report the best epoch too

    def __post_init__(self) -> None:
        if self.optimiser not in ("sgd", "adam", "lars"):
            raise ValueError(f"optimiser: expected 'sgd', 'adam' or 'lars', got {self.optimiser!r}")
        if self.lr <= 0 or not math.isfinite(self.lr):
            raise ValueError(f"lr: expected a number above 0, got {self.lr!r}")
        if self.epochs < 1 or self.batch < 1:
            raise ValueError(f"epochs, batch: expected at least 1, got {self.epochs} and {self.batch}")

    def __call__(
        self, train: Tensor, train_labels: Tensor, test: Tensor, test_labels: Tensor, *, seed: int = 0
    ) -> dict[str, float]:
        """Train on (n, d) features and return top-1 and, with at least five classes, top-5 accuracy in per cent."""
        check_labelled(train, train_labels, test, test_labels)
        classes = int(train_labels.max()) + 1
        layer = nn.Linear(train.shape[1], classes, device=train.device)
        # Drawn on the CPU, so that every device starts from the same weights.
        noise = torch.randn(layer.weight.shape, generator=torch.Generator().manual_seed(seed))
        with torch.no_grad():
            layer.weight.copy_(0.01 * noise)
            layer.bias.zero_()
        trainer = _LinearTrainer(layer, self._optimiser(layer), features=train, labels=train_labels, batch=self.batch)
        best = 0.0
        for epoch in range(self.epochs):
            order = permutation(len(train), seed, epoch, device=train.device)
            trainer.run_epoch(order, self._learning_rate(epoch))
            if self.best:
                best = max(best, accuracy(layer, test, test_labels)["top1"])
        scores = accuracy(layer, test, test_labels)
        return scores | ({"best_top1": best} if self.best else {})

    def describe(self) -> str:
        """Return the settings in words."""
        schedule = (
            f"× {self.gamma:g} at {', '.join(map(str, self.milestones))}" if self.milestones else "cosine schedule"
        )
        epoch = "best epoch" if self.best else "last epoch"
        name = {"sgd": "SGD", "adam": "Adam", "lars": "LARS"}[self.optimiser]
        return f"{name}, lr {self.lr:g}, {schedule}, {self.epochs} epochs, batch {self.batch}, {epoch}"

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


class _LinearTrainer:
    """Trains a linear layer epoch by epoch; on a GPU, steps are replayed as a CUDA graph.

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

    def run_epoch(self, order: Tensor, lr: float) -> None:
        """Train for one epoch on the features in this order."""
        for group in self.optimiser.param_groups:
            group["lr"] = lr if self.graphed_step is None else self.lr
        if self.graphed_step is None:
            for index in order.split(self.batch):
                self._step(index)
            return
        self.lr.fill_(lr)
        # The graph runs on a stream of its own, which must wait for `order` and the learning rate, and be waited for.
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


@torch.no_grad()
def accuracy(
    classify: Callable[[Tensor], Tensor], inputs: Tensor, labels: Tensor, chunk: int = 10_000
) -> dict[str, float]:
    """Return top-1 and, with at least five classes, top-5 accuracy in per cent; `chunk` inputs are classified at a time."""
    logits = torch.cat([classify(part) for part in inputs.split(chunk)])
    hit = logits.topk(min(5, logits.shape[1]), dim=1).indices == labels[:, None]
    scores = {"top1": 100 * float(hit[:, 0].float().mean())}
    return scores | ({"top5": 100 * float(hit.any(1).float().mean())} if logits.shape[1] >= 5 else {})


# Each paper's linear evaluation, with its learning rate at its batch size.
PROBES: Mapping[str, Probe] = {
    # DySTreSS on ImageNet: lightly's recipe, lr = 0.1 · batch / 256.
    "dystress-imagenet": Probe(lr=0.1, epochs=90),
    # Wang & Liu: lr 30 as in the paper; their training script passes 1.0 on CIFAR.
    "wang-liu": Probe(lr=30.0, epochs=100, milestones=(40, 60, 80), gamma=0.2),
    # CACR on small images.
    "cacr": Probe("adam", lr=1e-3, epochs=100, batch=128, milestones=(60, 80), gamma=0.2),
    # CACR on ImageNet with MoCo v2.
    "cacr-imagenet": Probe(lr=30.0, epochs=100, milestones=(60, 80)),
    # MoCo v3 with a ResNet: lr = 0.1 · batch / 256; with a ViT it is 3 · batch / 256.
    "moco-v3": Probe(lr=0.4, epochs=90, batch=1024),
    # Lee on ImageNet, which follows SimSiam: lr = 0.1 · batch / 256.
    "balanced-imagenet": Probe("lars", lr=1.6, epochs=90, batch=4096),
    # Lee on CIFAR.
    "balanced-cifar": Probe(lr=30.0, epochs=90),
}


def few_shot(
    train: Tensor, train_labels: Tensor, test: Tensor, test_labels: Tensor, *, seed: int = 0
) -> dict[str, float]:
    """Return the accuracy of linear SVMs on normalised features, in per cent (long-tail protocol of Kukleva et al.).

    `few_shot` trains on a class-balanced subset with as many images of each class as the smallest class has, `long_tail` on
    all images. Accuracy is the mean over classes, so that frequent classes do not dominate.

    train, test                 features (n, width) to train on and (t, width) to classify
    train_labels, test_labels   their classes, (n,) and (t,)
    seed                        chooses the subset
    """
    from sklearn.svm import LinearSVC

    check_labelled(train, train_labels, test, test_labels)
    present = train_labels.unique()
    if len(present) < 2:
        raise ValueError(f"train_labels: expected at least two classes to tell apart, got only {int(present[0])}")
    smallest = int(torch.stack([(train_labels == c).sum() for c in present]).min())
    balanced = []
    for c in present.tolist():
        members = (train_labels == c).nonzero()[:, 0]
        balanced.append(members[permutation(len(members), seed, c, device=members.device)[:smallest]])
    subsets = {"few_shot": torch.cat(balanced), "long_tail": torch.arange(len(train), device=train.device)}
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
