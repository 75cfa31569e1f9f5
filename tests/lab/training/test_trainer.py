"""The trainer: records, refusals, divergence, learning rates, accumulation and learned temperatures."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch

from contrapose.lab.evaluation import Measures
from contrapose.lab.networks.norms import replace_norms
from contrapose.lab.optim.lars import LARS
from contrapose.lab.training import Run, Trainer, load
from contrapose.lab.training.checkpoints import checkpoint
from contrapose.lab.training.eager import EagerSteps
from contrapose.lab.training.optimisers import learning_rate
from contrapose.lab.training.run import ADDED

RUN = Run(limit=128, batch=32, epochs=2, knn_every=2, knn=5, metrics=0)


def quiet(text: str) -> None:
    pass


def test_a_run_writes_its_settings_and_records(tmp_path: Path) -> None:
    scores = Trainer(RUN, tmp_path, log=quiet).train()
    assert json.loads((tmp_path / "run.json").read_text()) == RUN.describe()
    records = [json.loads(line) for line in (tmp_path / "records.jsonl").read_text().splitlines()]
    assert [r["epoch"] for r in records] == [1, 2]
    assert records[-1]["knn_top1"] == scores["knn_top1"]


def test_records_have_each_part_of_a_sum(tmp_path: Path) -> None:
    run = replace(
        RUN, batch=64, epochs=1, knn_every=1, loss="simclr(temperature=0.2) + 0.1*koleo() + 0.05*sigreg(slices=8)"
    )
    trainer = Trainer(run, tmp_path, log=quiet)
    trainer.train()
    (record,) = (json.loads(line) for line in (tmp_path / "records.jsonl").read_text().splitlines())
    parts = {name: record[f"loss_{name}"] for name in ("nt_xent", "koleo", "sigreg")}
    assert 3 < parts["nt_xent"] < 6  # log 127 = 4.8 if nothing is known
    assert parts["sigreg"] > 0
    # Those of the last step: the loss of the epoch is a mean over two steps, which differ little.
    total = parts["nt_xent"] + 0.1 * parts["koleo"] + 0.05 * parts["sigreg"]
    assert total == pytest.approx(record["loss"], rel=0.2)
    assert "penalty_entropy" in record
    assert int(trainer.context.criterion.state_dict()["added.1.state.step"]) == 2
    assert run.objective == "nt_xent(temperature=0.2) + 0.1*koleo() + 0.05*sigreg(slices=8)"
    with pytest.raises(ValueError, match=r"loss: simclr does not make what dino in 'simclr \+ dino' takes"):
        Trainer(replace(RUN, loss="simclr + dino"), tmp_path / "refused", log=quiet)


@pytest.mark.thorough
def test_a_quick_evaluation_is_not_preceded_by_a_slow_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save, saved = checkpoint.save, []

    def save_slowly(folder: Path, state: checkpoint.Checkpoint) -> None:
        time.sleep(3.0)
        saved.append(state.step)
        save(folder, state)

    monkeypatch.setattr(checkpoint, "save", save_slowly)
    Trainer(replace(RUN, epochs=4, knn_every=1), tmp_path, log=quiet).train()
    assert saved == [4, 16]  # the first one, since its evaluation might have taken long, and the last


@pytest.mark.thorough
def test_records_hold_the_penalties_of_the_loss(tmp_path: Path) -> None:
    for framework, loss in (("memory-bank", "hard_contrastive"), ("moco", "isogclr"), ("simclr", "simple")):
        run = Run(**{**vars(RUN), "framework": framework, "loss": loss, "queue": 64})
        Trainer(run, tmp_path / framework, log=quiet).train()
        first = json.loads((tmp_path / framework / "records.jsonl").read_text().splitlines()[0])
        assert first["hardest_similarity"] <= 1.0001
        assert 0 < first["push_on_hardest_1pct"] <= 1
        assert (first["effective_temperature"] is None) == (loss == "simple")


def test_added_settings_do_not_rename_existing_runs() -> None:
    """They are omitted at their defaults, so that directories from before keep their names and can be resumed."""
    moco = replace(RUN, framework="moco")
    assert not set(ADDED) & set(moco.describe())
    whole = replace(RUN, accumulate=2, grad_cache=True)
    assert whole.describe() == replace(RUN, accumulate=2).describe() | {"contrast": "whole"}
    for name in ("symmetric", "batch_negatives"):
        change: dict[str, Any] = {name: True}
        other = replace(moco, **change)
        assert other.describe() == moco.describe() | change
        assert other.name != moco.name
        assert Run.read(other.describe()) == other
    assert Run.read(moco.describe()) == moco


def test_another_run_is_refused(tmp_path: Path) -> None:
    Trainer(replace(RUN, lr=9.0), tmp_path, log=quiet)  # writes only its settings, so the directory may be reused
    Trainer(RUN, tmp_path, log=quiet)._save()
    with pytest.raises(ValueError, match=r"holds another run: lr is 0\.004 there and 0\.1 here"):
        Trainer(replace(RUN, lr=0.1), tmp_path, log=quiet)
    with pytest.raises(ValueError, match=r"symmetric is False there and True here"):
        Trainer(replace(RUN, framework="moco", symmetric=True), tmp_path, log=quiet)


def test_more_images_than_the_data_has(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="batch: a step needs 512 images, but the data set has only 128"):
        Trainer(Run(**{**vars(RUN), "batch": 512}), tmp_path / "a", log=quiet)
    with pytest.raises(ValueError, match="knn: 500 neighbours are more than the 128"):
        Trainer(Run(**{**vars(RUN), "knn": 500}), tmp_path / "b", log=quiet)


def test_more_hardest_negatives_than_the_bank_has(tmp_path: Path) -> None:
    run = Run(**{**vars(RUN), "framework": "memory-bank", "loss": "nt_xent(negatives=hardest(128))"})
    with pytest.raises(ValueError, match=r"hardest\(128\) asks for more than the 127 negatives that memory-bank has"):
        Trainer(run, tmp_path, log=quiet)


@pytest.mark.thorough
def test_low_precision_trains(tmp_path: Path) -> None:
    assert Trainer(Run(**{**vars(RUN), "precision": "bf16"}), tmp_path, log=quiet).train()["knn_top1"] > 0


def test_learning_rates() -> None:
    run = Run(lr=1.0, epochs=10, warmup=2.0)
    rates = [learning_rate(run, step, 10) for step in range(100)]
    assert rates[0] == pytest.approx(0.05)
    assert rates[19] == pytest.approx(1.0)
    assert rates[20] == pytest.approx(1.0)
    assert rates[60] == pytest.approx(0.5)
    assert rates[99] < 0.01
    steps = Run(lr=1.0, epochs=10, warmup=0.0, schedule="step", milestones=(3, 6))
    assert [learning_rate(steps, e * 10, 10) for e in (0, 2, 3, 6, 9)] == pytest.approx([1, 1, 0.1, 0.01, 0.01])
    assert learning_rate(Run(lr=0.3, schedule="constant", warmup=0.0), 5, 10) == 0.3


@pytest.mark.parametrize("form", ["lightly", "moco"])
def test_lars_by_hand(form: str) -> None:
    w = torch.tensor([[3.0, 4.0]], requires_grad=True)
    bias = torch.tensor([1.0], requires_grad=True)
    optimiser = LARS([{"params": [w], "weight_decay": 0.1}, {"params": [bias], "weight_decay": 0.0}], 2.0, form=form)
    velocity = torch.zeros(1, 2)
    expected, expected_bias = w.detach().clone(), 1.0
    bias_velocity = 0.0
    for _ in range(3):
        w.grad, bias.grad = torch.tensor([[1.0, -2.0]]), torch.tensor([0.5])
        direction = w.grad + 0.1 * expected
        norm = w.grad.norm() + 0.1 * expected.norm() + 1e-8 if form == "lightly" else direction.norm()
        velocity = 0.9 * velocity + 1e-3 * expected.norm() / norm * direction
        bias_velocity = 0.9 * bias_velocity + 0.5
        optimiser.step()
        expected, expected_bias = expected - 2.0 * velocity, expected_bias - 2.0 * bias_velocity
        torch.testing.assert_close(w.detach(), expected)
        assert float(bias.detach()) == pytest.approx(expected_bias)


def test_accumulated_batches_are_the_mean_of_their_gradients(tmp_path: Path) -> None:
    """A step over two batches uses the mean of their gradients; images of one batch are no negatives of the other."""
    settings = vars(RUN) | {"accumulate": 2, "optimiser": "sgd", "warmup": 0.0, "weight_decay": 0.0}
    trainer = Trainer(Run(**settings), tmp_path, log=quiet)
    assert trainer.steps_per_epoch == 2
    batches = list(EagerSteps(trainer.context).batches(0, 0))[:2]
    gradients = []
    for index, views in batches:
        alone = Trainer(Run(**settings), tmp_path, log=quiet)
        alone.context.network.train()
        alone.context.loss(views, index).backward()
        gradients.append([p.grad for p in alone.context.network.parameters()])
    before = [p.detach().clone() for p in trainer.context.network.parameters()]
    EagerSteps(trainer.context).step(iter(batches), 0, 0)
    for old, new, first, second in zip(before, trainer.context.network.parameters(), *gradients, strict=True):
        assert first is not None
        assert second is not None
        torch.testing.assert_close(new.detach(), old - 0.004 * (first + second) / 2, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("framework", ["simclr", "moco", "moco-v3", "memory-bank"])
def test_tau_learns_its_certainty(framework: str, tmp_path: Path) -> None:
    """The projector has an extra output, the certainty, which receives a gradient; evaluation drops it."""
    trainer = Trainer(replace(RUN, loss="tau", framework=framework, queue=64), tmp_path, log=quiet)
    assert trainer.train()["knn_top1"] >= 0
    embeddings = trainer.context.latest
    assert embeddings is not None
    assert embeddings.score is not None
    assert embeddings.z.shape[-1] == 128
    linear = [m for m in trainer.model.projector.modules() if isinstance(m, torch.nn.Linear)][-1]
    assert linear.out_features == 129
    assert linear.weight.grad is not None
    assert float(linear.weight.grad[-1].norm()) > 0
    model = load(tmp_path)
    assert model.project(torch.randn(2, 3, 32, 32)).shape == (2, 128)


@pytest.mark.parametrize("optimiser", ["sgd", "adam", "adamw", "lars"])
def test_a_learned_temperature_changes_and_resumes(optimiser: str, tmp_path: Path) -> None:
    run = replace(RUN, loss="nt_xent(temperature=learned(0.2))", optimiser=optimiser)
    trainer = Trainer(run, tmp_path, log=quiet)
    (parameter,) = trainer.context.criterion.parameters()
    before = float(parameter.detach())
    trainer.train()
    assert float(parameter.detach()) != before
    resumed = Trainer(run, tmp_path, log=quiet)
    assert resumed.load_latest()
    assert torch.equal(next(iter(resumed.context.criterion.parameters())), parameter)


@pytest.mark.parametrize("loss", ["clip", "siglip", "siglip(temperature=0.2, bias=learned_number(-5))"])
def test_methods_that_learn_their_settings_train_them(loss: str, tmp_path: Path) -> None:
    run = replace(RUN, loss=loss)
    trainer = Trainer(run, tmp_path, log=quiet)
    before = {name: value.clone() for name, value in trainer.context.criterion.state_dict().items()}
    trainer.train()
    assert before
    for name, value in trainer.context.criterion.state_dict().items():
        assert not torch.equal(value, before[name]), name
    assert json.loads((tmp_path / "run.json").read_text())["loss"] == loss
    resumed = Trainer(run, tmp_path, log=quiet)
    assert resumed.load_latest()
    assert str(resumed.context.criterion.state_dict()) == str(trainer.context.criterion.state_dict())


def test_a_model_is_loaded_without_its_data(tmp_path: Path) -> None:
    """The data set may be deleted after training: a model needs only its weights and its views."""
    import numpy as np

    path = tmp_path / "mine.npz"
    images = np.random.default_rng(0).integers(0, 256, (40, 32, 32, 3), dtype=np.uint8)
    np.savez(path, train_images=images)
    run = Run(data=str(path), encoder="tiny", batch=16, epochs=1, metrics=0, framework="memory-bank")
    trainer = Trainer(run, tmp_path / "run", log=quiet)
    trainer.train()
    path.unlink()
    model = load(tmp_path / "run")
    raw = torch.randint(0, 256, (5, 3, 48, 40), dtype=torch.uint8)
    features = model.embed(raw)
    assert features.shape == (5, 64)
    torch.testing.assert_close(features, trainer.model.embed(raw))
    with pytest.raises(ValueError, match="is not the directory of a run"):
        load(tmp_path)


def without_norms(run: Run, folder: Path) -> Trainer:
    """Return a trainer in float64 whose network has no batch norm, so that an embedding depends on its own image alone."""
    trainer = Trainer(run, folder, log=quiet, device=torch.device("cpu"))
    replace_norms(trainer.context.network, lambda norm: torch.nn.Identity())
    trainer.context.network.double()
    trainer.context.criterion.double()
    return trainer


@pytest.mark.parametrize(
    "loss", ["nt_xent(temperature=0.2)", "nt_xent(temperature=learned(0.2))", "isogclr", "tau", "dclw"]
)
def test_a_step_contrasted_as_a_whole_equals_one_large_batch(loss: str, tmp_path: Path) -> None:
    settings = vars(RUN) | {"loss": loss, "optimiser": "sgd", "lr": 0.1, "warmup": 0.0}
    small = Run(**settings | {"batch": 8, "accumulate": 2, "grad_cache": True})
    large = Run(**settings | {"batch": 16})
    states = []
    for name, run in (("small", small), ("large", large)):
        trainer = without_norms(run, tmp_path / name)
        steps = EagerSteps(trainer.context)
        batches = ((index, [v.double() for v in views]) for index, views in steps.batches(0, 0))
        losses = torch.tensor(
            [steps.step(islice(batches, run.accumulate), 0, step) for step in range(3)], dtype=torch.float64
        )
        states.append({"losses": losses, **trainer.saved_state.state_dict()})
    for name, expected in states[1].items():
        torch.testing.assert_close(states[0][name], expected, rtol=0, atol=1e-10, msg=name)
    start = without_norms(large, tmp_path / "start").saved_state.state_dict()
    assert any(not torch.equal(start[name], states[1][name]) for name in start)  # otherwise nothing was compared


def test_whole_steps_are_refused_where_they_are_impossible() -> None:
    whole = {"grad_cache": True, "accumulate": 2}
    for change, message in (
        (
            {"grad_cache": True},
            "grad_cache: --grad-cache needs several batches per step; set --accumulate to at least 2",
        ),
        (
            {**whole, "framework": "moco"},
            "grad_cache: --grad-cache works only with --framework simclr, simcse, two_towers; the framework is moco",
        ),
        ({**whole, "framework": "memory-bank"}, "grad_cache: --grad-cache works only with --framework simclr"),
        ({"grad_cache": "whole", "accumulate": 2}, "grad_cache: expected True or False, got 'whole'"),
        ({**whole, "loss": "nt_xent(negatives=hardest(127))"}, r"hardest\(127\) asks for more than the 126 negatives"),
    ):
        with pytest.raises(ValueError, match=message):
            Run(**{**vars(RUN), **change})
    Run(**{**vars(RUN), **whole, "loss": "nt_xent(negatives=hardest(126))"})


@pytest.mark.thorough
def test_a_whole_step_in_low_precision_with_scaled_gradients(tmp_path: Path) -> None:
    run = Run(**{**vars(RUN), "precision": "fp16", "accumulate": 2, "grad_cache": True})
    trainer = Trainer(run, tmp_path, log=quiet, device=torch.device("cpu"))
    assert trainer.train()["knn_top1"] > 0
    norm = next(m for m in trainer.context.network.modules() if isinstance(m, torch.nn.BatchNorm2d))
    assert norm.num_batches_tracked is not None
    assert int(norm.num_batches_tracked) == 8  # each batch of two epochs once, though each is encoded twice


def test_metrics_of_the_training_images(tmp_path: Path) -> None:
    run = replace(RUN, limit=64, epochs=1, metrics=20)
    records = {}
    for images in ("test", "train"):
        trainer = Trainer(replace(run, metrics_on=images), tmp_path / images, log=quiet)
        trainer.train()
        records[images] = json.loads((tmp_path / images / "records.jsonl").read_text())
        source = trainer.split.train if images == "train" else trainer.split.held_out
        assert records[images]["uniformity"] == pytest.approx(trainer.model.measure(source, Measures(20))["uniformity"])
    assert records["test"]["loss"] == records["train"]["loss"]
    assert records["test"]["uniformity"] != pytest.approx(records["train"]["uniformity"], rel=1e-3)
    assert "metrics_on" not in run.describe()  # at its default, so that existing run names stay valid
