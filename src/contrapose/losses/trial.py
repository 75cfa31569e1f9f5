"""Try a loss on a small batch, so that a setting out of range is refused before any data is read."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from contrapose.embeddings import Assignments
from contrapose.losses.module import Loss
from contrapose.losses.objective import traits_of, with_state
from contrapose.pairs import two_views
from contrapose.pairs.negatives import steps

_SAMPLES = 4


def try_loss(chosen: partial[Tensor], *, similarity: str = "cosine") -> None:
    """Compute an objective of `parse` on four samples in two equal views; raise ValueError if it refuses its settings.

    `similarity` is that of `two_views`: an objective may refuse those that are not of unit vectors.
    """
    objective, state = with_state(chosen, _SAMPLES)
    settings = dict(objective.keywords)
    # Only their type is checked: four images have neither the 64 hardest negatives nor the stored rows that a run has.
    steps(settings.pop("negatives", None))
    untrained = traits_of(objective.func).untrained
    provided = {} if state is not None or untrained is None else untrained(settings, 2 * _SAMPLES)
    z = torch.eye(_SAMPLES)
    loss, ids = Loss(objective.func, state=state, **settings), torch.arange(_SAMPLES)
    if similarity == "cosine" and loss.traits.takes == "assignments":
        scores = z.expand(2, -1, -1)  # a prototype for each sample
        loss(Assignments(scores=scores, target=scores if loss.traits.needs_target else None))
    elif similarity == "cosine":
        loss(z, z, ids=ids, **provided)
    elif loss.traits.takes == "pairs":
        loss(two_views(z, z, similarity=similarity, ids=ids), **provided)
    else:
        raise ValueError(
            f"similarity: {objective.func.__name__} compares no pairs, so that {similarity} changes nothing"
        )
