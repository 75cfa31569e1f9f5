"""Every loss again, as plain loops over Python floats, written from the papers. Shares nothing with the package.

An oracle takes a batch twice: `now`, and `held`, from which it reads whatever the paper puts under a stop-gradient.
With `now` moved and `held` still, finite differences give the gradient that the paper means.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import atanh, cos, exp, log, log1p, pi, sin

INF = float("inf")
Tau = Callable[[float], float]


@dataclass
class Candidate:
    s: float
    view: int
    stored: bool = False
    image: int = -1  # data-set index; -1 if unknown
    place: int = -1  # of a stored row


@dataclass
class Anchor:
    image: int
    view: int
    positives: list[Candidate]  # `view` tells slots apart
    negatives: list[Candidate]


@dataclass
class Batch:
    anchors: list[Anchor]
    views: int
    in_batch: bool  # the pool is the batch itself, in several views
    keyed: bool = False  # positives and pool come from a momentum encoder


Oracle = Callable[[Batch, Batch], list[float]]


def dot(a: list[float], b: list[float]) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True))


def normalised(a: list[float]) -> list[float]:
    length = max(dot(a, a) ** 0.5, 1e-12)
    return [x / length for x in a]


def lse(xs: list[float]) -> float:
    top = max(xs)
    return top + log(sum(exp(x - top) for x in xs))


def softmax(xs: list[float]) -> list[float]:
    total = lse(xs)
    return [exp(x - total) for x in xs]


def mean(xs: list[float]) -> float:
    return sum(xs) / len(xs)


def log1pexp(x: float) -> float:
    return x + log1p(exp(-x)) if x > 0 else log1p(exp(x))


def chosen(held: Anchor, *filters: tuple[str, float]) -> list[int]:
    """Which negatives count, as positions; read from the held batch, since a choice has no gradient."""
    keep = list(range(len(held.negatives)))
    for kind, number in filters:
        candidates = held.negatives
        if kind == "same":
            keep = [j for j in keep if candidates[j].stored or candidates[j].view == held.view]
        elif kind == "other":
            keep = [j for j in keep if candidates[j].stored or candidates[j].view != held.view]
        elif kind == "view":
            keep = [j for j in keep if candidates[j].stored or candidates[j].view == number]
        else:
            # ⌈αn⌉; in binary 0.1 · 30 lies a little above 3
            k = int(number) if kind == "hardest" else max(1, -int(-(number * len(keep) - 1e-6) // 1))
            keep = sorted(keep, key=lambda j: -candidates[j].s)[:k]
    return keep


def constant(tau: float) -> Tau:
    return lambda s: tau


def cosine_profile(low: float, high: float, shift: float | None = None) -> Tau:
    """DySTreSS, Algorithms 1 and 2 as printed, with the resolutions of the authors' code."""

    def tau(s: float) -> float:
        if shift is None:
            return low + (high - low) / 2 * (1 + cos(pi * (1 + s)))
        k = (1 + abs(shift)) / 2
        active = s <= -shift if shift <= 0 else s >= -shift
        return low + (high - low) / 2 * (1 + cos(pi / k * (shift + s))) if active else high

    return tau


def linear_profile(low: float, high: float) -> Tau:
    return lambda s: low + (high - low) * abs(s)


def exponential_profile(low: float, high: float, c: float = 3.5) -> Tau:
    return lambda s: low + (high - low) * (1 - exp(-c * abs(s))) / (1 - exp(-c))


def monotonic_profile(low: float, high: float) -> Tau:
    return lambda s: low + (high - low) / 2 * (1 + sin(pi * s / 2))


def arctanh_profile(s: float) -> float:
    """Kim & Kim's exponent 2 artanh(s), which stays constant beyond 1 - 2⁻²⁰, as s/τ."""
    return s / (2 * atanh(min(max(s, 2**-20 - 1), 1 - 2**-20))) if s else 0.5


def _logits(now: list[Candidate], held: list[Candidate], tau: Tau, detach: bool) -> list[float]:
    return [c.s / tau((h if detach else c).s) for c, h in zip(now, held, strict=True)]


def _each(now: Batch, held: Batch) -> list[tuple[Anchor, Anchor]]:
    return list(zip(now.anchors, held.anchors, strict=True))


def _softmax_parts(
    a: Anchor, h: Anchor, tau: Tau, detach: bool, filters: tuple[tuple[str, float], ...], hardness: float = 0.0
) -> tuple[list[float], list[float]]:
    keep = chosen(h, *filters)
    negative = _logits([a.negatives[j] for j in keep], [h.negatives[j] for j in keep], tau, detach)
    negative = [x + hardness * h.negatives[j].s for x, j in zip(negative, keep, strict=True)]
    return _logits(a.positives, h.positives, tau, detach), negative


def nt_xent(tau: Tau, *filters: tuple[str, float], detach: bool = True, hardness: float = 0.0) -> Oracle:
    def oracle(now: Batch, held: Batch) -> list[float]:
        values = []
        for a, h in _each(now, held):
            positive, negative = _softmax_parts(a, h, tau, detach, filters, hardness)
            values.append(mean([log1pexp(lse(negative) - p) for p in positive]))
        return values

    return oracle


def dcl(
    tau: Tau, *filters: tuple[str, float], split: bool = False, detach: bool = True, hardness: float = 0.0
) -> Oracle:
    """`split`: lightly until 2025, one log-sum-exp for each of the anchor's own and the other views, added up."""

    def oracle(now: Batch, held: Batch) -> list[float]:
        values = []
        for a, h in _each(now, held):
            positive, negative = _softmax_parts(a, h, tau, detach, filters, hardness)
            total = lse(negative)
            if split:
                same = _softmax_parts(a, h, tau, detach, (*filters, ("same", 0)), hardness)[1]
                other = _softmax_parts(a, h, tau, detach, (*filters, ("other", 0)), hardness)[1]
                total = lse(same) + lse(other)
            values.append(total - mean(positive))
        return values

    return oracle


def dclw(tau: float, sigma: float) -> Oracle:
    def oracle(now: Batch, held: Batch) -> list[float]:
        values = []
        for a, h in _each(now, held):
            terms = []
            for slot, p in enumerate(a.positives):
                direction = [b.positives[slot].s for b in held.anchors if b.view == a.view]
                own = exp(h.positives[slot].s / sigma)
                weight = 2 - own / mean([exp(s / sigma) for s in direction])
                terms.append(-weight * p.s / tau)
            values.append(mean(terms) + lse([c.s / tau for c in a.negatives]))
        return values

    return oracle


def balanced(alpha: float, weight: float, *, generalized: bool = False, scaled: bool = False) -> Oracle:
    def oracle(now: Batch, held: Batch) -> list[float]:
        values = []
        for a in now.anchors:
            terms = []
            for p in a.positives:
                inside = [alpha * c.s for c in a.negatives] + ([alpha * p.s] if generalized else [])
                terms.append(-p.s + weight / alpha * lse(inside))
            values.append(mean(terms) * (alpha if scaled else 1))
        return values

    return oracle


def macl(base: float, alpha: float, center: float) -> Oracle:
    def oracle(now: Batch, held: Batch) -> list[float]:
        average = mean([mean([p.s for p in a.positives]) for a in held.anchors])
        tau = base * (1 + alpha * (average - center))
        values = []
        for a, h in _each(now, held):
            terms = []
            for p, q in zip(a.positives, h.positives, strict=True):
                gap = lse([c.s / tau for c in a.negatives]) - p.s / tau
                held_gap = lse([c.s / tau for c in h.negatives]) - q.s / tau
                # 1 - P = 1/(1 + e^{-gap}); and where e^{-gap} is beyond floats, -log P/(1-P) = 1
                terms.append((1 + exp(-held_gap)) * log1pexp(gap) if held_gap > -600 else 1.0)
            values.append(mean(terms))
        return values

    return oracle


def hard_negative(tau: float, beta: float, tau_plus: float) -> Oracle:
    def oracle(now: Batch, held: Batch) -> list[float]:
        values = []
        for a in now.anchors:
            terms = []
            for p in a.positives:
                # everything times e^{-top}, so that τ = 1e-3 stays inside floats
                top = max(max(c.s for c in a.negatives), p.s) / tau
                e = [exp(c.s / tau - top) for c in a.negatives]
                peak = max(c.s for c in a.negatives)
                omega = [exp(beta * (c.s - peak) / tau) for c in a.negatives]
                n = len(e)
                r = sum(w * x for w, x in zip(omega, e, strict=True)) / mean(omega)
                own = exp(p.s / tau - top)
                ng = max((r - tau_plus * n * own) / (1 - tau_plus), n * exp(-1 / tau - top))
                # log(1 + ng/own), in logarithms: `own` may be 0
                terms.append(log1pexp(log(ng) + top - p.s / tau) if ng > 0 else 0.0)
            values.append(mean(terms))
        return values

    return oracle


def fastclip(tau: float, rho: float, gamma: float, old: float | None) -> Oracle:
    """The value is τ(log u + ρ); it moves with g as the paper's estimator does, u and its denominator held."""

    def relative_mean(a: Anchor) -> float:
        return mean([exp((c.s - p.s) / tau) for c in a.negatives for p in a.positives])

    def oracle(now: Batch, held: Batch) -> list[float]:
        values = []
        for a, h in _each(now, held):
            own = relative_mean(h)
            u = own if old is None else (1 - gamma) * old + gamma * own
            values.append(now.views * (tau * (log(u) + rho) + tau * (relative_mean(a) - own) / u))
        return values

    return oracle


def siglip(tau: Tau, bias: float, *filters: tuple[str, float], detach: bool = True) -> Oracle:
    def oracle(now: Batch, held: Batch) -> list[float]:
        values = []
        for a, h in _each(now, held):
            positive, negative = _softmax_parts(a, h, tau, detach, filters)
            repulsion = sum(log1pexp(x + bias) for x in negative)
            values.append(mean([log1pexp(-(x + bias)) for x in positive]) + repulsion)
        return values

    return oracle


def simple(weight: float | None, *filters: tuple[str, float]) -> Oracle:
    def oracle(now: Batch, held: Batch) -> list[float]:
        values = []
        for a, h in _each(now, held):
            kept = [a.negatives[j].s for j in chosen(h, *filters)]
            scale = 1 / len(kept) if weight is None else weight
            values.append(scale * sum(kept) - mean([p.s for p in a.positives]))
        return values

    return oracle


def spread_out(*filters: tuple[str, float]) -> Oracle:
    def oracle(now: Batch, held: Batch) -> list[float]:
        return [mean([a.negatives[j].s ** 2 for j in chosen(h, *filters)]) for a, h in _each(now, held)]

    return oracle


def byol() -> Oracle:
    def oracle(now: Batch, held: Batch) -> list[float]:
        return [now.views * mean([2 - 2 * p.s for p in a.positives]) for a in now.anchors]

    return oracle


def simsiam() -> Oracle:
    return lambda now, held: [-mean([p.s for p in a.positives]) for a in now.anchors]


def moco_v3(tau: float) -> Oracle:
    one = nt_xent(constant(tau), ("other", 0.0))
    return lambda now, held: [2 * tau * now.views * value for value in one(now, held)]


def triplet(margin: float) -> Oracle:
    def oracle(now: Batch, held: Batch) -> list[float]:
        return [
            mean([max(max(c.s for c in a.negatives) - p.s + margin, 0.0) for p in a.positives]) for a in now.anchors
        ]

    return oracle


def align_uniform(alpha: float, t: float, w_a: float, w_u: float) -> Oracle:
    def oracle(now: Batch, held: Batch) -> list[float]:
        groups: dict[int, list[tuple[float, float]]] = {}  # (d², weight) of the pairs of each view
        # Local crops have no keys of their own: then all views are compared with the keys of all global crops.
        keys_of_every_view = {c.view for a in now.anchors for c in a.negatives} == {a.view for a in now.anchors}
        for a in now.anchors:
            for c in a.negatives:
                if now.in_batch and c.view != a.view and keys_of_every_view:
                    continue
                mixed = not now.in_batch and any(x.stored for x in a.negatives)
                if mixed and not c.stored and c.view != a.view:
                    continue
                weight = 0.5 if mixed and not c.stored else 1.0
                groups.setdefault(a.view if now.in_batch else 0, []).append((2 - 2 * c.s, weight))
        parts = [log(sum(w * exp(-t * d) for d, w in group) / sum(w for _, w in group)) for group in groups.values()]
        uniformity = mean(parts)
        return [
            w_a * mean([max(2 - 2 * p.s, 0.0) ** (alpha / 2) for p in a.positives]) + w_u * uniformity
            for a in now.anchors
        ]

    return oracle


def cmc(tau: Tau) -> Oracle:
    def oracle(now: Batch, held: Batch) -> list[float]:
        values = []
        for a, h in _each(now, held):
            terms = []
            for p, q in zip(a.positives, h.positives, strict=True):
                keep = chosen(h, ("view", p.view)) if now.in_batch else chosen(h)
                kept = _logits([a.negatives[j] for j in keep], [h.negatives[j] for j in keep], tau, True)
                terms.append(log1pexp(lse(kept) - _logits([p], [q], tau, True)[0]))
            values.append(mean(terms))
        return values

    return oracle


SIGN = {"contrast": 1.0, "uniform": 0.0, "reversed": -1.0}


def cacr(
    t_pos: float,
    t_neg: float,
    *filters: tuple[str, float],
    attraction: str = "contrast",
    repulsion: str = "contrast",
    cost: str = "euclidean",
    t: float = 2.0,
    margin: float | None = None,
    pairs: bool = True,
    stop: bool | None = None,
    detach_queue: bool = False,
) -> Oracle:
    """`pairs`: on several views in the batch, each pair of views v < w on its own, v the query."""

    def price(s: float) -> float:
        return -s if cost == "inner" else 2 - 2 * s

    def row(a: Anchor, h: Anchor, keep: list[int]) -> float:
        """Σ π⁻ c, or Σ π⁻ e^{-tc}."""
        logits = []
        for j in keep:
            c, held = a.negatives[j], h.negatives[j]
            s = held.s if detach_queue and c.stored else c.s
            logits.append(SIGN[repulsion] * -t_neg * (2 - 2 * s))
        weights = softmax(logits)
        values = [a.negatives[j].s for j in keep]
        if cost == "rbf":
            return sum(w * exp(-t * (2 - 2 * s)) for w, s in zip(weights, values, strict=True))
        return sum(w * price(s) for w, s in zip(weights, values, strict=True))

    def attract(a: Anchor, h: Anchor, keyed: bool) -> float:
        stopped = keyed or any(c.stored for c in a.negatives) if stop is None else stop
        weights = softmax([SIGN[attraction] * t_pos * (2 - 2 * p.s) for p in (h if stopped else a).positives])
        return sum(w * price(p.s) for w, p in zip(weights, a.positives, strict=True))

    def oracle(now: Batch, held: Batch) -> list[float]:
        each = _each(now, held)
        m = len(each) // now.views
        repel: list[float]
        if pairs and now.in_batch and not filters and margin is None:
            keys = {c.view for a in now.anchors for c in a.negatives}
            orders = [(v, w) for v in range(now.views) for w in keys if v < w or (now.keyed and v != w)]
            rows = {(v, w): [row(a, h, chosen(h, ("view", w))) for a, h in each if a.view == v] for v, w in orders}
            if cost == "rbf":
                repel = [mean([log(mean(r)) for r in rows.values()])] * len(each)
            else:
                repel = [-mean([r[i] for r in rows.values()]) for i in range(m)] * now.views
        else:
            mixed = not now.in_batch and len({c.stored for a in now.anchors for c in a.negatives}) > 1
            used = (("same", 0.0),) if mixed and not filters else filters
            used = (("other", 0.0),) if margin is not None and now.in_batch and not filters else used
            of = [row(a, h, chosen(h, *used)) for a, h in each]
            by_view = [[x for x, (a, _) in zip(of, each, strict=True) if a.view == v] for v in range(now.views)]
            repel = [mean([log(mean(x)) for x in by_view])] * len(each) if cost == "rbf" else [-x for x in of]
        values = [attract(a, h, now.keyed) + r for (a, h), r in zip(each, repel, strict=True)]
        return values if margin is None else [max(v + margin, 0.0) for v in values]

    return oracle


def cacr_moco_v3(tau: float, *filters: tuple[str, float], cost: str = "rbf") -> Oracle:
    """From the authors' code: for each key view a weighted sum over the queries of the other views."""

    def one(a: Anchor, h: Anchor, slot: int, in_batch: bool) -> float:
        """The loss of a query with one of its keys, against the keys of that view."""
        p = a.positives[slot]
        candidates = [c for c in h.negatives if c.view == p.view or c.stored] if in_batch else h.negatives
        keep = [h.negatives.index(candidates[j]) for j in chosen(replace(h, negatives=candidates), *filters)]
        if cost == "euclidean":
            weights = softmax([(h.negatives[j].s - 1) / tau for j in keep])
            repelled = sum(w * (a.negatives[j].s - 1) for w, j in zip(weights, keep, strict=True))
            return (1 - p.s) + repelled
        return 2 * tau * (lse([a.negatives[j].s / tau for j in keep] + [p.s / tau]) - p.s / tau)

    def oracle(now: Batch, held: Batch) -> list[float]:
        each = _each(now, held)
        if not now.in_batch:
            return [mean([one(a, h, slot, False) for slot in range(len(a.positives))]) for a, h in each]
        m, values = len(each) // now.views, [0.0] * len(each)
        keys = {p.view for a in now.anchors for p in a.positives}
        for key in keys:
            queries = [v for v in range(now.views) if v != key]
            for i in range(m):
                # (anchor's number, which of its positives the key is)
                places = [v * m + i for v in queries]
                slots = [[p.view for p in each[place][1].positives].index(key) for place in places]
                distances = [
                    2 - 2 * each[place][1].positives[slot].s for place, slot in zip(places, slots, strict=True)
                ]
                weights = softmax([d / tau for d in distances])
                for place, slot, weight in zip(places, slots, weights, strict=True):
                    values[place] += weight * one(*each[place], slot, True)
        # The mean over anchors of these is the mean over keys of the sum over queries of the mean over images.
        return [value * now.views / len(keys) for value in values]

    return oracle


def sogclr(tau: float, gamma: float, average: float | None) -> Oracle:
    def oracle(now: Batch, held: Batch) -> list[float]:
        values = []
        for a, h in _each(now, held):
            top = max(c.s for c in h.negatives) / tau
            e = [exp(c.s / tau - top) for c in h.negatives]
            u = mean(e) if average is None else (1 - gamma) * average * exp(-top) + gamma * mean(e)
            pull = mean([x / u * c.s for x, c in zip(e, a.negatives, strict=True)])
            values.append(now.views * (pull - mean([p.s for p in a.positives])))
        return values

    return oracle


def tau(scores: Callable[[int], list[float]], base: float) -> Oracle:
    def oracle(now: Batch, held: Batch) -> list[float]:
        values = []
        for a, score in zip(now.anchors, scores(len(now.anchors)), strict=True):
            u = 1 / (1 + exp(-score))
            total = log(sum(exp(c.s * u / base) for c in a.negatives))
            values.append(total - mean([p.s * u / base for p in a.positives]))
        return values

    return oracle


def fnc(tau: Tau, form: str, top: int, threshold: float, *filters: tuple[str, float]) -> Oracle:
    """The anchors of an image are its support views: the views of one row number are compared with the same candidates."""

    def oracle(now: Batch, held: Batch) -> list[float]:
        values = []
        samples = len(held.anchors) // held.views
        for n, (a, h) in enumerate(_each(now, held)):
            views = held.anchors[n % samples :: samples]
            scores = [max(view.negatives[j].s for view in views) for j in range(len(h.negatives))]
            best = sorted(range(len(scores)), key=lambda j: -scores[j])[:top]
            found = [j for j in best if scores[j] > threshold]
            other = [j for j in range(len(scores)) if j not in found]
            kept = [other[j] for j in chosen(replace(h, negatives=[h.negatives[j] for j in other]), *filters)]

            def logits(where: list[int], a: Anchor = a, h: Anchor = h) -> list[float]:
                return _logits([a.negatives[j] for j in where], [h.negatives[j] for j in where], tau, True)

            positive = _logits(a.positives, h.positives, tau, True)
            positive += logits(found) if form == "attraction" else []
            values.append(lse(positive + logits(kept)) - mean(positive))
        return values

    return oracle


def supcon(
    tau: Tau, label: Callable[[Candidate | Anchor], int], *filters: tuple[str, float], form: str = "out"
) -> Oracle:
    """A negative label is unknown and equals no other."""

    def oracle(now: Batch, held: Batch) -> list[float]:
        values = []
        for a, h in _each(now, held):
            same = [j for j, c in enumerate(a.negatives) if label(a) >= 0 and label(c) == label(a)]
            other = [j for j in range(len(a.negatives)) if j not in same]
            kept = [other[j] for j in chosen(replace(h, negatives=[h.negatives[j] for j in other]), *filters)]

            def logits(where: list[int], a: Anchor = a, h: Anchor = h) -> list[float]:
                return _logits([a.negatives[j] for j in where], [h.negatives[j] for j in where], tau, True)

            positive = _logits(a.positives, h.positives, tau, True) + logits(same)
            total = lse(positive + logits(kept))
            values.append(total - (mean(positive) if form == "out" else lse(positive) - log(len(positive))))
        return values

    return oracle


def each_once(anchor: Anchor) -> list[int]:
    """Which positives are the first of their slot: a global crop's only positive is listed twice."""
    slots = [positive.view for positive in anchor.positives]
    return [index for index, slot in enumerate(slots) if slot not in slots[:index]]


def soft_nt_xent(
    batch: Batch, guide: Batch, temperature: float, guide_temperature: float | None, *, kl: bool = False
) -> list[float]:
    """-sum_j p_j log q_j over positives and negatives; p is the softmax of the guide's similarities, or proportional to them."""
    values = []
    for anchor, judged in zip(batch.anchors, guide.anchors, strict=True):
        own = each_once(anchor)
        s = [anchor.positives[i].s for i in own] + [c.s for c in anchor.negatives]
        g = [judged.positives[i].s for i in own] + [c.s for c in judged.negatives]
        q = softmax([x / temperature for x in s])
        if guide_temperature is None:
            counted = [max(x, 0.0) for x in g]
            p = [x / sum(counted) for x in counted]
        else:
            p = softmax([x / guide_temperature for x in g])
        value = -sum(one * log(two) for one, two in zip(p, q, strict=True))
        values.append(value + (sum(one * log(one) for one in p if one) if kl else 0.0))
    return values


def evenly_soft(scores: Callable[[int], list[float]], temperature: float, *filters: tuple[str, float]) -> Oracle:
    """Soft targets of 2 for each positive and 1 + score for each negative of an anchor, divided by their sum."""

    def oracle(now: Batch, held: Batch) -> list[float]:
        values = []
        for (anchor, h), score in zip(_each(now, held), scores(len(now.anchors)), strict=True):
            kept, own = chosen(h, *filters), each_once(anchor)
            s = [anchor.positives[i].s for i in own] + [anchor.negatives[j].s for j in kept]
            weights = [2.0] * len(own) + [1 + score] * len(kept)
            q = softmax([x / temperature for x in s])
            values.append(-sum(w / sum(weights) * log(x) for w, x in zip(weights, q, strict=True)))
        return values

    return oracle


def even_margins(scores: Callable[[int], list[float]]) -> Oracle:
    """Every negative of an anchor should be less similar than the positive by the anchor's score."""

    def oracle(now: Batch, held: Batch) -> list[float]:
        values = []
        for anchor, margin in zip(now.anchors, scores(len(now.anchors)), strict=True):
            errors = [(p.s - c.s - margin) ** 2 for p in anchor.positives for c in anchor.negatives]
            values.append(sum(errors) / len(errors))
        return values

    return oracle


def margin_mse(batch: Batch, guide: Batch) -> list[float]:
    """Squared differences between the margins of a batch and those of its guide."""
    values = []
    for anchor, teacher in zip(batch.anchors, guide.anchors, strict=True):
        errors = [
            ((a.s - c.s) - (b.s - d.s)) ** 2
            for a, b in zip(anchor.positives, teacher.positives, strict=True)
            for c, d in zip(anchor.negatives, teacher.negatives, strict=True)
        ]
        values.append(sum(errors) / len(errors))
    return values
