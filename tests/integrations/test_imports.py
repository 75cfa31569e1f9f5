"""Only the module of a library imports that library, and the losses that merely have its shape do not need it."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.thorough
@pytest.mark.parametrize("module", ["integrations", "integrations.lightly", "integrations.open_clip"])
def test_no_library_is_imported(module: str) -> None:
    code = f"""
import sys, torch
before = set(sys.modules)
import contrapose.{module}
new = {{name.split(".")[0] for name in set(sys.modules) - before}} - set(sys.stdlib_module_names) - {{"contrapose", "torch"}}
assert not new, new
"""
    subprocess.run([sys.executable, "-c", code], check=True)
