"""One budget for the memory that a file may make us allocate, in place of what the file claims to need.

A file of a few hundred bytes can describe a table, an image or a model of terabytes. What it describes is therefore computed
before it is built: pages from their headers, a model from its configuration, layer by layer. A file may take `BUDGET`, or
`EXPANSION` times its own size if that is more, so that large weights, which are on the disk, are never refused.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.module import (
    register_module_buffer_registration_hook,
    register_module_module_registration_hook,
    register_module_parameter_registration_hook,
)

BUDGET = 2**29  # bytes that any file may take: 512 MiB
VARIABLE = "CONTRAPOSE_FILE_BUDGET"  # environment variable that replaces the budget, in GiB
# Weights of 8 bits become float32, which takes 4 times their size, and tied weights are built up to three times.
EXPANSION = 16
_ENTRY = 256  # bytes of an entry in a list or dictionary that a number in a configuration may create, such as a label
# Bytes of a layer or parameter as a Python object, on the safe side: millions of them would also take minutes.
_OBJECT = 2**14


class OverBudget(ValueError):
    """A file describes something that needs more memory than the file may take."""


def allowance(size: int = 0) -> int:
    """Return how many bytes of memory files of this total size may take."""
    text = os.environ.get(VARIABLE, "")
    try:
        budget = int(float(text) * 2**30) if text else BUDGET
    except (ValueError, OverflowError):
        raise ValueError(f"{VARIABLE}: expected a number of GiB, such as 4, got {text!r}") from None
    return max(budget, EXPANSION * size)


def check_allocation(needed: int, what: str, *, size: int = 0) -> None:
    """Raise OverBudget if `what`, in the singular, needs more bytes than files of this total size may take."""
    allowed = allowance(size)
    if needed > allowed:
        gib = -(-needed // 2**30)
        # A hostile number may have hundreds of digits.
        amount = f"{gib:,} GiB" if gib < 10**9 else "more than a billion GiB"
        advice = f"; if you trust it, set {VARIABLE}={gib} (GiB)" if gib < 10**4 else ""
        raise OverBudget(
            f"{what} would take {amount} of memory, more than the {allowed / 2**30:.3g} GiB that a file of this size may take; "
            f"it may be damaged or hostile{advice}"
        )


def check_numbers(content: Any, path: Path, *, size: int = 0) -> None:
    """Refuse a configuration with a whole number so large that a list of this length would exceed the budget.

    Configurations build such lists by themselves: one entry for each layer or label.

    content   a JSON value
    path      file of the configuration, for the message
    size      bytes of the weights that it describes
    """
    pending: list[tuple[str, Any]] = [("a number", content)]
    while pending:
        name, value = pending.pop()
        if isinstance(value, dict):
            pending += value.items()
        elif isinstance(value, list):
            pending += [(name, item) for item in value]
        elif isinstance(value, int):
            check_allocation(abs(value) * _ENTRY, f"encoder: {name} in {path}", size=size)


@contextmanager
def model_budget(what: str, *, size: int = 0) -> Iterator[None]:
    """Raise OverBudget in this block as soon as the models that this thread builds need more memory than they may take.

    It is raised before the weights are initialised, so that their memory has been reserved but not used. On the meta device,
    nothing is reserved at all.

    what   the model, for the message
    size   bytes of the model's weights on the disk
    """
    thread, sizes, total = threading.get_ident(), dict[tuple[int, str], int](), 0

    def add(module: nn.Module, name: str, part: Tensor | nn.Module | None) -> None:
        nonlocal total
        if part is None or threading.get_ident() != thread:
            return
        needed = _OBJECT + (part.nbytes if isinstance(part, Tensor) else 0)
        # A parameter is registered again when it is loaded.
        total += needed - sizes.get((id(module), name), 0)
        sizes[id(module), name] = needed
        check_allocation(total, what, size=size)

    hooks = [
        register_module_parameter_registration_hook(add),
        register_module_buffer_registration_hook(add),
        register_module_module_registration_hook(add),
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
