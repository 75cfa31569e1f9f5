"""Core losses need torch alone, and imports between layers go down only."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import contrapose

SOURCE = Path(contrapose.__file__).parent
# From the ground up; modules on one line may import each other.
LAYERS = (
    ("validate", "workers", "lars", "replayed", "beside", "unit", "unit_kernels"),
    ("reduce",),
    ("negatives", "ids", "compared", "pairs", "temperature", "distributed"),
    ("losses",),
    ("metrics", "bench"),
    ("explain",),
    ("data", "encoders"),
    ("evaluation", "frameworks"),
    ("report",),
    ("training",),
    ("studies",),
    ("cli",),
    ("__main__",),
)


def level(module: str) -> int:
    for height, names in enumerate(LAYERS):
        if module in names:
            return height
    raise AssertionError(f"contrapose.{module} has no layer: add it to the list")


def imported(path: Path) -> set[str]:
    """Top-level parts of contrapose that a file imports."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        assert not (isinstance(node, ast.ImportFrom) and node.level), f"{path}: relative import"
        found |= {name.split(".")[1] for name in names if name.startswith("contrapose.")}
    return found


def test_imports_go_down_only() -> None:
    files = [path for path in SOURCE.rglob("*.py") if path.parent != SOURCE or path.name != "__init__.py"]
    assert len(files) > 10
    for path in files:
        own = path.relative_to(SOURCE).parts[0].removesuffix(".py")
        for other in imported(path):
            assert level(other) <= level(own), (
                f"{path.relative_to(SOURCE)} imports contrapose.{other}, a layer above it"
            )


def loaded_by(statement: str) -> set[str]:
    code = f"import sys, json; {statement}; print(json.dumps(sorted(sys.modules)))"
    return set(json.loads(subprocess.check_output([sys.executable, "-c", code], text=True)))


def test_losses_load_torch_and_nothing_heavy() -> None:
    extra = loaded_by("import contrapose.losses") - loaded_by("import torch")
    others = {name.split(".")[0] for name in extra} - set(sys.stdlib_module_names) - {"contrapose", "torch"}
    assert others == set()
    assert not any(name.startswith(("torch._dynamo", "torch._inductor", "torchvision", "triton")) for name in extra)
