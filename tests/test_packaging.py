"""The wheel and the source distribution: what they contain, and that the wheel works in an environment of its own."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

import contrapose

ROOT = Path(__file__).parent.parent
SCRIPT = """
import contrapose, torch
print(contrapose.__file__)
print(contrapose.__version__)
print(float(contrapose.nt_xent(contrapose.two_views(torch.eye(4), torch.eye(4)), temperature=0.5)))
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("dist")
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-d", str(out)], cwd=ROOT, check=True)
    return out


@pytest.mark.thorough
def test_distributions_have_the_whole_package(built: Path) -> None:
    (wheel,), (source,) = built.glob("*.whl"), built.glob("*.tar.gz")
    assert wheel.name.startswith(f"contrapose-{contrapose.__version__}-")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        (entry_points,) = (name for name in names if name.endswith(".dist-info/entry_points.txt"))
        assert "[pytest11]\ncontrapose = contrapose.pytest_plugin" in archive.read(entry_points).decode()
    with tarfile.open(source) as tar:
        sources = {name.partition("/")[2] for name in tar.getnames()}
    package = {
        str(path.relative_to(ROOT / "src"))
        for path in (ROOT / "src/contrapose").rglob("*.py*")
        if "__pycache__" not in path.parts
    }
    assert package <= names
    assert {"contrapose/py.typed", "contrapose/__init__.pyi"} <= names
    assert not any(name.startswith(("tests", "docs", "benchmarks")) for name in names)
    assert {"pyproject.toml", "README.md", "LICENSE", *(f"src/{name}" for name in package)} <= sources


@pytest.mark.thorough
def test_the_wheel_works_in_its_own_environment(built: Path, tmp_path: Path) -> None:
    venv.create(tmp_path / "venv", with_pip=False)
    python = tmp_path / "venv" / "bin" / "python"
    (wheel,) = built.glob("*.whl")
    command = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        str(python),
        "install",
        "--quiet",
        "--no-deps",
        "--no-index",
        str(wheel),
    ]
    subprocess.run(command, check=True)
    # torch is not installed again: it is found after the environment's own packages.
    (own,) = (tmp_path / "venv").glob("lib/python*/site-packages")
    (own / "torch.pth").write_text(sysconfig.get_paths()["purelib"])
    result = subprocess.run([str(python), "-I", "-c", SCRIPT], cwd=tmp_path, capture_output=True, text=True, check=True)
    place, version, loss = result.stdout.splitlines()
    assert Path(place).is_relative_to(tmp_path)
    assert version == contrapose.__version__
    assert float(loss) == pytest.approx(0.5944, abs=1e-4)
    printed = subprocess.run(
        [str(python.parent / "contrapose"), "--version"], capture_output=True, text=True, check=True
    )
    assert version in printed.stdout
