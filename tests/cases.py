"""One table drives the promises: a new loss is one more row."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from inspect import signature
from typing import Any

import oracles
import torch
from kinds import EVERY, KINDS, WITH_OWN_KEYS, WITH_SAME_VIEW, WITH_TARGETS, WITH_VIEWS, Kind
from oracles import Oracle, Tau, constant, cosine_profile
from torch import Tensor

from contrapose import losses
from contrapose.losses.objective import traits_of
from contrapose.pairs import AnyPairs, given_targets
from contrapose.pairs.negatives import hardest, other_views, same_view
from contrapose.temperature import arctanh, cosine, exponential, linear, monotonic_cosine


@dataclass(frozen=True)
class Case:
    """A loss (one value per anchor), its oracle, the kinds of pairs it takes, whether nothing is under a stop."""

    name: str
    loss: Callable[..., Tensor]  # (pairs, reduction=…)
    oracle: Oracle
    smooth: bool = True
    kinds: frozenset[str] = EVERY


def with_settings(objective: Callable[..., Tensor], **settings: object) -> Callable[..., Tensor]:
    def loss(pairs: AnyPairs, reduction: str = "none") -> Tensor:
        return objective(pairs, **settings, reduction=reduction)

    return loss


def scores(n: int) -> list[float]:
    return [0.3 * (i % 5) - 0.5 for i in range(n)]


def soft_loss(pairs: AnyPairs, reduction: str = "none", **settings: Any) -> Tensor:
    """All candidates of an anchor have one weight, and its positives another."""
    weights = torch.tensor(scores(pairs.shape[0]), dtype=torch.float64) + 1
    targets = given_targets(weights[:, None], 2.0)
    return losses.soft_nt_xent(pairs, targets=targets, temperature=0.3, **settings, reduction=reduction)


def margin_loss(pairs: AnyPairs, reduction: str = "none") -> Tensor:
    margins = torch.tensor(scores(pairs.shape[0]), dtype=torch.float64)
    return losses.margin_mse(pairs, targets=given_targets(-margins[:, None], 0.0), reduction=reduction)


def tau_loss(pairs: AnyPairs, reduction: str = "none") -> Tensor:
    score = torch.tensor(scores(pairs.shape[0]), dtype=torch.float64)
    return losses.tau(pairs, score=score, base=0.3, reduction=reduction)


def per_anchor(pairs: AnyPairs, reduction: str = "none") -> Tensor:
    temperature = torch.full((pairs.shape[0],), 0.4, dtype=torch.float64)
    return losses.nt_xent(pairs, temperature=temperature, reduction=reduction)


def sogclr_moving(pairs: AnyPairs, reduction: str = "none") -> Tensor:
    average = torch.full((pairs.shape[0],), 0.7, dtype=torch.float64).log()
    return losses.sogclr(pairs, temperature=0.3, log_average=average, gamma=0.4, reduction=reduction)


def isogclr_moving(pairs: AnyPairs, reduction: str = "none") -> Tensor:
    temperature, average = (torch.full((pairs.shape[0],), x, dtype=torch.float64) for x in (0.3, 0.7))
    return losses.isogclr(pairs, temperature=temperature, log_average=average.log(), gamma=0.4, reduction=reduction)


def fastclip_moving(pairs: AnyPairs, reduction: str = "none") -> Tensor:
    average = torch.full((pairs.shape[0],), 0.7, dtype=torch.float64).log()
    return losses.fastclip(pairs, temperature=0.3, rho=1.5, log_average=average, gamma=0.4, reduction=reduction)


def label_of_image(image: int) -> int:
    return -1 if image % 4 == 3 else image % 2


def label(candidate: oracles.Candidate | oracles.Anchor) -> int:
    """The label of a row: by its image, or by its place in a queue."""
    return (
        candidate.place % 3
        if isinstance(candidate, oracles.Candidate) and candidate.image < 0
        else (label_of_image(candidate.image))
    )


def supcon_case(name: str, *filters: tuple[str, float], tau: Tau, smooth: bool = True, **settings: Any) -> Case:
    form = str(settings.get("form", "out"))

    def loss(pairs: AnyPairs, reduction: str = "none") -> Tensor:
        assert pairs.anchor_id is not None
        assert pairs.pool_id is not None
        labels = torch.tensor([label_of_image(image) for image in pairs.anchor_id.tolist()])
        stored = [
            place % 3 if image < 0 else label_of_image(image)
            for place, image in enumerate(pairs.pool_id[: pairs.stored].tolist())
        ]
        return losses.supcon(
            pairs,
            labels=labels,
            stored_labels=torch.tensor(stored) if stored else None,
            reduction=reduction,
            **settings,
        )

    return Case(name, loss, oracles.supcon(tau, label, *filters, form=form), smooth, EVERY - {"similarities"})


def fnc_case(name: str, form: str, *filters: tuple[str, float], tau: Tau, smooth: bool = True, **settings: Any) -> Case:
    return case(
        name,
        losses.fnc,
        oracles.fnc(tau, form, 2, 0.2, *filters),
        smooth=smooth,
        # The two sides of these have other candidates, so that a side's scores need rows that the oracle does not have.
        kinds=EVERY - {"cross_symmetric", "cross_symmetric_negatives"},
        form=form,
        top=2,
        threshold=0.2,
        **settings,
    )


def case(
    name: str,
    objective: Callable[..., Tensor],
    oracle: Oracle,
    *,
    smooth: bool = True,
    kinds: frozenset[str] = EVERY,
    **settings: object,
) -> Case:
    return Case(name, with_settings(objective, **settings), oracle, smooth, kinds)


L, plain = losses, oracles
WITH_SEVERAL_KEYS = frozenset({"queue_batch", "queue_views", "queue_global_keys", "views_global_keys"})
CASES = {
    row.name: row
    for row in (
        case("nt_xent", L.nt_xent, plain.nt_xent(constant(0.5)), temperature=0.5),
        Case("nt_xent per anchor", per_anchor, plain.nt_xent(constant(0.4))),
        case("nt_xent other views", L.nt_xent, plain.nt_xent(constant(0.3), ("other", 0)), temperature=0.3,
             negatives=other_views(), kinds=EVERY - {"similarities"}),
        case("nt_xent same view", L.nt_xent, plain.nt_xent(constant(0.3), ("same", 0)), temperature=0.3,
             negatives=same_view(), kinds=WITH_SAME_VIEW),
        case("nt_xent hardest 2", L.nt_xent, plain.nt_xent(constant(0.3), ("hardest", 2)), temperature=0.3,
             negatives=hardest(2)),
        case("nt_xent hardest half", L.nt_xent, plain.nt_xent(constant(0.3), ("fraction", 0.5)), temperature=0.3,
             negatives=hardest(0.5)),
        case("nt_xent other then hardest", L.nt_xent, plain.nt_xent(constant(0.3), ("other", 0), ("hardest", 1)),
             temperature=0.3, negatives=(other_views(), hardest(1)), kinds=EVERY - {"similarities"}),
        case("nt_xent hardest then same", L.nt_xent, plain.nt_xent(constant(0.3), ("fraction", 0.99), ("same", 0)),
             temperature=0.3, negatives=(hardest(0.99), same_view()), kinds=WITH_SAME_VIEW),
        case("dystress", L.nt_xent, plain.nt_xent(cosine_profile(0.1, 0.3)), smooth=False,
             temperature=cosine(0.1, 0.3)),
        case("dystress not detached", L.nt_xent, plain.nt_xent(cosine_profile(0.1, 0.3), detach=False),
             temperature=cosine(0.1, 0.3, detach=False)),
        case("dystress shifted left", L.nt_xent, plain.nt_xent(cosine_profile(0.1, 0.3, -0.4)), smooth=False,
             temperature=cosine(0.1, 0.3, shift=-0.4)),
        case("dystress shifted right", L.nt_xent, plain.nt_xent(cosine_profile(0.1, 0.3, 0.2)), smooth=False,
             temperature=cosine(0.1, 0.3, shift=0.2)),
        case("dystress linear", L.nt_xent, plain.nt_xent(plain.linear_profile(0.1, 0.3)), smooth=False,
             temperature=linear(0.1, 0.3)),
        case("dystress exponential", L.nt_xent, plain.nt_xent(plain.exponential_profile(0.1, 0.3)), smooth=False,
             temperature=exponential(0.1, 0.3)),
        case("dystress monotonic", L.nt_xent, plain.nt_xent(plain.monotonic_profile(0.1, 0.3), detach=False),
             temperature=monotonic_cosine(0.1, 0.3, detach=False)),
        case("arctanh", L.nt_xent, plain.nt_xent(plain.arctanh_profile, detach=False), temperature=arctanh()),
        case("arctanh detached", L.dcl, plain.dcl(plain.arctanh_profile), smooth=False, temperature=arctanh(detach=True)),
        case("dystress dcl", L.dcl, plain.dcl(cosine_profile(0.1, 0.3)), smooth=False, temperature=cosine(0.1, 0.3)),
        case("dystress dcl authors", L.dcl, plain.dcl(cosine_profile(0.1, 0.3), split=True, detach=False),
             temperature=cosine(0.1, 0.3, detach=False), split_views=True, kinds=WITH_OWN_KEYS),
        case("dcl", L.dcl, plain.dcl(constant(0.2)), temperature=0.2),
        case("dcl split", L.dcl, plain.dcl(constant(0.2), split=True), temperature=0.2, split_views=True,
             kinds=WITH_OWN_KEYS),
        case("nt_xent hardness", L.nt_xent, plain.nt_xent(constant(0.5), hardness=3.0), smooth=False, temperature=0.5,
             hardness=3.0),
        case("nt_xent hardness profile", L.nt_xent, plain.nt_xent(cosine_profile(0.1, 0.3), hardness=3.0), smooth=False,
             temperature=cosine(0.1, 0.3), hardness=3.0),
        case("nt_xent hardness hardest", L.nt_xent, plain.nt_xent(constant(0.5), ("hardest", 2), hardness=-1.0),
             smooth=False, temperature=0.5, hardness=-1.0, negatives=hardest(2)),
        case("dcl hardness", L.dcl, plain.dcl(constant(0.2), hardness=9.0), smooth=False, temperature=0.2, hardness=9.0),
        case("dcl hardness split", L.dcl, plain.dcl(constant(0.2), split=True, hardness=2.0), smooth=False,
             temperature=0.2, hardness=2.0, split_views=True, kinds=WITH_OWN_KEYS),
        case("dclw", L.dclw, plain.dclw(0.2, 0.5), smooth=False, temperature=0.2, sigma=0.5),
        case("moco v3", L.moco_v3, plain.moco_v3(0.3), temperature=0.3, kinds=WITH_VIEWS),
        case("byol", L.byol, plain.byol(), kinds=WITH_TARGETS),
        case("simsiam", L.simsiam, plain.simsiam(), kinds=WITH_TARGETS),
        Case("tau", tau_loss, plain.tau(scores, 0.3)),
        Case("soft_nt_xent", soft_loss, plain.evenly_soft(scores, 0.3)),
        Case("soft_nt_xent hardest", partial(soft_loss, negatives=hardest(2)),
             plain.evenly_soft(scores, 0.3, ("hardest", 2))),
        Case("margin_mse", margin_loss, plain.even_margins(scores)),
        case("generalized", L.generalized_nt_xent, plain.balanced(2.0, 3.0, generalized=True), alpha=2.0, weight=3.0),
        case("balanced", L.balanced, plain.balanced(4.0, 2.0), alpha=4.0, weight=2.0),
        case("balanced scaled", L.balanced, plain.balanced(4.0, 2.0, scaled=True), alpha=4.0, weight=2.0,
             scale_by_alpha=True),
        case("simple", L.simple, plain.simple(None)),
        case("simple weight", L.simple, plain.simple(0.3), weight=0.3),
        case("hard simple", L.simple, plain.simple(None, ("hardest", 2)), negatives=hardest(2)),
        case("spread out", L.spread_out, plain.spread_out()),
        case("spread out hardest", L.spread_out, plain.spread_out(("hardest", 2)), negatives=hardest(2)),
        case("triplet", L.triplet, plain.triplet(0.1), margin=0.1),
        case("macl", L.macl, plain.macl(0.3, 0.5, 0.1), smooth=False, temperature=0.3, alpha=0.5, center=0.1),
        case("hard_negative", L.hard_negative, plain.hard_negative(0.5, 1.0, 0.1), temperature=0.5, beta=1.0,
             tau_plus=0.1),
        case("hard_negative biased", L.hard_negative, plain.hard_negative(0.5, 0.5, 0.0), temperature=0.5, beta=0.5,
             tau_plus=0.0),
        case("hard_negative clamped", L.hard_negative, plain.hard_negative(0.5, 1.0, 0.6), temperature=0.5, beta=1.0,
             tau_plus=0.6),
        case("clip", L.clip, plain.nt_xent(constant(0.07), ("other", 0)), kinds=EVERY - {"similarities"}),
        case("clip without views", L.clip, plain.nt_xent(constant(0.2)), temperature=0.2,
             kinds=frozenset({"similarities"})),
        case("clip hardest", L.clip, plain.nt_xent(constant(0.2), ("other", 0), ("hardest", 1)), temperature=0.2,
             negatives=hardest(1), kinds=EVERY - {"similarities"}),
        case("siglip", L.siglip, plain.siglip(constant(0.1), -10.0)),
        case("siglip hardest", L.siglip, plain.siglip(constant(0.3), 1.0, ("hardest", 2)), temperature=0.3, bias=1.0,
             negatives=hardest(2)),
        case("siglip dystress", L.siglip, plain.siglip(cosine_profile(0.1, 0.3), -2.0), smooth=False,
             temperature=cosine(0.1, 0.3), bias=-2.0),
        case("siglip relative", L.siglip, plain.siglip(constant(0.3), -0.6 / 0.3), temperature=0.3, relative_bias=0.6),
        case("align_uniform", L.align_uniform, plain.align_uniform(2.0, 2.0, 1.0, 1.0)),
        case("align_uniform 1 3", L.align_uniform, plain.align_uniform(1.0, 3.0, 3.0, 0.5), alpha=1.0, t=3.0,
             align_weight=3.0, uniform_weight=0.5),
        case("cmc", L.cmc, plain.cmc(constant(0.2)), temperature=0.2),
        case("cacr", L.cacr, plain.cacr(1.0, 2.0), t_pos=1.0, t_neg=2.0, kinds=EVERY - WITH_SEVERAL_KEYS),
        case("cacr moco", L.cacr, plain.cacr(1.0, 2.0), smooth=False, t_pos=1.0, t_neg=2.0,
             kinds=WITH_SEVERAL_KEYS),
        case("cacr moco detached queue", L.cacr, plain.cacr(1.0, 2.0, detach_queue=True), smooth=False,
             detach_queue_weights=True, kinds=WITH_SEVERAL_KEYS - WITH_VIEWS | {"queue", "bank"}),
        case("cacr printed", L.cacr, plain.cacr(1.0, 2.0, ("same", 0)), negatives=same_view(),
             stop_positive_weights=False, kinds=WITH_OWN_KEYS),
        case("cacr stopped", L.cacr, plain.cacr(1.5, 2.0, stop=True), smooth=False, t_pos=1.5,
             stop_positive_weights=True),
        case("cacr reversed", L.cacr, plain.cacr(1.0, 0.9, attraction="reversed", repulsion="reversed", stop=False),
             t_neg=0.9, attraction="reversed", repulsion="reversed", stop_positive_weights=False),
        case("cacr inner", L.cacr, plain.cacr(1.0, 2.0, cost="inner", stop=False), cost="inner",
             stop_positive_weights=False),
        case("cacr rbf", L.cacr, plain.cacr(1.0, 2.0, cost="rbf", stop=False), cost="rbf", stop_positive_weights=False),
        case("cacr margin", L.cacr, plain.cacr(1.0, 2.0, margin=0.7, stop=False), margin=0.7,
             stop_positive_weights=False),
        case("uaur", L.cacr, plain.cacr(1.0, 2.0, attraction="uniform", repulsion="uniform"), attraction="uniform",
             repulsion="uniform"),
        case("cacr moco v3", L.cacr_moco_v3, plain.cacr_moco_v3(0.3), smooth=False, temperature=0.3),
        case("cacr moco v3 hardest", L.cacr_moco_v3, plain.cacr_moco_v3(0.5, ("hardest", 1)), smooth=False,
             temperature=0.5, negatives=hardest(1)),
        case("cacr moco v3 euclidean", L.cacr_moco_v3, plain.cacr_moco_v3(0.3, cost="euclidean"), smooth=False,
             temperature=0.3, cost="euclidean"),
        case("sogclr", L.sogclr, plain.sogclr(0.3, 1.0, None), smooth=False, temperature=0.3),
        supcon_case("supcon", tau=constant(0.3), temperature=0.3),
        supcon_case("supcon in", tau=constant(0.3), temperature=0.3, form="in"),
        supcon_case("supcon profile", tau=cosine_profile(0.1, 0.3), smooth=False, temperature=cosine(0.1, 0.3)),
        supcon_case("supcon profile in", tau=cosine_profile(0.1, 0.3), smooth=False, temperature=cosine(0.1, 0.3),
                    form="in"),
        supcon_case("supcon hardest", ("fraction", 0.4), tau=constant(0.3), temperature=0.3, negatives=hardest(0.4)),
        supcon_case("supcon other views", ("other", 0), tau=constant(0.3), temperature=0.3, negatives=other_views()),
        *(fnc_case(f"fnc {form}", form, tau=constant(0.3), temperature=0.3) for form in ("attraction", "elimination")),
        *(fnc_case(f"fnc {form} profile", form, tau=cosine_profile(0.1, 0.3), smooth=False, temperature=cosine(0.1, 0.3))
          for form in ("attraction", "elimination")),
        fnc_case("fnc attraction of some", "attraction", ("fraction", 0.5), tau=constant(0.3), temperature=0.3,
                 negatives=hardest(0.5)),
        Case("sogclr moving", sogclr_moving, plain.sogclr(0.3, 0.4, 0.7), smooth=False),
        case("fastclip", L.fastclip, plain.fastclip(0.3, 2.0, 1.0, None), temperature=0.3, rho=2.0),
        Case("fastclip moving", fastclip_moving, plain.fastclip(0.3, 1.5, 0.4, 0.7), smooth=False),
        Case("isogclr", isogclr_moving, plain.sogclr(0.3, 0.4, 0.7), smooth=False),
    )
}  # fmt: skip


# Methods of the catalogue that take views of the batch itself and nothing else.
OF_VIEWS = {"dystress_dcl_authors", "dhel", "dhel_authors"}
# Methods of the catalogue that take embeddings or assignments in place of pairs.
NOT_OF_PAIRS = {name for name, method in losses.CATALOGUE.items() if traits_of(method.objective).takes != "pairs"}
# Methods of the catalogue that take pairs and ignore their negatives.
WITHOUT_NEGATIVES = {
    name for name, method in losses.CATALOGUE.items() if "negatives" not in signature(method.objective).parameters
} - NOT_OF_PAIRS


def combinations(*, smooth: bool | None = None) -> list[tuple[Case, Kind]]:
    rows = [row for row in CASES.values() if smooth is None or row.smooth == smooth]
    return [(row, KINDS[name]) for row in rows for name in sorted(row.kinds)]


def named(pair: tuple[Case, Kind]) -> str:
    return f"{pair[0].name}-{pair[1].name}".replace(" ", "_")
