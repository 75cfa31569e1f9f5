"""What the curves of a loss say, in sentences."""

from __future__ import annotations

import math

import torch

from contrapose.explain.curves import (
    POSITIVE,
    even_negatives,
    false_negative_push,
    others_of,
    positive_pull,
    relative_penalty,
    sweep,
    typical_negatives,
)
from contrapose.explain.subject import Subject
from contrapose.losses import CATALOGUE
from contrapose.pairs.negatives import Hardest, steps


def words(subject: Subject) -> list[str]:
    """A few sentences: what it is, how hard, what a false negative gets, how the positive is pulled, what to expect."""
    return [
        _what(subject),
        _temperature(subject),
        _hardness(subject),
        _false_negative(subject),
        _positive(subject),
        _limits(subject),
        _expect(subject),
    ]


def _what(subject: Subject) -> str:
    name = subject.name.split("(")[0].strip()
    settings = ", ".join(f"{key}={value!r}" for key, value in subject.settings.items())
    made = f"{subject.objective.__name__}({settings})"
    if name not in CATALOGUE or "(" in subject.name:  # with other settings it may be another thing
        return f"{made}."
    summary = CATALOGUE[name].summary
    return f"{summary[0].upper()}{summary[1:]}: {made}."


def _temperature(subject: Subject) -> str:
    s = torch.linspace(-1, 1, 2001, dtype=torch.float64)
    tau = subject.nominal_temperature(s)
    if tau is None:
        return "It has no temperature."
    low, high = float(tau.min()), float(tau.max())
    if high - low < 1e-12:
        turned = ", with its sign reversed" if subject.settings.get("repulsion") == "reversed" else ""
        return f"The temperature is {low:.3g} at every similarity{turned}."
    sentence = f"The temperature is lowest, {low:.3g}, at s = {round(float(s[tau.argmin()]), 2) + 0.0:g} and reaches {high:.3g}."
    if bool(((s / tau).diff() < 0).any()):
        sentence += " s/τ(s) is not monotone: beyond some similarity, a closer negative weighs less."
    return sentence


def _hardness(subject: Subject) -> str:
    s = even_negatives(subject)
    r = relative_penalty(subject, s)
    half = int((r.abs().flip(0).cumsum(0) < 0.5).sum()) + 1
    pulled = s[r < -1e-12]
    now = sweep(subject, torch.ones(1))
    tau = now.temperature[0]
    if math.isnan(tau):
        return "No negative is pushed."
    counted = r[r != 0].abs()
    even = len(counted) > 1 and float(counted.max()) < 1.1 * float(counted.min())
    if tau == 0:
        like = "; all of it goes to the single hardest one"
    elif even:
        like = "; all that count are pushed alike"
    else:
        like = "" if math.isinf(tau) else f"; it falls off with similarity as NT-Xent's does at τ = {tau:.2g}"
    sentence = (
        f"Among negatives spread evenly over [-1, 1], half of the push falls on the hardest {100 * half / len(s):.2g} % "
        f"(entropy {100 * float(now.entropy[0]):.0f} % of its maximum){like}."
    )
    if len(pulled):
        low, high = float(pulled.min()), float(pulled.max())
        sentence += f" Negatives between s = {low:.2f} and {high:.2f} are pulled, not pushed."
    return sentence


def _false_negative(subject: Subject) -> str:
    at = torch.tensor([0.3, 0.6, 0.9], dtype=torch.float64)
    found = zip(at.tolist(), false_negative_push(subject, at).tolist(), strict=True)
    shown = ", ".join(f"{_times(times)} at s = {s:g}" for s, times in found)
    count = len(typical_negatives(others_of(subject)))
    return f"One false negative among {count:,} random directions in 128 dimensions is pushed {shown}, as a multiple of the mean."


def _positive(subject: Subject) -> str:
    pull, push = positive_pull(subject, torch.tensor([0.0, POSITIVE, 0.95], dtype=torch.float64))
    strongest = float(pull.abs().max())
    if float(pull[1]) == 0:
        return f"At s⁺ = {POSITIVE} the positive is nearer than every random direction: it is not pulled, and nothing is pushed."
    kept = 100 * float(pull[2]) / strongest
    if abs(float(pull[2] - pull[0])) < 0.01 * strongest:
        how = "The positive is pulled with the same force wherever it is"
    elif float(pull[2]) > float(pull[0]):
        how = f"The pull grows as the positive comes near, {float(pull[2] / pull[0]):.2g} times from s⁺ = 0 to 0.95"
    else:
        how = f"The pull relaxes as the positive comes near: {kept:.0f} % of its strength is left at s⁺ = 0.95"
    ratio = float(push[1]) / float(pull[1])
    balance = "equal to" if abs(ratio - 1) < 0.01 else f"{ratio:.2g} times"
    return f"{how}. All negatives together are pushed {balance} what the positive is pulled (at s⁺ = {POSITIVE})."


def _limits(subject: Subject) -> str:
    if subject.nominal_temperature(torch.zeros(1)) is None:
        return "There is nothing to make sharper or softer."
    low, high = (100 * float(x) for x in sweep(subject, torch.tensor([0.02, 50.0])).hardest)
    start = " (towards the triplet loss)" if low > 90 else ""
    end = " (towards the simple loss)" if high < 2 else ""
    return (
        f"At a fiftieth of this temperature {low:.0f} % of the push is on the hardest 1 %{start}, "
        f"at fifty times {high:.2g} %{end}."
    )


def _expect(subject: Subject) -> str:
    if subject.least_negatives > 1 or any(isinstance(c, Hardest) for c in steps(subject.settings.get("negatives"))):
        return (
            "Expect an embedding that is uniform at any temperature, since only hard negatives count, so that a high one can "
            "keep neighbours together (Wang & Liu, §4.2)."
        )
    tau = subject.nominal_temperature(torch.tensor([0.0, 1.0], dtype=torch.float64))
    if tau is not None and float(tau[1] / tau[0]) > 1.2:
        return (
            f"Expect ordinary negatives, near s = 0, to be sorted as sharply as at τ = {float(tau[0]):.2g}, and very near ones, "
            f"which may be false, to be spared as at τ = {float(tau[1]):.2g} (Manna et al., §3.3)."
        )
    hardness = sweep(subject, torch.ones(1)).temperature[0]
    if math.isnan(hardness):
        return "Expect a collapse: nothing keeps images apart."
    if hardness == 0:
        return "Expect little: a hardest negative alone teaches next to nothing (Wang & Liu, §3.2)."
    if hardness < 0.1:
        return (
            "Expect a uniform embedding that separates the nearest neighbours and tolerates few of them: good where every "
            "image is its own class, wasteful where neighbours mean the same (Wang & Liu, §5)."
        )
    if hardness <= 0.35:
        return "Expect a compromise of uniformity and tolerance, near where Wang & Liu's accuracies peak (τ of 0.2 to 0.3)."
    return (
        "Expect neighbours of one class to stay together and the whole to be less uniform: negatives are pushed without much "
        "regard to how close they are (Wang & Liu, §5)."
    )


def _times(x: float) -> str:
    return f"{x:,.0f} ×" if x >= 10 else f"{x:.2g} ×"
