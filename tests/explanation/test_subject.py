"""Losses are explained as text, as functions and as criteria alike."""

from __future__ import annotations

import pytest

from contrapose import CATALOGUE, Loss, nt_xent
from contrapose.explanation import Explainable, Subject


@pytest.mark.parametrize("loss", [CATALOGUE["dystress"], CATALOGUE["dystress"](), Loss("dystress")])
def test_a_loss_in_any_form(loss: Explainable) -> None:
    expected, found = Subject.of("dystress"), Subject.of(loss)
    assert (found.objective, found.settings) == (expected.objective, expected.settings)


def test_a_function_has_its_own_defaults_and_its_name() -> None:
    assert Subject.of(nt_xent) == Subject("nt_xent", nt_xent, {})
    with pytest.raises(ValueError, match=r"expected text such as 'dystress', a function of pairs or a Loss, got \[1\]"):
        Subject.of([1])  # type: ignore[arg-type]
