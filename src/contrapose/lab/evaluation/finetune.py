"""Fine-tuning: training of encoder and classifier together on labelled images."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

from contrapose.lab.evaluation.linear import accuracy, describe_schedule
from contrapose.lab.evaluation.scores import score
from contrapose.lab.modalities import Reader, Source, ViewMaker
from contrapose.lab.modalities.progress import progress_bar, without_progress_bars
from contrapose.lab.networks.encoder import Encoder
from contrapose.lab.workers import TIMEOUT
from contrapose.randomness import bits, permutation
from contrapose.validate import check_choice, check_number

Batches = Callable[[int], Iterable[tuple[Tensor, Tensor]]]  # epoch -> indices and inputs of each batch


@dataclass(frozen=True)
class FineTune:
    """Train with SGD (momentum 0.9) or AdamW, random crops and flips; lr defaults to 0.05 · batch / 256.

    Scores are from the last epoch. `FINE_TUNING` contains the papers' recipes.
    """

    epochs: int = 30  # passes over the data
    batch: int = 256  # samples in a batch
    lr: float | None = None  # peak learning rate; None: 0.05 · batch / 256
    weight_decay: float = 0.0  # for all weights; with AdamW only for matrices and convolutions
    optimiser: str = "sgd"  # sgd or adamw
    milestones: tuple[int, ...] = ()  # epochs at which the rate is multiplied by gamma; if empty, cosine to zero
    gamma: float = 0.1  # factor at each milestone
    warmup: int = 0  # number of first epochs in which the learning rate rises linearly
    class_weights: tuple[float, ...] = ()  # weights in the cross-entropy, one per class
    pos_weight: float | None = None  # weight of class 1 in a binary cross-entropy with one logit; None: cross-entropy
    mixup: float = 0.0  # α of mixup; with cutmix, each batch gets one of the two
    cutmix: float = 0.0  # α of cutmix
    smoothing: float = 0.0  # label smoothing

    def __post_init__(self) -> None:
        if self.epochs < 1 or self.batch < 2:
            raise ValueError(f"epochs, batch: expected at least 1 and 2, got {self.epochs} and {self.batch}")
        check_choice("optimiser", self.optimiser, "sgd", "adamw")
        for weight in (*self.class_weights, *(() if self.pos_weight is None else (self.pos_weight,))):
            check_number("class_weights, pos_weight", weight, above=0)
        if self.pos_weight is not None and (self.class_weights or self.mixup or self.cutmix or self.smoothing):
            raise ValueError(
                "pos_weight: a binary cross-entropy has no class_weights, mixup, cutmix or smoothing; omit them"
            )

    def __call__(
        self,
        encoder: Encoder,
        train: Source,
        test: Source,
        *,
        views: ViewMaker,
        device: torch.device | str = "cpu",
        seed: int = 0,
        metrics: Sequence[str] = (),
        workers: int = 0,
        timeout: float = TIMEOUT,
    ) -> dict[str, float]:
        """Fine-tune a copy of `encoder` and return the scores on `test` in per cent; accuracy needs one class per image.

        train, test         labelled data sets, in memory or on disk
        views               how inputs are made
        seed                random seed of the classifier's initial weights, of the order of samples and of their crops
        metrics             names in `METRICS` to score in addition
        workers, timeout    processes that decode images on disk, and seconds to wait for them
        """
        if train.labels is None or test.labels is None:
            raise ValueError("fine-tuning needs labelled training and test images")
        if train.labels.ndim == 2 and not metrics:
            raise ValueError("metrics: images with several classes have no accuracy; use map_11")
        device = torch.device(device)
        labels, test_labels = train.labels.to(device), test.labels.to(device)
        # The classifier is initialised from `seed` without disturbing the caller's random state.
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            classifier = nn.Linear(encoder.width, self.outputs(labels))
            # All weights are trained, as in DeiT's recipe, even the patch projection that MoCo v3 keeps fixed in a ViT.
            network = nn.Sequential(copy.deepcopy(encoder).requires_grad_(), classifier).to(device)
        reader = train.reader(views.light(), device, workers=workers, timeout=timeout)
        with progress_bar("fine-tuning", self.epochs) as advance, without_progress_bars():
            batches = partial(self._read, reader, len(labels), seed)
            self.fit(network, labels, batches, seed=seed, on_epoch=advance)
        logits = self.predict(network, test.reader(views, device, workers=workers, timeout=timeout).plain())
        scores = accuracy(lambda chunk: chunk, logits, test_labels) if labels.ndim == 1 else {}
        return scores | {name: score(name, logits, test_labels) for name in metrics}

    @property
    def peak_lr(self) -> float:
        """Return the peak learning rate."""
        return self.lr if self.lr is not None else 0.05 * self.batch / 256

    def outputs(self, labels: Tensor) -> int:
        """Return the number of logits for training labels (N,) or, with several classes per image, (N, C)."""
        if labels.ndim == 2:
            return labels.shape[1]
        classes = int(labels.max()) + 1
        if self.pos_weight is not None and classes != 2:
            raise ValueError(f"pos_weight: expected two classes, 0 and 1, got {classes}; use class_weights")
        if self.class_weights and len(self.class_weights) != classes:
            raise ValueError(f"class_weights: expected {classes} numbers, one per class, got {len(self.class_weights)}")
        return 1 if self.pos_weight is not None else classes

    def fit(
        self,
        network: nn.Module,
        labels: Tensor,
        batches: Batches,
        *,
        seed: int = 0,
        on_epoch: Callable[[], None] = lambda: None,
    ) -> None:
        """Train a network in place; its inputs may be images, or features from a frozen encoder."""
        peak = self.peak_lr
        optimiser, classes = self._optimiser(network, peak), self.outputs(labels)
        for epoch in range(self.epochs):
            for group in optimiser.param_groups:
                group["lr"] = peak * self._factor(epoch)
            network.train()
            for step, (index, inputs) in enumerate(batches(epoch)):
                optimiser.zero_grad()
                mixed, targets = self._mix(inputs, labels[index], classes=classes, keys=(seed, epoch, step))
                self.loss(network(mixed), targets).backward()
                optimiser.step()
            on_epoch()
        network.eval()

    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of logits (B, outputs); labels are class numbers (B,) or class probabilities (B, C)."""
        if self.pos_weight is not None:
            return binary_cross_entropy_with_logits(
                logits[:, 0], labels.to(logits.dtype), pos_weight=logits.new_tensor(self.pos_weight)
            )
        if labels.ndim == 2 and not labels.is_floating_point():  # several classes per image
            return binary_cross_entropy_with_logits(logits, labels.to(logits.dtype))
        weight = logits.new_tensor(self.class_weights) if self.class_weights else None
        return cross_entropy(logits, labels, weight, label_smoothing=self.smoothing)

    @torch.no_grad()
    def predict(self, network: nn.Module, batches: Iterable[Tensor]) -> Tensor:
        """Return the logits (N, C) of all inputs. A single logit becomes the logit of class 1; the logit of class 0 is then 0."""
        network.eval()
        logits = torch.cat([network(batch).float() for batch in batches])
        return torch.cat([torch.zeros_like(logits), logits], 1) if self.pos_weight is not None else logits

    def describe(self) -> str:
        """Describe the settings in words."""
        name = {"sgd": "SGD", "adamw": "AdamW"}[self.optimiser]
        schedule = describe_schedule(self.milestones, self.gamma)
        parts = [f"{name} for {self.epochs} epochs", f"lr {self.peak_lr:g} ({schedule})", f"batch {self.batch}"]
        parts += [f"weight decay {self.weight_decay:g}"] if self.weight_decay else []
        parts += ["binary cross-entropy"] if self.pos_weight is not None else []
        parts += ["mixup and cutmix"] if self.mixup and self.cutmix else []
        return ", ".join(parts)

    def _factor(self, epoch: int) -> float:
        """Return an epoch's learning rate as a fraction of the peak."""
        if epoch < self.warmup:
            return (epoch + 1) / (self.warmup + 1)
        if self.milestones:
            return self.gamma ** sum(epoch >= milestone for milestone in self.milestones)
        return 0.5 * (1 + math.cos(math.pi * (epoch - self.warmup) / (self.epochs - self.warmup)))

    def _optimiser(self, network: nn.Module, peak: float) -> torch.optim.Optimizer:
        parameters = [parameter for parameter in network.parameters() if parameter.requires_grad]
        if self.optimiser == "sgd":
            return torch.optim.SGD(parameters, peak, momentum=0.9, weight_decay=self.weight_decay)
        # As in DeiT, biases and the scales of norms do not decay.
        decaying, others = [p for p in parameters if p.ndim > 1], [p for p in parameters if p.ndim <= 1]
        groups = [{"params": decaying, "weight_decay": self.weight_decay}, {"params": others, "weight_decay": 0.0}]
        return torch.optim.AdamW(groups, peak)

    def _read(self, reader: Reader, count: int, seed: int, epoch: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the indices and the augmented inputs of each batch of an epoch."""
        batches = self.epoch_batches(count, seed, epoch)
        for index, views in zip(batches, reader.train(batches, seed=seed, epoch=epoch), strict=True):
            yield torch.as_tensor(index, device=views[0].device), views[0][0]

    def epoch_batches(self, count: int, seed: int, epoch: int) -> list[list[int]]:
        """Return the indices of each batch of an epoch, in an order determined by the seed."""
        order = permutation(count, seed, epoch).tolist()
        batches = [order[first : first + self.batch] for first in range(0, count, self.batch)]
        # A last batch of one image is skipped: batch norm has no variance over a single sample.
        return [batch for batch in batches if len(batch) > 1]

    def _mix(
        self, inputs: Tensor, labels: Tensor, *, classes: int, keys: tuple[int, int, int]
    ) -> tuple[Tensor, Tensor]:
        """Return inputs and labels after mixup or cutmix, a function of the keys."""
        if not self.mixup and not self.cutmix:
            return inputs, labels
        from torchvision.transforms import v2

        choices = [v2.MixUp(alpha=self.mixup, num_classes=classes)] if self.mixup else []
        choices += [v2.CutMix(alpha=self.cutmix, num_classes=classes)] if self.cutmix else []
        # torchvision draws from the CPU's global generator, which is seeded here so that earlier draws have no influence.
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(int(bits(torch.tensor(keys[0]), *keys[1:])))
            mixed: tuple[Tensor, Tensor] = v2.RandomChoice(choices)(inputs, labels)
        return mixed


# The papers' fine-tuning recipes, each with its batch size and the learning rate for it.
FINE_TUNING: Mapping[str, FineTune] = {
    # DySTreSS, Table 11. Momentum and weight decay are our choice: the paper does not give them.
    "dystress-multiclass": FineTune(epochs=50, batch=128, lr=0.1, milestones=(30, 40)),
    "dystress-binary": FineTune(epochs=50, batch=128, lr=1.0, milestones=(30, 40), pos_weight=1.0),
    # CACR, Table 18, with a ResNet-50. The paper does not give the recipe; this one is our choice.
    "cacr-resnet50": FineTune(),
    # CACR, Table 18, with a ViT: MoCo v3's recipe, which is DeiT's with 150 epochs and lr = 5e-4 · batch / 512. Drop path,
    # which torchvision's ViT does not have, RandAugment, random erasing and repeated augmentation are left out.
    "vit": FineTune(
        epochs=150,
        batch=1024,
        lr=1e-3,
        weight_decay=0.05,
        optimiser="adamw",
        warmup=5,
        mixup=0.8,
        cutmix=1.0,
        smoothing=0.1,
    ),
}
