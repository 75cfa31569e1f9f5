from __future__ import annotations

import re

import pytest

from contrapose.losses import nt_xent
from contrapose.losses.parse import parse
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
        ("sogclr(rho=0.3)", "has the settings temperature, gamma, negatives, towers, got 'rho'"),
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
