"""Measures that a run adds to its records at stated epochs."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from contrapose.lab.evaluation import PROBES
from contrapose.lab.training import Run, Stopped, Trainer, load
from contrapose.lab.training.records.extra_metrics import recorded_measures
from contrapose.metrics import conditional_entropy
from contrapose.pairs import unit

RUN = Run(limit=96, batch=32, epochs=3, knn_every=3, knn=5, metrics=0, extra_metrics=("linear:cacr@2", "entropy:2@1"))


def quiet(text: str) -> None:
    pass


def records(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "records.jsonl").read_text().splitlines()]


def without_seconds(folder: Path) -> list[dict[str, Any]]:
    return [{name: value for name, value in record.items() if name != "seconds"} for record in records(folder)]


@pytest.mark.thorough
def test_measures_are_recorded_at_their_epochs_and_at_the_last(tmp_path: Path) -> None:
    trainer = Trainer(RUN, tmp_path, log=quiet)
    trainer.train()
    assert ["linear:cacr" in record for record in records(tmp_path)] == [False, True, True]
    assert ["entropy" in record for record in records(tmp_path)] == [True, True, True]
    last, model = records(tmp_path)[-1], load(tmp_path)
    labelled = model.labelled_features(trainer.split)
    assert labelled is not None
    assert last["linear:cacr"] == PROBES["cacr"](*labelled, seed=RUN.seed)["top1"]
    # M is the batch size of the run, and the maximum is ln(M - 1).
    assert last["entropy"] + last["entropy_deficit"] == pytest.approx(math.log(31))


@pytest.mark.thorough
def test_a_run_that_was_stopped_records_each_epoch_once(tmp_path: Path) -> None:
    Trainer(RUN, tmp_path / "whole", log=quiet).train()
    for _ in range(10):
        trainer = Trainer(RUN, tmp_path / "stopped", log=quiet)
        try:
            for _ in trainer.training(requests := trainer.requests):
                requests.append(15)  # as the signal does, after each epoch
        except Stopped:
            continue
        break
    assert without_seconds(tmp_path / "stopped") == without_seconds(tmp_path / "whole")


@pytest.mark.thorough
def test_a_kill_between_checkpoint_and_record_repeats_the_measure(tmp_path: Path) -> None:
    Trainer(RUN, tmp_path, log=quiet).train()
    expected = without_seconds(tmp_path)
    lines = (tmp_path / "records.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "records.jsonl").write_text("".join(lines[:-1]))
    Trainer(RUN, tmp_path, log=quiet).train()
    assert without_seconds(tmp_path) == expected


def test_the_mini_batches_of_the_entropy_are_shuffled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The samples are sorted by class here, as in a folder: mini-batches of one class would have equal weights."""
    trainer = Trainer(RUN, tmp_path, log=quiet)
    test, model = trainer.split.held_out, trainer.model
    assert test.labels is not None
    order = test.labels.argsort(stable=True)
    z = torch.eye(10)[test.labels[order]]  # one direction for each class, as after a perfect training
    monkeypatch.setattr(model, "project", lambda inputs: z)
    measure, split = recorded_measures(("entropy:2:10@1",))[0], replace(trainer.split, test=test.subset(order))
    assert model.take(measure, split)["entropy"] < conditional_entropy(z, t_neg=2.0, batch=10) - 0.2


def test_the_deficit_hardly_depends_on_the_batch_size() -> None:
    """ln(M - 1) - H is the divergence of the weights from equal ones: one distribution has one, at any M."""
    z = unit(torch.randn(3072, 8, generator=torch.Generator().manual_seed(0)))
    entropies = {batch: conditional_entropy(z, t_neg=2.0, batch=batch) for batch in (128, 768)}
    small, large = (math.log(batch - 1) - entropy for batch, entropy in entropies.items())
    assert small == pytest.approx(large, rel=0.03)
    shares = [entropy / math.log(batch - 1) for batch, entropy in entropies.items()]
    assert shares[1] - shares[0] > 0.02  # so that H / ln(M - 1) would favour the larger batch


@pytest.mark.parametrize(
    ("item", "message"),
    [
        ("linear:cacr", "extra_metrics: expected MEASURE@EPOCHS"),
        ("linear:cacr@0", "extra_metrics: expected MEASURE@EPOCHS"),
        ("linear:cacr@often", "got 'linear:cacr@often'"),
        ("linear:cac@10", "got 'cac'; did you mean 'cacr'"),
        ("linear:cacr:0@10", "extra_metrics: expected MEASURE@EPOCHS with linear:PROBE, linear:PROBE:EPOCHS"),
        ("knn@10", "extra_metrics: expected MEASURE@EPOCHS"),
        ("entropy:high@1", "extra_metrics: expected MEASURE@EPOCHS"),
        ("entropy:-1@1", "extra_metrics: expected MEASURE@EPOCHS"),
        ("entropy:2:2@1", "extra_metrics: expected MEASURE@EPOCHS"),
        ("entropy:2:@1", "extra_metrics: expected MEASURE@EPOCHS"),
        ("entropy@1", "extra_metrics: expected MEASURE@EPOCHS"),
        (3, "extra_metrics: expected a list of texts"),
    ],
)
def test_bad_items_are_refused_at_once(item: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(RUN, extra_metrics=(item,))


def test_a_measure_is_asked_for_once() -> None:
    with pytest.raises(ValueError, match=r"each measure once, got 'entropy:2@1' beside another of its kind"):
        recorded_measures(("entropy:2@1", "linear:cacr@1", "entropy:3@5"))
    assert len(recorded_measures(("entropy:2@1", "linear:cacr@1", "linear:wang-liu@1", "linear:cacr:5@1"))) == 4


def test_data_that_lacks_what_a_measure_needs(tmp_path: Path) -> None:
    import numpy as np

    path = tmp_path / "mine.npz"
    np.savez(path, train_images=np.zeros((40, 32, 32, 3), dtype=np.uint8))
    run = Run(data=str(path), encoder="tiny", batch=16, epochs=1, metrics=0)
    with pytest.raises(ValueError, match="linear:cacr@1 needs labelled training and test samples"):
        Trainer(replace(run, extra_metrics=("linear:cacr@1",)), tmp_path / "a", log=quiet)
    with pytest.raises(
        ValueError, match=r"mini-batches of 99, and there are 40 held-out samples \(entropy:2:20@1 would"
    ):
        Trainer(replace(run, extra_metrics=("entropy:2:99@1",)), tmp_path / "b", log=quiet)
    assert not (tmp_path / "a").exists()


def test_the_settings_are_part_of_the_name_and_read_back() -> None:
    plain = replace(RUN, extra_metrics=())
    assert RUN.name != plain.name
    assert "record" not in plain.describe()
    assert Run.read(RUN.describe()) == RUN


def test_lists_of_settings() -> None:
    assert Run(extra_metrics=[], keep=[1]).name == Run(keep=(1,)).name  # type: ignore[arg-type]
    for settings in ({"extra_metrics": "entropy:2@1"}, {"keep": 5}, {"keep": None}):
        with pytest.raises(ValueError, match=rf"^{next(iter(settings))}: expected a list of .*, got"):
            Run(**settings)
