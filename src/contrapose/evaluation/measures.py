"""All metrics of an encoder on a sample of images: what the records of a run hold."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from contrapose import metrics
from contrapose.evaluation.features import at_once, features
from contrapose.modalities.images.images import Images
from contrapose.modalities.images.stream import Files, whole
from contrapose.modalities.images.views import Recipe, Views
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
        self, embed: Callable[[Tensor], Tensor], data: Images | Files, recipe: Recipe, device: torch.device
    ) -> dict[str, float]:
        """Every metric there is; those that need labels only where there are at least two classes of them."""
        sample = self.sample(data, recipe)
        pixels = sample.pixels
        batches = pixels.split(at_once(device, recipe.size))
        z = unit(features(embed, batches, recipe, device))
        every = torch.arange(len(pixels))
        drawn = every[: self.drawn]
        first, second = self.draw(embed, pixels, every, recipe, device, 0, 1)
        found = {
            "uniformity": metrics.uniformity(z),
            "alignment": metrics.alignment(first, second),
            "alignment_all": metrics.alignment(z, kind="all"),
            "effective_rank": metrics.effective_rank(z),
            "feature_std": metrics.feature_std(z),
            "conditional_entropy": metrics.conditional_entropy(z, t_neg=self.t_neg, batch=min(self.batch, len(z))),
        }
        separation = metrics.local_separation(first, z, nearest=min(10, len(z) - 1))
        found |= {"separation_positive": separation.positive, "separation_gap": separation.gap}
        found |= {f"separation_n{place}": s for place, s in enumerate(separation.nearest, 1)}
        if sample.labels is None or len(sample.labels.unique()) < 2:
            return found
        labels = sample.labels.to(device)
        found["interclass_uniformity"] = metrics.interclass_uniformity(z, labels)
        if int(labels.bincount().max()) < 2:
            return found
        found["tolerance"] = metrics.tolerance(z, labels)
        found["alignment_class"] = 2 - 2 * found["tolerance"]
        draws = self.draw(embed, pixels[drawn], drawn, recipe, device, *range(2, 2 + self.draws))
        own = labels[drawn.to(device)]
        found["prototype_bias_means"] = metrics.prototype_bias_means(draws, own, rows=second, row_labels=labels)
        partner = partners(labels.cpu(), seed=self.seed)[drawn]
        some = drawn[partner >= 0]
        if len(some):
            # The same augmentation for both: the same index decides it.
            (other,) = self.draw(embed, pixels[partner[partner >= 0]], some, recipe, device, 0)
            found["prototype_bias_single"] = metrics.prototype_bias_single(first[some.to(device)], other)
        attraction = metrics.attraction_gap(first[drawn.to(device)], draws)
        repulsion = metrics.repulsion_gap(first[drawn.to(device)], own, second, labels, alpha=self.alpha)
        return found | {
            "attraction_gap": attraction.gap,
            "attraction_outside": attraction.outside,
            "repulsion_gap": repulsion.gap,
            "repulsion_gap_printed": repulsion.printed,
            "repulsion_outside": repulsion.outside,
        }

    def sample(self, data: Images | Files, recipe: Recipe) -> Images:
        """The images that are measured, in memory."""
        place = permutation(len(data), self.seed)[: self.images or len(data)].sort().values
        part = data.subset(place)
        if isinstance(part, Images):
            return part
        pixels = torch.cat(list(whole(part, recipe, batch=500, workers=0)))
        return Images(part.name, pixels, part.labels, part.classes)

    def draw(
        self,
        embed: Callable[[Tensor], Tensor],
        pixels: Tensor,
        index: Tensor,
        recipe: Recipe,
        device: torch.device,
        *draws: int,
    ) -> Tensor:
        """(D, n, d): unit embeddings of random augmentations of each image; `index` and the draw's number decide which."""
        view, numbers, made = Views((recipe,)), torch.tensor(draws), []
        with torch.no_grad():
            for part in torch.arange(len(draws) * len(pixels)).split(at_once(device, recipe.size)):
                draw, image = numbers[part // len(pixels)], part % len(pixels)
                (x,) = view(pixels[image].to(device), index[image].to(device), seed=self.seed, epoch=draw.to(device))
                made.append(unit(embed(x[0].contiguous(memory_format=torch.channels_last)).float()))
        return torch.cat(made).view(len(draws), len(pixels), -1)


def partners(labels: Tensor, *, seed: int = 0) -> Tensor:
    """For each image another one of its class, the next in a random order of the class; -1 where it is alone."""
    found = torch.full_like(labels, -1)
    for c in labels.unique().tolist():
        members = (labels == c).nonzero()[:, 0]
        members = members[permutation(len(members), seed, c, device=members.device)]
        if len(members) > 1:
            found[members] = members.roll(-1)
    return found
