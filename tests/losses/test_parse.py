from __future__ import annotations

import re

import pytest

from contrapose.losses import nt_xent
from contrapose.losses.parse import parse, with_temperature
from contrapose.pairs.negatives import hardest, other_views
from contrapose.temperature import CosineSchedule, cosine, exponential_legacy


def test_methods_and_objectives() -> None:
    assert parse("dystress", "cifar10").keywords == {"temperature": cosine(0.07, 0.2)}
    assert parse("dystress", "imagenet").keywords == {"temperature": cosine(0.1, 0.2)}
    assert parse("dystress", "my-folder").keywords == {"temperature": cosine(0.07, 0.2)}
    objective = parse("nt_xent(temperature=cosine(0.1, 0.2, shift=-0.4), negatives=(other_views(), hardest(5)))")
    assert objective.func is nt_xent
    assert objective.keywords == {"temperature": cosine(0.1, 0.2, shift=-0.4), "negatives": (other_views(), hardest(5))}
    assert parse("isogclr(rho=0.3, high=0.7)").keywords == {"rho": 0.3, "high": 0.7}
    siglip = parse("siglip(temperature=learned(0.07, low=0.01), bias=learned_number(-5))").keywords
    assert repr(siglip) == "{'temperature': LearnedTemperature(0.07, low=0.01), 'bias': LearnedNumber(-5)}"
    legacy = parse("nt_xent(temperature=exponential_legacy(0.1, 0.2))").keywords["temperature"]
    assert legacy == exponential_legacy(0.1, 0.2)
    assert parse("nt_xent(temperature=schedule(0.1, 1.0, 50))").keywords == {
        "temperature": CosineSchedule(0.1, 1.0, 50)
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nt_xnt", "got 'nt_xnt'; did you mean 'nt_xent'"),
        ("sogclr(rho=0.3)", "has the settings temperature, gamma, negatives, towers, scale, got 'rho'"),
        ("nt_xent(temprature=0.5)", "got 'temprature'; did you mean 'temperature'"),
        ("nt_xent(temperature=cosin(0.1, 0.2))", "got 'cosin'; did you mean 'cosine'"),
        ("nt_xent(temperature=cosine(0.2, 0.1))", "expected low ≤ high"),
        ("nt_xent(temperature=cosine())", "missing 2 required"),
        ("nt_xent(0.5)", "expected name or name(setting=value, …), got 'nt_xent(0.5)'"),
        ("nt_xent(temperature=", "expected name or name(setting=value, …), got 'nt_xent(temperature='"),
        ("__import__('os').system('true')", "expected name or name(setting=value, …), got"),
        ("nt_xent(temperature=open('x'))", "got 'open'"),
        ("nt_xent(temperature=1, temperature=2)", "expected each setting once, as name=value"),
        ("nt_xent(**3)", "expected each setting once, as name=value"),
        ("nt_xent(temperature={[]: 2})", "expected a number, a string or one of other_views"),
        ("nt_xent(temperature=a.b)", "expected a number, a string or one of other_views"),
        (f"cacr(t_pos={10**30})", "expected numbers of at most 64 bits"),
        ("simclr + 0*koleo()", "expected a weight above 0, as in simclr + 0.1*koleo(), got '0'"),
        ("simclr + koleo()*0.1", "expected a weight above 0, as in simclr + 0.1*koleo(), got 'koleo()'"),
        ("simclr + True*koleo()", "expected a weight above 0, as in simclr + 0.1*koleo(), got 'True'"),
        ("0.5*simclr + koleo()", "expected name or name(setting=value, …), got '0.5*simclr + koleo()'"),
        ("simclr - koleo()", "expected name or name(setting=value, …), got 'simclr - koleo()'"),
        ("simclr + 0.1*kole()", "got 'kole'; did you mean 'koleo'"),
        ("simclr + isogclr", "isogclr keeps a state for its samples or features, so it must be the first part"),
    ],
)
def test_errors_say_what_was_expected(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        parse(text)


@pytest.mark.parametrize(
    "text",
    [
        "nt_xent(temperature=" + "9" * 10_000 + ")",
        "-" * 100_000,
        "nt_xent(temperature=" + "-" * 950 + "1)",
        "nt_xent(temperature=" + "+".join("1" * 400) + ")",
        "(" * 450 + ")" * 450,
        "nt_xent(temperature=" + "cosine(" * 120 + ")" * 120 + ")",
        "nt_xent(temperature=10**10**10)",
        "a\0b",
        "\ud800",
    ],
    ids=["digits", "signs", "nested signs", "sum", "brackets", "nested calls", "power", "null byte", "surrogate"],
)
def test_hostile_text_gets_one_line(text: str) -> None:
    with pytest.raises(ValueError, match=r"^loss: ") as raised:
        parse(text)
    assert "\n" not in str(raised.value)
    assert len(str(raised.value)) < 1500


@pytest.mark.parametrize(
    ("loss", "temperature", "replace", "expected"),
    [
        ("nt_xent", "0.2", False, "nt_xent(temperature=0.2)"),
        ("nt_xent()", " 0.20", False, "nt_xent(temperature=0.2)"),
        ("simclr", "1", False, "simclr(temperature=1)"),
        ("dcl(negatives=hardest(64))", "0.07:0.2", False, "dcl(negatives=hardest(64), temperature=cosine(0.07, 0.2))"),
        ("simclr(temperature=0.2)", "0.5", True, "simclr(temperature=0.5)"),
        (
            "simclr(temperature=0.2) + 0.10*koleo(eps=1e-6)",
            "0.5",
            True,
            "simclr(temperature=0.5) + 0.1*koleo(eps=1e-06)",
        ),
        ("sogclr(gamma=0.9)", "5e-2", False, "sogclr(gamma=0.9, temperature=0.05)"),
    ],
)
def test_a_temperature_becomes_part_of_the_loss(loss: str, temperature: str, replace: bool, expected: str) -> None:
    assert with_temperature(loss, temperature, replace=replace) == expected
    assert "temperature" in parse(expected).keywords


@pytest.mark.parametrize(
    ("loss", "temperature", "message"),
    [
        (
            "nt_xent(temperature=0.5)",
            "0.2",
            r"already has temperature=0.5, and 0.2 was given too; leave out one of them",
        ),
        ("cacr", "0.2", r"temperature: cacr has no setting temperature; it has the settings t_pos, t_neg, .*"),
        ("byol", "0.2", r"temperature: byol has no setting temperature; it has no settings"),
        *(
            ("simclr", text, r"temperature: expected a number above 0, .* got ")
            for text in ("low", "0", "-1", "nan", "inf")
        ),
        *(("simclr", text, r"or LOW:HIGH for cosine") for text in ("0.2:0.1", "0.1:0.2:0.3", "0.1:", "0.1,0.2")),
        ("simcrl", "0.2", "did you mean 'simclr'"),
    ],
)
def test_temperatures_that_are_refused(loss: str, temperature: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        with_temperature(loss, temperature)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        *((f"nt_xent({name}=0.2)", f"got '{name}'; did you mean 'temperature'") for name in ("temp", "tau", "t", "T")),
        ("align_uniform(tau=2.0)", r"got 'tau'$"),  # it has no temperature
        (
            "nt_xent(temperature=cosine(lo=0.1, high=0.2))",
            r"cosine has the settings low, high, .*got 'lo'; did you mean 'low'",
        ),
        ("nt_xent(negatives=hardest(64, strikt=True))", r"hardest has the settings k, .*; did you mean 'strict'"),
    ],
)
def test_names_of_arguments_get_a_hint(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse(text)
