"""All metrics of a network's output on a sample of images, as a run's records contain them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from contrapose import metrics
from contrapose.lab.evaluation.features import features
from contrapose.lab.modalities import Source, ViewMaker
from contrapose.pairs import unit
from contrapose.randomness import permutation

# Metrics of embeddings without augmentation; all other metrics need random views, and so the images in memory.
GEOMETRY = (
    "uniformity",
    "alignment_all",
    "effective_rank",
    "feature_std",
    "interclass_uniformity",
    "tolerance",
    "alignment_class",
)
_LEAST_DRAWN = 128
_LEAST_RANKED = 8  # samples; the rank of fewer is low because they are few, and would be taken for a collapse
_EXPLANATIONS = {
    "uniformity": "log of the mean e^(-2 · squared distance) of two samples; lower: spread more evenly, 0: all are equal",
    "alignment_all": "mean squared distance of any two samples",
    "effective_rank": "number of dimensions in use",
    "feature_std": "deviation of the coordinates; 1: spread evenly over the sphere, 0: all are equal",
    "interclass_uniformity": "uniformity of the class means; lower: classes are further apart",
    "tolerance": "mean similarity of two samples of one class; higher: classes stay together",
    "alignment_class": "mean squared distance of two samples of one class",
    "alignment": "mean squared distance of two views of one sample; lower: less sensitive to augmentation",
    "conditional_entropy": "entropy of CACR's weights of the negatives; higher: negatives are equally near",
    "separation_positive": "mean similarity of a view to its own sample",
    "separation_gap": "separation_positive minus the similarity to the nearest other sample",
    "prototype_bias_means": "mean distance between a sample's mean over views and its class mean (Lee, Eq. 16)",
    "prototype_bias_single": "mean distance of two samples of one class under the same augmentation (Lee, Eq. 51)",
    "attraction_gap": "mean slack of Lee's bound on the attraction (Theorem 4.4)",
    "attraction_outside": "share of samples that violate the assumption of that bound",
    "repulsion_gap": "mean slack of Lee's bound on the repulsion (Theorem 4.6), corrected",
    "repulsion_gap_printed": "the same slack as published",
    "repulsion_outside": "share of samples that violate the assumption of that bound",
}


@dataclass(frozen=True)
class Measures:
    """Compute metrics of unit embeddings of a random but fixed sample, some of them under random augmentation."""

    images: int = 1000  # sample size, at most; 0 measures all images
    augmented: bool = True  # whether to compute metrics of random views too, which take three quarters of the time
    drawn: int = 0  # images that are augmented `draws` times, for Lee's bounds; 0: a tenth of the sample, at least 128
    draws: int = 10  # random views of each of these images
    batch: int = 128  # M in CACR's conditional entropy
    t_neg: float = 2.0  # t⁻ in CACR's conditional entropy
    alpha: float = 2.0  # α in the repulsion bound
    seed: int = 0  # random seed of the sample

    def __call__(
        self, embed: Callable[[Tensor], Tensor], data: Source, views: ViewMaker, device: torch.device
    ) -> dict[str, float]:
        """Return every metric; metrics that need labels are included only if there are at least two classes."""
        # Only random views need the images in memory: without them a data set of any size is streamed.
        sample = self.sample(data, views) if self.augmented else self.subset(data)
        reader = sample.reader(views, device, workers=0, timeout=0.0)
        z = unit(features(embed, reader.plain()))
        if not bool(z.any()):  # a collapse to the origin: all other metrics need the direction of a vector
            return {"effective_rank": 0.0, "feature_std": 0.0}
        labels = None if sample.labels is None else sample.labels.to(device)
        values = _geometry(z, labels)
        if not self.augmented:
            return values
        raw = reader.resident
        assert raw is not None
        draw = partial(self.draw, embed, views, raw)
        first, second = draw(torch.arange(len(raw)), 0, 1)
        # Images from class folders are sorted by class, so batches and anchors are taken in a random order.
        order = permutation(len(raw), self.seed, 1)
        values |= {
            "alignment": metrics.alignment(first, second),
            "conditional_entropy": metrics.conditional_entropy(
                z[order.to(device)], t_neg=self.t_neg, batch=min(self.batch, len(z))
            ),
        }
        values |= separation_values(metrics.local_separation(first, z, nearest=min(10, len(z) - 1)))
        if labels is None or "tolerance" not in values:
            return values
        drawn = order[: self.drawn or max(_LEAST_DRAWN, len(raw) // 10)]
        return values | self._bounds(draw, first, second, labels=labels, drawn=drawn)

    def _bounds(
        self, draw: Callable[..., Tensor], first: Tensor, second: Tensor, *, labels: Tensor, drawn: Tensor
    ) -> dict[str, float]:
        """Return Lee's prototype biases and gaps of the anchors `drawn`, with the standard errors of their means."""
        # Draws 0 and 1 are `first` and `second`: the expectation must be over draws independent of these two.
        draws, anchors = draw(drawn, *range(2, 2 + self.draws)), first[drawn.to(first.device)]
        drawn_labels = labels[drawn.to(labels.device)]
        values = {
            "prototype_bias_means": metrics.prototype_bias_means(draws, drawn_labels, rows=second, row_labels=labels)
        }
        partner = partners(labels.cpu(), seed=self.seed)[drawn]
        paired = partner >= 0
        if bool(paired.any()):
            # The partner is augmented with the anchor's index, so that partner and anchor get the same augmentation.
            (other,) = draw(drawn[paired], 0, images=partner[paired])
            values |= bias_values(metrics.prototype_deviations(anchors[paired.to(anchors.device)], other))
        attraction = metrics.attraction_gap(anchors, draws)
        repulsion = metrics.repulsion_gap(anchors, drawn_labels, second, labels, alpha=self.alpha)
        values |= {
            "attraction_gap": attraction.gap,
            "attraction_gap_error": attraction.error,
            "attraction_outside": attraction.outside,
            "repulsion_gap": repulsion.gap,
            "repulsion_gap_error": repulsion.error,
            "repulsion_gap_printed": repulsion.printed,
            "repulsion_outside": repulsion.outside,
        }
        # Infinite if a class mean is zero, as in a collapse to two opposite points; NaN for a single anchor
        return {name: value for name, value in values.items() if math.isfinite(value)}

    def sample(self, data: Source, views: ViewMaker) -> Source:
        """Return the samples to measure, in memory; every call returns the same samples."""
        return self.subset(data).in_memory(views)

    def subset(self, data: Source) -> Source:
        """Return the samples to measure, on disk or in memory; every call returns the same samples."""
        if not self.images or self.images >= len(data):
            return data
        return data.subset(permutation(len(data), self.seed)[: self.images].sort().values)

    @torch.no_grad()
    def draw(
        self,
        embed: Callable[[Tensor], Tensor],
        views: ViewMaker,
        raw: Tensor,
        index: Tensor,
        *draws: int,
        images: Tensor | None = None,
    ) -> Tensor:
        """Return unit embeddings (D, n, d) of random views, which are a function of `index` and the number of the draw.

        `images` (n,) are the indices of the samples to embed, by default `index`.
        """
        # All draws of all samples are split into batches together, so that batches are full even for few samples.
        device, numbers, count, embedded = raw.device, torch.tensor(draws), len(index), []
        images = index if images is None else images
        for part in torch.arange(len(draws) * count).split(views.evaluation_batch(device)):
            draw, at = numbers[part // count].to(device), part % count
            inputs = views.draw(raw[images[at].to(device)], index[at].to(device), seed=self.seed, epoch=draw)
            embedded.append(unit(embed(inputs).float()))
        return torch.cat(embedded).view(len(draws), count, -1)


def _geometry(z: Tensor, labels: Tensor | None) -> dict[str, float]:
    """Return the metrics of unit vectors without augmentation; class metrics need at least two classes."""
    values = {"uniformity": metrics.uniformity(z), "alignment_all": metrics.alignment(z, kind="all")}
    if len(z) >= _LEAST_RANKED:
        values["effective_rank"] = metrics.effective_rank(z)
    values["feature_std"] = metrics.feature_std(z)
    if labels is None or len(labels.unique()) < 2:
        return values
    values["interclass_uniformity"] = metrics.interclass_uniformity(z, labels)
    if int(labels.bincount().max()) > 1:
        values["tolerance"] = metrics.tolerance(z, labels)
        values["alignment_class"] = metrics.alignment(z, labels=labels, kind="class")
    return values


def explain_metric(name: str) -> str:
    """Return an explanation of a metric in one line; empty for a name that is not known.

    name   name of the metric in the records

    >>> explain_metric("separation_n2")
    'mean similarity of a view to the 2nd nearest other sample'
    """
    if name.startswith("separation_n"):
        rank = name.removeprefix("separation_n")
        nearest = {"1": "nearest", "2": "2nd nearest", "3": "3rd nearest"}.get(rank, f"{rank}th nearest")
        return f"mean similarity of a view to the {nearest} other sample"
    if name.endswith("_error"):
        return f"standard error of {name.removesuffix('_error')}"
    return _EXPLANATIONS.get(name, "")


def separation_values(separation: metrics.Separation) -> dict[str, float]:
    """Return a local separation, keyed by its names in the records.

    separation   means over anchors
    """
    nearest = {f"separation_n{rank}": similarity for rank, similarity in enumerate(separation.nearest, 1)}
    return {"separation_positive": separation.positive, "separation_gap": separation.gap} | nearest


def bias_values(deviations: Tensor) -> dict[str, float]:
    """Return the prototype bias of Lee's Eq. 51 and its standard error, keyed by their names in the records.

    deviations   `metrics.prototype_deviations`, (n,)
    """
    error = metrics.standard_error(deviations)
    return {"prototype_bias_single": float(deviations.mean()), "prototype_bias_single_error": error}


def partners(labels: Tensor, *, seed: int = 0) -> Tensor:
    """Return for each image the index of another image of its class, or -1 if there is none.

    labels   class of each image, (n,)
    seed     random seed of the choice among the images in a class
    """
    partner = torch.full_like(labels, -1)
    for c in labels.unique().tolist():
        members = (labels == c).nonzero()[:, 0]
        members = members[permutation(len(members), seed, c, device=members.device)]
        if len(members) > 1:
            # The partner is the next image in a random cyclic order: never the image itself, and each image is a partner once.
            partner[members] = members.roll(-1)
    return partner
