"""Try a loss on a small batch, so that an invalid setting is reported before any data is read."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from contrapose.embeddings import Assignments
from contrapose.losses.module import Loss
from contrapose.losses.objective import added_to, traits_of, with_state
from contrapose.pairs import views
from contrapose.pairs.negatives import steps

_SAMPLES = 4


def try_loss(chosen: partial[Tensor], *, similarity: str = "cosine") -> None:
    """Compute an objective from `parse` on four samples in two equal views; raise ValueError if its settings are invalid.

    `similarity` is passed to `views`: some objectives accept only similarities between unit vectors.
    """
    for _, term in added_to(chosen):
        # What compares no pairs has no similarity either.
        try_loss(term, similarity=similarity if traits_of(term.func).takes == "pairs" else "cosine")
    objective, state = with_state(chosen, _SAMPLES)
    settings = dict(objective.keywords)
    # Only the type of `negatives` is checked: four images have neither 64 hardest negatives nor the stored rows of a real run.
    steps(settings.pop("negatives", None))
    untrained = traits_of(objective.func).untrained
    provided = {} if state is not None or untrained is None else untrained(settings, 2 * _SAMPLES)
    z = torch.eye(_SAMPLES)
    loss, ids = Loss(objective.func, state=state, **settings), torch.arange(_SAMPLES)
    if similarity == "cosine" and loss.traits.takes == "assignments":
        scores = z.expand(2, -1, -1)  # one prototype per sample
        loss(Assignments(scores=scores, target=scores if loss.traits.needs_target else None))
    elif loss.traits.takes == "pairs":
        keys = [z, z] if loss.traits.needs_target else None
        loss(views([z, z], keys=keys, similarity=similarity, ids=ids), **provided)
    elif similarity == "cosine":
        loss(z, z, ids=ids, **provided)
    else:
        raise ValueError(f"similarity: {objective.func.__name__} does not compare pairs, so {similarity} has no effect")
