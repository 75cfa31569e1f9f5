"""A killed and resumed run has the same bits as one never interrupted; the same run twice gives the same weights."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Promise
from framework_cases import FRAMEWORK_CASES
from run_files import epochs_done, records, steps_saved, weights

from contrapose.lab.training import Run, Stopped, Trainer
from contrapose.lab.training.checkpoints import checkpoint

RUN = Run(limit=128, batch=32, epochs=4, knn_every=4, knn=5, warmup=0.5, metrics=20)
EPOCHS = 12  # of the runs in subprocesses
SETTINGS: dict[str, Any] = {
    "limit": 128, "metrics": 10, "batch": 32, "epochs": EPOCHS, "knn_every": 4, "knn": 5, "warmup": 0.5, "threads": 1,
}  # fmt: skip
ARGUMENTS = [text for name, value in SETTINGS.items() for text in (f"--{name.replace('_', '-')}", str(value))]


def start(folder: Path, *options: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "contrapose", "train", *ARGUMENTS, *options, "--out", str(folder)]
    with folder.with_suffix(".log").open("ab") as log:
        return subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)


def output(folder: Path) -> str:
    return folder.with_suffix(".log").read_text()


CHANGES: list[dict[str, object]] = [
    {},
    {"framework": "moco", "queue": 64},
    {"framework": "moco", "queue": 64, "loss": "clip", "dims": (8, 128)},
    {"loss": "isogclr"},
    {"loss": "fastclip(gamma=decay(1.0, 0.2, epochs=4)) + 0.1*koleo() + 0.05*sigreg(slices=8)"},
    {
        "framework": "dino",
        "loss": "dino(teacher_temperature=warmup(0.04, 0.07, 3))",
        "prototypes": 20,
        "momentum_schedule": "cosine",
        "views": "digits+local1",
    },
    {"batch": 16, "accumulate": 2, "grad_cache": True, "loss": "isogclr"},
]
FURTHER_CHANGES: list[dict[str, object]] = [
    *FRAMEWORK_CASES.values(),
    {"optimiser": "lars"},
    {"loss": "arb(group_size=32)"},
    {"framework": "fnc", "loss": "fnc", "queue": 64, "views": "digits+local1"},
    {"framework": "swav", "loss": "swav", "prototypes": 20, "queue": 64, "queue_start": 2},
]


@pytest.mark.parametrize(
    "change",
    [
        CHANGES[0],
        *(pytest.param(change, marks=pytest.mark.thorough) for change in CHANGES[1:]),
        *(pytest.param(change, marks=pytest.mark.slow) for change in FURTHER_CHANGES),
    ],
    ids=lambda c: "-".join(map(str, c.values())) or "plain",
)
def test_stopped_anywhere_and_resumed(change: dict[str, object], tmp_path: Path, promise: Promise) -> None:
    run = Run(**{**vars(RUN), **change})
    whole = Trainer(run, tmp_path / "whole", log=lambda text: None)
    whole.train()
    for stop in (3, 8):  # inside an epoch, and at its end

        def on_step(progress: object, stop: int = stop) -> None:
            if progress.step == stop:  # type: ignore[attr-defined]
                os.kill(os.getpid(), signal.SIGTERM)

        folder = tmp_path / f"stopped-{stop}"
        with pytest.raises(Stopped, match=f"after step {stop}"):
            Trainer(run, folder, on_step, lambda text: None).train()
        Trainer(run, folder, log=lambda text: None).train()
        assert weights(folder) == weights(tmp_path / "whole")
        assert records(folder) == records(tmp_path / "whole")
        promise.case()


@pytest.mark.thorough
def test_twice_the_same(tmp_path: Path, promise: Promise) -> None:
    for name in ("a", "b"):
        Trainer(RUN, tmp_path / name, log=lambda text: None).train()
        promise.case()
    assert weights(tmp_path / "a") == weights(tmp_path / "b")
    other = Run(**{**vars(RUN), "seed": 1})
    Trainer(other, tmp_path / "c", log=lambda text: None).train()
    assert weights(tmp_path / "a") != weights(tmp_path / "c")  # otherwise the assertion above could not fail


def killed_and_resumed(folder: Path, moments: random.Random, times: int) -> int:
    """Kill a run (SIGKILL) shortly after random epochs and restart it; return how often it was still running."""
    kills = 0
    for attempt in range(times + 1):
        child = start(folder)
        goal = moments.randint(2 * attempt + 1, 2 * attempt + 3) if attempt < times else EPOCHS + 1
        while child.poll() is None and epochs_done(folder) < goal:
            time.sleep(0.002)
        time.sleep(moments.uniform(0, 0.15))
        if attempt < times and child.poll() is None:
            child.send_signal(signal.SIGKILL)
            kills += 1
        child.wait(timeout=120)
    assert child.returncode == 0, output(folder)
    return kills


@pytest.mark.parametrize(
    ("seed", "times"),
    [
        pytest.param(0, 1, marks=pytest.mark.thorough),
        *(pytest.param(n, 3, marks=pytest.mark.slow) for n in range(10)),
    ],
)
def test_kill_nine_and_resume(seed: int, times: int, tmp_path: Path, promise: Promise) -> None:
    Trainer(Run(**SETTINGS), tmp_path / "whole", log=lambda text: None).train()
    kills = killed_and_resumed(tmp_path / "killed", random.Random(seed), times)
    assert kills >= 1  # otherwise the test shows nothing
    assert weights(tmp_path / "killed") == weights(tmp_path / "whole")
    lines = (tmp_path / "killed" / "records.jsonl").read_text().splitlines()
    assert [json.loads(line)["epoch"] for line in lines] == list(range(1, EPOCHS + 1))  # every epoch once
    promise.case()


@pytest.mark.slow
def test_kill_nine_during_an_evaluation(tmp_path: Path, promise: Promise) -> None:
    """The checkpoint comes first: only the evaluation is repeated, and every epoch has one complete record."""
    # Few training images and many test images: nearly all the time is spent on evaluation.
    rng, arrays = np.random.default_rng(0), dict[str, Any]()
    for part, count in (("train", 32), ("test", 3000)):
        arrays[f"{part}_images"] = rng.integers(0, 256, (count, 32, 32, 3), dtype=np.uint8)
        arrays[f"{part}_labels"] = np.arange(count) % 3
    np.savez(tmp_path / "mine.npz", **arrays)
    options = [
        "--data",
        str(tmp_path / "mine.npz"),
        "--limit",
        "0",
        "--epochs",
        "2",
        "--knn-every",
        "1",
        "--views",
        "digits",
    ]
    assert start(tmp_path / "whole", *options).wait(timeout=200) == 0, output(tmp_path / "whole")
    folder = tmp_path / "killed"
    for step in (1, 2):  # of one epoch each: in the middle of the training, and after its last step
        child = start(folder, *options)
        while step not in steps_saved(folder):
            assert child.poll() is None, output(folder)
            time.sleep(0.002)
        child.send_signal(signal.SIGKILL)
        child.wait(timeout=60)
        assert epochs_done(folder) == step - 1  # the evaluation was not over
        promise.case()
    assert start(folder, *options).wait(timeout=200) == 0, output(folder)
    assert "finished at step 2" in output(folder)  # no step was taken again
    assert weights(folder) == weights(tmp_path / "whole")
    assert records(folder) == records(tmp_path / "whole")
    assert [sorted(record) for record in records(folder)] == 2 * [sorted(records(folder)[1])]


@pytest.mark.thorough
def test_a_signal_during_an_evaluation(tmp_path: Path, promise: Promise) -> None:
    """The weights are saved before it, it ends without waiting for its results, and it is repeated after the next start."""
    run = Run(**{**vars(RUN), "knn_every": 1})
    whole = Trainer(run, tmp_path / "whole", log=lambda text: None)
    saved: list[bool] = []
    whole.on_evaluation = lambda: saved.append(whole.step in steps_saved(tmp_path / "whole"))
    whole.train()
    assert saved == [True] * run.epochs
    for epoch in (2, 4):  # in the middle, and after the last step
        folder, calls = tmp_path / str(epoch), list[int]()

        def interrupt(calls: list[int] = calls, epoch: int = epoch) -> None:
            calls.append(len(calls))
            if len(calls) == epoch:
                # From another thread, a moment later: the signal arrives inside the evaluation.
                threading.Timer(0.01, os.kill, (os.getpid(), signal.SIGTERM)).start()

        with pytest.raises(Stopped, match=f"after step {4 * epoch};"):
            Trainer(run, folder, log=lambda text: None, on_evaluation=interrupt).train()
        assert epochs_done(folder) == epoch - 1
        Trainer(run, folder, log=lambda text: None).train()
        assert weights(folder) == weights(tmp_path / "whole")
        assert records(folder) == records(tmp_path / "whole")
        promise.case()


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("signal_number", "code"), [(signal.SIGTERM, 143), pytest.param(signal.SIGINT, 130, marks=pytest.mark.slow)]
)
def test_a_signal_saves_a_checkpoint_and_says_so(
    signal_number: int, code: int, tmp_path: Path, promise: Promise
) -> None:
    child = start(tmp_path / "run", "--epochs", "400")
    while not (tmp_path / "run" / "records.jsonl").exists():
        assert child.poll() is None
        time.sleep(0.1)
    sent = time.perf_counter()
    child.send_signal(signal_number)
    child.wait(timeout=60)
    promise.case(time.perf_counter() - sent)
    assert child.returncode == code
    assert "run the same command again to resume" in output(tmp_path / "run")
    assert "Traceback" not in output(tmp_path / "run")
    assert checkpoint.latest(tmp_path / "run" / "checkpoints") is not None
