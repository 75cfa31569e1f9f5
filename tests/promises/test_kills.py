"""Runs of further kinds, killed (SIGKILL) at random moments or at any of their writes, resume bit for bit."""

from __future__ import annotations

import os
import random
import resource
import signal
import sys
import time
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from conftest import Promise
from processes import start_command
from run_files import epochs_done, records, weights
from streaming import write_folder

from contrapose.lab.modalities.images.image_shards import write_shards
from contrapose.lab.training.checkpoints.saving import SavedTraining

EPOCHS = 8
COMMON = [
    "--epochs", str(EPOCHS), "--knn", "3", "--knn-every", "4", "--metrics", "0", "--warmup", "0.5", "--threads", "1",
    "--baselines", "none",
]  # fmt: skip
IMAGES = [*COMMON, "--limit", "128", "--batch", "32"]
KINDS: dict[str, list[str]] = {
    "swav": [*IMAGES, "--framework", "swav", "--loss", "swav", "--prototypes", "20", "--queue", "64", "--queue-start", "2"],
    "barlow twins": [*IMAGES, "--loss", "barlow_twins"],
    "moco v3": [*IMAGES, "--framework", "moco-v3", "--predictor", "32"],
    "extended": [*IMAGES, "--extend"],
    "tars": [*COMMON, "--data", "TARS", "--stream", "--workers", "1", "--views", "simclr-cifar", "--batch", "16"],
    "tars in a GradCache": [
        *COMMON, "--data", "TARS", "--stream", "--workers", "0", "--views", "simclr-cifar", "--batch", "8", "--accumulate", "2",
        "--grad-cache"],
    "all files": [
        *COMMON, "--limit", "64", "--batch", "32", "--epochs", "3", "--knn-every", "1", "--metrics", "10", "--keep", "1", "2",
        "--keep-best", "knn_top1"],
}  # fmt: skip
KILLED = [kind for kind in KINDS if kind != "all files"]
OFTEN = ("barlow twins", "swav", "tars")  # a quarter of a minute each
# The events of Python that announce a change of a file; their first argument is its path.
WRITES = ("os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.truncate", "shutil.rmtree")


def train(kind: str, folder: Path, *, before: Any = bool) -> Any:
    """Start a run of a kind, after its first epochs if it is to be extended; return its process."""
    data = folder.parent / "tars"
    if kind.startswith("tars") and not data.exists():
        write_shards(write_folder(folder.parent / "files"), data, images_per_file=7)
    options = ["train", *(str(data) if text == "TARS" else text for text in KINDS[kind]), "--out", str(folder)]
    if kind == "extended" and not folder.exists():
        first = start_command(first_epochs(options), log(folder))
        first.join()
        assert first.exitcode == 0, log(folder).read_text()
    return start_command(options, log(folder), before=before)


def first_epochs(options: list[str]) -> list[str]:
    changed = [text for text in options if text != "--extend"]
    changed[changed.index("--epochs") + 1] = "2"
    return changed


def log(folder: Path) -> Path:
    return folder.with_suffix(".log")


def finish(kind: str, folder: Path, **options: Any) -> None:
    process = train(kind, folder, **options)
    process.join(300)
    assert process.exitcode == 0, log(folder).read_text()


def killed(kind: str, folder: Path, moments: random.Random, times: int) -> int:
    """Kill a run shortly after random epochs and start it again; return how often it was still running."""
    kills = 0
    for attempt in range(times):
        goal = min(EPOCHS - 1, 1 + attempt * EPOCHS // times + moments.randint(0, 1))
        process = train(kind, folder)
        while process.is_alive() and epochs_done(folder) < goal:
            time.sleep(0.002)
        time.sleep(moments.uniform(0, 0.1))
        kills += process.is_alive()
        process.kill()
        process.join()
    return kills


@pytest.mark.parametrize(
    ("kind", "seed", "times"),
    [
        *(pytest.param(kind, 0, 1, marks=pytest.mark.thorough) for kind in OFTEN),
        *(pytest.param(kind, 0, 1, marks=pytest.mark.slow) for kind in KILLED if kind not in OFTEN),
        *(pytest.param(kind, seed, 4, marks=pytest.mark.slow) for kind in KILLED for seed in (1, 2, 3)),
    ],
)
def test_killed_at_random_moments(kind: str, seed: int, times: int, tmp_path: Path, promise: Promise) -> None:
    finish(kind, tmp_path / "whole")
    kills = killed(kind, tmp_path / "killed", random.Random(seed), times)
    assert kills >= 1  # otherwise the test shows nothing
    finish(kind, tmp_path / "killed")
    assert weights(tmp_path / "killed") == weights(tmp_path / "whole")
    assert records(tmp_path / "killed") == records(tmp_path / "whole")
    for _ in range(kills):
        promise.case()


def save_each_epoch() -> None:
    """Write a checkpoint after every epoch: they are spaced by the seconds that they take, which differ on a busy machine."""
    SavedTraining.is_due = lambda self, **options: True  # type: ignore[method-assign]


def die_at_write(folder: Path, number: int) -> None:
    """Kill this process just before its write with this number in the folder, and count the writes in a file beside it."""
    save_each_epoch()
    counts, writes = os.open(folder.with_suffix(".writes"), os.O_CREAT | os.O_WRONLY), count(1)

    def on_event(event: str, arguments: tuple[Any, ...]) -> None:
        opens = event == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR)
        if not opens and event not in WRITES:
            return
        in_removed_directory = event in ("os.remove", "os.rmdir") and arguments[1] >= 0  # named relative to it
        if str(arguments[0]).startswith(f"{folder}/") or in_removed_directory:
            written = next(writes)
            os.pwrite(counts, str(written).encode(), 0)
            if written == number:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(on_event)


def die_at_byte(number: int) -> None:
    """End this process by a signal inside the first write that would make a file larger than so many bytes."""
    save_each_epoch()
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (number, number))


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    """A run of each kind of file, and how many writes it made."""
    folder = tmp_path_factory.mktemp("written") / "whole"
    process = train("all files", folder, before=partial(die_at_write, folder, 0))
    process.join(300)
    assert process.exitcode == 0, log(folder).read_text()
    return folder, int(folder.with_suffix(".writes").read_text())


def die_and_resume(whole: Path, folder: Path, before: Any) -> None:
    process = train("all files", folder, before=before)
    process.join(300)
    assert process.exitcode in (-signal.SIGKILL, -signal.SIGXFSZ), (process.exitcode, log(folder).read_text())
    finish("all files", folder, before=save_each_epoch)
    assert weights(folder) == weights(whole)
    assert records(folder) == records(whole)
    names = [sorted(path.relative_to(root).as_posix() for path in root.rglob("*")) for root in (folder, whole)]
    assert names[0] == names[1]  # no unfinished file is left


@pytest.mark.parametrize(
    "step", [pytest.param(12, marks=pytest.mark.thorough), pytest.param(1, marks=pytest.mark.slow)]
)
def test_killed_before_any_write(step: int, written: tuple[Path, int], tmp_path: Path, promise: Promise) -> None:
    whole, writes = written
    assert writes > 30  # otherwise the hook does not see them
    for number in range(step, writes + 1, step):
        folder = tmp_path / str(number)
        die_and_resume(whole, folder, partial(die_at_write, folder, number))
        promise.case()


@pytest.mark.parametrize(
    "places", [pytest.param(1, marks=pytest.mark.thorough), pytest.param(8, marks=pytest.mark.slow)]
)
def test_killed_inside_the_largest_write(
    places: int, written: tuple[Path, int], tmp_path: Path, promise: Promise
) -> None:
    whole, _ = written
    size = max(path.stat().st_size for path in whole.rglob("tensors.safetensors"))
    for place in range(1, places + 1):
        folder = tmp_path / str(place)
        die_and_resume(whole, folder, partial(die_at_byte, size * place // (places + 1)))
        assert list(folder.glob("checkpoints/.step-*")) == []
        promise.case()
