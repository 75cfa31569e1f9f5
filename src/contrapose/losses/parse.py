"""Parse an objective from a line of text, for command lines and run descriptions, without evaluating code.

simclr                                            a method of the catalogue with the paper's values
dystress(temperature=cosine(0.07, 0.2))           a method with some values replaced
nt_xent(temperature=0.3, negatives=hardest(64))   an objective
simclr + 0.1*koleo()                              a sum: further losses have a weight
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Mapping
from functools import partial
from inspect import signature
from typing import Any

from torch import Tensor

from contrapose import losses, pairs, temperature
from contrapose.losses.catalogue import CATALOGUE, DATA
from contrapose.losses.objective import WeightedSum, nearest_setting, traits_of, with_state
from contrapose.temperature import profile
from contrapose.validate import check_known, nearest

# The only functions that may be called in a setting's value.
_VALUE_FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    **{
        name: getattr(pairs, name)
        for name in ("other_views", "same_view", "hardest", "stored_rows", "batch_rows", "self_guided")
    },
    **{name: getattr(temperature, name) for name in (*profile.__all__, "learned", "learned_number") if name.islower()},
    "schedule": temperature.CosineSchedule,
    "decay": temperature.CosineDecay,
    "warmup": temperature.LinearWarmup,
}
_FORM = "name or name(setting=value, …)"
_LONGEST = 1000  # in characters; Python's parser takes seconds or fails in odd ways on very long lines
_OBJECTIVES = {name: value for name, value in vars(losses).items() if hasattr(value, "traits")}


def parse(text: str, data: str | None = None) -> partial[Tensor]:
    """Return the objective that `text` describes; `data` selects the catalogue's values for a data set.

    >>> parse("nt_xent(temperature=cosine(0.07, 0.2))").keywords
    {'temperature': cosine(low=0.07, high=0.2)}
    >>> parse("simclr + 0.1*koleo()").added[0][0]
    0.1
    """
    (_, first), *others = _parts(text)
    chosen = _objective(*_guarded(first, text), data)
    if not others:
        return chosen
    added = tuple((weight, _objective(*_guarded(node, text), data)) for weight, node in others)
    for _, term in added:
        if with_state(term, 1)[1] is not None:
            raise ValueError(
                f"loss: {term.func.__name__} keeps a state for its samples or features, so it must be the first part of {text!r}"
            )
    return WeightedSum.of(chosen, added)


def _objective(name: str, settings: dict[str, Any], data: str | None) -> partial[Tensor]:
    """Return an objective, or a method's objective with its values for a data set, with these settings."""
    known = {**_OBJECTIVES, **CATALOGUE}
    check_known("loss", name, sorted(known))
    # A folder or a file is not in DATA; it gets the method's default values.
    base = CATALOGUE[name](data if data in DATA else None) if name in CATALOGUE else partial(_OBJECTIVES[name])
    accepted = _settings_of(base.func)
    annotations = {p.name: p.annotation for p in signature(base.func).parameters.values()}
    for setting, value in settings.items():
        # Any other value would silently count as True or False.
        switch = {"bool": (True, False), "bool | None": (True, False, None)}.get(annotations.get(setting, ""))
        if switch is not None and not any(value is allowed for allowed in switch):
            raise ValueError(f"loss: {setting}: expected {' or '.join(map(str, switch))}, got {value!r}")
        if setting not in accepted:
            hint = nearest_setting(setting, accepted)
            raise ValueError(f"loss: {name} has {_list_settings(accepted)}, got {setting!r}{hint}")
    return partial(base.func, **{**base.keywords, **settings})


def _settings_of(function: Callable[..., Tensor]) -> list[str]:
    """Return the settings of an objective: all parameters except the pairs and those that the training loop passes."""
    traits = traits_of(function)
    accepted = [p for p in list(signature(function).parameters)[1:] if p not in ("reduction", *traits.provided)]
    return accepted + [p for p in traits.state_settings if p not in accepted]


def _list_settings(accepted: list[str]) -> str:
    return f"the settings {', '.join(accepted)}" if accepted else "no settings"


def with_temperature(loss: str, temperature: str, *, replace: bool = False) -> str:
    """Return a loss as text with its temperature set to a number, or to `cosine(LOW, HIGH)` if `temperature` is LOW:HIGH.

    loss          a loss as in `parse`; of a sum, the first part
    temperature   a number or LOW:HIGH
    replace       whether a temperature in `loss` is replaced; otherwise it raises ValueError

    >>> with_temperature("nt_xent(negatives=hardest(64))", "0.07:0.2")
    'nt_xent(negatives=hardest(64), temperature=cosine(0.07, 0.2))'
    """
    value, chosen = _temperature_text(temperature), parse(loss)
    name, accepted = loss_name(loss), _settings_of(chosen.func)
    if "temperature" not in accepted:
        raise ValueError(f"temperature: {name} has no setting temperature; it has {_list_settings(accepted)}")
    given, others, added = _first_keywords(loss)
    if given and not replace:
        raise ValueError(
            f"temperature: {loss!r} already has temperature={ast.unparse(given[0].value)}, and {temperature} was given too; "
            "leave out one of them"
        )
    return f"{name}({', '.join([*others, f'temperature={value}'])}){added}"


def with_negatives(loss: str, negatives: str) -> str | None:
    """Return a loss as text with its choice of negatives, such as "hardest(0.1)"; None if it has one, or cannot have one.

    >>> with_negatives("nt_xent(temperature=0.2)", "hardest(0.1)")
    'nt_xent(temperature=0.2, negatives=hardest(0.1))'
    """
    given, others, added = _first_keywords(loss, "negatives")
    if given or "negatives" not in _settings_of(parse(loss).func):
        return None
    return f"{loss_name(loss)}({', '.join([*others, f'negatives={negatives}'])}){added}"


def temperature_of(loss: str) -> float | None:
    """Return the number that a loss as text has as temperature; None if it has none, or something else.

    >>> temperature_of("nt_xent(temperature=0.2)")
    0.2
    """
    value = _read(loss)[1].get("temperature")
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def without_temperature(loss: str) -> str:
    """Return a loss as text without its temperature.

    >>> without_temperature("dcl(temperature=0.2, hardness=1.0)")
    'dcl(hardness=1.0)'
    """
    _, others, added = _first_keywords(loss)
    return f"{loss_name(loss)}({', '.join(others)}){added}" if others else f"{loss_name(loss)}{added}"


def _first_keywords(loss: str, name: str = "temperature") -> tuple[list[ast.keyword], list[str], str]:
    """Return a setting of a loss's first part, its other settings as text, and the parts that are added to it as text."""
    (_, node), *others = _parts(loss)
    keywords = node.keywords if isinstance(node, ast.Call) else []
    given = [keyword for keyword in keywords if keyword.arg == name]
    settings = [ast.unparse(keyword) for keyword in keywords if keyword.arg != name]
    return given, settings, "".join(f" + {weight:g}*{ast.unparse(term)}" for weight, term in others)


def _temperature_text(text: str) -> str:
    """Return a number, or LOW:HIGH, as a setting's value in a loss."""
    try:
        numbers = [int(part) if part.strip().isdecimal() else float(part) for part in text.split(":")]
    except ValueError:
        numbers = []
    is_profile = len(numbers) == 2 and numbers[0] <= numbers[1]
    if not (len(numbers) == 1 or is_profile) or not all(0 < number < math.inf for number in numbers):
        raise ValueError(
            f"temperature: expected a number above 0, such as 0.2, or LOW:HIGH for cosine(LOW, HIGH), such as 0.07:0.2, "
            f"got {text!r}"
        )
    return f"cosine({numbers[0]}, {numbers[1]})" if is_profile else str(numbers[0])


def loss_name(text: str) -> str:
    """Return the name of a loss without its settings, and without anything that the parser ignores, such as a comment.

    >>> loss_name("dino(teacher_temperature=0.04)  # as in the paper")
    'dino'
    """
    return _read(text)[0]


def given_settings(text: str) -> set[str]:
    """Return the names of the settings in a loss as text, without those of its method; of a sum, those of its first part.

    >>> given_settings("dystress(negatives=hardest(64)) + 0.1*koleo()")
    {'negatives'}
    """
    return set(_read(text)[1])


def _read(text: str) -> tuple[str, dict[str, Any]]:
    """Return the name and the settings of a loss; of a sum, those of its first part."""
    return _guarded(_parts(text)[0][1], text)


def _parts(text: str) -> list[tuple[float, ast.expr]]:
    """Return the weights and the syntax trees of the parts of a sum, in order."""
    if len(text) > _LONGEST:
        raise ValueError(
            f"loss: expected {_FORM} of at most {_LONGEST} characters, got {len(text)}, from {text[:40]!r}"
        )
    try:
        node, parts = ast.parse(text.strip(), mode="eval").body, list[tuple[float, ast.expr]]()
        while isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            parts.append(_weighted(node.right, text))
            node = node.left
    # Deep nesting exhausts the parser's or Python's stack; half a surrogate pair cannot be encoded.
    except (SyntaxError, RecursionError, MemoryError, UnicodeEncodeError) as error:
        raise ValueError(f"loss: expected {_FORM}, got {text!r}") from error
    return [(1.0, node), *reversed(parts)]


def _weighted(node: ast.expr, text: str) -> tuple[float, ast.expr]:
    """Return the weight and the loss of `weight * loss`; a loss without a weight has the weight 1."""
    if not (isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult)):
        return 1.0, node
    factor = node.left.value if isinstance(node.left, ast.Constant) else None
    if isinstance(factor, bool) or not isinstance(factor, int | float) or not 0 < factor < math.inf:
        raise ValueError(
            f"loss: in {text!r}, expected a weight above 0, as in simclr + 0.1*koleo(), got {ast.unparse(node.left)!r}"
        )
    return float(factor), node.right


def _guarded(node: ast.expr, text: str) -> tuple[str, dict[str, Any]]:
    """Return the name and the settings of one part of a loss."""
    try:
        return _name_and_settings(node, text)
    except (RecursionError, MemoryError) as error:
        raise ValueError(f"loss: expected {_FORM}, got {text!r}") from error


def _name_and_settings(node: ast.expr, text: str) -> tuple[str, dict[str, Any]]:
    """Return the name and the keyword arguments of `name` or `name(setting=value, …)`."""
    if isinstance(node, ast.Name):
        return node.id, {}
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not node.args:
        return node.func.id, _keywords(node.keywords, text)
    raise ValueError(f"loss: expected {_FORM}, got {text!r}")


def _keywords(keywords: list[ast.keyword], text: str) -> dict[str, Any]:
    """Return the values of keyword arguments; raise an error for a repeated argument or `**`."""
    names = [keyword.arg for keyword in keywords]
    if None in names or len(set(names)) < len(names):
        raise ValueError(f"loss: in {text!r}, expected each setting once, as name=value")
    return {str(keyword.arg): _value(keyword.value, text) for keyword in keywords}


def _value(node: ast.expr, text: str) -> Any:
    """Return the value of a literal, a temperature, a choice of negatives, or a tuple of these."""
    if isinstance(node, ast.Tuple):
        return tuple(_value(item, text) for item in node.elts)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        name = node.func.id
        if name not in _VALUE_FUNCTIONS:
            hint = nearest(name, _VALUE_FUNCTIONS)
            raise ValueError(f"loss: in {text!r}, expected one of {', '.join(_VALUE_FUNCTIONS)}, got {name!r}{hint}")
        positional = [_value(item, text) for item in node.args]
        keywords = _keywords(node.keywords, text)
        arguments = list(signature(_VALUE_FUNCTIONS[name]).parameters)
        for argument in keywords.keys() - set(arguments):
            hint = nearest_setting(argument, arguments)
            raise ValueError(f"loss: in {text!r}, {name} has {_list_settings(arguments)}, got {argument!r}{hint}")
        try:
            return _VALUE_FUNCTIONS[name](*positional, **keywords)
        except TypeError as error:
            raise ValueError(f"loss: in {text!r}, {name}: {error}") from error
    try:
        value = ast.literal_eval(node)
    except (ValueError, TypeError) as error:
        raise ValueError(
            f"loss: in {text!r}, expected a number, a string or one of {', '.join(_VALUE_FUNCTIONS)}, "
            f"got {ast.unparse(node)!r}"
        ) from error
    if isinstance(value, int) and abs(value) >= 2**63:  # torch would raise a less helpful error
        raise ValueError(
            f"loss: in {text!r}, expected numbers of at most 64 bits, got one of {len(str(abs(value)))} digits"
        )
    return value
