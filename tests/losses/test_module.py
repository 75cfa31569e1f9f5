"""`Loss`: pickled as a whole, and messages that name what to write."""

from __future__ import annotations

import pickle
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from contrapose import Loss, nt_xent, supcon, two_views


@pytest.mark.parametrize("name", ["nt_xent(temperature=0.2)", "dystress", "clip", "cacr", "supcon", "dcl", "simsiam"])
def test_a_criterion_can_be_pickled(name: str) -> None:
    """Such as by `torch.save` of a whole model, or to start processes."""
    criterion = Loss(name)
    copy = pickle.loads(pickle.dumps(criterion))
    assert copy.objective is criterion.objective
    assert repr(copy) == repr(criterion)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda z: nt_xent(two_views(z, z), 0.1),  # type: ignore[call-arg]
            r"settings are named, as in nt_xent\(pairs, temperature=…\)",
        ),
        (lambda z: supcon(z, labels=torch.zeros(4)), r"for one view write supcon\(views\(\[z\]\), labels=y\)"),
        (lambda z: Loss("DySTreSS"), "did you mean 'dystress'"),
    ],
)
def test_messages_name_what_to_write(call: Callable[[Tensor], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call(torch.randn(4, 3))
