"""Metrics of embeddings, and of how a loss acts on them.

All metrics are exact and are computed in blocks: none stores the n × n similarity matrix.

    geometry     uniformity, tolerance, alignment, interclass_uniformity, effective_rank, feature_std
    neighbours   local_separation, similarity_histograms
    entropy      conditional_entropy
    retrieval    recall_at
    two_towers   two_tower_measures: modality gap, alignment and uniformity of images and their captions
    bounds       prototype_bias_means, prototype_bias_single, prototype_deviations, attraction_gap, repulsion_gap,
                 standard_error
    penalties    penalties: ∂L/∂s of any objective, that is, which negatives it pushes and how hard

>>> import torch
>>> uniformity(torch.eye(4)) == uniformity(-torch.eye(4))
True
"""

from contrapose.metrics.bounds import (
    Gap,
    RepulsionGap,
    attraction_gap,
    prototype_bias_means,
    prototype_bias_single,
    prototype_deviations,
    repulsion_gap,
    standard_error,
)
from contrapose.metrics.entropy import conditional_entropy
from contrapose.metrics.geometry import (
    alignment,
    effective_rank,
    feature_std,
    interclass_uniformity,
    tolerance,
    uniformity,
    uniformity_limit,
)
from contrapose.metrics.neighbours import Histograms, Separation, local_separation, similarity_histograms
from contrapose.metrics.penalties import Penalties, penalties
from contrapose.metrics.retrieval import recall_at
from contrapose.metrics.two_towers import two_tower_measures

__all__ = [
    "Gap",
    "Histograms",
    "Penalties",
    "RepulsionGap",
    "Separation",
    "alignment",
    "attraction_gap",
    "conditional_entropy",
    "effective_rank",
    "feature_std",
    "interclass_uniformity",
    "local_separation",
    "penalties",
    "prototype_bias_means",
    "prototype_bias_single",
    "prototype_deviations",
    "recall_at",
    "repulsion_gap",
    "similarity_histograms",
    "standard_error",
    "tolerance",
    "two_tower_measures",
    "uniformity",
    "uniformity_limit",
]
