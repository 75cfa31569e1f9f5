"""Contrastive representation learning in which the loss is the subject.

>>> import torch
>>> from contrapose import cosine, nt_xent, two_views
>>> z1, z2 = torch.randn(8, 16), torch.randn(8, 16)
>>> loss = nt_xent(two_views(z1, z2), temperature=cosine(0.07, 0.2))

Losses, pairs, temperatures and negatives need only torch. `load` and `explain` need further packages, which are imported on
first use.
"""

from __future__ import annotations

import ast
import warnings
from importlib import import_module
from pathlib import Path
from typing import Any

from contrapose.extras import nearest
from contrapose.moved import find_moved_modules

__version__ = "0.2.0"


def _public_names() -> dict[str, str]:
    """Return the module of each public name, as listed in the type stub next to this file."""
    stub = ast.parse(Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8"))
    imports = (node for node in stub.body if isinstance(node, ast.ImportFrom))
    return {alias.name: str(node.module) for node in imports for alias in node.names}


_HOMES = _public_names()
__all__ = sorted(_HOMES)
find_moved_modules()
# torch warns at its first import where NumPy is not installed, but no loss needs NumPy. The warning about a NumPy that is
# installed and does not work stays.
warnings.filterwarnings("ignore", message="Failed to initialize NumPy: No module named 'numpy'", category=UserWarning)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'contrapose' has no attribute {name!r}{nearest(name, _HOMES)}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
