"""Objectives with attraction only: positives are pulled, and nothing is pushed.

On their own they have a trivial minimum, in which all embeddings are equal. BYOL and SimSiam avoid this collapse by their
choice of pairs: anchors are the predictions of a small network, and positives are embeddings without gradient, from a teacher
(BYOL) or from the same network (SimSiam). The frameworks `byol` and `simsiam` make such pairs, and so does
`views([p1, p2], keys=[z1, z2])`, which detaches the keys. On `two_views(z1, z2)` both sides would have a gradient, so these
pairs are refused.
"""

from __future__ import annotations

from torch import Tensor

from contrapose.losses.finish import finish
from contrapose.losses.objective import objective
from contrapose.pairs import AnyPairs

__all__ = ["byol", "simsiam"]


@objective(unit_vectors=True, needs_target=True)
def byol(pairs: AnyPairs, *, reduction: str = "mean") -> Tensor:
    """Σ_views mean (2 - 2s⁺): [2 - 2cos(p₁, z₂)] + [2 - 2cos(p₂, z₁)] for two views (BYOL, Grill et al., Eq. 2).

    It is computed as ‖p - z‖² of unit vectors, which is exact even if they nearly coincide. With more than two views, each view
    contributes the mean over its anchors and their positives, and the loss is the sum over views. lightly trains BYOL with the
    mean of the negative cosines, which is `simsiam`: with two views, its gradient is a quarter of this one.

    pairs       the result of `views(p, keys=z)`, or other pairs whose positives have no gradient; negatives are ignored
    reduction   "mean" or "sum" over anchors, or "none" for one value per anchor (n,)

    >>> import torch
    >>> from contrapose.pairs import views
    >>> predictions, targets = torch.eye(2, 3).expand(2, 2, 3), torch.eye(2, 3).roll(1, 0).expand(2, 2, 3)
    >>> byol(views(predictions, keys=targets)).item()  # 2 + 2: all are orthogonal
    4.0
    """
    # The authors' loss is the sum over an image's views, whereas `finish` averages over anchors.
    return finish(pairs.view_count * pairs.positive_distances(), reduction)


@objective(unit_vectors=True, needs_target=True)
def simsiam(pairs: AnyPairs, *, reduction: str = "mean") -> Tensor:
    """-mean s⁺: ½D(p₁, z₂) + ½D(p₂, z₁) with D = -cos for two views (SimSiam, Chen & He, Eq. 1 and 2).

    With more than two views, it is the mean over all anchors and their positives. For V views, byol = 2V(1 + simsiam).

    pairs       the result of `views(p, keys=z)`, or other pairs whose positives have no gradient; negatives are ignored
    reduction   "mean" or "sum" over anchors, or "none" for one value per anchor (n,)
    """
    return finish(-pairs.positives(), reduction)
