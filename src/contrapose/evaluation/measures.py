"""All metrics of an encoder on a sample of images, as in the records of a run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from contrapose import metrics
from contrapose.evaluation.features import features
from contrapose.modalities import Source, ViewMaker
from contrapose.pairs import unit
from contrapose.randomness import permutation


@dataclass(frozen=True)
class Measures:
    """Compute metrics of unit embeddings of a random but fixed sample, some of them under random augmentation."""

    images: int = 1000  # sample size, at most; 0 measures all images
    augmented: bool = True  # whether to compute those of random views too; without them it takes a quarter of the time
    drawn: int = 128  # number of images that are augmented `draws` times, for the expectations in Lee's bounds
    draws: int = 10  # random views of each of them
    batch: int = 128  # M of CACR's conditional entropy
    t_neg: float = 2.0  # t⁻ of the same
    alpha: float = 2.0  # α of the repulsion bound
    seed: int = 0  # chooses the sample

    def __call__(
        self, embed: Callable[[Tensor], Tensor], data: Source, views: ViewMaker, device: torch.device
    ) -> dict[str, float]:
        """Return every metric; those that need labels only if there are at least two classes."""
        sample = self.sample(data, views)
        reader = sample.reader(views, device, workers=0, timeout=0.0)
        raw = reader.resident
        assert raw is not None
        z = unit(features(embed, reader.plain()))
        if not self.augmented:
            return _geometry(z, None if sample.labels is None else sample.labels.to(device))
        index = torch.arange(len(raw))
        drawn = index[: self.drawn]
        draw = partial(self.draw, embed, views)
        first, second = draw(raw, index, 0, 1)
        labels = None if sample.labels is None else sample.labels.to(device)
        values = _geometry(z, labels) | {
            "alignment": metrics.alignment(first, second),
            "conditional_entropy": metrics.conditional_entropy(z, t_neg=self.t_neg, batch=min(self.batch, len(z))),
        }
        separation = metrics.local_separation(first, z, nearest=min(10, len(z) - 1))
        values |= {"separation_positive": separation.positive, "separation_gap": separation.gap}
        values |= {f"separation_n{rank}": s for rank, s in enumerate(separation.nearest, 1)}
        if labels is None or "tolerance" not in values:
            return values
        # Numbers 0 and 1 are `first` and `second`: the expectation must be over draws independent of both.
        draws = draw(raw[drawn.to(device)], drawn, *range(2, 2 + self.draws))
        drawn_labels = labels[drawn.to(device)]
        values["prototype_bias_means"] = metrics.prototype_bias_means(
            draws, drawn_labels, rows=second, row_labels=labels
        )
        partner = partners(labels.cpu(), seed=self.seed)[drawn]
        paired = drawn[partner >= 0]
        if len(paired):
            # The partner is augmented with the anchor's index, so that both get the same augmentation.
            (other,) = draw(raw[partner[partner >= 0].to(device)], paired, 0)
            values["prototype_bias_single"] = metrics.prototype_bias_single(first[paired.to(device)], other)
        attraction = metrics.attraction_gap(first[drawn.to(device)], draws)
        repulsion = metrics.repulsion_gap(first[drawn.to(device)], drawn_labels, second, labels, alpha=self.alpha)
        return values | {
            "attraction_gap": attraction.gap,
            "attraction_outside": attraction.outside,
            "repulsion_gap": repulsion.gap,
            "repulsion_gap_printed": repulsion.printed,
            "repulsion_outside": repulsion.outside,
        }

    def sample(self, data: Source, views: ViewMaker) -> Source:
        """Return the samples to measure, in memory; the same ones in each call."""
        index = permutation(len(data), self.seed)[: self.images or len(data)].sort().values
        return data.subset(index).in_memory(views)

    @torch.no_grad()
    def draw(
        self, embed: Callable[[Tensor], Tensor], views: ViewMaker, raw: Tensor, index: Tensor, *draws: int
    ) -> Tensor:
        """Return unit embeddings (D, n, d) of random views of each sample, a function of `index` and the draw's number."""
        # All draws of all samples are split into batches together, which keeps the batches full when there are few samples.
        device, numbers, embedded = raw.device, torch.tensor(draws), []
        for part in torch.arange(len(draws) * len(raw)).split(views.evaluation_batch(device)):
            draw, sample = numbers[part // len(raw)].to(device), (part % len(raw))
            inputs = views.draw(raw[sample.to(device)], index[sample].to(device), seed=self.seed, epoch=draw)
            embedded.append(unit(embed(inputs).float()))
        return torch.cat(embedded).view(len(draws), len(raw), -1)


def _geometry(z: Tensor, labels: Tensor | None) -> dict[str, float]:
    """Return the metrics of unit vectors without augmentation; those of classes only if there are at least two."""
    values = {
        "uniformity": metrics.uniformity(z),
        "alignment_all": metrics.alignment(z, kind="all"),
        "effective_rank": metrics.effective_rank(z),
        "feature_std": metrics.feature_std(z),
    }
    if labels is None or len(labels.unique()) < 2:
        return values
    values["interclass_uniformity"] = metrics.interclass_uniformity(z, labels)
    if int(labels.bincount().max()) > 1:
        values["tolerance"] = metrics.tolerance(z, labels)
        values["alignment_class"] = metrics.alignment(z, labels=labels, kind="class")
    return values


def partners(labels: Tensor, *, seed: int = 0) -> Tensor:
    """Return for each image the index of another image of its class, or -1 if there is none.

    labels   class of each image, (n,)
    seed     chooses among the images of a class
    """
    partner = torch.full_like(labels, -1)
    for c in labels.unique().tolist():
        members = (labels == c).nonzero()[:, 0]
        members = members[permutation(len(members), seed, c, device=members.device)]
        if len(members) > 1:
            # The next in a random cyclic order: never the image itself, and each image is a partner exactly once.
            partner[members] = members.roll(-1)
    return partner
