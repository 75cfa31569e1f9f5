"""Make a `Loss` from anything that a user may pass as an objective: a function, a method of the catalogue, or text."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from inspect import Parameter, signature
from typing import Any, TypeAlias

from torch import Tensor

from contrapose.losses.catalogue import Method
from contrapose.losses.module import Loss
from contrapose.losses.objective import added_to, replace_first, traits_of, with_state
from contrapose.losses.parse import given_settings, parse
from contrapose.temperature import Learned

Objective: TypeAlias = str | Method | Callable[..., Tensor]


def make_criterion(
    objective: Objective,
    settings: dict[str, Any],
    *,
    temperature: Any = None,
    default_temperature: float | None = None,
    batch_temperature: bool = False,
    data: str | None = None,
    provided: Collection[str] = (),
) -> Loss:
    """Return the objective with its settings as a `Loss`.

    Text is parsed ("dystress", "nt_xent(temperature=cosine(0.07, 0.2))"), and `data` selects the catalogue's values.
    `default_temperature` is used if neither the objective nor the user sets a temperature. With `batch_temperature` the batch
    brings one, and a bias, which replace a method's numbers, but not a function of similarity. `provided` names the
    arguments that the caller passes with each batch.
    """
    chosen = _with_settings(objective, data)
    if batch_temperature:
        kept = {k: v for k, v in chosen.keywords.items() if not _comes_with_batch(objective, chosen.func, k, v)}
        chosen = replace_first(chosen, partial(chosen.func, **kept))
    settings = {**chosen.keywords, **settings}
    if temperature is not None:
        settings["temperature"] = temperature
    elif default_temperature is not None and takes_setting(chosen.func, "temperature"):
        settings.setdefault("temperature", default_temperature)
    own = partial(chosen.func, **settings)
    for part in (own, *(term for _, term in added_to(chosen))):
        _refuse_state(part.func, [*part.keywords, *provided], part.keywords)
    return Loss(replace_first(chosen, own))


def _comes_with_batch(objective: Objective, function: Callable[..., Tensor], name: str, value: Any) -> bool:
    """Return whether a setting is a number, or a learned one, that a method has by default and a batch can replace."""
    replaceable = name in ("temperature", "bias") and takes_tensor(function, name)
    return replaceable and is_of_method(objective, name) and isinstance(value, int | float | Learned)


def is_of_method(objective: Objective, name: str) -> bool:
    """Return whether a setting of an objective is that of a method of the catalogue, and not written by the user."""
    if isinstance(objective, str):
        return name not in given_settings(objective)
    return isinstance(objective, Method)


def check_guide(criterion: Loss, guide: object, *, name: str) -> None:
    """Raise ValueError for a guide's embeddings without an objective that takes soft targets, or the other way round.

    name   the argument that holds the embeddings
    """
    is_soft, objective = "targets" in criterion.traits.provided, criterion.objective.__name__
    if is_soft and guide is None:
        raise ValueError(f"{name}: expected the embeddings of a guide, since {objective} has soft targets, got None")
    if guide is not None and not is_soft:
        raise ValueError(f'{name}: expected an objective with soft targets, such as "soft_nt_xent", got {objective}')


def takes_setting(objective: Callable[..., Tensor], name: str) -> bool:
    """Return whether an objective has a setting with this name."""
    return name in signature(objective).parameters


def takes_tensor(objective: Callable[..., Tensor], name: str) -> bool:
    """Return whether a setting may be a tensor with a gradient: a temperature may not if its formula needs a number."""
    return name != "temperature" or name in traits_of(objective).tensor_settings


def _with_settings(objective: Objective, data: str | None) -> partial[Tensor]:
    if isinstance(objective, str):
        return parse(objective, data)
    if isinstance(objective, Method):
        return objective(data)
    return objective if isinstance(objective, partial) else partial(objective)


def _refuse_state(objective: Callable[..., Tensor], given: Collection[str], settings: dict[str, Any]) -> None:
    """Raise ValueError for an objective that does not take pairs, or needs inputs that the host library does not pass."""
    name, traits = getattr(objective, "__name__", repr(objective)), traits_of(objective)
    if traits.takes != "pairs":
        raise ValueError(f"objective: expected an objective of pairs, got {name}, which takes {traits.takes}")
    known = signature(objective).parameters
    required = [name for name in traits.provided if known[name].default is Parameter.empty and name not in given]
    if "targets" in required:
        raise ValueError(
            f"objective: {name} has soft targets, which come from another model: pass guide= to ContrastiveLoss of "
            "sentence-transformers or to NTXentLoss, or a teacher's features to ClipLoss"
        )
    if required or with_state(partial(objective, **settings), samples=1)[1] is not None:
        raise ValueError(
            f"objective: {name} needs a value for each sample in every step, which this loss does not receive; "
            f"call contrapose.Loss in the training loop"
        )
