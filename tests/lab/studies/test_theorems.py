"""The papers' theorems hold on random embeddings, the printed forms that are wrong do not, and each claim can fail."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from contrapose.lab.studies import find
from contrapose.lab.studies.balanced import theorems as balanced_theorems
from contrapose.lab.studies.cacr import theorems as cacr_theorems
from contrapose.lab.studies.claims import FAILS, HOLDS
from contrapose.lab.studies.random_trials import draw_unit_vectors, is_always_zero, is_never_negative, seeded
from contrapose.lab.studies.results import Results
from contrapose.losses import balanced as balanced_loss
from contrapose.losses import cacr as cacr_loss
from contrapose.metrics import Gap, RepulsionGap, attraction_gap, repulsion_gap

THEOREMS = [study.name for study in (*cacr_theorems.THEOREMS, *balanced_theorems.THEOREMS)]


def outcomes(name: str) -> list[str]:
    return [claim(Results()).outcome for claim in find(name).claims]


def forget_trials() -> None:
    for cached in (
        cacr_theorems._entropy_trials,
        cacr_theorems._bound_trials,
        balanced_theorems._soft_maximum_trials,
        balanced_theorems._attraction_trials,
        balanced_theorems._repulsion_trials,
    ):
        cached.cache_clear()


@pytest.fixture
def fresh_trials() -> Iterator[None]:
    """Forget the trials of other tests, and those of a wrong objective afterwards."""
    forget_trials()
    yield
    forget_trials()


@pytest.mark.parametrize("name", THEOREMS)
def test_a_theorem_holds_and_a_wrong_print_does_not(name: str) -> None:
    verdicts = [claim(Results()) for claim in find(name).claims]
    for verdict in verdicts:
        assert verdict.outcome == (FAILS if "as printed" in verdict.statement else HOLDS), verdict
        assert "trials" in verdict.evidence
    corrected = {"cacr/lemma4.2", "cacr/lemma4.3", "balanced/theorem4.6"}
    assert any(verdict.outcome == FAILS for verdict in verdicts) == (name in corrected)


def with_settings(objective: Callable[..., Tensor], **settings: object) -> Callable[..., Tensor]:
    """Return the objective with other settings than those that the study asks for."""
    return lambda pairs, **given: objective(pairs, **{**given, **settings})


def halved_t(pairs: Any, *, t_neg: float = 2.0, **given: Any) -> Tensor:
    return cacr_loss(pairs, t_neg=t_neg / 2, **given)


def unsigned_gap(anchor: Tensor, draws: Tensor) -> Gap:
    return Gap(gap=abs(attraction_gap(anchor, draws).gap), outside=0.0, error=0.0)


def lowered_gap(*arguments: Any, **settings: Any) -> RepulsionGap:
    gap = repulsion_gap(*arguments, **settings)
    return RepulsionGap(gap=gap.printed, outside=0.0, error=0.0, printed=gap.gap - 1, broken=0.0, printed_broken=0.0)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "function", "wrong", "expected"),
    [
        ("cacr/property1", "cacr", with_settings(cacr_loss, attraction="reversed"), [HOLDS, HOLDS, FAILS]),
        ("cacr/property1", "cacr", with_settings(cacr_loss, cost="inner"), [FAILS, FAILS, FAILS]),
        ("cacr/lemma4.1", "cacr", with_settings(cacr_loss, attraction="uniform"), [FAILS, FAILS]),
        ("cacr/lemma4.2", "cacr", halved_t, [FAILS, FAILS]),
        ("cacr/lemma4.3", "cacr", halved_t, [HOLDS, FAILS, FAILS]),
        ("balanced/lemmaA.1", "balanced", with_settings(balanced_loss, weight=2.0), [FAILS, FAILS, FAILS]),
        ("balanced/theorem4.4", "attraction_gap", unsigned_gap, [HOLDS, FAILS, FAILS]),
        ("balanced/theorem4.6", "repulsion_gap", lowered_gap, [FAILS, FAILS, FAILS]),
    ],
)
@pytest.mark.usefixtures("fresh_trials")
def test_a_wrong_objective_is_noticed(
    name: str, function: str, wrong: object, expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    theorems = cacr_theorems if name.startswith("cacr") else balanced_theorems
    monkeypatch.setattr(theorems, function, wrong)
    assert outcomes(name) == expected


def test_the_counter_example() -> None:
    f, rows, labels, alpha = balanced_theorems.counter_example()
    gap = repulsion_gap(f, torch.tensor([0]), rows, labels, alpha=alpha)
    assert gap.printed_broken == 1
    assert gap.broken == 0
    assert gap.printed == pytest.approx(-0.548, abs=1e-3)


def test_trials() -> None:
    z = draw_unit_vectors(seeded(3), 50, 8, concentration=1.0)
    assert torch.equal(z, draw_unit_vectors(seeded(3), 50, 8, concentration=1.0))
    assert z.dtype == torch.float64
    torch.testing.assert_close(z.norm(dim=1), torch.ones(50, dtype=torch.float64))
    assert 0.6 < float(z[:, 0].mean()) < 0.8
    slack = torch.tensor([0.5, -0.25, 0.0], dtype=torch.float64)
    verdict = is_never_negative("it is so", lambda: slack)(Results())
    assert (verdict.outcome, verdict.evidence) == (FAILS, "3 trials, smallest slack -2.5e-01, negative in 1")
    assert is_never_negative("it is so", lambda: slack.abs())(Results()).outcome == HOLDS
    assert is_always_zero("it is so", lambda: slack)(Results()).outcome == FAILS
    assert is_always_zero("it is so", lambda: slack * 0)(Results()).outcome == HOLDS
