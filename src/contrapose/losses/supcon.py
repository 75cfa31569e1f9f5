"""Supervised contrastive loss: samples of one class are positives of each other (SupCon, Khosla et al.)."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor

from contrapose.losses.finish import finish, log_sum_exp
from contrapose.losses.objective import Settings, objective
from contrapose.pairs import AnyPairs, Pairs
from contrapose.pairs.labels import UNLABELLED, Labels, match_labels
from contrapose.pairs.negatives import Negatives, steps
from contrapose.pairs.positives import repeated_positives
from contrapose.reduce import Logit, LogSumExp, Scale, Sum, group_sums
from contrapose.temperature import Temperature, temperature_logit
from contrapose.validate import check_choice, values_may_be_read

__all__ = ["supcon"]


def _unlabelled(settings: Settings, anchors: int) -> dict[str, Any]:
    """Return labels for `explain`, which shows one sample among negatives that do not share its label."""
    return {"labels": torch.full((anchors,), UNLABELLED)}


@objective(provided=("labels", "stored_labels"), untrained=_unlabelled)
def supcon(
    pairs: AnyPairs,
    *,
    labels: Tensor,
    form: str = "out",
    stored_labels: Tensor | None = None,
    temperature: Temperature = 0.1,
    negatives: Negatives = None,
    reduction: str = "mean",
) -> Tensor:
    """-mean_p s_p/τ + log Σ_a e^{s_a/τ}: all samples with the anchor's label are positives (Khosla et al., Eq. 2).

    p   the anchor's positives in `pairs`, and the candidates from other samples with the anchor's label
    a   the anchor's positives in `pairs`, and all candidates from other samples

    On `two_views` and `views` these are the paper's sets: a are all rows except the anchor. `form="in"` is Eq. 3, with the
    mean inside the logarithm: -log mean_p e^{s_p/τ} + log Σ_a e^{s_a/τ}, which is at most Eq. 2.

    `labels` are integers, one per sample in the batch or one per anchor. A label below 0 means unknown: the sample then
    has only its positives in `pairs`. With a single view, `views([z])`, positives come from labels alone: the loss of an
    anchor without positives is 0, and the mean covers the other anchors. `stored_labels` are the labels of the rows in a
    queue or a bank; without them, all queue rows are negatives. `negatives` applies to the candidates with another label, and
    never leaves out a positive.

    pairs           the result of `two_views`, `views`, `cross`, `queue`, `bank` or `from_similarities`
    labels          integers, (m,) or (n,)
    form            "out" (Eq. 2) or "in" (Eq. 3)
    stored_labels   integers, one per stored row
    temperature     τ: a number, one per anchor (n,), a function of similarity (`cosine(0.07, 0.2)`) or `learned(…)`
    negatives       which candidates are negatives: `other_views()`, `hardest(k)`, … or a tuple of them; default: all
    reduction       "mean" or "sum" over anchors, or "none" for one value per anchor (n,)

    >>> from contrapose.pairs import two_views, views
    >>> z = torch.eye(2)[[0, 0, 1]]
    >>> round(supcon(two_views(z, z), labels=torch.tensor([5, 5, 7]), temperature=1.0).item(), 4)
    1.1802
    >>> round(supcon(views([z]), labels=torch.tensor([5, 5, 7]), temperature=1.0).item(), 4)  # one view: log(1 + 1/e)
    0.3133
    """
    check_choice("form", form, "out", "in")
    matched = match_labels(pairs, labels, stored_labels)
    logit = temperature_logit(temperature, pairs.shape[0])
    positives = logit(pairs.positives(may_be_empty=True))
    count, attracted = positives.shape[1] + matched.same_label_count, positives
    repeated = repeated_positives(pairs, positives.device)
    if repeated is not None:  # positives are summed here, so each must occur only once
        count, attracted = count - repeated.sum(1), positives.masked_fill(repeated, 0.0)
        positives = positives.masked_fill(repeated, -torch.inf)
    if form == "out":
        attraction = (attracted.sum(1) + _same_label_sum(pairs, matched, logit)) / count.clamp(min=1)
    else:
        (same,) = pairs.reduce(LogSumExp(logit), negatives=matched.same(), may_be_empty=True)
        # Anchors without positives are masked before the logarithm: the gradient of log 0 would be NaN.
        same = same.masked_fill(count == 0, 0.0) if not positives.shape[1] else same
        attraction = log_sum_exp(positives, same) - count.clamp(min=1).to(same.dtype).log()
    values = log_sum_exp(positives, *_log_totals(pairs, matched, logit, negatives)) - attraction
    return finish(values, reduction) if positives.shape[1] else _finish_by_labels(values, count > 0, reduction)


def _finish_by_labels(values: Tensor, has_positives: Tensor, reduction: str) -> Tensor:
    """Reduce over the anchors that share their label with another sample; the loss of all other anchors is 0."""
    if values_may_be_read(has_positives) and not bool(has_positives.any()):
        warnings.warn(
            "supcon: no two samples in this batch have the same label, so there are no positives and the loss is 0; "
            "draw batches with several samples of each class",
            stacklevel=4,
        )
    values = torch.where(has_positives, values, 0.0)
    return values.sum() / has_positives.sum().clamp(min=1) if reduction == "mean" else finish(values, reduction)


def _log_totals(pairs: AnyPairs, labels: Labels, logit: Logit, negatives: Negatives) -> tuple[Tensor, ...]:
    """Return log-sum-exps, (n,) each, that together cover the candidates of other samples, or those that `negatives` keeps."""
    chosen = steps(negatives)
    if not chosen:
        return pairs.reduce(LogSumExp(logit))
    (same,) = pairs.reduce(LogSumExp(logit), negatives=labels.same(), may_be_empty=True)
    (other,) = pairs.reduce(LogSumExp(logit), negatives=(labels.other(), *chosen), may_be_empty=True)
    return same, other


def _same_label_sum(pairs: AnyPairs, labels: Labels, logit: Logit) -> Tensor:
    """Return Σ φ(s) over the candidates of other samples with the anchor's label, (n,)."""
    if not isinstance(pairs, Pairs) or not isinstance(logit, Scale):
        return pairs.reduce(Sum(logit), negatives=labels.same(), may_be_empty=True)[0]
    # φ is linear: the sum of similarities is the similarity to a sum of embeddings, in O(n d). All rows with the
    # anchor's sample id have its label.
    totals = []
    for rows, columns in pairs.candidate_runs:
        pool = pairs.pool[columns]
        of_label = group_sums(pool, labels.pool[columns], labels.anchor[rows])
        of_sample = group_sums(pool, pairs.pool_id[columns], pairs.anchor_id[rows])
        totals.append((pairs.anchor[rows] * (of_label - of_sample)).sum(1))
    total = torch.where(labels.anchor >= 0, torch.cat(totals), 0.0)
    return logit(total[:, None])[:, 0]
