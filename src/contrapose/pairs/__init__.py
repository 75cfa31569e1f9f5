"""Which embeddings are compared: `Pairs`, the input of every contrastive loss, and the functions that make pairs.

An anchor has positives (other views of its sample) and a pool of candidates. **A candidate is a negative of an anchor
exactly if their sample ids differ.** Ids can be data-set indices, so that a sample that occurs twice in a batch is never
its own negative. Queue rows carry an id that no anchor has.

    two_views(z1, z2)    SimCLR: both views are anchors, 2m - 2 negatives
    views(z)             V views, each an anchor with V - 1 positives
    cross(a, b)          one direction, b is the only pool: SimCSE, retrieval, SigLIP
    cross(a, b, symmetric=True)   both directions: CLIP
    cross(a, b, negatives=h)      explicit hard negatives join the pool
    queue(q, k, rows)    MoCo: a key as positive, stored rows as negatives
    bank(z, index, rows) Wu et al.: the sample's own entry as positive, all other entries as negatives
    neighbours(p, z, rows)        NNCLR: the row nearest to a view as anchor, predictions of the other views as positives
    from_similarities(pos, neg)   similarity values instead of embeddings
"""

from contrapose.pairs.build import bank, neighbours, queue, two_views, views
from contrapose.pairs.cross import cross
from contrapose.pairs.guided import guided, self_guided
from contrapose.pairs.kinds import AnyPairs
from contrapose.pairs.negatives import (
    Choice,
    Hardest,
    Negatives,
    batch_rows,
    hardest,
    other_views,
    same_view,
    stored_rows,
)
from contrapose.pairs.pairs import Pairs
from contrapose.pairs.ring import RingPairs, around_ring
from contrapose.pairs.similarities import Similarities, from_similarities
from contrapose.pairs.targets import Targets, given_targets, guide_targets
from contrapose.reduce.unit import unit

__all__ = [
    "AnyPairs",
    "Choice",
    "Hardest",
    "Negatives",
    "Pairs",
    "RingPairs",
    "Similarities",
    "Targets",
    "around_ring",
    "bank",
    "batch_rows",
    "cross",
    "from_similarities",
    "given_targets",
    "guide_targets",
    "guided",
    "hardest",
    "neighbours",
    "other_views",
    "queue",
    "same_view",
    "self_guided",
    "stored_rows",
    "two_views",
    "unit",
    "views",
]
