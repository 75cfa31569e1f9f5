"""The checks of a criterion: each maps the looks so far to a finding, or to None."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from contrapose.doctor import limits
from contrapose.doctor.finding import Finding
from contrapose.doctor.look import Action, Look

Looks = Sequence[Look]  # in the order of their steps; the last one is the newest
Check = Callable[[Looks], Finding | None]


def recent(looks: Looks, count: int, *, after: float = 0) -> list[Look]:
    """Return the last `count` looks if all of them were taken after a step; else an empty list."""
    chosen = list(looks[-count:])
    return chosen if len(chosen) == count and chosen[0].step > after else []


def since(looks: Looks, steps: float) -> list[Look]:
    """Return the latest looks that cover at least so many steps, at least three of them; else an empty list."""
    for start in range(len(looks) - 3, -1, -1):
        if looks[-1].step - looks[start].step >= steps:
            return list(looks[start:])
    return []


def not_finite(looks: Looks) -> Finding | None:
    """Embeddings that are NaN or infinite."""
    bad = [k for k, side in enumerate(looks[-1].sides) if not side.finite]
    if not bad:
        return None
    return Finding(
        name="not finite",
        severity="error",
        seen=f"{side_names(looks[-1], bad)} NaN or infinite numbers".replace("is", "has", 1),
        means="The loss of this step is not a number, and after the optimiser's step the weights are not either.",
        do="Lower the learning rate, clip the gradient (torch.nn.utils.clip_grad_norm_), or train in bfloat16 instead of "
        "float16; torch.autograd.set_detect_anomaly(True) names the operation.",
    )


def side_names(look: Look, chosen: Sequence[int]) -> str:
    """Return the names of sides as the beginning of a sentence, with the verb."""
    if len(chosen) == len(look.sides):
        return "every side is" if len(chosen) > 1 else "the embedding is"
    return " and ".join(f"side {k + 1}" for k in chosen) + (" is" if len(chosen) == 1 else " are")


def nothing_learned(looks: Looks) -> Finding | None:
    """A loss that stays at that of a network that cannot tell positives from others."""
    last = recent(looks, 3, after=limits.LEARNING_STEPS.value)
    if not last or not all(_knows_nothing(look) for look in last) or _is_collapsed(last[-1]):
        return None
    look = last[-1]
    loss = (
        ""
        if look.action is None
        else (f", and the loss, {look.action.loss:.3f}, is that of wrong pairs, {look.action.mismatched:.3f}")
    )
    return Finding(
        name="nothing learned",
        severity="error",
        seen=f"after {look.step:,} steps, the nearest row is a positive for {look.retrieval:.1%} of the anchors "
        f"(by chance {look.chance:.1%}){loss}",
        means="The network cannot tell a positive from any other row: the loss is at log N, and only noise moves the weights.",
        do="Check that row i of both inputs is the same sample (print a few pairs), that the optimiser has the encoder's "
        "parameters, and that the learning rate is neither 0 nor so high that the loss jumps. Then train without "
        "augmentation for 100 steps: the loss must fall.",
    )


def _knows_nothing(look: Look) -> bool:
    if look.retrieval is None or look.chance is None or look.chance > 0.3:
        return False
    noise = 3 * math.sqrt(look.chance * (1 - look.chance) / max(look.rows, 1))
    most = limits.RETRIEVAL.value * look.chance + noise
    at_chance = look.retrieval <= most
    action = look.action
    if action is None or action.mismatched <= action.ideal:
        return at_chance and most < 0.5  # in a small batch, a good network can be within the noise
    fallen = (action.mismatched - action.loss) / (action.mismatched - action.ideal)
    return at_chance and fallen < limits.NOTHING_LEARNED.value


def identical_views(looks: Looks) -> Finding | None:
    """Positives that are equal, so that there is nothing to learn from them."""
    look = looks[-1]
    if look.identical is None or look.identical < limits.IDENTICAL.value or _is_collapsed(look):
        return None
    return Finding(
        name="identical views",
        severity="error",
        seen=f"both embeddings are equal in {look.identical:.0%} of the pairs",
        means="The two views of a sample are the same input, so positives are as similar as they can be from the first step, "
        "and the loss only spreads samples apart.",
        do="Augment each view on its own (call the transform twice), or keep dropout on (model.train()) if it makes the views; "
        "check that the criterion does not get the same tensor twice.",
    )


def too_easy(looks: Looks) -> Finding | None:
    """A loss that is nearly as low as it can be after a few steps."""
    last = recent(looks, 2)
    if not last or last[-1].step > limits.TOO_EASY_STEPS.value or any(look.action is None for look in last):
        return None
    if any(identical_views([look]) for look in last) or _is_collapsed(last[-1]):
        return None
    if not all(_is_solved(look) for look in last):
        return None
    look = last[-1]
    action = look.action
    assert action is not None
    return Finding(
        name="too easy",
        severity="warning",
        seen=f"at step {look.step:,} the loss is {action.loss:.3g}, where wrong pairs have {action.mismatched:.3g} and perfect "
        f"embeddings {action.ideal:.3g}; the nearest row is a positive for {look.retrieval:.0%} of the anchors",
        means="The pairs are recognised almost without training, and what is left of the gradient is small.",
        do="Use stronger augmentation, more or harder negatives (contrapose.mine, negatives=hardest(64), a larger batch), or a "
        "lower temperature; look for something that gives the pair away, such as equal backgrounds, file order or borders.",
    )


def _is_solved(look: Look) -> bool:
    action = look.action
    if action is None or look.retrieval is None or look.retrieval < 0.99 or (look.chance or 1.0) > 0.3:
        return False
    room = action.mismatched - action.ideal
    if action.loss < action.ideal - 0.01 * room:  # then `ideal` is not the best that there is
        return False
    return room > 0 and action.loss - action.ideal < limits.TOO_EASY.value * room


def low_temperature(looks: Looks) -> Finding | None:
    """A push that falls on one or two negatives of each anchor, or would on embeddings that use the sphere."""
    last = recent(looks, 2)
    if not last or not all(_pushes_few(look) for look in last):
        return None
    action = last[-1].action
    assert action is not None
    # If nearly all derivatives are below the rounding errors, the rest cannot tell the temperature.
    equal = f"; this is NT-Xent's push at temperature {action.temperature:.3g}" if action.temperature < 0.05 else ""
    return Finding(
        name="temperature too low",
        severity="warning",
        seen=f"of {action.negatives:.0f} negatives, {action.effective_negatives:.1f} carry the push, {action.hardest_share:.0%} "
        f"of it on the hardest 1 %{equal}",
        means="Only the nearest rows of an anchor are pushed away. If they are of its class, training separates what belongs "
        "together; the gradient is large and noisy, and embeddings may shrink until all are alike.",
        do="Raise the temperature: 0.05 to 0.5 suits most data (with a scale, scale = 1 / temperature, so 2 to 20). Check "
        "that similarities are divided by the temperature once, and that embeddings are normalised.",
    )


def _pushes_few(look: Look) -> bool:
    action = look.action
    if action is None or action.negatives < 20:
        return False
    # NT-Xent pulls by up to 1 / τ; a triplet loss, which selects just as sharply on purpose, by 1. The whole batch has more
    # negatives than the rows that were asked about.
    more = max(1.0, look.batch / action.rows)
    few = (
        action.effective_negatives - 1
    ) * more < limits.FEW_NEGATIVES.value and action.pull > limits.STRONG_PULL.value
    # Embeddings may shrink together until a low temperature suits them.
    shrunk = action.temperature < limits.LOW_TEMPERATURE.value and action.pull * action.temperature > 0.05
    return few or shrunk


def high_temperature(looks: Looks) -> Finding | None:
    """A push that is nearly the same on all negatives, in a loss that cannot become much lower."""
    last = recent(looks, 2)
    if not last or not all(_pushes_all(look.action) for look in last):
        return None
    action = last[-1].action
    assert action is not None
    return Finding(
        name="temperature too high",
        severity="warning",
        seen=f"{action.effective_negatives:.0f} of {action.negatives:.0f} negatives share the push evenly, and the loss can only "
        f"fall from {action.mismatched:.3f} (wrong pairs) to {action.ideal:.3f} (perfect embeddings)",
        means="The loss is nearly flat: it stays near log N whatever the network learns, and similar negatives are not "
        "pushed harder than others.",
        do="Lower the temperature: 0.05 to 0.5 suits most data. Check that similarities are divided by the temperature, not "
        "multiplied, and that a scale (20, 100) was not passed where a temperature is expected, or the reverse.",
    )


def _pushes_all(action: Action | None) -> bool:
    if action is None or action.negatives < 8 or action.mismatched <= 0:
        return False
    room = (action.mismatched - action.ideal) / action.mismatched
    return 0 <= room < limits.RANGE.value and action.effective_negatives > limits.FLAT.value * action.negatives


def positives_without_gradient(looks: Looks) -> Finding | None:
    """A criterion that pushes, but does not pull the positives."""
    last = recent(looks, 2)
    if not last or not all(_does_not_pull(look) for look in last):
        return None
    action = last[-1].action
    assert action is not None
    return Finding(
        name="no pull on positives",
        severity="error",
        seen=f"the derivative of the loss is {action.pull:.2g} for the positives of an anchor, and {action.push:.2g} for its "
        "negatives",
        means="Positives are not pulled together: training spreads all rows, and nothing makes two views of a sample alike.",
        do="Look for .detach() or torch.no_grad() on the positive's similarity, for a mask that removes positives, and for "
        "labels that name other rows than the positives (torch.arange(m) for similarities z1 @ z2.T).",
    )


def _does_not_pull(look: Look) -> bool:
    action = look.action
    if action is None or look.positive is None or action.push < 1e-6:
        return False
    return abs(action.pull) < limits.NO_PULL.value * action.push and look.positive < 0.9


def not_normalised(looks: Looks) -> Finding | None:
    """A criterion whose value depends on the lengths of embeddings that have different lengths."""
    look = looks[-1]
    action = look.action
    if action is None or not _depends_on_length(action):
        return None
    wrong = [
        side for side in look.sides if abs(side.norm - 1) > limits.NORM.value or side.norm_spread > limits.NORM.value
    ]
    if not wrong:
        return None
    side = wrong[0]
    return Finding(
        name="embeddings not normalised",
        severity="warning",
        seen=f"rows have a length of {side.norm:.3g} on average (spread {side.norm_spread:.0%}), and the loss changes from "
        f"{action.loss:.4g} to {action.rescaled:.4g} if lengths are changed",
        means="The criterion compares dot products: a row can lower its loss by growing, the temperature has no fixed "
        "meaning, and long rows decide about all others.",
        do="Normalise before the criterion: z = torch.nn.functional.normalize(z, dim=-1). Leave it out only if you chose dot "
        "products on purpose, with a scale of 1.",
    )


def _depends_on_length(action: Action) -> bool:
    size = max(abs(action.loss), abs(action.mismatched - action.ideal), 1e-12)
    if abs(action.moved - action.loss) < 1e-3 * size:  # a loss of distances, for which lengths are no mistake
        return False
    return abs(action.rescaled - action.loss) > limits.SENSITIVE.value * size


def normalised_along_batch(looks: Looks) -> Finding | None:
    """Embeddings that were normalised along the batch instead of along the features."""
    look = looks[-1]
    bad = [
        k for k, side in enumerate(look.sides) if side.column_error < limits.COLUMN.value and look.batch != look.width
    ]
    if not bad:
        return None
    side = look.sides[bad[0]]
    return Finding(
        name="normalised along the batch",
        severity="error",
        seen=f"{side_names(look, bad)} of length 1 in each column (within {side.column_error:.1g}), and of length "
        f"{side.norm:.3g} in each row",
        means="The embeddings were divided by the length of each feature over the batch, not by the length of each row, so "
        "that each embedding depends on all samples of its batch.",
        do="Write normalize(z, dim=-1): dim=0 is the batch.",
    )


def low_precision(looks: Looks) -> Finding | None:
    """A criterion whose gradient is wrong because it computes similarities in low precision."""
    last = [look for look in recent(looks, 2) if (look.precision_error or 0.0) > limits.PRECISION.value]
    if len(last) < 2:
        return None
    error, action = last[-1].precision_error, last[-1].action
    temperature = (
        "" if action is None or not action.temperature < math.inf else f" at temperature {action.temperature:.2g}"
    )
    return Finding(
        name="low precision",
        severity="warning",
        seen=f"the gradient differs by {error:.0%} from that of the same embeddings in float32{temperature}",
        means="The criterion computes similarities in 16 bits, whose steps of 0.002 to 0.008 are large once they are divided "
        "by a low temperature.",
        do="Compute the loss outside of autocast in float32: with torch.autocast(device, enabled=False): "
        "loss = criterion(z1.float(), z2.float()). contrapose's losses do so themselves.",
    )


def _is_collapsed(look: Look) -> bool:
    return any(side.deviation < limits.DEVIATION.value for side in look.sides)


CHECKS: tuple[Check, ...] = (
    not_finite,
    nothing_learned,
    identical_views,
    too_easy,
    low_temperature,
    high_temperature,
    positives_without_gradient,
    not_normalised,
    normalised_along_batch,
    low_precision,
)
