"""Import paths from earlier releases, which still lead to the same modules, with a deprecation warning."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_loader
from types import ModuleType

_LAB = ("cli", "cuda", "evaluation", "frameworks", "modalities", "networks", "optim", "report", "studies", "training")
MOVED = {f"contrapose.{name}": f"contrapose.lab.{name}" for name in _LAB} | {
    "contrapose.negatives": "contrapose.pairs.negatives",
    "contrapose.workers": "contrapose.lab.workers",
}


class _MovedModules(MetaPathFinder, Loader):
    """Finds a module by its former path. `sys.modules` holds one object under both names, so classes stay identical."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the import specification for a former path; None for all other modules."""
        return spec_from_loader(fullname, self) if _current_path(fullname) else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Return the module at its present path."""
        current = _current_path(spec.name)
        if spec.name in MOVED:  # warn once for a package and all its modules
            message = f"{spec.name} is now {current}; the former path will not work in 1.0"
            warnings.warn(message, DeprecationWarning, stacklevel=2)
        module = import_module(current)
        # Python overwrites the `__spec__` of the module returned here, so the original is saved and restored later.
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Restore the specification; the module itself has been executed at its present path."""
        if module.__spec__ is not None:
            module.__spec__ = module.__spec__.loader_state


def _current_path(name: str) -> str:
    """Return the present path of a module that has moved; an empty string for any other module."""
    former = next((path for path in MOVED if name == path or name.startswith(f"{path}.")), "")
    return former and MOVED[former] + name.removeprefix(former)


def find_moved_modules() -> None:
    """Let Python find modules by their former paths."""
    if not any(isinstance(finder, _MovedModules) for finder in sys.meta_path):
        # Inserted first: otherwise Python would search the package's present folder and load a second copy of each module.
        sys.meta_path.insert(0, _MovedModules())
