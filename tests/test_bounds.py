"""The oldest versions that are tested are those that pyproject.toml allows, and it allows those of the lock file."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from packaging.version import Version

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def required() -> dict[str, str]:
    """Return the oldest version of each required package."""
    lists = [PROJECT["dependencies"], *PROJECT["optional-dependencies"].values()]
    found = [re.match(r"([\w-]+)(?:\[[\w,]+\])?[>=]=([\d.]+)", line) for lines in lists for line in lines]
    return {match[1]: match[2] for match in found if match}


def pinned(file: str) -> dict[str, str]:
    """Return the versions of a file of constraints."""
    lines = [line.split(";")[0].strip() for line in (ROOT / file).read_text().splitlines() if not line.startswith("#")]
    return dict(line.split("==") for line in lines)  # fails for a path or an address


def test_the_oldest_versions_are_tested() -> None:
    oldest, allowed = pinned("constraints-oldest.txt"), required()
    assert {"torch", "torchvision", "numpy", "safetensors", "scikit-learn"} <= set(oldest)
    for package, version in oldest.items():
        assert re.fullmatch(rf"{re.escape(allowed[package])}(\.0)*", version), package


def test_losses_are_tested_with_their_oldest_torch() -> None:
    tested = re.search(r"^OLDEST_TORCH := (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert tested is not None
    assert [f"torch>={tested[1].removesuffix('.0')}"] == PROJECT["dependencies"]


def test_the_lock_file_has_versions_that_are_allowed() -> None:
    locked = {
        name.lower().replace("_", "-"): Version(version) for name, version in pinned("requirements-dev.lock").items()
    }
    # Packages that the development environment does not have: peers to measure beside, and dashboards
    extras = PROJECT["optional-dependencies"]
    apart = {re.split("[=>]", line)[0] for name in ("benchmark", "wandb", "trackio") for line in extras[name]}
    for package, version in required().items():
        assert package in apart or locked[package] >= Version(version), package
