"""Attract or leave out false negatives: candidates that look like the anchor's own sample (FNC, Huynh et al.)."""

from __future__ import annotations

import torch
from torch import Tensor

from contrapose.losses.finish import finish, log_sum_exp
from contrapose.losses.objective import objective
from contrapose.pairs import AnyPairs
from contrapose.pairs.false_negatives import find_false_negatives
from contrapose.pairs.negatives import Negatives, steps
from contrapose.pairs.positives import repeated_positives
from contrapose.reduce import LogSumExp
from contrapose.temperature import Temperature, temperature_logit
from contrapose.validate import check_choice, check_count, check_number

__all__ = ["fnc"]


@objective(provided=("support",), unit_vectors=True)
def fnc(
    pairs: AnyPairs,
    *,
    support: Tensor | None = None,
    form: str = "attraction",
    top: int = 10,
    threshold: float = 0.7,
    temperature: Temperature = 0.1,
    negatives: Negatives = None,
    reduction: str = "mean",
) -> Tensor:
    """-mean_p s_p/τ + log Σ_a e^{s_a/τ}: false negatives become positives, or are left out (FNC, Huynh et al.).

    The score of a candidate is its highest cosine similarity to the `support` views of the anchor's sample. False
    negatives are the `top` candidates of other samples with the highest scores, if their scores exceed `threshold`.

    p   the anchor's positives in `pairs` and, with form="attraction", the false negatives
    a   all of p, and all remaining candidates of other samples; with form="elimination", without the false negatives

    Without false negatives and with one positive this is `nt_xent`. With several positives, all of them are in the sum
    over a, as in `supcon`. `negatives` applies only to candidates that are not false negatives.

    pairs         the result of `two_views`, `views`, `cross`, `queue`, `bank` or `from_similarities`
    support       further views of the samples, (S, m, d), without gradient; default: the anchors themselves, as in the
                  authors' code without a memory
    form          "attraction" or "elimination"
    top           maximum number of false negatives per anchor
    threshold     score that a false negative must exceed
    temperature   τ: a number, one per anchor (n,), a function of similarity (`cosine(0.07, 0.2)`) or `learned(…)`
    negatives     which candidates are negatives: `other_views()`, `hardest(k)`, … or a tuple of them; default: all
    reduction     "mean" or "sum" over anchors, or "none" for one value per anchor (n,)

    >>> from contrapose.pairs import two_views
    >>> z = torch.eye(2)[[0, 0, 1]]
    >>> round(fnc(two_views(z, z), temperature=1.0).item(), 4)  # as if the first two samples had the same label
    1.1802
    """
    check_choice("form", form, "attraction", "elimination")
    check_count("top", top, least=1)
    check_number("threshold", threshold)
    chosen, attracts = steps(negatives), form == "attraction"
    logit = temperature_logit(temperature, pairs.shape[0])
    found = find_false_negatives(pairs, support, top=top, threshold=threshold)
    positives = logit(pairs.positives())
    repeated = repeated_positives(pairs, positives.device)
    once = positives if repeated is None else positives.masked_fill(repeated, -torch.inf)
    # If possible, sum all negatives at once, which kernels support; a choice of negatives must not see false negatives.
    in_total = attracts and not chosen
    (total,) = pairs.reduce(LogSumExp(logit), negatives=None if in_total else (found, *chosen), may_be_empty=True)
    if not attracts:
        return finish(log_sum_exp(once, total) - positives.mean(1), reduction)
    extra = logit(found.similarities(pairs))
    # The sum is computed as count times mean, since the mean does not change if a positive is repeated.
    own: int | Tensor = positives.shape[1] if repeated is None else (~repeated).sum(1)
    attraction = own * positives.mean(1) + torch.where(found.are_found, extra, 0.0).sum(1)
    terms = once if in_total else torch.cat([once, extra.masked_fill(~found.are_found, -torch.inf)], 1)
    return finish(log_sum_exp(terms, total) - attraction / (own + found.are_found.sum(1)), reduction)
