"""Describe the curves of a loss in sentences."""

from __future__ import annotations

import math

import torch

from contrapose.explanation.curves import (
    POSITIVE_SIMILARITY,
    evenly_spaced_negatives,
    false_negative_push,
    positive_pull,
    relative_penalty,
    sweep,
    typical_negative_count,
)
from contrapose.explanation.subject import Subject
from contrapose.losses import CATALOGUE
from contrapose.losses.objective import traits_of
from contrapose.pairs.negatives import Hardest, steps


def words(subject: Subject) -> list[str]:
    """Return seven sentences or short paragraphs about a loss.

    They cover its definition, temperature, hardness, push on a false negative, pull on the positive, limits, and the
    embedding to expect.
    """
    return [
        _definition(subject),
        _temperature(subject),
        _hardness(subject),
        _false_negative(subject),
        _positive(subject),
        _limits(subject),
        _expectation(subject),
    ]


def _definition(subject: Subject) -> str:
    name = subject.name.split("(")[0].strip()
    call = _call(subject)
    if "labels" in traits_of(subject.objective).provided:
        call += ", shown for an anchor whose label no negative has"
    if subject.left_out:
        call += f", shown without {' and '.join(subject.left_out)}, no function of similarities"
    # The catalogue's summary describes the default settings; with others it may be wrong.
    if name not in CATALOGUE or "(" in subject.name or "+" in subject.name:
        return f"{call}."
    summary = CATALOGUE[name].summary
    return f"{summary[0].upper()}{summary[1:]}: {call}."


def _call(subject: Subject) -> str:
    """Return a loss as text, with all of its settings and the parts that are added to it."""
    settings = ", ".join(f"{key}={value!r}" for key, value in subject.settings.items())
    added = "".join(f" + {weight:g}*{_call(part)}" for weight, part in subject.added)
    return f"{subject.objective.__name__}({settings}){added}"


def _temperature(subject: Subject) -> str:
    s = torch.linspace(-1, 1, 2001, dtype=torch.float64)
    tau = subject.nominal_temperature(s)
    if tau is None:
        return "It has no temperature."
    low, high = float(tau.min()), float(tau.max())
    if high - low < 1e-12:
        reversed_sign = subject.settings.get("repulsion") == "reversed"
        addition = ", with the sign reversed: distant negatives weigh more" if reversed_sign else ""
        return f"The temperature is {low:.3g} at every similarity{addition}."
    lowest_at = round(float(s[tau.argmin()]), 2) + 0.0  # adding 0.0 turns -0.0 into 0.0
    sentence = (
        f"The temperature depends on similarity: it is lowest at s = {lowest_at:g} ({low:.3g}) and at most {high:.3g}."
    )
    if bool(((s / tau).diff() < 0).any()):
        sentence += " The exponent s/τ(s) is not monotone: over part of the range, a more similar negative weighs less."
    return sentence


def _hardness(subject: Subject) -> str:
    s = evenly_spaced_negatives(subject)
    r = relative_penalty(subject, s)
    # s ascends, so the flipped sum starts at the hardest negative.
    half_count = int((r.abs().flip(0).cumsum(0) < 0.5).sum()) + 1
    pulled = s[r < -1e-12]
    current = sweep(subject, torch.ones(1))
    tau = current.temperature[0]
    if math.isnan(tau):
        return "No negative is pushed."
    nonzero = r[r != 0].abs()
    # Within 10 %, so that a nearly flat penalty also counts as equal.
    is_even = len(nonzero) > 1 and float(nonzero.max()) < 1.1 * float(nonzero.min())
    if tau == 0:
        comparison = "; all of it falls on the single hardest negative"
    elif is_even:
        comparison = "; all pushed negatives receive the same share"
    else:
        comparison = "" if math.isinf(tau) else f"; it grows with similarity like that of NT-Xent at τ = {tau:.2g}"
    sentence = (
        "For negatives spaced evenly over [-1, 1], half of the push ∂L/∂s falls on the hardest "
        f"{100 * half_count / len(s):.2g} % "
        f"(entropy {100 * float(current.entropy[0]):.0f} % of its maximum){comparison}."
    )
    if len(pulled):
        low, high = float(pulled.min()), float(pulled.max())
        sentence += f" Negatives between s = {low:.2f} and {high:.2f} are pulled instead of pushed."
    return sentence


def _false_negative(subject: Subject) -> str:
    at = torch.tensor([0.3, 0.6, 0.9], dtype=torch.float64)
    multiples = false_negative_push(subject, at).tolist()
    if not any(multiples):
        return "A false negative is not pushed either."
    first, second, third = (_multiple(value) for value in multiples)
    return (
        f"Among {typical_negative_count(subject):,} negatives in random directions (128 dimensions), one false negative "
        f"receives {first} the mean push at s = 0.3, {second} at s = 0.6 and {third} at s = 0.9."
    )


def _positive(subject: Subject) -> str:
    pull, push = positive_pull(subject, torch.tensor([0.0, POSITIVE_SIMILARITY, 0.95], dtype=torch.float64))
    far, near = float(pull[0]), float(pull[2])
    strongest = float(pull.abs().max())
    if float(pull[1]) == 0:
        return (
            f"At s⁺ = {POSITIVE_SIMILARITY} the positive is closer than every random negative, so it is not pulled and "
            "nothing is pushed."
        )
    if abs(near - far) < 0.01 * strongest:
        trend = "The pull on the positive is equally strong at every similarity"
    elif near > far:
        trend = f"The pull on the positive grows as it comes closer, {float(pull[2] / pull[0]):.2g} times from s⁺ = 0 to 0.95"
    else:
        trend = (
            f"The pull on the positive weakens as it comes closer: {100 * near / strongest:.0f} % is left at s⁺ = 0.95"
        )
    ratio = float(push[1] / pull[1])
    if ratio == 0:
        return f"{trend}."
    balance = "equals" if abs(ratio - 1) < 0.01 else f"is {ratio:.2g} times"
    return f"{trend}. At s⁺ = {POSITIVE_SIMILARITY} the total push on the negatives {balance} the pull on the positive."


def _limits(subject: Subject) -> str:
    if subject.nominal_temperature(torch.zeros(1)) is None:
        return "Without a temperature it cannot be made sharper or softer."
    low, high = (100 * float(share) for share in sweep(subject, torch.tensor([0.02, 50.0])).hardest)
    triplet = " (close to the triplet loss)" if low > 90 else ""
    # The hardest 1 % would receive 1 % of the push from the simple loss.
    simple = " (close to the simple loss)" if high < 2 else ""
    return (
        f"At 1/50 of this temperature the hardest 1 % of the negatives receive {low:.0f} % of the push{triplet}, "
        f"at 50 times this temperature {high:.2g} %{simple}."
    )


def _expectation(subject: Subject) -> str:
    if subject.least_negatives > 1 or any(isinstance(c, Hardest) for c in steps(subject.settings.get("negatives"))):
        return (
            "Expect an embedding that is uniform at any temperature, because only hard negatives are pushed; a high "
            "temperature can then keep similar images together (Wang & Liu, Sec. 4.2)."
        )
    # DySTreSS is defined by a temperature that rises towards s = 1, whatever its effective temperature is.
    tau = subject.nominal_temperature(torch.tensor([0.0, 1.0], dtype=torch.float64))
    if tau is not None and float(tau[1] / tau[0]) > 1.2:
        return (
            f"Expect ordinary negatives, near s = 0, to be separated as sharply as at τ = {float(tau[0]):.2g}, and very "
            f"similar ones, which may be false negatives, to be spared as at τ = {float(tau[1]):.2g} (Manna et al., Sec. 3.3)."
        )
    # From here on, losses are compared with NT-Xent by their effective temperature; Wang & Liu's figures give the ranges.
    hardness = sweep(subject, torch.ones(1)).temperature[0]
    if math.isnan(hardness):
        return (
            "Expect a collapse, since the loss keeps no images apart, unless a predictor and positives without gradient "
            "prevent it, as in BYOL and SimSiam."
        )
    if hardness == 0:
        return "Expect poor features: the single hardest negative alone teaches very little (Wang & Liu, Sec. 3.2)."
    if hardness < 0.1:
        return (
            "Expect a uniform embedding that separates even the nearest neighbours and has little tolerance for similar "
            "images: good if every image is its own class, wasteful if neighbours share a class (Wang & Liu, Sec. 5)."
        )
    if hardness <= 0.35:
        return (
            "Expect a compromise between uniformity and tolerance, close to where Wang & Liu's accuracies peak (τ from 0.2 "
            "to 0.3)."
        )
    return (
        "Expect images of one class to stay close together and the embedding to be less uniform, because negatives are "
        "pushed with little regard to their similarity (Wang & Liu, Sec. 5)."
    )


def _multiple(x: float) -> str:
    return f"{x:,.0f} ×" if x >= 10 else f"{x:.2g} ×"
