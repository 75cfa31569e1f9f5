"""All metrics of an encoder on a sample of images: what the records of a run hold."""

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
    """Metrics of unit embeddings of a random but fixed sample, some of them under random augmentation."""

    images: int = 1000  # how many, at most
    drawn: int = 128  # of those, how many are augmented `draws` times, for the balanced paper's expectations
    draws: int = 10
    batch: int = 128  # M and t⁻ of CACR's conditional entropy
    t_neg: float = 2.0
    alpha: float = 2.0  # of the repulsion bound
    seed: int = 0

    def __call__(
        self, embed: Callable[[Tensor], Tensor], data: Source, views: ViewMaker, device: torch.device
    ) -> dict[str, float]:
        """Return every metric; those that need labels only if there are at least two classes."""
        sample = self.sample(data, views)
        reader = sample.reader(views, device, workers=0, timeout=0.0)
        raw = reader.resident
        assert raw is not None
        z = unit(features(embed, reader.plain()))
        every = torch.arange(len(raw))
        drawn = every[: self.drawn]
        draw = partial(self.draw, embed, views)
        first, second = draw(raw, every, 0, 1)
        values = {
            "uniformity": metrics.uniformity(z),
            "alignment": metrics.alignment(first, second),
            "alignment_all": metrics.alignment(z, kind="all"),
            "effective_rank": metrics.effective_rank(z),
            "feature_std": metrics.feature_std(z),
            "conditional_entropy": metrics.conditional_entropy(z, t_neg=self.t_neg, batch=min(self.batch, len(z))),
        }
        separation = metrics.local_separation(first, z, nearest=min(10, len(z) - 1))
        values |= {"separation_positive": separation.positive, "separation_gap": separation.gap}
        values |= {f"separation_n{rank}": s for rank, s in enumerate(separation.nearest, 1)}
        if sample.labels is None or len(sample.labels.unique()) < 2:
            return values
        labels = sample.labels.to(device)
        values["interclass_uniformity"] = metrics.interclass_uniformity(z, labels)
        if int(labels.bincount().max()) < 2:
            return values
        values["tolerance"] = metrics.tolerance(z, labels)
        values["alignment_class"] = 2 - 2 * values["tolerance"]
        draws = draw(raw[drawn.to(device)], drawn, *range(2, 2 + self.draws))
        own = labels[drawn.to(device)]
        values["prototype_bias_means"] = metrics.prototype_bias_means(draws, own, rows=second, row_labels=labels)
        partner = partners(labels.cpu(), seed=self.seed)[drawn]
        some = drawn[partner >= 0]
        if len(some):
            # Both get the same augmentation, since the same index decides it.
            (other,) = draw(raw[partner[partner >= 0].to(device)], some, 0)
            values["prototype_bias_single"] = metrics.prototype_bias_single(first[some.to(device)], other)
        attraction = metrics.attraction_gap(first[drawn.to(device)], draws)
        repulsion = metrics.repulsion_gap(first[drawn.to(device)], own, second, labels, alpha=self.alpha)
        return values | {
            "attraction_gap": attraction.gap,
            "attraction_outside": attraction.outside,
            "repulsion_gap": repulsion.gap,
            "repulsion_gap_printed": repulsion.printed,
            "repulsion_outside": repulsion.outside,
        }

    def sample(self, data: Source, views: ViewMaker) -> Source:
        """Return the samples that are measured, in memory: the same ones each time."""
        index = permutation(len(data), self.seed)[: self.images or len(data)].sort().values
        return data.subset(index).in_memory(views)

    @torch.no_grad()
    def draw(
        self, embed: Callable[[Tensor], Tensor], views: ViewMaker, raw: Tensor, index: Tensor, *draws: int
    ) -> Tensor:
        """Return unit embeddings (D, n, d) of random views of each sample; `index` and the draw's number decide which."""
        device, numbers, embedded = raw.device, torch.tensor(draws), []
        for part in torch.arange(len(draws) * len(raw)).split(views.evaluation_batch(device)):
            draw, sample = numbers[part // len(raw)].to(device), (part % len(raw))
            inputs = views.draw(raw[sample.to(device)], index[sample].to(device), seed=self.seed, epoch=draw)
            embedded.append(unit(embed(inputs).float()))
        return torch.cat(embedded).view(len(draws), len(raw), -1)


def partners(labels: Tensor, *, seed: int = 0) -> Tensor:
    """For each image another one of its class, the next in a random order of the class; -1 where it is alone."""
    found = torch.full_like(labels, -1)
    for c in labels.unique().tolist():
        members = (labels == c).nonzero()[:, 0]
        members = members[permutation(len(members), seed, c, device=members.device)]
        if len(members) > 1:
            found[members] = members.roll(-1)
    return found
