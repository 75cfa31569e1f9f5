"""The texts of the loss pages, docs/losses.toml: complete, and their examples, identities and formulas hold."""

from __future__ import annotations

import importlib
import math
import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import evidence_page
import pytest
import torch
from torch import Tensor

import contrapose
from contrapose import losses
from contrapose.losses import CATALOGUE
from contrapose.pairs import from_similarities

TEXTS = tomllib.loads((Path(__file__).parents[1] / "docs" / "losses.toml").read_text(encoding="utf-8"))
OBJECTIVES, METHODS = TEXTS["objectives"], TEXTS["catalogue"]
SENTENCES = ("title", "formula", "where", "does", "use", "avoid", "paper", "equation", "differs", "oracle", "example")
LISTS = ("pitfalls", "equals")
MAY_BE_EMPTY = {"differs"}
IDENTITIES = [
    pytest.param(row["settings"], row["same_as"], id=f"{name}-{number}")
    for name, text in OBJECTIVES.items()
    for number, row in enumerate(text["equals"])
]
NAMES = {
    **{name: getattr(losses, name) for name in dir(losses)},
    **{name: getattr(contrapose, name) for name in ("two_views", "views", "cross", "unit", "cosine", "Assignments")},
    **{
        name: getattr(contrapose, name)
        for name in ("given_targets", "guide_targets", "hardest", "other_views", "same_view")
    },
    "math": math,
    "torch": torch,
}


def test_every_loss_has_a_text_and_every_text_a_loss() -> None:
    assert set(TEXTS) == {"objectives", "catalogue"}
    assert set(OBJECTIVES) == {name for name, value in vars(losses).items() if hasattr(value, "traits")}
    assert set(METHODS) == set(CATALOGUE)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_an_objective_has_all_keys_and_no_other(name: str) -> None:
    text = OBJECTIVES[name]
    assert set(text) == {*SENTENCES, *LISTS}
    for key in SENTENCES:
        assert isinstance(text[key], str), key
        assert text[key].strip() or key in MAY_BE_EMPTY, key
    assert text["pitfalls"]
    assert all(isinstance(sentence, str) and sentence.endswith(".") for sentence in text["pitfalls"])
    for row in text["equals"]:
        assert set(row) == {"settings", "same_as"}
        assert f"{name}(" in row["settings"]
        assert row["settings"] != row["same_as"]


@pytest.mark.parametrize("name", METHODS)
def test_a_method_of_the_catalogue_says_what_its_settings_change(name: str) -> None:
    text = METHODS[name]
    assert {"does", "use"} <= set(text) <= {"does", "use", "avoid", "formula", "where", "example", "paper"}
    assert all(text[key].endswith(".") for key in {"does", "use", "avoid", "where"} & set(text))


@pytest.mark.parametrize("name", OBJECTIVES)
def test_an_example_runs_and_returns_a_finite_loss(name: str) -> None:
    example = OBJECTIVES[name]["example"]
    assert 3 <= sum(bool(line.strip()) for line in example.splitlines()) <= 6
    assert f"loss = {name}(" in example
    torch.manual_seed(0)
    scope: dict[str, Any] = {}
    exec(example, scope)
    assert scope["loss"].shape == ()
    assert math.isfinite(scope["loss"].item())


@pytest.mark.parametrize(("settings", "same_as"), IDENTITIES)
def test_an_identity_holds_for_value_and_gradient(settings: str, same_as: str) -> None:
    generator = torch.Generator().manual_seed(1)
    z = torch.randn(2, 8, 5, generator=generator, dtype=torch.float64)
    (left, left_gradient), (right, right_gradient) = _evaluate(settings, z), _evaluate(same_as, z)
    torch.testing.assert_close(left, right, rtol=0, atol=1e-10)
    torch.testing.assert_close(left_gradient, right_gradient, rtol=0, atol=1e-10)
    assert left_gradient.abs().max() > 1e-4, "a gradient of 0 would prove nothing"


def _evaluate(expression: str, z: Tensor) -> tuple[Tensor, Tensor]:
    """Return the value of an expression of z1, z2 and pairs, and the gradient of z, (2, m, d)."""
    z = z.clone().requires_grad_()
    z1, z2 = z.unbind()
    value: Tensor = eval(expression, {**NAMES, "z1": z1, "z2": z2, "pairs": contrapose.two_views(z1, z2)})
    # A different factor for each anchor, so that gradients of single anchors are compared if there are several values.
    (gradient,) = torch.autograd.grad((value * torch.arange(1, value.numel() + 1)).sum(), z)
    return value.detach(), gradient


@pytest.mark.parametrize("objective", [contrapose.nt_xent, contrapose.dcl])
@pytest.mark.parametrize("detach", [True, False])
def test_the_forces_are_those_of_the_texts(objective: Callable[..., Tensor], detach: bool) -> None:
    """The pull is (1 - P)/τ(s⁺), a push p/τ(s); P is 0 in DCL, and without `detach` 1/τ becomes the derivative of s/τ(s)."""
    positive = torch.tensor([[0.7]], dtype=torch.float64, requires_grad=True)
    negatives = torch.linspace(-0.9, 0.6, 7, dtype=torch.float64)[None].requires_grad_()

    def forces(temperature: Any) -> tuple[Tensor, Tensor]:
        loss = objective(from_similarities(positive, negatives), temperature=temperature)
        pull, push = torch.autograd.grad(loss, [positive, negatives])
        return -pull, push

    pull, push = forces(0.2)
    torch.testing.assert_close(pull.sum(), push.sum())
    low, high = 0.07, 0.2
    pull, push = forces(contrapose.cosine(low, high, detach=detach))
    s = torch.cat([positive, negatives], dim=1).detach()[0].requires_grad_()
    tau = low + (high - low) * torch.sin(math.pi * s / 2) ** 2
    (slope,) = torch.autograd.grad((s / tau).sum(), s)
    factor = 1 / tau if detach else slope
    weight = torch.exp(s / tau) * torch.tensor([float(objective is contrapose.nt_xent), *[1.0] * 7])
    p = weight / weight.sum()
    torch.testing.assert_close(pull[0], (1 - p[:1]) * factor[:1])
    torch.testing.assert_close(push[0], p[1:] * factor[1:])
    assert abs(float(push.sum() / pull.sum()) - 1) > 0.1


def test_the_gains_of_dystress_are_those_of_the_records() -> None:
    def gain(protocol: evidence_page.Protocol, over: str = "NT-Xent, τ = 0.5 (SimCLR)") -> str:
        return f"{evidence_page.accuracy(protocol, 'DySTreSS') - evidence_page.accuracy(protocol, over):.1f}"

    text = " ".join(METHODS["dystress"]["use"].split())
    assert f"it was {gain(evidence_page.SIMCLR)} points above NT-Xent at 0.5" in text
    assert f"(two seeds; {gain(evidence_page.EACH)} with batch norm over each view)" in text
    assert f"{gain(evidence_page.CIFAR100)} on CIFAR-100 (one seed)" in text
    assert f"MACL was {gain(evidence_page.SIMCLR, 'MACL').removeprefix('-')} above it" in text


@pytest.mark.parametrize("name", OBJECTIVES)
def test_an_oracle_exists(name: str) -> None:
    module, function = OBJECTIVES[name]["oracle"].split(".")
    assert module in ("oracles", "redundancy_oracles", "assignment_oracles")
    assert callable(getattr(importlib.import_module(module), function))


@pytest.mark.parametrize("text", [text for text in (*OBJECTIVES.values(), *METHODS.values()) if "formula" in text])
def test_a_formula_is_balanced(text: dict[str, Any]) -> None:
    assert _imbalance(text["formula"]) == ""


@pytest.mark.parametrize(
    ("formula", "problem"),
    [
        (r"\frac{1}{2", "{"),
        (r"a}", "}"),
        (r"\left(a", r"\left"),
        (r"\left(\frac{a\right)}{2}", r"\right"),
        (r"\begin{aligned}a", r"\begin{aligned}"),
        (r"$a$", "$"),
        (r"\left\lVert a\right\rVert\leftarrow\{", ""),
    ],
)
def test_an_unbalanced_formula_is_found(formula: str, problem: str) -> None:
    assert _imbalance(formula) == problem


def _imbalance(formula: str) -> str:
    """Return the first token of a formula that opens without an end, or closes without a beginning; "" if there is none."""
    tokens: list[str] = re.findall(r"\\(?:begin|end)\{\w+\}|\\(?:left|right)(?![A-Za-z])|\\.|[{}$]", formula)
    opened: list[str] = []
    for token in tokens:
        if token == "$":
            return token
        if token in ("{", r"\left") or token.startswith(r"\begin{"):
            opened.append(token)
        elif token in ("}", r"\right") or token.startswith(r"\end{"):
            opening = {"}": "{", r"\right": r"\left"}.get(token, token.replace("end", "begin", 1))
            if not opened or opened.pop() != opening:
                return token
    return opened[-1] if opened else ""
