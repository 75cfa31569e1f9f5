"""Objectives of assignments: each view predicts to which prototypes the other views of its sample are assigned.

They take `Assignments`, the similarities (V, m, p) of V views to p prototypes: `swav(Assignments(scores=scores))`. `Loss`
computes them from `Embeddings` with prototypes. SwAV's codes depend on the whole batch, so several processes gather it first.
Everything is computed in float32 or better, without waiting for a GPU.
"""

from __future__ import annotations

from functools import reduce

import torch
from torch import Tensor
from torch.nn.functional import log_softmax

from contrapose.embeddings import Assignments
from contrapose.losses.objective import objective
from contrapose.temperature import LearnedTemperature, Temperature, temperature_logit
from contrapose.validate import check_count, check_number

__all__ = ["dino", "sinkhorn", "swav"]


@objective(takes="assignments")
def swav(
    assignments: Assignments, *, temperature: Temperature = 0.1, epsilon: float = 0.05, iterations: int = 3
) -> Tensor:
    """-mean_{w≠v} Σ_k q_wk log softmax(s_v/τ)_k: view v predicts the codes q of view w (SwAV, Caron et al., Eq. 1 and 2).

    `sinkhorn` computes the codes of the global views w; all other views v, including local crops, predict them. The loss is
    the mean over samples and over all such pairs of views, as in the authors' code and in lightly, whose loss is the same on
    one process. On several processes, lightly computes each process's codes separately unless it is told to gather. The
    paper's Eq. 1 adds up the two directions instead of averaging them.

    assignments   `Assignments`: `scores`, and `stored` scores of earlier samples, which influence the codes
    temperature   τ: a number or `learned(…)`
    epsilon       ε of `sinkhorn`: the lower ε, the closer a code is to one-hot
    iterations    iterations of `sinkhorn`

    >>> swav(Assignments(scores=torch.eye(4).expand(2, 4, 4))).item() < 1e-3  # views agree on one prototype per sample
    True
    """
    scores = _scores("scores", assignments.scores, 3)
    if assignments.target is not None or assignments.center is not None:
        raise ValueError("target, center: swav has no teacher, but these assignments have a teacher's scores; use dino")
    codes = sinkhorn(
        scores[: _global_views(assignments)],
        epsilon=epsilon,
        iterations=iterations,
        stored=assignments.stored,
        stored_weight=assignments.stored_weight,
    )
    return _mean_cross_entropy(codes, scores, temperature)


@objective(takes="assignments", needs_target=True, tensor_settings=("temperature", "teacher_temperature"))
def dino(
    assignments: Assignments, *, temperature: Temperature = 0.1, teacher_temperature: float | Tensor = 0.04
) -> Tensor:
    """-mean_{t≠s} Σ_k softmax((g_t - c)/τ_t)_k log softmax(g_s/τ)_k, g_t a teacher's scores (DINO, Caron et al., Eq. 3).

    The teacher scores the first W views, the global crops; for each of them, all other views of the student, including local
    crops, predict the teacher's scores. The loss is the mean over samples and over all pairs t ≠ s, as in the authors' code
    and in lightly, whose loss is the same. Their losses also update the center c; here the framework updates c and passes it in.

    assignments           `Assignments`: the student's `scores`, the teacher's scores as `target`, and their `center`, if any
    temperature           τ of the student: a number or `learned(…)`
    teacher_temperature   τ_t: a number; in `Loss`, also `LinearWarmup(0.04, 0.07, epochs=30)`

    >>> scores = torch.eye(4).expand(2, 4, 4)
    >>> dino(Assignments(scores=scores, target=scores)).item() < 1e-3
    True
    """
    scores = _scores("scores", assignments.scores, 3)
    centred = _centred_target(assignments)
    if isinstance(teacher_temperature, LearnedTemperature) or getattr(teacher_temperature, "requires_grad", False):
        raise ValueError("teacher_temperature: expected a number, got a learned one, which would get no gradient")
    codes = _logits(centred, teacher_temperature, "teacher_temperature").softmax(-1)
    return _mean_cross_entropy(codes, scores, temperature)


def _centred_target(assignments: Assignments) -> Tensor:
    """Check the teacher's scores (W, m, p) and their center; return their difference, without gradient."""
    if assignments.target is None:
        raise ValueError(
            "target: dino needs the scores of a teacher: Assignments(scores=…, target=…), or --framework dino"
        )
    if assignments.stored is not None:
        raise ValueError("stored: dino does not use stored scores, but these assignments have some; use swav")
    target, center = _scores("target", assignments.target.detach(), 3), assignments.center
    views, (_, samples, prototypes) = _global_views(assignments), assignments.scores.shape
    # If the number of global views is not set, it is read from the shape of the teacher's scores.
    wrong_views = len(target) != views if assignments.global_views else len(target) > views
    if wrong_views or target.shape[1:] != (samples, prototypes):
        wanted = (views, samples, prototypes)
        raise ValueError(f"target: expected scores of the first views, {wanted}, got shape {tuple(target.shape)}")
    if center is None:
        return target
    if center.shape != (prototypes,):
        raise ValueError(f"center: expected one number per prototype, ({prototypes},), got shape {tuple(center.shape)}")
    return target - center.detach()


@torch.no_grad()
def sinkhorn(
    scores: Tensor,
    *,
    epsilon: float = 0.05,
    iterations: int = 3,
    stored: Tensor | None = None,
    stored_weight: Tensor | None = None,
) -> Tensor:
    """Return codes (…, m, p) without gradient: e^{s/ε}, scaled alternately to equal sums over prototypes and over samples.

    Each row sums to 1; the more iterations, the closer each column's sum is to m/p, so that no prototype takes all samples
    (Sinkhorn-Knopp, Cuturi; SwAV, Caron et al.). The computation uses logarithms, which neither overflow nor underflow, so a
    prototype far from all samples still gets its share.

    scores          similarities (…, m, p) of m samples to p prototypes
    epsilon         ε: the lower ε, the closer a code is to one-hot
    iterations      number of times that both sums are equalised
    stored          similarities (…, r, p) of earlier samples: they count in the sums over samples, but get no codes
    stored_weight   weight of each stored sample in these sums, a tensor (); default: 1

    >>> sinkhorn(torch.zeros(2, 4))
    tensor([[0.2500, 0.2500, 0.2500, 0.2500],
            [0.2500, 0.2500, 0.2500, 0.2500]])
    """
    check_number("epsilon", epsilon, above=0.0)
    check_count("iterations", iterations, least=1)
    batch = _scores("scores", scores, 2, 3) / epsilon
    if stored is None:
        for _ in range(iterations):
            batch = (batch - batch.logsumexp(-2, keepdim=True)).log_softmax(-1)
        return batch.exp()
    queue = _scores("stored", stored, batch.ndim) / epsilon
    if queue.shape[:-2] != batch.shape[:-2] or queue.shape[-1] != batch.shape[-1]:
        wanted = ", ".join(map(str, (*batch.shape[:-2], "r", batch.shape[-1])))
        raise ValueError(f"stored: expected shape ({wanted}), got {tuple(queue.shape)}")
    weight = batch.new_ones(()) if stored_weight is None else stored_weight
    for _ in range(iterations):
        counted = torch.where(weight > 0, queue.logsumexp(-2, keepdim=True) + weight.log(), -torch.inf)
        # Two sums instead of one over all rows, so that rows with weight 0 do not even change the rounding.
        total = torch.logaddexp(batch.logsumexp(-2, keepdim=True), counted)
        batch, queue = ((rows - total).log_softmax(-1) for rows in (batch, queue))
    return batch.exp()


def _mean_cross_entropy(codes: Tensor, scores: Tensor, temperature: Temperature) -> Tensor:
    """Return the mean over samples and pairs w ≠ v of -Σ_k q_wk log softmax(s_v/τ)_k, for codes (W, m, p) of the first views."""
    pairs = len(codes) * (len(scores) - 1)
    if not pairs:
        raise ValueError(f"scores: expected at least two views (V, m, p), got shape {tuple(scores.shape)}")
    total = scores.new_zeros(())
    for v, view in enumerate(_logits(scores, temperature, "temperature").unbind()):
        others = [codes[w] for w in range(len(codes)) if w != v]
        if others:
            # The loss is linear in the codes: one softmax and one product are enough for all of them.
            total = total - (reduce(torch.add, others) * log_softmax(view, -1)).sum(-1).mean()
    return total / pairs


def _logits(scores: Tensor, temperature: Temperature, name: str) -> Tensor:
    """Return scores / τ for a number, a tensor () that a schedule has written, or a learned temperature."""
    if isinstance(temperature, Tensor) and temperature.ndim:
        raise ValueError(f"{name}: expected a number, got a tensor of shape {tuple(temperature.shape)}")
    if callable(temperature) and not isinstance(temperature, LearnedTemperature):
        raise ValueError(f"{name}: expected a number, got {temperature!r}, a function of similarity")
    return temperature_logit(temperature, 1, name)(scores)


def _global_views(assignments: Assignments) -> int:
    """Return the number of global views, whose codes the other views predict."""
    count, views = assignments.global_views, len(assignments.scores)
    if not 0 <= count <= views:
        raise ValueError(f"global_views: expected at most {views}, the number of views, got {count}")
    return count or views


def _scores(name: str, scores: Tensor, *dims: int) -> Tensor:
    """Check the scores' number of dimensions and dtype; return them in float32 or better."""
    shapes = " or ".join({2: "(m, p)", 3: "(V, m, p)"}[n] for n in dims)
    if not isinstance(scores, Tensor) or not scores.is_floating_point():
        received = scores.dtype if isinstance(scores, Tensor) else type(scores).__name__
        raise ValueError(f"{name}: expected a floating point tensor of similarities to prototypes, got {received}")
    if scores.ndim not in dims or scores.numel() == 0:
        raise ValueError(f"{name}: expected similarities to prototypes, {shapes}, got shape {tuple(scores.shape)}")
    return scores if scores.dtype == torch.float64 else scores.float()
