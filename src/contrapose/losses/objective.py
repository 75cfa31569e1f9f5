"""The traits of an objective besides its formula: its input, the arguments it is provided with, its state between steps."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial, wraps
from inspect import signature
from typing import Any, Concatenate, Literal, ParamSpec, Protocol, TypeVar, cast, overload

from torch import Tensor

from contrapose.embeddings import Assignments, Embeddings, State, of_two_views
from contrapose.pairs import AnyPairs, Pairs, RingPairs, Similarities
from contrapose.pairs.ids import ONE_IMAGE
from contrapose.temperature import Profile
from contrapose.validate import check_choice, nearest

F = TypeVar("F", bound=Callable[..., Tensor])
P = ParamSpec("P")
Settings = Mapping[str, Any]
_KINDS: dict[str, tuple[type, ...]] = {
    "pairs": (Pairs, RingPairs, Similarities),
    "embeddings": (Embeddings,),
    "assignments": (Assignments,),
}


def _unchanged(value: Any, settings: Settings, positive: float) -> Any:
    return value


def doubled(value: float, settings: Settings, positive: float) -> float:
    """Return a temperature that is twice the setting's value."""
    return 2 * value


@dataclass(frozen=True)
class Softness:
    """The setting that makes an objective softer or sharper, for `explain`."""

    setting: str = "temperature"
    power: int = 1  # 1: the exponent is s / value; -1: the exponent is factor · value · s
    factor: float = 1.0
    start: float | None = None  # its default if a state stores the value and the user gives none
    # From the setting's value, the other settings and the positive's similarity to the temperature in effect, if there is one
    # Not a lambda, which could not be pickled with a `Loss`
    nominal: Callable[[Any, Settings, float], Any] = _unchanged


@dataclass(frozen=True)
class Traits:
    """What `Loss`, the parser and `explain` need to know about an objective."""

    takes: str = "pairs"  # pairs, embeddings or assignments
    needs_target: bool = (
        False  # whether views must predict a target without gradient, from a teacher or from the same network
    )
    provided: tuple[str, ...] = ()  # arguments that the network or a state provides in each step, not the user
    # Maps the settings and the number of training samples to the remaining settings and the state, if one is needed
    make_state: Callable[[Settings, int], tuple[Settings, State | None]] | None = None
    state_settings: tuple[str, ...] = ()  # settings of that state
    # Makes a state that depends on no setting, so that the user need not pass it to `Loss`
    own_state: Callable[[], State] | None = None
    # Maps the settings and the number of anchors to the arguments that the network or a state provides before training
    untrained: Callable[[Settings, int], dict[str, Any]] | None = None
    softness: Softness = Softness()
    # Turns two tensors of embeddings into pairs, if the objective may be called with two tensors: clip(image, text)
    make_pairs: Callable[..., Pairs] | None = None
    unit_vectors: bool = False  # whether the formula assumes similarities between unit vectors
    # Settings that may be tensors (), which a CUDA graph needs in order to follow a schedule
    tensor_settings: tuple[str, ...] = ("temperature",)
    can_capture: bool = True  # whether a CUDA graph can capture it; it cannot if the objective computes eigenvectors


class TwoTensorObjective(Protocol[P]):
    """An objective that takes pairs, or two tensors (m, d) from which it makes pairs."""

    @overload
    def __call__(self, pairs: AnyPairs, /, *args: P.args, **settings: P.kwargs) -> Tensor: ...
    @overload
    def __call__(self, a: Tensor, b: Tensor, /, *args: P.args, **settings: P.kwargs) -> Tensor: ...


class TwoViewObjective(Protocol[P]):
    """An objective that takes `Embeddings`, or the embeddings (m, d) of two views."""

    @overload
    def __call__(self, embeddings: Embeddings, /, *args: P.args, **settings: P.kwargs) -> Tensor: ...
    @overload
    def __call__(self, z1: Tensor, z2: Tensor, /, *args: P.args, **settings: P.kwargs) -> Tensor: ...


@overload
def objective(function: F, /) -> F: ...
@overload
def objective(
    *, takes: Literal["embeddings"], **traits: Any
) -> Callable[[Callable[Concatenate[Embeddings, P], Tensor]], TwoViewObjective[P]]: ...
@overload
def objective(
    *, make_pairs: Callable[..., Pairs], **traits: Any
) -> Callable[[Callable[Concatenate[AnyPairs, P], Tensor]], TwoTensorObjective[P]]: ...
@overload
def objective(**traits: Any) -> Callable[[F], F]: ...
def objective(function: F | None = None, /, **traits: Any) -> F | Callable[[F], F]:
    """Declare an objective: `@objective`, or `@objective(takes="embeddings", …)` with `Traits`; check its input on each call."""
    if function is None:
        return lambda declared: _with_traits(declared, Traits(**traits))
    return _with_traits(function, Traits())


def _with_traits(function: F, described: Traits) -> F:
    check_choice("takes", described.takes, *_KINDS)

    @wraps(function)
    def checked(batch: Any, *more: Any, **settings: Any) -> Tensor:
        batch = _batch(function, described, batch, *more)
        if isinstance(batch, AnyPairs):
            _check_pairs(function, described, batch, settings)
        return function(batch, **settings)

    # Stored on the function itself, so that a `partial` from the catalogue can reach it through `.func`.
    checked.traits = described  # type: ignore[attr-defined]
    return cast(F, checked)


def batch_of(function: Callable[..., Tensor], batch: Any, *more: Any) -> Any:
    """Return what an objective takes, made from two tensors if it may be called so; raise ValueError for anything else."""
    return _batch(function, traits_of(function), batch, *more)


def _batch(function: Callable[..., Tensor], described: Traits, batch: Any, *more: Any) -> Any:
    if described.make_pairs is not None and len(more) == 1 and isinstance(batch, Tensor):
        return described.make_pairs(batch, more[0])
    if described.takes == "embeddings" and len(more) == 1 and isinstance(batch, Tensor):
        return of_two_views(batch, more[0])
    if more or not isinstance(batch, _KINDS[described.takes]):
        raise ValueError(_refusal(function, described, batch, *more))
    return batch


def _refusal(function: Callable[..., Tensor], described: Traits, *received: Any) -> str:
    takes = described.takes
    names = " and ".join(type(value).__name__ for value in received)
    if takes == "pairs" and isinstance(received[0], Embeddings):
        return f"pairs: expected pairs, got Embeddings; write {function.__name__}(embeddings.pairs)"
    if takes != "pairs":
        what = ": it is not a loss of similarities" if isinstance(received[0], AnyPairs) else ""
        call = f"for two views write {function.__name__}(z1, z2)"
        hint = call if takes == "embeddings" else "pass Assignments(scores=…), similarities (V, m, p) to prototypes"
        return f"{takes}: {function.__name__} expected {takes.capitalize()}, got {names}{what}; {hint}"
    wanted = "the result of two_views, views, cross, queue, bank or from_similarities"
    arguments = "two_views(z1, z2)" if described.make_pairs is None else "z1, z2"
    arguments = _WITH_TARGETS if described.needs_target else arguments
    name, hint = function.__name__, ""
    if isinstance(received[0], AnyPairs):
        hint = f"; settings are named, as in {name}(pairs, {list(signature(function).parameters)[1]}=…)"
    elif isinstance(received[0], Tensor) and "labels" in signature(function).parameters and len(received) == 1:
        hint = f"; for one view write {name}(views([z]), labels=y), for two {name}({arguments}, labels=y)"
    elif isinstance(received[0], Tensor):
        hint = f"; for two views write {name}({arguments})"
    return f"pairs: expected {wanted}, got {names}{hint}"


_WITH_TARGETS = "views([p1, p2], keys=[z1, z2])"


def _check_pairs(function: Callable[..., Tensor], described: Traits, pairs: AnyPairs, settings: Settings) -> None:
    """Raise an error for pairs without the positives, the targets or the similarity that the objective needs."""
    if "labels" not in described.provided:  # labels can be the only source of positives
        pairs.check_positives()
    if not described.needs_target and isinstance(pairs, Pairs) and pairs.is_one_sample:
        raise ValueError(ONE_IMAGE)
    if pairs.similarity != "cosine":
        _check_unbounded(function, described, pairs.similarity, settings)
    if described.needs_target and not isinstance(pairs, Similarities) and not pairs.have_targets:
        name = function.__name__
        raise ValueError(
            f"pairs: {name} only pulls, so if positives have a gradient too, all embeddings become equal: expected predictions "
            f"p of a small network, and as keys the embeddings z that they should match, which get no gradient; "
            f"write {name}({_WITH_TARGETS})"
        )


def _check_unbounded(function: Callable[..., Tensor], described: Traits, similarity: str, settings: Settings) -> None:
    """Raise an error for similarities beyond [-1, 1] if the objective or its temperature is defined only on that range."""
    cosine = "expected pairs with similarity='cosine'"
    if described.unit_vectors:
        raise ValueError(f"pairs: {cosine}, since {function.__name__} is a loss of unit vectors, got {similarity!r}")
    for name, value in settings.items():
        if isinstance(value, Profile):
            raise ValueError(f"pairs: {cosine}, since {name}={value!r} is defined on [-1, 1], got {similarity!r}")


def traits_of(function: Callable[..., Tensor]) -> Traits:
    """Return the traits of an objective; a plain function of pairs has the default traits."""
    return getattr(function, "traits", Traits())


# What other libraries and papers call a setting; their names are too different for a comparison of spelling.
_OTHER_NAMES = dict.fromkeys(("t", "tau", "temp", "τ"), "temperature")


def nearest_setting(name: str, known: Collection[str]) -> str:
    """Return the hint `; did you mean 'x'?` with the setting that a misspelt or differently named one probably means.

    >>> nearest_setting("temp", ["temperature", "negatives"])
    "; did you mean 'temperature'?"
    """
    other = _OTHER_NAMES.get(name.lower(), "")
    return f"; did you mean {other!r}?" if other in known else nearest(name, known)


def with_state(chosen: partial[Tensor], samples: int) -> tuple[partial[Tensor], State | None]:
    """Return the objective and the state that its settings require, if any, for a data set with `samples` samples."""
    make = traits_of(chosen.func).make_state
    if make is None:
        return chosen, None
    settings, state = make(chosen.keywords, samples)
    return replace_first(chosen, partial(chosen.func, **settings)), state


class WeightedSum(partial[Tensor]):
    """An objective with its settings, plus other objectives with weights; `Loss` computes all of them, each from its own input.

    It has the function and the settings of the first objective: code that asks for the traits or the settings of a loss gets
    those of its first part.
    """

    added: tuple[tuple[float, partial[Tensor]], ...] = ()

    @classmethod
    def of(cls, first: partial[Tensor], added: tuple[tuple[float, partial[Tensor]], ...]) -> WeightedSum:
        """Return first + Σ weight · objective."""
        total = cls(first.func, **first.keywords)
        total.added = added
        return total

    def __call__(self, batch: Any, /, *more: Any, **settings: Any) -> Tensor:
        """Return the sum for `Embeddings`, or for pairs if all parts take pairs; `settings` are those of the first part."""
        total = super().__call__(self._input(self, batch), *more, **settings)
        for weight, term in self.added:
            total = total + weight * term(self._input(term, batch), *more)
        return total

    @staticmethod
    def _input(term: partial[Tensor], batch: Any) -> Any:
        return input_of(traits_of(term.func), batch) if isinstance(batch, Embeddings) else batch


def input_of(traits: Traits, embeddings: Embeddings) -> Any:
    """Return what an objective takes: the embeddings, their pairs or their assignments."""
    takes = traits.takes
    return (
        embeddings if takes == "embeddings" else embeddings.assignments if takes == "assignments" else embeddings.pairs
    )


def added_to(chosen: Any) -> tuple[tuple[float, partial[Tensor]], ...]:
    """Return the weights and objectives that are added to the first one; empty for a single objective."""
    return chosen.added if isinstance(chosen, WeightedSum) else ()


def replace_first(total: partial[Tensor], first: partial[Tensor]) -> partial[Tensor]:
    """Return the same sum with another first objective."""
    return WeightedSum.of(first, total.added) if isinstance(total, WeightedSum) else first


def provided_to(chosen: partial[Tensor]) -> set[str]:
    """Return the arguments that the network or a state provides to any part of a loss."""
    return {
        name for part in (chosen, *(term for _, term in added_to(chosen))) for name in traits_of(part.func).provided
    }
