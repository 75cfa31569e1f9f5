"""Fine-tuning: encoder and classifier trained together on labelled images."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from contrapose.evaluation.linear import accuracy
from contrapose.modalities import Source, ViewMaker
from contrapose.networks.encoder import Encoder
from contrapose.randomness import permutation


@dataclass(frozen=True)
class FineTune:
    """Train with SGD (momentum 0.9), a cosine schedule, random crops and flips; lr defaults to 0.05 · batch / 256.

    The papers do not specify their ResNet recipe, so this one is our choice. The score is that of the last epoch.
    """

    epochs: int = 30  # passes over the data
    batch: int = 256  # samples in a batch
    lr: float | None = None  # peak learning rate; None: 0.05 · batch / 256
    weight_decay: float = 0.0  # of all weights

    def __post_init__(self) -> None:
        if self.epochs < 1 or self.batch < 2:
            raise ValueError(f"epochs, batch: expected at least 1 and 2, got {self.epochs} and {self.batch}")

    def __call__(
        self,
        encoder: Encoder,
        train: Source,
        test: Source,
        *,
        views: ViewMaker,
        device: torch.device | str = "cpu",
        seed: int = 0,
    ) -> dict[str, float]:
        """Return the accuracy on `test` in per cent; `encoder` is not changed. `views` prepare the inputs."""
        if train.labels is None or test.labels is None:
            raise ValueError("fine-tuning needs labelled training and test images")
        device, light = torch.device(device), views.light()
        classes, labels = int(train.labels.max()) + 1, train.labels.to(device)
        # The classifier is initialised from `seed` without disturbing the caller's random state.
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            network = nn.Sequential(copy.deepcopy(encoder), nn.Linear(encoder.width, classes)).to(device)
        raw, raw_test = (source.reader(views, device, workers=0, timeout=0.0).resident for source in (train, test))
        if raw is None or raw_test is None:
            raise ValueError(
                "finetune: expected labelled images in memory, but those of this run are streamed from disk"
            )
        peak = self.lr if self.lr is not None else 0.05 * self.batch / 256
        optimiser = torch.optim.SGD(network.parameters(), peak, momentum=0.9, weight_decay=self.weight_decay)
        for epoch in range(self.epochs):
            for group in optimiser.param_groups:
                group["lr"] = peak * 0.5 * (1 + math.cos(math.pi * epoch / self.epochs))
            network.train()
            # A last batch of one image is skipped: batch norm has no variance over a single sample.
            order = permutation(len(train), seed, epoch, device=device)
            for index in (part for part in order.split(self.batch) if len(part) > 1):
                optimiser.zero_grad()
                inputs = light.draw(raw[index], index, seed=seed, epoch=epoch)
                cross_entropy(network(inputs), labels[index]).backward()
                optimiser.step()
        network.eval()

        def classify(chunk: Tensor) -> Tensor:
            logits: Tensor = network(views.plain(chunk))
            return logits

        return accuracy(classify, raw_test, test.labels.to(device), chunk=500)
