"""The table of commands agrees with the commands, and help and version need neither torch nor tyro."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
import tomllib
from dataclasses import fields
from pathlib import Path

import pytest
import torch
from commands import error_message

from contrapose import extras
from contrapose.extras import TRAIN_PACKAGES, install_command
from contrapose.lab.cli import main
from contrapose.lab.cli.commands import COMMANDS, FORMER
from contrapose.lab.cli.compare import Compare
from contrapose.lab.cli.help import name_option, option_groups
from contrapose.lab.cli.runs import Runs
from contrapose.lab.cli.train import Train
from contrapose.lab.training import Run

SOURCE = Path(__file__).parents[3] / "src"
# torch and what it requires, as they lie in site-packages.
TORCH = (
    "torch", "torchgen", "functorch", "filelock", "typing_extensions.py", "sympy", "mpmath", "networkx", "jinja2",
    "markupsafe", "fsspec", "nvidia", "triton", "cuda",
)  # fmt: skip


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_text_is_the_docstring(name: str) -> None:
    docstring = COMMANDS[name].load().__doc__
    assert COMMANDS[name].summary == " ".join(textwrap.dedent(docstring).split("\n\n")[0].split())


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    for option in ("--help", "-h"):
        main([option])
        output = capsys.readouterr().out
        assert all(f"\n  {name} " in output for name in COMMANDS)
    main(["data", "--help"])
    output = capsys.readouterr().out
    assert "data check" in output
    assert "study" not in output


@pytest.mark.parametrize("name", ["train", "evaluate", "compare"])
def test_common_options_first(name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """One line each on a terminal of 80 columns, and how to see the others."""
    monkeypatch.setenv("COLUMNS", "80")
    main([name, "--help"])
    output = capsys.readouterr().out
    command = COMMANDS[name].load()
    options = {option.name: option for group in option_groups(command).values() for option in group}
    assert command.common.keys() <= options.keys()
    listed = [line for line in output.partition("common options:\n")[2].splitlines() if line.startswith(" ")]
    assert len(listed) == len(command.common.keys() & options.keys()) <= 13
    assert all(line.startswith(("  --", "  -o, --")) and len(line) <= 80 for line in listed)
    count = sum(not option.is_positional for option in options.values())
    assert output.endswith(f"`contrapose {name} --help-all` lists all {count} options.\n")
    main([name, "--help-all"])
    everything = capsys.readouterr().out
    assert all(f"  {option.signature}" in everything for option in options.values())


def test_all_options_in_groups(capsys: pytest.CaptureFixture[str]) -> None:
    main(["train", "--data", "digits", "--help-all"])
    output = capsys.readouterr().out
    titles = [line for line in output.splitlines() if line.endswith(":") and line[:1].isalpha()]
    assert titles == ["data:", "model:", "loss and framework:", "optimisation:", "evaluation:", "run:"]
    groups = {title: {option.name for option in group} for title, group in option_groups(Train).items()}
    assert sum(map(len, groups.values())) == len(fields(Run)) + len(fields(Train)) - 1  # without `given`
    assert {"framework", "loss", "queue"} <= groups["loss and framework"]
    assert {"lr", "epochs", "grad_clip"} <= groups["optimisation"]
    assert {"knn", "extra_metrics"} <= groups["evaluation"]
    assert {"seed", "out", "device"} <= groups["run"]
    assert {"encoder", "text_encoder"} <= groups["model"]


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    main([*name.split(), "-h"])
    assert capsys.readouterr().out.startswith(f"usage: contrapose {name} ")


def test_options_as_they_are_typed(capsys: pytest.CaptureFixture[str]) -> None:
    main(["embed", "--help"])
    output = capsys.readouterr().out
    assert output.startswith("usage: contrapose embed RUN DATA [OPTIONS]\n")
    assert "\n  -o, --out PATH " in output
    assert "\n  --[no-]skip-broken " in output
    assert "\n  --columns TEXT ... " in output
    assert output.index("--data-root") < output.index("--device")


def test_a_former_group_lists_what_to_run(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["bench"], ["bench", "--help"]):
        main(arguments)
        output = capsys.readouterr().out
        assert all(f"  {name}: {script}\n" in output for name, script in FORMER.items())


def test_without_a_command_there_is_an_overview(capsys: pytest.CaptureFixture[str]) -> None:
    """Ten lines for someone who has just installed it; each example names a command that exists."""
    main([])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 10
    assert max(map(len, lines)) <= 110
    commands = [line.split("  contrapose ")[1].split(" ") for line in lines if "  contrapose " in line]
    assert len(commands) == 6
    assert all(words[0] in COMMANDS or " ".join(words[:2]) in COMMANDS for words in commands)
    assert lines[-2] == "Installed: everything that images, sentences and captions need"


def test_hints_install_from_the_clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command works in the directory where it is read: there, elsewhere, and after an installation from an index."""
    clone = SOURCE.parent
    monkeypatch.chdir(clone)
    assert install_command("train,text") == "pip install '.[train,text]'"
    monkeypatch.chdir(tmp_path)
    assert install_command("train") == f"pip install '{clone}[train]'"
    # As pip installs a clone without -e, and as it installs from an index.
    monkeypatch.setattr(extras, "__file__", str(tmp_path / "site-packages" / "contrapose" / "extras.py"))
    folder = tmp_path / "contrapose-0.1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: contrapose\nVersion: 0.1.0\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert install_command("train") == "pip install 'contrapose[train]'"
    (folder / "direct_url.json").write_text(json.dumps({"url": clone.as_uri(), "dir_info": {}}))
    assert install_command("train") == f"pip install '{clone}[train]'"
    (folder / "direct_url.json").write_text(json.dumps({"url": "file:///gone", "dir_info": {}}))
    assert install_command("train") == "pip install 'contrapose[train]'"


def test_an_unknown_command_or_option_has_a_hint(capsys: pytest.CaptureFixture[str]) -> None:
    assert "no command 'trian'; did you mean 'train'?" in error_message(capsys, "trian")
    assert "no command 'study lst'; did you mean 'study list'?" in error_message(capsys, "study", "lst")
    assert "no command 'studdy'; did you mean 'study'?" in error_message(capsys, "studdy", "list")
    assert "--batch" in error_message(capsys, "train", "--bathc", "3")


@pytest.mark.parametrize("arguments", ["--version", "--help", "study --help"])
def test_help_and_version_do_not_import_torch(arguments: str) -> None:
    code = (
        f"import sys; from contrapose.__main__ import main; sys.argv[1:] = {arguments.split()!r}; main(); "
        "import json; print(json.dumps(sorted({name.split('.')[0] for name in sys.modules})))"
    )
    output = subprocess.check_output([sys.executable, "-c", code], text=True)
    # Packages that site-packages imports at startup (`.pth` files) are not ours.
    startup = subprocess.check_output(
        [sys.executable, "-c", "import sys; print('\\n'.join(name.split('.')[0] for name in sys.modules))"], text=True
    )
    others = set(json.loads(output.splitlines()[-1])) - set(startup.split()) - set(sys.stdlib_module_names)
    assert others == {"contrapose"}


@pytest.fixture(scope="module")
def torch_only(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a Python that has torch, what torch requires, and contrapose."""
    folder = tmp_path_factory.mktemp("torch-only")
    for name in TORCH:
        package = Path(torch.__file__).parents[1] / name
        if package.exists():
            (folder / name).symlink_to(package)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    return {**kept, "PYTHONPATH": f"{folder}:{SOURCE}"}


def run_torch_only(environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    # -S leaves out site-packages.
    command = [sys.executable, "-S", *arguments]
    # In another directory: a hint must work wherever it is read.
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=60, cwd="/")


@pytest.mark.parametrize(
    ("arguments", "code", "expected"),
    [
        ("--version", 0, "contrapose 0."),
        ("--help", 0, f"which the commands need: pip install '{SOURCE.parent}[train]' (sentences: train,text)"),
        ("", 0, f"which the commands need: pip install '{SOURCE.parent}[train]' (sentences: train,text)"),
        (
            "explain simclr",
            1,
            f"needs tyro, which is not installed; install it with: pip install '{SOURCE.parent}[train]'",
        ),
        ("trian", 2, "did you mean 'train'"),
    ],
)
def test_the_command_with_torch_alone(torch_only: dict[str, str], arguments: str, code: int, expected: str) -> None:
    completed = run_torch_only(torch_only, "-m", "contrapose", *arguments.split())
    output = completed.stdout + completed.stderr
    assert completed.returncode == code
    assert expected in output
    assert "Traceback" not in output
    assert "NumPy" not in output


@pytest.mark.thorough
def test_losses_with_torch_alone(torch_only: dict[str, str]) -> None:
    code = """
import contrapose
two_views = contrapose.two_views  # imports torch
import torch
print(contrapose.nt_xent(two_views(torch.eye(4), torch.eye(4)), temperature=contrapose.cosine(0.07, 0.2)).item())
print(contrapose.explain("dystress"))
try:
    contrapose.load("encoder.safetensors")
except ImportError as error:
    print(error)
"""
    completed = run_torch_only(torch_only, "-c", code)
    assert completed.stderr == ""
    assert completed.stdout.startswith("0.0396")
    assert "contrapose.load needs safetensors, which is not installed" in completed.stdout


@pytest.mark.thorough
@pytest.mark.parametrize("module", ["losses", "pairs.build"])
def test_a_module_with_torch_alone(torch_only: dict[str, str], module: str) -> None:
    completed = run_torch_only(torch_only, "-c", f"import contrapose.{module}, torch; torch.ones(1).tolist()")
    assert (completed.returncode, completed.stderr) == (0, "")


def test_a_broken_numpy_is_still_reported() -> None:
    code = """
import warnings, contrapose
warnings.warn("Failed to initialize NumPy: No module named 'numpy'")
warnings.warn("Failed to initialize NumPy: _ARRAY_API not found")
"""
    completed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "_ARRAY_API" in completed.stderr
    assert "No module named" not in completed.stderr


def test_the_extra_has_the_packages_that_messages_name() -> None:
    extras = tomllib.loads((SOURCE.parent / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    required = {line.split(">")[0] for extra in ("train", "images", "figures") for line in extras[extra]}
    imported_as = {"scikit-learn": "sklearn"}
    named = {imported_as.get(name, name) for name in required if not name.startswith("contrapose")}
    # torchvision requires PIL; torch is always installed.
    assert named - {"torch"} | {"PIL"} == TRAIN_PACKAGES


@pytest.mark.parametrize(
    ("command", "message", "expected"),
    [
        (Train, "hold_out: expected a share", "--hold-out: expected a share"),
        (Train, "epochs, batch: expected at least 1", "--epochs, --batch: expected at least 1"),
        (Train, "dry_run: expected one process", "--dry-run: expected one process"),
        (Train, "temperature: expected a number", "--temperature: expected a number"),
        (Train, "some_file: is damaged", "some_file: is damaged"),
        (Train, "no colon", "no colon"),
        (Compare, "loss: expected one of", "--losses: expected one of"),
        (Runs, "folder: is not a folder", "folder: is not a folder"),  # a positional argument
    ],
)
def test_errors_name_options_as_typed(command: type, message: str, expected: str) -> None:
    assert name_option(message, command) == expected
