"""`pytest --contrastive` and `suite`, in pytest runs of their own, registered as the installed package registers them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from contrapose.conformance import CHECKS, Finding, suite
from contrapose.conformance.testing import CAUSES, failure_message

ROOT = Path(__file__).parent.parent
# The right losses are written here without the package: a run that passes has compared two implementations.
CRITERIA = """
import torch
from torch.nn.functional import cross_entropy, normalize

def factory(temperature):
    def criterion(z1, z2):
        z = normalize(torch.cat([z1, z2]), dim=1)
        logits = (z @ z.T / temperature).masked_fill(torch.eye(len(z), dtype=torch.bool), -torch.inf)
        return cross_entropy(logits, torch.arange(len(z)).roll(len(z1)))
    return criterion

def detached(temperature):
    return lambda z1, z2: factory(temperature)(z1, z2.detach())

def one_direction(temperature):
    def criterion(z1, z2):
        return cross_entropy(normalize(z1, dim=1) @ normalize(z2, dim=1).T / temperature, torch.arange(len(z1)))
    return criterion

def own_reference(z1, z2, temperature):
    return one_direction(temperature)(z1, z2)

constant = 3
"""
SUITE = """
import criteria
from contrapose.conformance import suite

test_right = suite(criteria.factory, checks=["formula", "distributed"])
test_wrong = suite(criteria.detached, checks=["formula"])
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A user's folder, and metadata of a package with the entry point of pyproject.toml."""
    folder = tmp_path_factory.mktemp("user")
    (folder / "criteria.py").write_text(CRITERIA)
    (folder / "broken.py").write_text("import no_such_module\n")
    (folder / "pytest.ini").write_text("[pytest]\n")
    entry_points = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    (group,) = entry_points
    metadata = folder / "installed/user_of_contrapose-0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: user-of-contrapose\nVersion: 0\n")
    lines = [f"[{group}]", *(f"{name} = {module}" for name, module in entry_points[group].items())]
    (metadata / "entry_points.txt").write_text("\n".join(lines))
    return folder


def environment(folder: Path) -> dict[str, str]:
    path = os.pathsep.join([str(folder / "installed"), str(ROOT / "src")])
    return os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}


def run_pytest(folder: Path, *arguments: str, code: int) -> str:
    """Return the output of a pytest run in the user's folder, after a check of its exit code."""
    result = subprocess.run(
        [str(Path(sys.executable).parent / "pytest"), "-p", "no:cacheprovider", *arguments],
        cwd=folder,
        env=environment(folder),
        capture_output=True,
        text=True,
    )
    assert result.returncode == code, result.stdout + result.stderr
    return result.stdout + result.stderr


@pytest.mark.thorough
def test_a_right_criterion_passes_and_the_record_says_so(folder: Path) -> None:
    arguments = ("--contrastive", "criteria:factory", "--contrastive-json", "right.json")
    output = run_pytest(folder, *arguments, "-rs", "-k", "formula or duplicates or fp16", code=0)
    assert "2 passed, 1 skipped, 5 deselected" in output
    assert "collected 8 items / 5 deselected / 3 selected" in output
    assert "not offered: no ids argument: the copy is a negative" in output
    record = json.loads((folder / "right.json").read_text())
    assert record["passed"] is True
    assert (record["criterion"], record["reference"]) == ("criteria:factory", "nt_xent")
    assert [finding["verdict"] for finding in record["findings"]] == ["ok", "ok", "not offered", "ok", "ok"]
    assert 0 < record["findings"][0]["figure"] < 1e-12


@pytest.mark.thorough
def test_a_wrong_gradient_fails_with_its_meaning_and_a_line_that_repeats_it(folder: Path) -> None:
    arguments = ("--contrastive", "criteria:detached", "--contrastive-json", "wrong.json")
    output = run_pytest(folder, *arguments, "-k", "formula", code=1)
    assert "formula: 2 of 2 cases failed" in output
    assert "formula, temperature 0.1: differs 0." in output
    assert "differs: the result is finite, and further from the expected one" in output
    assert CAUSES["formula"] in output
    assert "to reproduce: python -m pytest --contrastive criteria:detached -m contrastive -k formula" in output
    assert "FAILED criteria:detached::formula" in output
    record = json.loads((folder / "wrong.json").read_text())
    assert record["passed"] is False
    assert [(row["case"], row["failed"]) for row in record["findings"]] == [
        ("temperature 0.1", True),
        ("temperature 0.5", True),
    ]


@pytest.mark.thorough
def test_a_record_without_findings_has_not_passed(folder: Path) -> None:
    """A check that ended with an error, and a run without checks."""
    arguments = ("--contrastive", "criteria:factory", "--contrastive-json", "none.json")
    wrong = ("--contrastive-reference", "criteria:factory", "-k", "formula")  # a function of other arguments
    for options, code in ((wrong, 1), (("-k", "nothing"), 5)):
        run_pytest(folder, *arguments, *options, code=code)
        assert json.loads((folder / "none.json").read_text())["passed"] is False


@pytest.mark.thorough
def test_references_of_ones_own_and_tests_in_the_same_run(folder: Path) -> None:
    (folder / "test_other.py").write_text("def test_formula():\n    pass\n")
    arguments = ("--contrastive", "criteria:one_direction", "-v", "-k", "formula")
    for reference in ("info_nce", "criteria:own_reference"):
        output = run_pytest(folder, *arguments, "--contrastive-reference", reference, "test_other.py", code=0)
        assert "criteria:one_direction::formula PASSED" in output
        assert "test_other.py::test_formula PASSED" in output
    output = run_pytest(folder, *arguments, "--contrastive-reference", "nt_xent", code=1)
    assert "--contrastive-reference nt_xent -m contrastive" in output


@pytest.mark.slow
def test_in_several_processes_the_record_is_complete(folder: Path) -> None:
    pytest.importorskip("xdist")
    distributed = ("--contrastive-distributed", "criteria:factory")
    arguments = ("--contrastive", "criteria:factory", *distributed, "--contrastive-json", "parallel.json", "-n", "2")
    output = run_pytest(folder, *arguments, "-m", "contrastive", "-k", "formula or distributed", code=1)
    assert "distributed, 2 processes: differs" in output
    record = json.loads((folder / "parallel.json").read_text())
    assert {row["check"]: row["failed"] for row in record["findings"]} == {"formula": False, "distributed": True}


REFUSED = {
    "--contrastive broken:factory": "--contrastive: cannot import broken:factory: ModuleNotFoundError: No module named 'no_s",
    "--contrastive criteria": "--contrastive: expected module:function, got 'criteria'",
    "--contrastive criteria:factori": "--contrastive: cannot import criteria:factori: AttributeError: module 'criteria' has",
    "--contrastive criteria:constant": "--contrastive: expected a function, got criteria:constant = 3",
    "--contrastive criteria:factory --contrastive-reference ntxent": "--contrastive-reference: expected one of nt_xent, "
    "info_nce, clip, siglip, got 'ntxent'; did you mean 'nt_xent'?",
    "--contrastive criteria:factory --contrastive-distributed nowhere:factory": "--contrastive-distributed: cannot import "
    "nowhere:factory: ModuleNotFoundError",
    "--contrastive criteria:factory --contrastive-json no/such/folder.json": "--contrastive-json: expected a file in an "
    "existing folder, got 'no/such/folder.json'",
    "--contrastive-json alone.json": "--contrastive-json: expected --contrastive MODULE:FUNCTION as well",
}


@pytest.mark.thorough
def test_wrong_options_are_refused(folder: Path) -> None:
    """In one process, because each would import torch again."""
    runs = f"import pytest, shlex\nprint([int(pytest.main(shlex.split(line))) for line in {list(REFUSED)}])"
    result = subprocess.run(
        [sys.executable, "-c", runs], cwd=folder, env=environment(folder), capture_output=True, text=True
    )
    assert result.stdout.splitlines()[-1] == str([4] * len(REFUSED)), result.stdout + result.stderr
    errors = [line.removeprefix("ERROR: ") for line in result.stderr.splitlines() if line.startswith("ERROR: ")]
    assert len(errors) == len(REFUSED)
    for error, expected in zip(errors, REFUSED.values(), strict=True):
        assert error.startswith(expected)


@pytest.mark.thorough
def test_a_suite_in_a_test_file(folder: Path) -> None:
    (folder / "suite_file.py").write_text(SUITE)
    output = run_pytest(folder, "suite_file.py", "-v", "-rs", code=1)
    assert "suite_file.py::test_right[formula] PASSED" in output
    assert "suite_file.py::test_right[distributed] SKIPPED" in output
    assert "suite_file.py::test_wrong[formula] FAILED" in output
    assert 'to reproduce: python -m pytest "suite_file.py::test_wrong[formula]"' in output
    assert "pytest_items" not in output


def test_a_suite_refuses_unknown_names() -> None:
    with pytest.raises(ValueError, match="did you mean 'formula'"):
        suite(lambda temperature: min, checks=["formulas"])
    with pytest.raises(ValueError, match="did you mean 'clip'"):
        suite(lambda temperature: min, reference="clipp")
    with pytest.raises(ValueError, match="defined at the top level"):
        suite(lambda temperature: min, distributed=lambda temperature: min)


def test_each_check_says_what_a_failure_means() -> None:
    assert set(CAUSES) == set(CHECKS)
    failure = Finding("bf16", "a case", "raises", note="TypeError: no")
    message = failure_message([failure, Finding("bf16", "another", "ok")], reproduce="a line")
    assert "bf16: 1 of 2 cases failed\n  bf16, a case: raises (TypeError: no)\nraises: " in message
    assert CAUSES["bf16"] not in message  # nothing was compared
    assert message.endswith("to reproduce: a line")


def imported(code: str) -> set[str]:
    """Return the modules that a piece of code imports beyond pytest, the package's own name and the standard library."""
    listing = f"import sys, pytest; before = set(sys.modules)\n{code}\nprint(*sorted(set(sys.modules) - before))"
    result = subprocess.run([sys.executable, "-c", listing], capture_output=True, text=True, check=True)
    return {name for name in result.stdout.split() if name.split(".")[0] not in sys.stdlib_module_names}


def test_the_plugin_imports_nothing_before_it_is_used() -> None:
    # The package's own __init__, which Python imports first, and the modules that it needs
    package = {"contrapose", "contrapose.lazy", "contrapose.extras", "contrapose.moved"}
    assert imported("import contrapose.pytest_plugin") == package | {"contrapose.pytest_plugin"}


@pytest.mark.thorough
def test_a_pytest_run_without_the_options_imports_no_torch(folder: Path) -> None:
    (folder / "test_light.py").write_text(
        "import sys\n\ndef test_light():\n"
        "    assert 'contrapose.pytest_plugin' in sys.modules\n"
        "    assert not {'torch', 'contrapose.conformance'} & set(sys.modules)\n"
    )
    assert "1 passed" in run_pytest(folder, "test_light.py", code=0)
