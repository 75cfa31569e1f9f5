"""Losses import torch only, layers import lower layers only, and no modules import each other in a cycle."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import Promise
from tiers import first

import contrapose
from contrapose.lab.modalities import MODALITIES

SOURCE = Path(contrapose.__file__).parent
# From the lowest to the highest. A package may import those below it, and itself. The most specific name counts: commands of a
# modality are in its folder, and belong to a higher layer than the rest of it.
LAYERS = (
    "extras",
    "lazy",
    "moved",
    "validate",
    "child_processes",
    "randomness",
    "reduce",
    "compiled_collectives",
    "distributed",
    "pairs",
    "embeddings",
    "temperature",
    "losses",
    "gradient_cache",
    "integrations",
    "metrics",
    "mining",
    "conformance",
    "doctor",
    "integrations.lightning",
    "integrations.trainer",
    "pytest_plugin",
    "explanation",
    # The laboratory
    "lab.settings",
    "lab.devices",
    "lab.counts",
    "lab.jobs",
    "lab.cached_files",
    "lab.workers",
    "lab.cuda",
    "lab.memory_budget",
    "lab.optim",
    "lab.networks",
    "lab.modalities",
    "lab.evaluation",
    "lab.frameworks",
    "lab.report",
    "lab.training",
    "lab.studies",
    "lab.modalities.captions.commands",
    "lab.modalities.text.commands",
    "lab.cli",
    "__main__",
)
# `load` and `explain` lead from the library to the laboratory; __init__.py imports them when they are used.
Graph = dict[str, set[str]]


def level(module: str) -> int:
    """Return the height of a module's layer; a folder of layers itself has none, and is the lowest."""
    package = module.removeprefix("contrapose.")
    found = max((layer for layer in LAYERS if f"{package}.".startswith(f"{layer}.")), key=len, default="")
    assert found or package == "lab", f"{module} has no layer: add it to LAYERS"
    return LAYERS.index(found) if found else 0


def imported(code: str, modules: set[str]) -> set[str]:
    """Return the modules of contrapose that a file imports, anywhere in it, including under TYPE_CHECKING."""
    names = set()
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names if alias.name.split(".")[0] == "contrapose"}
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, "relative import"
            if (node.module or "").split(".")[0] == "contrapose":
                for alias in node.names:  # a module of the package, or a name in it
                    inner = f"{node.module}.{alias.name}"
                    names.add(inner if inner in modules else str(node.module))
    return names & modules


def import_graph(files: dict[str, str]) -> Graph:
    """Map each module name to the modules that it imports."""
    return {name: imported(code, set(files)) for name, code in files.items()}


def upward(graph: Graph) -> list[tuple[str, str]]:
    """Return the imports from a lower layer into a higher one."""
    edges = [(one, other) for one, others in graph.items() for other in others]
    return [(one, other) for one, other in edges if "." in one and "." in other and level(other) > level(one)]


def cycle(graph: Graph) -> list[str]:
    """Return an import cycle, or an empty list. A module's own parent package, imported before it, does not count."""
    done: set[str] = set()

    def walk(module: str, chain: list[str]) -> list[str]:
        if module in chain:
            return [*chain[chain.index(module) :], module]
        if module in done:
            return []
        for other in sorted(graph[module]):
            if not module.startswith(f"{other}.") and (loop := walk(other, [*chain, module])):
                return loop
        done.add(module)
        return []

    return next((chain for module in sorted(graph) if (chain := walk(module, []))), [])


def source_files() -> dict[str, str]:
    def name(path: Path) -> str:
        parts = path.relative_to(SOURCE.parent).with_suffix("").parts
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)

    return {name(path): path.read_text() for path in SOURCE.rglob("*.py")}


def test_layers_import_lower_layers_only(promise: Promise) -> None:
    graph = import_graph(source_files())
    assert len(graph) > 100
    assert upward(graph) == []
    for _ in graph:
        promise.case()


# What outside of lab.modalities may import modules of one modality: names that the documentation imports from
# contrapose.lab.evaluation, detectors, which take images alone, and the class list that two papers print.
OF_ONE_MODALITY = {
    "contrapose.lab.evaluation",
    "contrapose.lab.evaluation.detection.data",
    "contrapose.lab.evaluation.detection.train",
    "contrapose.lab.studies.behaviour.tables",
}


def importers_of_one_modality(graph: Graph) -> set[str]:
    """Return the modules outside of lab.modalities that import modules of a single modality."""
    folder = "contrapose.lab.modalities"
    own = tuple(f"{folder}.{name}" for name in MODALITIES)
    return {
        one
        for one, others in graph.items()
        for other in others
        if other.startswith(own) and not f"{one}.".startswith(f"{folder}.")
    }


def compares_modality(code: str) -> bool:
    """Return whether code compares a modality with the name of one."""
    names = {*MODALITIES}
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Compare) and "modality" in ast.unparse(node):
            constants = {inner.value for inner in ast.walk(node) if isinstance(inner, ast.Constant)}
            if constants & names:
                return True
    return False


def test_nothing_outside_asks_for_a_modality(promise: Promise) -> None:
    files = source_files()
    assert importers_of_one_modality(import_graph(files)) == OF_ONE_MODALITY
    lab = {name: code for name, code in files.items() if name.startswith("contrapose.lab.")}
    others = {name: code for name, code in lab.items() if not name.startswith("contrapose.lab.modalities.")}
    assert [name for name, code in others.items() if compares_modality(code)] == []
    for _ in others:
        promise.case()


@pytest.mark.thorough
def test_a_test_of_the_name_of_a_modality_is_detected() -> None:
    assert compares_modality('if run.modality in ("text", "captions"): pass')
    assert not compares_modality('Run(modality="text"); run.modality == other.modality')
    files = source_files()
    files["contrapose.lab.studies.scores"] += "\nfrom contrapose.lab.modalities.text.load import load\n"
    assert importers_of_one_modality(import_graph(files)) - OF_ONE_MODALITY == {"contrapose.lab.studies.scores"}


def test_no_import_cycles(promise: Promise) -> None:
    assert cycle(import_graph(source_files())) == []
    promise.case()


@pytest.mark.thorough
@pytest.mark.parametrize(
    "code",
    first(
        1,
        [
            "def f():\n    from contrapose.lab import cli",
            "from contrapose.lab import cli",
            "import contrapose.lab.cli.train",
            "from contrapose.lab.cli import train",
        ],
    ),
)
def test_an_upward_import_is_detected(code: str) -> None:
    files = source_files()
    files["contrapose.pairs.ids"] += f"\n{code}\n"
    assert [one for one, _ in upward(import_graph(files))] == ["contrapose.pairs.ids"]


@pytest.mark.thorough
def test_an_import_cycle_is_detected() -> None:
    files = source_files()
    files["contrapose.pairs.negatives"] += "\nfrom contrapose.pairs.build import two_views\n"
    assert "contrapose.pairs.negatives" in cycle(import_graph(files))


def loaded_by(statement: str) -> set[str]:
    code = f"import sys, json; {statement}; print(json.dumps(sorted(sys.modules)))"
    return set(json.loads(subprocess.check_output([sys.executable, "-c", code], text=True)))


@pytest.mark.thorough
def test_losses_import_torch_only(promise: Promise) -> None:
    extra = loaded_by("import contrapose.losses") - loaded_by("import torch")
    others = {name.split(".")[0] for name in extra} - set(sys.stdlib_module_names) - {"contrapose", "torch"}
    assert others == set()
    assert not any(name.startswith(("torch._dynamo", "torch._inductor", "torchvision", "triton")) for name in extra)
    promise.case()
