"""Losses with soft targets: every candidate attracts an anchor as much as a guide, a teacher or given weights say."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from contrapose.losses.finish import finish, log_sum_exp
from contrapose.losses.objective import Settings, objective
from contrapose.pairs import AnyPairs
from contrapose.pairs.negatives import Negatives, may_leave_none
from contrapose.pairs.positives import repeated_positives
from contrapose.pairs.targets import Targets, given_targets, matching_targets
from contrapose.reduce import Differences, LogSumExp, SoftSums
from contrapose.temperature import Temperature, temperature_logit
from contrapose.validate import check_choice, check_values

__all__ = ["margin_mse", "soft_nt_xent"]


def _only_the_positive(settings: Settings, anchors: int) -> dict[str, Any]:
    """Return targets for `explain`, which shows one sample among negatives that attract nothing."""
    return {"targets": given_targets(torch.zeros(1, 1), 1.0)}


@objective(provided=("targets",), untrained=_only_the_positive)
def soft_nt_xent(
    pairs: AnyPairs,
    *,
    targets: Targets,
    form: str = "cross_entropy",
    temperature: Temperature = 0.1,
    negatives: Negatives = None,
    reduction: str = "mean",
) -> Tensor:
    """-Σ_j p_j log(e^{s_j/τ} / Σ_a e^{s_a/τ}): every candidate j attracts the anchor by its weight p_j (X-CLR, SoftCLIP).

    j and a run over the anchor's positives in `pairs` and its negatives. The weights add up to 1 and have no gradient; they
    come from another model's similarities or from given numbers. If only the positive has a weight this is `nt_xent`; if all
    samples of the anchor's class have the same weight, `supcon`.

    pairs         the result of `two_views`, `views`, `cross`, `queue`, `bank` or `from_similarities`
    targets       `guide_targets(…)` or `given_targets(…)`: the weights p
    form          "cross_entropy", or "kl": the Kullback-Leibler divergence from p, which is smaller by the entropy of p
    temperature   τ: a number, one per anchor (n,), a function of similarity (`cosine(0.07, 0.2)`) or `learned(…)`
    negatives     which candidates take part, besides the positives: `other_views()`, … or a tuple of them; default: all
    reduction     "mean" or "sum" over anchors, or "none" for one value per anchor (n,)

    >>> from contrapose.pairs import guide_targets, two_views
    >>> z, g = torch.eye(4), torch.eye(4)[[0, 0, 1, 1]]  # the guide knows two classes
    >>> round(soft_nt_xent(two_views(z, z), targets=guide_targets(two_views(g, g)), temperature=1.0).item(), 4)
    1.8321
    """
    check_choice("form", form, "cross_entropy", "kl")
    targets = matching_targets(pairs, targets)
    targets.check_weights()
    logit = temperature_logit(temperature, pairs.shape[0])
    similarities, log_weights = logit(pairs.positives()), targets.positive_log_weights()
    repeated = repeated_positives(pairs, similarities.device)
    attracted = similarities
    if repeated is not None:  # positives are summed here, so each must occur only once
        log_weights, attracted = (
            log_weights.masked_fill(repeated, -torch.inf),
            similarities.masked_fill(repeated, -torch.inf),
        )
    total, sums = pairs.reduce(
        LogSumExp(logit),
        SoftSums(logit, targets.log_weights(), with_entropy=form == "kl"),
        negatives=negatives,
        may_be_empty=may_leave_none(negatives),
    )
    log_weights = log_weights.to(sums)
    log_total = log_sum_exp(log_weights, sums[:, 0].detach())
    if targets.temperature is None:  # a softmax has no weights of 0, and the check waits for the device
        check_values(
            log_total > -torch.inf,
            lambda: (
                "targets: expected a weight above 0 for at least one positive or candidate of every anchor, got an anchor "
                "without any"
            ),
        )
    own, others = torch.exp(log_weights - log_total[:, None]), torch.exp(sums[:, 0].detach() - log_total)
    loss = log_sum_exp(attracted, total) - (own * similarities).sum(1) - others * sums[:, 1]
    if form == "kl":
        # Σ p log p, with 0 · log 0 = 0
        loss = loss + (own * log_weights.masked_fill(own == 0, 0.0)).sum(1) + others * sums[:, 2] - log_total
    return finish(loss, reduction)


@objective(provided=("targets",), untrained=_only_the_positive)
def margin_mse(pairs: AnyPairs, *, targets: Targets, negatives: Negatives = None, reduction: str = "mean") -> Tensor:
    """mean_k ((s⁺ - s_k) - (t⁺ - t_k))²: margins between positive and negatives are those of a teacher (MarginMSE).

    t are the teacher's scores, given by `given_targets(scores, own)` or by a guide's similarities; their temperature is not
    used. Several positives are averaged. Teachers usually score dot products: `similarity="dot"`.

    pairs       the result of `two_views`, `views`, `cross`, `queue`, `bank` or `from_similarities`
    targets     `given_targets(…)` or `guide_targets(…)`: the scores t
    negatives   which candidates are negatives: `other_views()`, `hardest(k)`, … or a tuple of them; default: all
    reduction   "mean" or "sum" over anchors, or "none" for one value per anchor (n,)

    >>> from contrapose.pairs import from_similarities, given_targets
    >>> pairs = from_similarities(torch.tensor([0.9]), torch.tensor([[0.4, 0.6]]))
    >>> targets = given_targets(torch.tensor([[1.0, 4.0]]), 5.0)  # margins of 4 and 1, ours are 0.5 and 0.3
    >>> round(margin_mse(pairs, targets=targets).item(), 4)  # (3.5² + 0.7²) / 2
    6.37
    """
    targets = matching_targets(pairs, targets)
    targets.check_scores()
    gap = pairs.positives() - targets.positive.to(pairs.positives())  # s⁺ - t⁺, (n, k)
    # (gap - d)² is expanded around the gap's value, so that nothing cancels: moved is 0, and carries the gradient.
    moved = gap - gap.detach()
    statistics = [Differences(targets, column.detach()) for column in gap.unbind(1)]
    moments = torch.stack(pairs.reduce(*statistics, negatives=negatives), 1)  # (n, k, 2)
    return finish((moved.square() - 2 * moved * moments[..., 0] + moments[..., 1]).mean(1), reduction)
