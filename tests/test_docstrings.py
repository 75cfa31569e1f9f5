"""Every public function and class explains each of its arguments."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import textwrap
from typing import Any

import pytest

import contrapose
from contrapose.lab.frameworks import FrameworkSettings
from contrapose.lab.training import Embedder, Model, Run, Trainer, load, prepare, prepare_other, preset
from contrapose.losses.catalogue import Catalogue, Method


def public() -> dict[str, Any]:
    """What users call, by name."""
    named = {name: getattr(contrapose, name) for name in contrapose.__all__}
    for module in ("contrapose.metrics", "contrapose.lab.evaluation"):
        content = importlib.import_module(module)
        named |= {name: getattr(content, name) for name in content.__all__}
    named |= {
        value.__name__: value for value in (Embedder, Method, Model, Run, Trainer, load, prepare, prepare_other, preset)
    }
    classes = (contrapose.Loss, Embedder, Model, Trainer)
    methods = {
        f"{cls.__name__}.{name}": function
        for cls in classes
        for name, function in vars(cls).items()
        if not name.startswith("_")
        and inspect.isfunction(function)
        and function.__name__ != "<lambda>"  # a field's default
    }
    named |= methods | {"Method.__call__": Method.__call__}
    return {name: value for name, value in named.items() if callable(value) and not isinstance(value, Catalogue)}


def described_fields(cls: type) -> set[str]:
    """The fields of a class that have a comment, a string on the next line, or a help text of their own."""
    own = getattr(cls, "__dataclass_fields__", {})
    described = {name for name, field in own.items() if field.metadata.get("help")}
    for base in inspect.getmro(cls):
        # The settings of frameworks are a class without source: their registry puts it together.
        if base.__module__.startswith("contrapose.") and base is not FrameworkSettings:
            source = textwrap.dedent(inspect.getsource(base))
            (definition,) = ast.parse(source).body
            assert isinstance(definition, ast.ClassDef)
            for node, following in zip(definition.body, [*definition.body[1:], None], strict=True):
                if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                    lines = source.splitlines()[node.lineno - 1 : node.end_lineno]
                    is_string = isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant)
                    if is_string or any("  # " in line for line in lines):
                        described.add(node.target.id)
    return described


def is_explained(argument: str, docstring: str) -> bool:
    """Whether an argument has a line of its own, `name   what it is`, or is named in `backticks`."""
    return re.search(rf"`{argument}\b|^ *(\w+, )*{argument}(, \w+)*  +\S", docstring, re.MULTILINE) is not None


@pytest.mark.parametrize("name", public())
def test_every_argument_is_explained(name: str) -> None:
    value = public()[name]
    described = described_fields(value) if inspect.isclass(value) else set()
    arguments = [argument for argument in inspect.signature(value).parameters if argument != "self"]
    docstring = inspect.getdoc(value) or ""
    missing = [a for a in arguments if a not in described and not is_explained(a, docstring)]
    assert not missing, f"the docstring of {name} does not explain {', '.join(missing)}"
