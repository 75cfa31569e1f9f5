"""Every run of a study is trained and evaluated exactly once, also after failures, signals and races."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import threading
import time
from collections.abc import Generator
from itertools import groupby
from pathlib import Path

import pytest
import torch
from fake_slurm import install, options

from contrapose.lab.studies.execute import _run_in_turns, run_tasks
from contrapose.lab.studies.measures import (
    Context,
    LinearProbe,
    Map,
    Measure,
    NearestNeighbours,
    RecordedMetric,
    StepSeconds,
)
from contrapose.lab.studies.run_directory import RunDirectory
from contrapose.lab.studies.task import BUSY, ProgressDisplay, Task, run_task
from contrapose.lab.training import Progress, Run, Stopped, Trainer, signals
from contrapose.lab.training.checkpoints.saving import SavedTraining
from contrapose.lab.training.stops import StopRequests

TINY = {"limit": 48, "batch": 16, "epochs": 2, "knn": 3, "knn_every": 2, "metrics": 12}
NEIGHBOURS = NearestNeighbours(3, "uniform")


def make_task(root: Path, *measures: Measure, **changes: object) -> Task:
    return Task(Run(**{**TINY, **changes}), measures, root)  # type: ignore[arg-type]


def test_a_run_is_done_once_and_measured_once(tmp_path: Path) -> None:
    ended: list[str] = []
    display = ProgressDisplay(on_end=lambda name, failure: ended.append(failure))
    first = make_task(tmp_path, NEIGHBOURS, RecordedMetric("uniformity"))
    assert run_tasks([first, make_task(tmp_path, LinearProbe("cacr"))], display) == {}
    assert ended == [""]
    directory = RunDirectory(first.folder)
    assert directory.value("knn:3:uniform") == directory.evaluations()["knn:3:uniform"]
    assert RecordedMetric("uniformity").read(directory).value == directory.records()[-1]["uniformity"]
    assert directory.value("nothing") is None
    before = {path: path.stat().st_mtime_ns for path in first.folder.rglob("*")}
    assert run_tasks([make_task(tmp_path, LinearProbe("cacr"))], display) == {}
    assert before == {path: path.stat().st_mtime_ns for path in first.folder.rglob("*")}
    run_tasks([make_task(tmp_path, Map())], display)  # a new measure of an old run
    assert len(directory.evaluations()["map"]["points"]) == len(directory.evaluations()["map"]["labels"])
    assert len(directory.records()) == 2


def test_a_run_without_its_last_checkpoint_is_not_done(tmp_path: Path) -> None:
    """A kill between the last record and the last checkpoint leaves the weights of the epoch before."""
    task = make_task(tmp_path)
    run_task(task)
    newest = max((task.folder / "checkpoints").glob("step-*"))
    shutil.rmtree(newest)
    assert not task.done()
    assert run_task(task) == ""
    assert task.done()
    assert newest.is_dir()
    assert [record["epoch"] for record in RunDirectory(task.folder).records()] == [1, 2]


@pytest.mark.thorough
def test_a_failure_is_recorded_and_the_other_runs_continue(tmp_path: Path) -> None:
    bad, good = make_task(tmp_path, batch=64), make_task(tmp_path, seed=1)
    failures = run_tasks([bad, good])
    assert list(failures) == [bad.name]
    assert "a step needs 64 images, but the data set has only 48" in RunDirectory(bad.folder).failure()
    assert good.done()
    assert not RunDirectory(good.folder).failure()


@pytest.mark.thorough
def test_a_run_of_another_process_is_not_done_twice(tmp_path: Path) -> None:
    task, order = make_task(tmp_path), []

    def slow(name: str, progress: object) -> None:
        order.append("step")
        time.sleep(0.2)

    thread = threading.Thread(target=run_task, args=(task, slow))
    thread.start()
    while not order:
        time.sleep(0.01)
    assert run_task(task, wait=False) == BUSY
    assert run_task(task) == ""  # waits for the other process, then has nothing to do
    thread.join()
    assert len(RunDirectory(task.folder).records()) == 2


@pytest.mark.thorough
def test_several_processes(tmp_path: Path) -> None:
    tasks = [make_task(tmp_path, seed=seed) for seed in range(3)] + [make_task(tmp_path, batch=64)]
    failures = run_tasks(tasks, jobs=2)
    assert list(failures) == [tasks[-1].name]
    assert all(task.done() for task in tasks[:3])
    with pytest.raises(ValueError, match="jobs: expected at least 1"):
        run_tasks(tasks, jobs=0)
    with pytest.raises(ValueError, match="executor: expected local, ray or slurm:FILE, got 'cloud'"):
        run_tasks(tasks, executor="cloud")


@pytest.mark.thorough
def test_runs_in_turns_equal_runs_alone(tmp_path: Path) -> None:
    alone, turns = ([make_task(tmp_path / name, seed=seed) for seed in range(3)] for name in ("alone", "turns"))
    bad = make_task(tmp_path / "turns", batch=64)
    assert run_tasks(alone) == {}
    order: list[str] = []
    display = ProgressDisplay(on_step=lambda name, progress: order.append(name), step_interval=0.0)
    assert list(_run_in_turns([*turns, bad], display, 2)) == [bad.name]
    first, second, third = (task.name for task in turns)
    assert [name for name, _ in groupby(order)] == [first, second, first, second, third]
    for task, twin in zip(alone, turns, strict=True):
        records = [RunDirectory(which.folder).records() for which in (task, twin)]
        assert [r["loss"] for r in records[0]] == [r["loss"] for r in records[1]]
        assert RunDirectory(task.folder).evaluations() == RunDirectory(twin.folder).evaluations()


@pytest.mark.thorough
def test_a_signal_stops_all_that_take_turns(tmp_path: Path) -> None:
    tasks = [make_task(tmp_path, seed=seed) for seed in range(3)]

    def stop(name: str, progress: Progress) -> None:
        if (name, progress.step) == (tasks[1].name, 2):
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(Stopped, match="after step 2"):
        _run_in_turns(tasks, ProgressDisplay(on_step=stop, step_interval=0.0), 2)
    assert not tasks[2].folder.exists()
    assert (tasks[0].folder / "checkpoints").is_dir()
    assert _run_in_turns(tasks, ProgressDisplay(), 2) == {}
    assert all(task.done() for task in tasks)
    for task in tasks:
        assert [record["epoch"] for record in RunDirectory(task.folder).records()] == [1, 2]


@pytest.mark.thorough
def test_a_run_out_of_memory_is_retried_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tasks, tried = [make_task(tmp_path, seed=seed) for seed in range(2)], list[str]()
    train = Trainer.training

    def out_of_memory_once(self: Trainer, requests: StopRequests) -> Generator[None, None, dict[str, float]]:
        tried.append(self.folder.name)
        if tried == [tasks[0].name]:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return (yield from train(self, requests))

    monkeypatch.setattr(Trainer, "training", out_of_memory_once)
    assert _run_in_turns(tasks, ProgressDisplay(), 2) == {}
    assert tried == [tasks[0].name, tasks[1].name, tasks[0].name]
    assert all(task.done() and not RunDirectory(task.folder).failure() for task in tasks)


def interrupt_after(seconds: float) -> threading.Timer:
    timer = threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    return timer


def test_waiting_for_another_process_can_be_interrupted(tmp_path: Path) -> None:
    task = make_task(tmp_path)
    tmp_path.mkdir(exist_ok=True)
    with (tmp_path / f".{task.name}.lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        interrupt_after(0.5)
        start = time.monotonic()
        with pytest.raises(Stopped, match="stopped by signal 2"):
            run_task(task)
    assert time.monotonic() - start < 10


@pytest.mark.thorough
def test_an_evaluation_can_be_interrupted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task = make_task(tmp_path, LinearProbe("cacr"))

    def endless(measure: LinearProbe, context: Context) -> dict[str, float]:
        interrupt_after(0.2)
        time.sleep(30)
        return {measure.key: 1.0}

    monkeypatch.setattr(LinearProbe, "evaluate", endless)
    start = time.monotonic()
    with pytest.raises(Stopped, match="stopped by signal 2"):
        run_tasks([task])
    assert time.monotonic() - start < 25
    assert RunDirectory(task.folder).evaluations() == {}
    monkeypatch.undo()
    assert run_tasks([task]) == {}
    assert "linear:cacr" in RunDirectory(task.folder).evaluations()


def test_no_signal_is_lost(tmp_path: Path) -> None:
    """Not even one that arrives when everything is done."""
    task = make_task(tmp_path)

    def interrupt_at_the_end(name: str, failure: str) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(Stopped, match="stopped by signal 15"):
        run_tasks([task], ProgressDisplay(on_end=interrupt_at_the_end))
    assert task.done()


def test_a_second_interrupt_ends_everything() -> None:
    def interrupted_twice() -> None:
        with signals() as requests:
            os.kill(os.getpid(), signal.SIGINT)
            assert requests == [signal.SIGINT]
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(1)

    with pytest.raises(KeyboardInterrupt):
        interrupted_twice()


def test_without_its_weights_a_run_is_trained_again_before_it_is_measured(tmp_path: Path) -> None:
    task = make_task(tmp_path)
    assert run_task(task) == ""
    before = RunDirectory(task.folder).records()
    shutil.rmtree(task.folder / "checkpoints")
    assert task.done()  # no measure needs the weights
    again = make_task(tmp_path, NEIGHBOURS)
    assert run_task(again) == ""
    after = RunDirectory(task.folder).records()
    assert [r["loss"] for r in after] == [r["loss"] for r in before]
    assert RunDirectory(task.folder).value("knn:3:uniform") is not None
    assert (task.folder / "checkpoints").is_dir()


@pytest.mark.thorough
def test_timed_runs_do_not_share_the_device(tmp_path: Path) -> None:
    timed, others = make_task(tmp_path, StepSeconds()), [make_task(tmp_path, seed=seed) for seed in (1, 2)]
    order: list[str] = []
    display = ProgressDisplay(on_step=lambda name, progress: order.append(name), step_interval=0.0)
    assert _run_in_turns([timed, *others], display, 2) == {}
    assert order.index(timed.name) == len(order) - order.count(timed.name)
    seconds = StepSeconds().read(RunDirectory(timed.folder)).value
    assert seconds is not None
    assert seconds > 0
    assert StepSeconds().read(RunDirectory(others[0].folder)).value is None  # it shared the device
    assert {record["beside"] for record in RunDirectory(others[0].folder).records()} == {1}


@pytest.mark.thorough
def test_timed_runs_wait_for_the_pool(tmp_path: Path) -> None:
    tasks = [make_task(tmp_path, StepSeconds()), make_task(tmp_path, seed=1), make_task(tmp_path, seed=2)]
    assert run_tasks(tasks, jobs=2) == {}
    assert [StepSeconds().read(RunDirectory(task.folder)).value is None for task in tasks] == [False, True, True]


@pytest.mark.thorough
def test_a_closed_display_does_not_stop_a_run(tmp_path: Path) -> None:
    task, other = make_task(tmp_path), make_task(tmp_path, seed=1)

    def closed(*arguments: object) -> None:
        raise BrokenPipeError

    for tasks in ([task], [task, other]):  # the second time one of them is skipped
        assert run_tasks(tasks, ProgressDisplay(on_step=closed, on_end=closed, on_skip=closed)) == {}
    assert task.done()
    assert other.done()


def test_a_damaged_last_checkpoint_is_not_measured(tmp_path: Path) -> None:
    """The run resumes from the checkpoint before it, and trains the rest again first."""
    task, twin = make_task(tmp_path / "a"), make_task(tmp_path / "b", NEIGHBOURS)
    assert run_task(task) == ""
    assert run_task(twin) == ""
    before = Trainer(task.run, task.folder, log=lambda text: None)
    assert len(list((task.folder / "checkpoints").glob("step-*"))) == 2
    newest = max((task.folder / "checkpoints").glob("step-*")) / "tensors.safetensors"
    payload = bytearray(newest.read_bytes())
    payload[-1] ^= 1
    newest.write_bytes(payload)
    assert before.load_latest()
    assert not before.complete
    again = make_task(tmp_path / "a", NEIGHBOURS)
    assert run_task(again) == ""
    assert RunDirectory(again.folder).value("knn:3:uniform") == RunDirectory(twin.folder).value("knn:3:uniform")


def test_a_signal_saves_the_runs_that_wait_for_their_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps since the last checkpoint are saved."""
    monkeypatch.setattr(SavedTraining, "is_due", lambda self, evaluation_seconds: False)
    tasks = [make_task(tmp_path, seed=seed, epochs=4, knn_every=4) for seed in (0, 1)]

    def stop(name: str, progress: Progress) -> None:
        if name == tasks[1].name and progress.step == 4:
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(Stopped):
        _run_in_turns(tasks, ProgressDisplay(on_step=stop, step_interval=0.0), 2)
    for task in tasks:
        done = RunDirectory(task.folder).records()[-1]["step"]
        saved = max(int(path.name[5:]) for path in (task.folder / "checkpoints").glob("step-*"))
        assert saved >= done >= 3


@pytest.mark.parametrize("step", [3, 6])
def test_stopped_at_the_last_step_of_an_epoch(tmp_path: Path, step: int) -> None:
    """An epoch without an evaluation is recorded before the run stops; the run is complete after the next start."""
    task = make_task(tmp_path)
    assert 48 // 16 == 3

    def stop(name: str, progress: Progress) -> None:
        if progress.step == step:
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(Stopped, match=f"after step {step}"):
        run_task(task, stop)
    assert len(RunDirectory(task.folder).records()) == 1  # the second epoch is evaluated after the next start
    assert run_task(task) == ""
    assert task.done()
    assert [record["epoch"] for record in RunDirectory(task.folder).records()] == [1, 2]


@pytest.mark.slow
def test_runs_survive_a_killed_worker(tmp_path: Path) -> None:
    tasks = [make_task(tmp_path, seed=seed, epochs=12, knn_every=12) for seed in range(3)]
    killed: list[int] = []

    def step(name: str, progress: Progress) -> None:
        if not killed:
            servers = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
            workers = [w for s in servers for w in Path(f"/proc/{s}/task/{s}/children").read_text().split()]
            killed.append(max(map(int, workers)))  # the last one that was started, which is not the manager
            os.kill(killed[0], signal.SIGKILL)

    assert run_tasks(tasks, ProgressDisplay(on_step=step), jobs=2) == {}
    assert killed
    assert all(task.done() for task in tasks)


@pytest.mark.slow
def test_on_a_ray_cluster(tmp_path: Path) -> None:
    ray = pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    cluster.add_node(num_cpus=1)
    try:
        ray.init(address=cluster.address, log_to_driver=False)
        tasks = [make_task(tmp_path, seed=seed) for seed in range(3)] + [make_task(tmp_path, batch=64)]
        failures = run_tasks(tasks, executor="ray")
        assert list(failures) == [tasks[-1].name]
        assert all(task.done() for task in tasks[:3])
    finally:
        ray.shutdown()
        cluster.shutdown()
        os.environ.pop("RAY_ADDRESS", None)


@pytest.mark.thorough
def test_on_slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("submitit", reason="submitit is not installed (the extra `slurm`)")
    slurm = install(tmp_path / "slurm")
    monkeypatch.setenv("PATH", str(slurm), prepend=":")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    file = tmp_path / "job.toml"
    file.write_text("hours = 1\n")
    root = tmp_path / "runs"
    tasks = [make_task(root, NEIGHBOURS), make_task(root, batch=64)]
    failures = run_tasks(tasks, executor=f"slurm:{file}", jobs=3)
    assert failures == {tasks[1].name: failures.get(tasks[1].name)}
    assert "batch" in failures[tasks[1].name]
    assert tasks[0].done()
    assert options((slurm / "1000.script").read_text())["array"] == "0-1%2"
    file.write_text("hours = 1\nnodes = 2\n")
    with pytest.raises(ValueError, match=r"each run of a study is one process, but .*job\.toml asks for 2 nodes"):
        run_tasks([make_task(root, seed=1)], executor=f"slurm:{file}")
