"""Linear classifiers on frozen, cached features."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from contrapose.cuda.graphs import GraphedStep
from contrapose.optim.lars import LARS
from contrapose.randomness import permutation


@dataclass(frozen=True)
class Probe:
    """How a linear classifier is trained. The last epoch counts; `best` reports the best one too, under that name."""

    optimiser: str = "sgd"  # sgd, adam or lars
    lr: float = 30.0
    epochs: int = 100
    batch: int = 256
    milestones: tuple[int, ...] = ()  # epochs of a drop; none: cosine to zero
    gamma: float = 0.1
    best: bool = False

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
        """top-1 and, with five classes or more, top-5 accuracy in per cent."""
        classes = int(train_labels.max()) + 1
        layer = nn.Linear(train.shape[1], classes, device=train.device)
        noise = torch.randn(layer.weight.shape, generator=torch.Generator().manual_seed(seed))
        with torch.no_grad():
            layer.weight.copy_(0.01 * noise)
            layer.bias.zero_()
        fit, best = _Fit(layer, self._optimiser(layer), train, train_labels, self.batch), 0.0
        for epoch in range(self.epochs):
            fit(permutation(len(train), seed, epoch, device=train.device), self._rate(epoch))
            if self.best:
                best = max(best, accuracy(layer, test, test_labels)["top1"])
        scores = accuracy(layer, test, test_labels)
        return scores | ({"best_top1": best} if self.best else {})

    def _rate(self, epoch: int) -> float:
        if self.milestones:
            return self.lr * self.gamma ** sum(epoch >= milestone for milestone in self.milestones)
        return self.lr * 0.5 * (1 + math.cos(math.pi * epoch / self.epochs))

    def _optimiser(self, layer: nn.Linear) -> torch.optim.Optimizer:
        cuda = layer.weight.is_cuda
        if self.optimiser == "sgd":
            return torch.optim.SGD(layer.parameters(), self.lr, momentum=0.9, fused=cuda or None)
        if self.optimiser == "adam":
            return torch.optim.Adam(
                layer.parameters(), self.lr, betas=(0.5, 0.999), eps=1e-8, fused=cuda or None, capturable=cuda
            )
        return LARS(layer.parameters(), self.lr, form="moco")


class _Fit:
    """Epochs of a linear layer; on a GPU each step but a smaller last one is launched as one."""

    def __init__(
        self, layer: nn.Linear, optimiser: torch.optim.Optimizer, train: Tensor, labels: Tensor, batch: int
    ) -> None:
        self.layer, self.optimiser, self.train, self.labels, self.batch = layer, optimiser, train, labels, batch
        self.replayed: GraphedStep | None = None
        if train.is_cuda:
            self.index, self.rate = labels.new_zeros(batch, dtype=torch.long), train.new_zeros(())
            self.replayed = GraphedStep(lambda: self._step(self.index), train.device)

    def __call__(self, order: Tensor, rate: float) -> None:
        """One epoch."""
        for group in self.optimiser.param_groups:
            group["lr"] = rate if self.replayed is None else self.rate
        if self.replayed is None:
            for index in order.split(self.batch):
                self._step(index)
            return
        self.rate.fill_(rate)
        self.replayed.stream.wait_stream(torch.cuda.current_stream(order.device))
        with torch.cuda.stream(self.replayed.stream):
            for index in order.split(self.batch):
                if len(index) < self.batch:
                    self._step(index)
                else:
                    self.index.copy_(index)
                    self.replayed()
        torch.cuda.current_stream(order.device).wait_stream(self.replayed.stream)

    def _step(self, index: Tensor) -> None:
        self.optimiser.zero_grad()
        cross_entropy(self.layer(self.train[index]), self.labels[index]).backward()
        self.optimiser.step()


@torch.no_grad()
def accuracy(
    classify: Callable[[Tensor], Tensor], inputs: Tensor, labels: Tensor, chunk: int = 10_000
) -> dict[str, float]:
    """top-1 and, with five classes or more, top-5 accuracy in per cent."""
    logits = torch.cat([classify(part) for part in inputs.split(chunk)])
    hit = logits.topk(min(5, logits.shape[1]), dim=1).indices == labels[:, None]
    scores = {"top1": 100 * float(hit[:, 0].float().mean())}
    return scores | ({"top5": 100 * float(hit.any(1).float().mean())} if logits.shape[1] >= 5 else {})


PROBES: Mapping[str, Probe] = {
    "dystress-imagenet": Probe(lr=0.1, epochs=90),  # E5, lightly: 0.1 · batch / 256
    "wang-liu": Probe(lr=30.0, epochs=100, milestones=(40, 60, 80), gamma=0.2),  # E6
    "cacr": Probe("adam", lr=1e-3, epochs=100, batch=128, milestones=(60, 80), gamma=0.2),  # E7
    "cacr-imagenet": Probe(lr=30.0, epochs=100, milestones=(60, 80)),  # E8, MoCo v2
    "moco-v3": Probe(lr=0.4, epochs=90, batch=1024),  # E8, MoCo v3 with a ResNet: 0.1 · batch / 256; with a ViT 3 ·
    "balanced-imagenet": Probe("lars", lr=1.6, epochs=90, batch=4096),  # E9
    "balanced-cifar": Probe(lr=30.0, epochs=90),  # E10
}


def few_shot(
    train: Tensor, train_labels: Tensor, test: Tensor, test_labels: Tensor, *, seed: int = 0
) -> dict[str, float]:
    """Kukleva's long-tail protocol (E4): linear SVMs on normalised features, class-mean accuracy in per cent.

    `few_shot` on a class-balanced subset, as many of each class as the smallest has; `long_tail` on all.
    """
    from sklearn.svm import LinearSVC

    present = train_labels.unique()
    least = int(torch.stack([(train_labels == c).sum() for c in present]).min())
    chosen = []
    for c in present.tolist():
        places = (train_labels == c).nonzero()[:, 0]
        chosen.append(places[permutation(len(places), seed, c, device=places.device)[:least]])
    scores = {}
    for name, index in (("few_shot", torch.cat(chosen)), ("long_tail", torch.arange(len(train), device=train.device))):
        unit = nn.functional.normalize
        model = LinearSVC(random_state=seed).fit(unit(train[index]).cpu().numpy(), train_labels[index].cpu().numpy())
        found = torch.from_numpy(model.predict(unit(test).cpu().numpy())).to(test_labels.device)
        each = [float((found[test_labels == c] == c).float().mean()) for c in test_labels.unique().tolist()]
        scores[name] = 100 * sum(each) / len(each)
    return scores
