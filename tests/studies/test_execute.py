"""Runs of studies: each once, whatever happens."""

from __future__ import annotations

import fcntl
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Generator
from itertools import groupby
from pathlib import Path

import pytest
import torch

from contrapose.cli import main
from contrapose.report.render import write
from contrapose.studies import find
from contrapose.studies.collect import collect, document
from contrapose.studies.execute import _here, perform_all
from contrapose.studies.results import Left
from contrapose.studies.task import BUSY, Task, Watch, perform
from contrapose.training import Progress, Run, Stopped, Trainer, signals
from contrapose.training.stops import StopRequests

TINY = {"limit": 48, "batch": 16, "epochs": 2, "knn": 3, "knn_every": 2, "metrics": 12}


def task(root: Path, *measures: str, **changes: object) -> Task:
    return Task(Run(**{**TINY, **changes}), measures, root)  # type: ignore[arg-type]


def test_a_run_is_done_once_and_measured_once(tmp_path: Path) -> None:
    ended: list[str] = []
    watch = Watch(ended=lambda name, why: ended.append(why))
    first = task(tmp_path, "knn:3:uniform", "uniformity")
    assert perform_all([first, task(tmp_path, "linear:cacr")], watch) == {}
    assert ended == [""]
    left = Left(first.folder)
    assert left.value("knn:3:uniform") == left.evaluations()["knn:3:uniform"]
    assert left.value("-uniformity") == -left.records()[-1]["uniformity"]
    assert left.value("nothing") is None
    before = {path: path.stat().st_mtime_ns for path in first.folder.rglob("*")}
    assert perform_all([task(tmp_path, "linear:cacr")], watch) == {}
    assert before == {path: path.stat().st_mtime_ns for path in first.folder.rglob("*")}
    perform_all([task(tmp_path, "map")], watch)  # a new question of an old run
    assert len(left.evaluations()["map"]["points"]) == len(left.evaluations()["map"]["labels"])
    assert len(left.records()) == 2


def test_recorded_but_not_saved_is_not_done(tmp_path: Path) -> None:
    """Killed between the last record and the last checkpoint: the weights on disk are those of an epoch before."""
    one = task(tmp_path)
    perform(one)
    newest = max((one.folder / "checkpoints").glob("step-*"))
    shutil.rmtree(newest)
    assert not one.done()
    assert perform(one) == ""
    assert one.done()
    assert newest.is_dir()
    assert [record["epoch"] for record in Left(one.folder).records()] == [1, 2]


def test_a_failure_is_kept_and_the_others_go_on(tmp_path: Path) -> None:
    bad, good = task(tmp_path, batch=64), task(tmp_path, seed=1)
    failures = perform_all([bad, good])
    assert list(failures) == [bad.name]
    assert "more than the 48 of the data set" in Left(bad.folder).failure()
    assert good.done()
    assert not Left(good.folder).failure()


def test_what_another_has_is_left_to_it(tmp_path: Path) -> None:
    one, order = task(tmp_path), []

    def slow(name: str, progress: object) -> None:
        order.append("step")
        time.sleep(0.2)

    thread = threading.Thread(target=perform, args=(one, slow))
    thread.start()
    while not order:
        time.sleep(0.01)
    assert perform(one, patient=False) == BUSY
    assert perform(one) == ""  # waits, and finds it done
    thread.join()
    assert len(Left(one.folder).records()) == 2


def test_several_at_once(tmp_path: Path) -> None:
    tasks = [task(tmp_path, seed=seed) for seed in range(3)] + [task(tmp_path, batch=64)]
    failures = perform_all(tasks, jobs=2)
    assert list(failures) == [tasks[-1].name]
    assert all(one.done() for one in tasks[:3])
    with pytest.raises(ValueError, match="jobs: expected at least 1"):
        perform_all(tasks, jobs=0)
    with pytest.raises(ValueError, match="on: expected local or ray"):
        perform_all(tasks, on="cloud")


def test_runs_in_turns_are_the_runs_alone(tmp_path: Path) -> None:
    alone, turns = ([task(tmp_path / name, seed=seed) for seed in range(3)] for name in ("alone", "turns"))
    bad = task(tmp_path / "turns", batch=64)
    assert perform_all(alone) == {}
    order: list[str] = []
    watch = Watch(step=lambda name, progress: order.append(name), steps_every=0.0)
    assert list(_here([*turns, bad], watch, 2)) == [bad.name]
    first, second, third = (one.name for one in turns)
    assert [name for name, _ in groupby(order)] == [first, second, first, second, third]
    for one, two in zip(alone, turns, strict=True):
        left = [Left(which.folder).records() for which in (one, two)]
        assert [r["loss"] for r in left[0]] == [r["loss"] for r in left[1]]
        assert Left(one.folder).evaluations() == Left(two.folder).evaluations()


def test_a_signal_stops_all_that_take_turns(tmp_path: Path) -> None:
    tasks = [task(tmp_path, seed=seed) for seed in range(3)]

    def stop(name: str, progress: Progress) -> None:
        if (name, progress.step) == (tasks[1].name, 2):
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(Stopped, match="after step 2"):
        _here(tasks, Watch(step=stop, steps_every=0.0), 2)
    assert not tasks[2].folder.exists()
    assert (tasks[0].folder / "checkpoints").is_dir()
    assert _here(tasks, Watch(), 2) == {}
    assert all(one.done() for one in tasks)
    for one in tasks:
        assert [record["epoch"] for record in Left(one.folder).records()] == [1, 2]


def test_what_finds_no_room_beside_others_has_its_turn_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tasks, tried = [task(tmp_path, seed=seed) for seed in range(2)], list[str]()
    train = Trainer.training

    def cramped(self: Trainer, requests: StopRequests) -> Generator[None, None, dict[str, float]]:
        tried.append(self.folder.name)
        if tried == [tasks[0].name]:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return (yield from train(self, requests))

    monkeypatch.setattr(Trainer, "training", cramped)
    assert _here(tasks, Watch(), 2) == {}
    assert tried == [tasks[0].name, tasks[1].name, tasks[0].name]
    assert all(one.done() and not Left(one.folder).failure() for one in tasks)


def sent_after(seconds: float) -> threading.Timer:
    timer = threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    return timer


def test_who_waits_for_another_can_be_stopped(tmp_path: Path) -> None:
    one = task(tmp_path)
    tmp_path.mkdir(exist_ok=True)
    with (tmp_path / f".{one.name}.lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        sent_after(0.5)
        start = time.monotonic()
        with pytest.raises(Stopped, match="stopped by signal 2"):
            perform(one)
    assert time.monotonic() - start < 10


def test_an_evaluation_is_stopped_where_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = task(tmp_path, "linear:cacr")

    def endless(trainer: Trainer, measure: str) -> dict[str, float]:
        sent_after(0.2)
        time.sleep(30)
        return {measure: 1.0}

    monkeypatch.setattr("contrapose.studies.task.evaluate", endless)
    start = time.monotonic()
    with pytest.raises(Stopped, match="stopped by signal 2"):
        perform_all([one])
    assert time.monotonic() - start < 25
    assert Left(one.folder).evaluations() == {}
    monkeypatch.undo()
    assert perform_all([one]) == {}
    assert "linear:cacr" in Left(one.folder).evaluations()


def test_no_signal_is_lost(tmp_path: Path) -> None:
    """Also one that comes when there is nothing left to stop."""
    one = task(tmp_path)

    def at_the_end(name: str, why: str) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(Stopped, match="stopped by signal 15"):
        perform_all([one], Watch(ended=at_the_end))
    assert one.done()


def test_a_second_interrupt_ends_everything() -> None:
    def interrupted_twice() -> None:
        with signals() as asked:
            os.kill(os.getpid(), signal.SIGINT)
            assert asked == [signal.SIGINT]
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(1)

    with pytest.raises(KeyboardInterrupt):
        interrupted_twice()


def test_without_its_weights_a_run_is_trained_again_before_it_is_measured(tmp_path: Path) -> None:
    one = task(tmp_path)
    assert perform(one) == ""
    before = Left(one.folder).records()
    shutil.rmtree(one.folder / "checkpoints")
    assert one.done()  # nothing is asked for
    again = task(tmp_path, "knn:3:uniform")
    assert perform(again) == ""
    after = Left(one.folder).records()
    assert [r["loss"] for r in after] == [r["loss"] for r in before]
    assert Left(one.folder).value("knn:3:uniform") is not None
    assert (one.folder / "checkpoints").is_dir()


def test_times_are_taken_alone(tmp_path: Path) -> None:
    timed, others = task(tmp_path, "step_seconds"), [task(tmp_path, seed=seed) for seed in (1, 2)]
    order: list[str] = []
    watch = Watch(step=lambda name, progress: order.append(name), steps_every=0.0)
    assert _here([timed, *others], watch, 2) == {}
    assert order.index(timed.name) == len(order) - order.count(timed.name)
    seconds = Left(timed.folder).value("step_seconds")
    assert seconds is not None
    assert seconds > 0
    assert Left(others[0].folder).value("step_seconds") is None  # it shared the device
    assert {record["beside"] for record in Left(others[0].folder).records()} == {1}


def test_times_are_taken_alone_beside_a_pool(tmp_path: Path) -> None:
    tasks = [task(tmp_path, "step_seconds"), task(tmp_path, seed=1), task(tmp_path, seed=2)]
    assert perform_all(tasks, jobs=2) == {}
    assert [Left(one.folder).value("step_seconds") is None for one in tasks] == [False, True, True]


def test_a_display_that_is_gone_stops_no_run(tmp_path: Path) -> None:
    one, other = task(tmp_path), task(tmp_path, seed=1)

    def gone(*what: object) -> None:
        raise BrokenPipeError

    for tasks in ([one], [one, other]):  # the second time one of them is skipped
        assert perform_all(tasks, Watch(step=gone, ended=gone, skipped=gone)) == {}
    assert one.done()
    assert other.done()


def test_a_damaged_last_checkpoint_is_not_measured_in_its_stead(tmp_path: Path) -> None:
    """The one before it is taken up, and the rest is trained again first."""
    one, twin = task(tmp_path / "a"), task(tmp_path / "b", "knn:3:uniform")
    assert perform(one) == ""
    assert perform(twin) == ""
    before = Trainer(one.run, one.folder, say=lambda text: None)
    assert len(list((one.folder / "checkpoints").glob("step-*"))) == 2
    newest = max((one.folder / "checkpoints").glob("step-*")) / "tensors.safetensors"
    payload = bytearray(newest.read_bytes())
    payload[-1] ^= 1
    newest.write_bytes(payload)
    assert before.load_latest()
    assert not before.complete
    again = task(tmp_path / "a", "knn:3:uniform")
    assert perform(again) == ""
    assert Left(again.folder).value("knn:3:uniform") == Left(twin.folder).value("knn:3:uniform")


def test_stopped_while_another_has_its_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was done since the last checkpoint is saved."""
    monkeypatch.setattr(Trainer, "_checkpoint_is_due", lambda self: False)
    tasks = [task(tmp_path, seed=seed, epochs=4, knn_every=4) for seed in (0, 1)]

    def stop(name: str, progress: Progress) -> None:
        if name == tasks[1].name and progress.step == 4:
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(Stopped):
        _here(tasks, Watch(step=stop, steps_every=0.0), 2)
    for one in tasks:
        done = Left(one.folder).records()[-1]["step"]
        saved = max(int(path.name[5:]) for path in (one.folder / "checkpoints").glob("step-*"))
        assert saved >= done >= 3


@pytest.mark.parametrize("step", [3, 6])
def test_stopped_at_the_last_step_of_an_epoch(tmp_path: Path, step: int) -> None:
    """The epoch is recorded before the run stops, and the run is complete after the next start."""
    one = task(tmp_path)
    assert 48 // 16 == 3

    def stop(name: str, progress: Progress) -> None:
        if progress.step == step:
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(Stopped, match=f"after step {step}"):
        perform(one, stop)
    assert len(Left(one.folder).records()) == step // 3
    assert perform(one) == ""
    assert one.done()
    assert [record["epoch"] for record in Left(one.folder).records()] == [1, 2]


@pytest.mark.slow
def test_a_killed_worker_takes_no_other_run_with_it(tmp_path: Path) -> None:
    tasks = [task(tmp_path, seed=seed, epochs=12, knn_every=12) for seed in range(3)]
    killed: list[int] = []

    def step(name: str, progress: Progress) -> None:
        if not killed:
            servers = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
            workers = [w for s in servers for w in Path(f"/proc/{s}/task/{s}/children").read_text().split()]
            killed.append(max(map(int, workers)))  # the last one started: not the manager
            os.kill(killed[0], signal.SIGKILL)

    assert perform_all(tasks, Watch(step=step), jobs=2) == {}
    assert killed
    assert all(one.done() for one in tasks)


STUDY = "behaviour/figure2"


def started(root: Path, *more: str) -> subprocess.Popen[bytes]:
    words = ["study", "run", STUDY, "--root", str(root / "runs"), "-o", str(root / "reports"), *more]
    return subprocess.Popen(
        [sys.executable, "-m", "contrapose", *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )


def tasks_of(root: Path) -> list[Task]:
    plan = find(STUDY).at("smoke")
    return [Task(run, plan.measures, root / "runs") for run in plan.wanted(1).values()]


@pytest.mark.slow
def test_a_signal_to_the_whole_group_is_a_signal(tmp_path: Path) -> None:
    """As `timeout` sends it: helpers of the pool end too, and one line says what happened."""
    words = ["study", "run", STUDY, "--jobs", "2", "--root", str(tmp_path / "runs"), "-o", str(tmp_path / "out")]
    running = subprocess.Popen(
        [sys.executable, "-m", "contrapose", *words], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        start_new_session=True,
    )  # fmt: skip
    while not list((tmp_path / "runs").glob("*/run.json")):
        time.sleep(0.1)
    os.killpg(running.pid, signal.SIGTERM)
    _, said = running.communicate(timeout=60)
    assert running.returncode == 143
    assert b"stopped by signal 15" in said
    assert b"Traceback" not in said


@pytest.mark.parametrize("seed", [0, *(pytest.param(k, marks=pytest.mark.slow) for k in range(1, 6))])
def test_killed_and_restarted(tmp_path: Path, seed: int) -> None:
    """Killed at random moments, until it is done: no run twice, none missing; the report rebuilt is the same to the byte."""
    chance = random.Random(seed)
    settled: dict[str, int] = {}
    for _ in range(2):
        process = started(tmp_path)
        try:
            process.wait(chance.uniform(4, 9))
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
        process.wait()
        for one in tasks_of(tmp_path):
            if one.done():
                settled.setdefault(one.name, (one.folder / "records.jsonl").stat().st_mtime_ns)
    assert started(tmp_path).wait(240) == 0
    for one in tasks_of(tmp_path):
        assert one.done()
        assert [record["epoch"] for record in Left(one.folder).records()] == [1, 2]
        if one.name in settled:
            assert (one.folder / "records.jsonl").stat().st_mtime_ns == settled[one.name]
    (folder,) = (tmp_path / "reports").iterdir()
    made = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert {"index.html", "index.md"} < made.keys()
    for path in folder.iterdir():
        path.unlink()
    write(document([find(STUDY).at("smoke")], 1, tmp_path / "runs"), folder)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == made


@pytest.mark.slow
def test_two_started_at_once(tmp_path: Path) -> None:
    both = [started(tmp_path), started(tmp_path)]
    assert [process.wait(300) for process in both] == [0, 0]
    for one in tasks_of(tmp_path):
        assert [record["epoch"] for record in Left(one.folder).records()] == [1, 2]


def test_a_hole_in_a_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = find("behaviour/equation6").at("smoke")
    first, second = plan.wanted(1).values()
    (tmp_path / first.name / "checkpoints").mkdir(parents=True)
    (tmp_path / first.name / "run.json").write_text(json.dumps({**first.describe(), "lr": 9.0}))  # holds another run
    with pytest.raises(SystemExit) as stopped:
        main(["study", "run", "behaviour/equation6", "--root", str(tmp_path), "-o", str(tmp_path / "out")])
    assert stopped.value.code == 1
    said = capsys.readouterr().out
    assert f"{first.name} failed" in said
    assert f"{second.name} done" in said
    page = (tmp_path / "out" / "behaviour-equation6-smoke" / "index.html").read_text()
    assert "holds another run" in page
    assert "too small to decide" in page
    assert collect(plan, 1, tmp_path).cell("contrastive τ = 0.2", "").values


@pytest.mark.slow
def test_on_a_ray_cluster(tmp_path: Path) -> None:
    ray = pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    cluster.add_node(num_cpus=1)
    try:
        ray.init(address=cluster.address, log_to_driver=False)
        tasks = [task(tmp_path, seed=seed) for seed in range(3)] + [task(tmp_path, batch=64)]
        failures = perform_all(tasks, on="ray")
        assert list(failures) == [tasks[-1].name]
        assert all(one.done() for one in tasks[:3])
    finally:
        ray.shutdown()
        cluster.shutdown()
        os.environ.pop("RAY_ADDRESS", None)


@pytest.mark.slow
def test_every_smoke_scale_runs(tmp_path: Path) -> None:
    from contrapose.studies import STUDIES

    names = [study.name for study in STUDIES.values() if not study.missing and not study.schema]
    main(["study", "run", *names, "--jobs", "2", "--root", str(tmp_path / "runs"), "-o", str(tmp_path / "out")])
    assert (tmp_path / "out" / f"{len(names)}-studies-smoke" / "index.html").stat().st_size > 10**6


def test_terminated_with_several_processes(tmp_path: Path) -> None:
    """Those at work save, nobody is left behind, and the exit code and one line say what happened."""
    words = ["study", "run", "behaviour/figure4", "--jobs", "2", "--root", str(tmp_path / "runs"), "-o", str(tmp_path)]
    process = subprocess.Popen([sys.executable, "-m", "contrapose", *words], stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 120
    while not list(tmp_path.glob("runs/*/run.json")) and time.monotonic() < deadline:
        time.sleep(0.2)
    time.sleep(1)
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=60)  # ends only when nobody holds the pipe any more
    assert process.returncode == 143
    assert said.strip().splitlines()[-1].startswith("contrapose: stopped by signal 15")
