"""Numbers on the command line, with errors in words: Python's own say "invalid literal for int() with base 10"."""

from __future__ import annotations

from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

_EXPECTED = {int: "a whole number, such as 20", float: "a number, such as 0.5"}


def number_rules() -> ConstructorRegistry:
    """Return the rules by which tyro reads options that are numbers."""
    registry = ConstructorRegistry()
    registry.primitive_rule(_number_rule)
    return registry


def _number_rule(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[float] | None:
    """Return how an option is read if it is a number; None for other options."""
    kind = next((kind for kind in _EXPECTED if info.type is kind), None)
    if kind is None:
        return None

    def parse(arguments: list[str]) -> float:
        try:
            number: float = kind(arguments[0])
        except ValueError:
            raise ValueError(f"expected {_EXPECTED[kind]}, got {arguments[0]!r}") from None
        return number

    return PrimitiveConstructorSpec(
        nargs=1,
        metavar=kind.__name__.upper(),
        instance_from_str=parse,
        is_instance=lambda value: isinstance(value, kind),
        str_from_instance=lambda value: [str(value)],
    )
