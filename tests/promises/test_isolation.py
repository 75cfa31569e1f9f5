"""Training, evaluation and a report start no program, use no network, and write only to their directories and the user's caches.

The exceptions are in SECURITY.md: processes that load data, and what torch and matplotlib look up when they are imported.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import streaming
from conftest import Promise
from PIL import Image

from contrapose.lab.modalities.images.image_shards import write_shards

SMALL = ["--limit", "64", "--batch", "32", "--epochs", "1", "--knn", "3", "--metrics", "20"]
# Runs the commands of argv[2] and appends each audited event to the file argv[1]. Python calls the hook before it acts.
SCRIPT = """
import json, os, sys

log = os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND)
NEWS = ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.fork", "os.forkpty", "pty.spawn", "os.startfile",
        "socket.connect", "socket.bind", "socket.sendto", "socket.getaddrinfo", "socket.gethostbyname",
        "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.link", "os.symlink", "os.truncate", "os.chmod", "os.chown",
        "shutil.rmtree", "shutil.copyfile", "shutil.move", "tempfile.mkstemp", "tempfile.mkdtemp")


def hook(event, arguments):
    writes = event == "open" and arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND)
    if writes or event in NEWS:
        os.write(log, (json.dumps([event, [str(x) for x in arguments]]) + "\\n").encode())


if __name__ == "__main__":
    sys.addaudithook(hook)
    from contrapose.lab.cli import main
    for command in json.loads(sys.argv[2]):
        main(command)
"""
PROGRAMS = {
    "subprocess.Popen",
    "os.system",
    "os.exec",
    "os.posix_spawn",
    "os.fork",
    "os.forkpty",
    "pty.spawn",
    "os.startfile",
}
# torch looks for CUDA's libraries when it is imported, matplotlib for fonts when it has no cache yet, and scikit-learn for the number
# of cores before it computes a map.
LOOK_UPS = {"ldconfig", "fc-list", "lscpu"}


def events(root: Path, commands: list[list[str]]) -> list[tuple[str, list[str]]]:
    """Run commands in a process with an empty working and temporary directory; return what it was about to do."""
    log, script = root / "events", root / "script.py"
    log.touch()
    script.write_text(SCRIPT)
    (root / "work").mkdir()
    # torch sets TORCHINDUCTOR_CACHE_DIR, a directory of the real temporary directory, in a process that has compiled.
    environment = {name: value for name, value in os.environ.items() if name != "TORCHINDUCTOR_CACHE_DIR"}
    environment |= {"TMPDIR": str(root / "tmp"), "MPLCONFIGDIR": str(root / "matplotlib")}
    environment |= {"CONTRAPOSE_CACHE": str(root / "cache")}
    for name in ("tmp", "matplotlib"):
        (root / name).mkdir()
    arguments = [sys.executable, "-B", str(script), str(log), json.dumps(commands)]
    result = subprocess.run(arguments, cwd=root / "work", env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return [(event, arguments) for event, arguments in map(json.loads, log.read_text().splitlines())]


def offences(root: Path, commands: list[list[str]]) -> list[tuple[str, list[str]]]:
    """Return the events that break the promise: programs, network, and paths outside of the directories and the caches."""
    allowed = [str(root / name) for name in ("runs", "reports", "cache", "tmp", "matplotlib")]

    def is_allowed(event: str, arguments: list[str]) -> bool:
        # urllib3, which TensorBoard imports if boto3 is installed, asks for a port of this machine to learn whether it has IPv6.
        if event == "socket.bind" and arguments[-1] == "('::1', 0)":
            return True
        if event.startswith("socket."):
            return "AF_INET" not in str(arguments) and str(arguments[-1]).startswith(str(root / "tmp"))
        if event in PROGRAMS:
            return event == "subprocess.Popen" and Path(arguments[0]).name in LOOK_UPS
        if event in ("os.remove", "os.rmdir") and arguments[-1] != "-1":
            return True  # relative to an open directory: a part of shutil.rmtree, which is an event of its own
        path = os.path.realpath(root / "work" / arguments[0])
        return arguments[0] == os.devnull or arguments[0].isdecimal() or any(path.startswith(one) for one in allowed)

    return [(event, arguments) for event, arguments in events(root, commands) if not is_allowed(event, arguments)]


def training(root: Path, data: str, *options: str) -> list[str]:
    return ["train", "--data", data, *SMALL, *options, "--out", str(root / "runs" / "run")]


def report(root: Path) -> list[str]:
    """Return a command that trains with two losses and writes a report."""
    out = ["--runs-dir", str(root / "runs"), "-o", str(root / "reports")]
    return ["compare", "--data", "digits", *SMALL, "--losses", "simclr,dystress", *out]


def further_commands(root: Path) -> list[list[str]]:
    run, out = str(root / "runs" / "run"), root / "reports"
    return [
        ["embed", run, "digits", "-o", str(out / "features.npz")],
        ["export", run, "-o", str(out / "encoder.safetensors")],
        ["map", run, "-o", str(out / "map.png")],
        ["explain", "simclr", "-o", str(out / "simclr.png")],
        ["study", "run", "behaviour/equation6", "--runs-dir", str(root / "runs"), "-o", str(out)],
    ]


@pytest.mark.thorough
@pytest.mark.parametrize("everything", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_nothing_is_started_sent_or_written_elsewhere(everything: bool, tmp_path: Path, promise: Promise) -> None:
    run = str(tmp_path / "runs" / "run")
    commands = [training(tmp_path, "digits"), ["evaluate", run], report(tmp_path)]
    assert offences(tmp_path, commands + (further_commands(tmp_path) if everything else [])) == []
    for _ in (tmp_path / "events").read_text().splitlines():
        promise.case()
    assert list((tmp_path / "work").iterdir()) == []
    assert not (tmp_path / "cache").exists()  # digits need none


@pytest.mark.thorough
def test_caches_are_in_the_cache_folder(tmp_path: Path, promise: Promise) -> None:
    """Tokens of texts, packed copies and indices of tars are kept outside of the data and of the working directory."""
    streaming.write_folder(tmp_path / "mine")
    write_shards(tmp_path / "mine", tmp_path / "tars", images_per_file=20)
    (tmp_path / "texts.txt").write_text("\n".join(f"the dog sees {number} cats" for number in range(200)))
    packed = str(tmp_path / "runs" / "packed")
    before = {path for path in tmp_path.rglob("*") if path.is_file()}
    commands = [
        training(tmp_path, str(tmp_path / "texts.txt"), "--encoder", "tiny", "--views", "dropout"),
        [*training(tmp_path, str(tmp_path / "mine"), "--limit", "32", "--size", "16", "--pack"), "--out", packed],
        ["data", "check", str(tmp_path / "tars")],
    ]
    assert offences(tmp_path, commands) == []
    promise.case()
    assert sorted(path.name for path in (tmp_path / "cache").iterdir()) == ["packed", "shards", "tokens"]
    assert list((tmp_path / "work").iterdir()) == []
    written = {path for path in tmp_path.rglob("*") if path.is_file()} - before
    assert {path.relative_to(tmp_path).parts[0] for path in written} <= {
        "runs",
        "cache",
        "events",
        "script.py",
        "matplotlib",
        "tmp",
    }


@pytest.mark.slow
def test_only_workers_are_started(tmp_path: Path, promise: Promise) -> None:
    """Streamed images are decoded in processes of a fork server, and nothing else is started."""
    for part in ("train", "test"):
        for label in ("cat", "dog"):
            (tmp_path / "mine" / part / label).mkdir(parents=True)
            for i in range(20):
                pixels = np.random.default_rng(i).integers(0, 256, (40, 36, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(tmp_path / "mine" / part / label / f"{i}.png")
    options = ["--stream", "--workers", "2", "--limit", "0", "--batch", "16"]
    assert offences(tmp_path, [training(tmp_path, str(tmp_path / "mine"), *options)]) == []
    assert "socket.connect" in (tmp_path / "events").read_text()  # to the fork server: workers were started
    promise.case()


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("sink", "programs"),
    [
        pytest.param(
            sink,
            programs,
            marks=pytest.mark.skipif(find_spec(sink) is None, reason=f"needs the extra `{sink}`"),
            id=sink,
        )
        for sink, programs in {"wandb": {"wandb-core", "uname"}, "trackio": set[str]()}.items()
    ],
)
def test_a_dashboard_is_offline(
    sink: str, programs: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, promise: Promise
) -> None:
    """W&B starts its service, which is a program; nothing else is started, and nothing uses the network."""
    for name in ("HF_HOME", "TRACKIO_DIR", "WANDB_CONFIG_DIR", "WANDB_CACHE_DIR", "WANDB_DATA_DIR"):
        monkeypatch.setenv(name, str(tmp_path / "runs" / "dashboards"))
    monkeypatch.setenv("HF_TOKEN", "hf_none")  # with a token, trackio would ask for the user's name
    monkeypatch.setattr(sys.modules[__name__], "LOOK_UPS", LOOK_UPS | programs)
    assert offences(tmp_path, [training(tmp_path, "digits", "--log", sink)]) == []
    assert list((tmp_path / "work").iterdir()) == []
    promise.case()


@pytest.mark.parametrize(
    "statement",
    [
        "import subprocess; subprocess.run(['true'])",
        "import os; os.system('true')",
        "import socket; socket.socket().connect_ex(('127.0.0.1', 9))",
        "open('here', 'w')",
        "import os; os.mkdir('../there')",
    ],
)
def test_an_offence_is_noticed(statement: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The negative control: the same hook, with a command that breaks the promise."""
    monkeypatch.setattr(sys.modules[__name__], "SCRIPT", SCRIPT.replace("main(command)", statement))
    assert len(offences(tmp_path, [[]])) == 1
