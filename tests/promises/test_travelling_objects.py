"""Objects that were pickled, copied, saved or sent to another process compute the same values and gradients, bit for bit."""

from __future__ import annotations

import copy
import io
import os
import pickle
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import streaming
import torch
from conftest import Promise
from tiers import first
from travelling import Results, compute, compute_all, differences, objects, save_all

from contrapose import Loss
from contrapose.lab.training import Trainer


def saved_and_loaded(one: Any) -> Any:
    file = io.BytesIO()
    torch.save(one, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


WAYS: dict[str, Callable[[Any], Any]] = {
    "pickle": lambda one: pickle.loads(pickle.dumps(one)),
    "deepcopy": copy.deepcopy,
    "oldest protocol": lambda one: pickle.loads(pickle.dumps(one, protocol=2)),
    "torch.save": saved_and_loaded,
}


@pytest.mark.parametrize("way", first(0, WAYS))
def test_copies_compute_the_same(way: str, promise: Promise) -> None:
    failures = []
    for name, one in objects():
        try:
            copied = WAYS[way](one)
            twice = WAYS[way](copied)
        except Exception as error:
            failures.append(f"{name}: {type(error).__name__}: {error}")
            continue
        expected = compute(one)
        different = [*differences(expected, compute(copied)), *differences(expected, compute(twice))]
        failures += [f"{name}: {different}"] if different else []
        promise.case()
    assert failures == []


def failures_of(results: dict[str, Results], promise: Promise) -> list[str]:
    """Compare the results of another process with those of this one."""
    failures = []
    for name, one in objects():
        different = differences(compute(one), results[name])
        failures += [f"{name}: {different}"] if different else []
        promise.case()
    return failures


@pytest.mark.thorough
def test_a_spawned_process_computes_the_same(tmp_path: Path, promise: Promise) -> None:
    """Objects are arguments of a process that shares nothing with this one."""
    context = torch.multiprocessing.get_context("spawn")
    out = tmp_path / "results.pt"
    process = context.Process(target=save_all, args=(objects(), str(out)))
    process.start()
    process.join(300)
    assert process.exitcode == 0
    assert failures_of(torch.load(out, weights_only=False), promise) == []


@pytest.mark.thorough
def test_a_ray_task_computes_the_same(promise: Promise, monkeypatch: pytest.MonkeyPatch) -> None:
    ray = pytest.importorskip("ray")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))  # Ray's workers import `travelling`
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")  # otherwise Ray writes a token to the home directory
    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False)
    try:
        results = ray.get(ray.remote(compute_all).remote(objects()), timeout=300)
    finally:
        ray.shutdown()
    assert failures_of(results, promise) == []


@pytest.mark.parametrize("way", first(1, WAYS))
def test_a_model_that_has_read_data(way: str, tmp_path: Path, promise: Promise) -> None:
    """Its readers, with data sets and worker processes, stay behind: neither the size nor the features change."""
    streaming.write_folder(tmp_path / "mine")
    run = streaming.streamed_run(tmp_path / "mine")
    trainer = Trainer(
        replace(run, encoder="tiny", size=16),
        tmp_path / "run",
        log=lambda text: None,
        device=torch.device("cpu"),
        workers=0,
    )
    model, source = trainer.model, trainer.split.held_out
    size = len(pickle.dumps(model))
    expected = model.features(source)
    next(iter(model.reader(source).train([list(range(16))], seed=0, epoch=0)))  # as training, which starts workers
    assert len(pickle.dumps(model)) == size
    copied = WAYS[way](model)
    assert copied.reader is copied.tower.reader
    assert torch.equal(copied.features(source), expected)
    promise.case()


def test_shared_parameters_stay_shared() -> None:
    """A learned temperature is a setting and a parameter of the same copy, so that an optimiser's step changes the loss."""
    for make in WAYS.values():
        criterion = make(Loss("nt_xent(temperature=learned(0.3))"))
        (parameter,) = criterion.parameters()
        assert criterion.settings["temperature"].log_temperature is parameter
