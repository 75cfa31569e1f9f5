from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from contrapose.embeddings import Embeddings
from contrapose.lab.frameworks import DINO, SwAV
from contrapose.lab.frameworks.framework import Framework
from contrapose.lab.modalities.images.encoders import encoder
from contrapose.lab.networks.heads import head
from contrapose.lab.training import Run, Trainer, drain
from contrapose.losses import dino, sinkhorn, swav
from contrapose.pairs import unit

WIDTH, PROTOTYPES = 16, 10


def make(name: str, **settings: Any) -> SwAV | DINO:
    torch.manual_seed(1)
    body, projector = encoder("tiny"), head("simclr", 64, WIDTH)
    options: dict[str, Any] = {"width": WIDTH, "prototypes": PROTOTYPES, **settings}
    return SwAV(body, projector, **options) if name == "swav" else DINO(body, projector, **options)


def images(views: int = 2, batch: int = 6, seed: int = 0) -> Tensor:
    return torch.randn(views, batch, 3, 32, 32, generator=torch.Generator().manual_seed(seed))


def loss_of(framework: Framework, embeddings: Embeddings) -> Tensor:
    return (swav if isinstance(framework, SwAV) else dino)(embeddings.assignments)


@pytest.mark.parametrize("name", ["swav", "dino"])
def test_prototypes_are_frozen_in_the_first_epochs(name: str) -> None:
    framework = make(name, frozen_epochs=2)
    for epoch, is_frozen in ((0, True), (1, True), (2, False), (3, False)):
        framework.begin_epoch(epoch, step=epoch, steps=4)
        framework.zero_grad()
        loss_of(framework, framework([images()], torch.arange(6))).backward()
        gradient = framework.prototypes.weight.grad
        assert gradient is not None
        assert bool((gradient == 0).all()) == is_frozen
        assert all(p.grad is not None and bool(p.grad.any()) for p in framework.projector.parameters())
    assert "prototypes.is_trained" not in framework.state_dict()


@pytest.mark.parametrize("name", ["swav", "dino"])
@pytest.mark.parametrize("optimiser", ["sgd", "adam", "adamw", "lars"])
def test_no_optimiser_moves_frozen_prototypes(name: str, optimiser: str, tmp_path: Path) -> None:
    """Adam would, by weight decay alone, since it normalises whatever gradient there is."""
    settings = {"limit": 64, "batch": 16, "epochs": 2, "metrics": 0, "knn": 3, "lr": 0.1, "weight_decay": 0.1}
    run = Run(framework=name, loss=name, prototypes=10, optimiser=optimiser, **settings)  # type: ignore[arg-type]
    trainer = Trainer(run, tmp_path, log=lambda text: None)
    before = unit(trainer.context.network.get_parameter("prototypes.weight").detach().clone())
    for epoch, is_same in ((0, True), (1, False)):
        trainer.context.network.begin_epoch(epoch, step=epoch, steps=2)
        drain(trainer._epoch(epoch))
        after = unit(trainer.context.network.get_parameter("prototypes.weight").detach())
        assert torch.allclose(before, after, atol=1e-6) == is_same


@pytest.mark.parametrize("name", ["swav", "dino"])
def test_scores_are_cosines_of_all_views_with_prototypes(name: str) -> None:
    framework = make(name).eval()
    x, local = images(), images(3)[..., :16, :16]
    embeddings = framework([x, local], torch.arange(6))
    scores = embeddings.assignments.scores
    assert scores.shape == (5, 6, PROTOTYPES)
    assert embeddings.global_views == 2
    network = nn.Sequential(framework.encoder, framework.projector)
    for v, view in enumerate([*x, *local]):
        wanted = unit(network(view)) @ unit(framework.prototypes.weight).T
        torch.testing.assert_close(scores[v], wanted, rtol=1e-4, atol=1e-5)


def test_prototypes_of_swav_stay_normalised() -> None:
    framework = make("swav")
    with torch.no_grad():
        framework.prototypes.weight.mul_(3.0)
    framework.after_step()
    torch.testing.assert_close(framework.prototypes.weight.norm(dim=1), torch.ones(PROTOTYPES))


def test_the_queue_of_swav_counts_once_it_is_full_and_its_epoch_has_come() -> None:
    framework = make("swav", queue=12, queue_start=2).eval()
    weights = []
    for epoch, seed in ((0, 0), (0, 1), (0, 2), (1, 3)):
        framework.begin_epoch(epoch, step=epoch, steps=4)
        embeddings = framework([images(seed=seed)], torch.arange(6))
        assert embeddings.stored_weight is not None
        weights.append(float(embeddings.stored_weight))
        framework.update(embeddings)
    assert weights == [0.0, 0.0, 0.0, 1.0]
    assert embeddings.stored is not None
    assert embeddings.stored.shape == (2, 12, WIDTH)
    # The rows are those of the last two batches before this one, for each of the two views.
    for view in range(2):
        earlier = [framework.embed([images(seed=seed)])[view] for seed in (2, 1)]
        torch.testing.assert_close(embeddings.stored[view], unit(torch.cat(earlier)), rtol=1e-4, atol=1e-5)


def test_the_queue_of_swav_waits_until_it_is_full_even_after_its_epoch_has_come() -> None:
    """The rows that no batch has filled yet are zeros, which would count as samples."""
    framework = make("swav", queue=15, queue_start=1).eval()
    framework.begin_epoch(0, step=0, steps=4)
    weights = []
    for seed in range(4):
        embeddings = framework([images(seed=seed)], torch.arange(6))
        assert embeddings.stored_weight is not None
        weights.append(float(embeddings.stored_weight))
        framework.update(embeddings)
    assert weights == [0.0, 0.0, 0.0, 1.0]


def test_codes_of_swav_see_the_queue() -> None:
    framework = make("swav", queue=6, queue_start=1).eval()
    framework.begin_epoch(0, step=0, steps=4)
    framework.update(framework([images(seed=1)], torch.arange(6)))
    embeddings = framework([images()], torch.arange(6))
    found = embeddings.assignments
    assert found.stored is not None
    with_queue = sinkhorn(torch.cat([found.scores, found.stored], 1))[:, :6]
    codes = sinkhorn(found.scores, stored=found.stored, stored_weight=found.stored_weight)
    torch.testing.assert_close(codes, with_queue)
    without = swav(replace(embeddings, stored=None, stored_weight=None).assignments)
    assert not torch.allclose(swav(found), without)


def test_the_teacher_of_dino_follows_prototypes_too() -> None:
    framework = make("dino", momentum=0.9)
    assert isinstance(framework, DINO)
    before = framework.teacher_prototypes.clone()
    with torch.no_grad():
        framework.prototypes.weight.add_(1.0)
    framework.after_step()
    torch.testing.assert_close(framework.teacher_prototypes, before + 0.1)
    assert not framework.teacher_prototypes.requires_grad


def test_the_center_of_dino_is_a_moving_average_of_the_teachers_scores() -> None:
    framework = make("dino").eval()
    assert isinstance(framework, DINO)
    wanted = torch.zeros(PROTOTYPES)
    for seed in range(3):
        embeddings = framework([images(seed=seed), images(3)[..., :16, :16]], torch.arange(6))
        assert embeddings.target is not None
        assert embeddings.target.shape == (2, 6, WIDTH)  # of the global crops
        torch.testing.assert_close(embeddings.center, wanted)
        framework.update(embeddings)
        scores = unit(embeddings.target) @ unit(framework.teacher_prototypes).T
        wanted = 0.9 * wanted + 0.1 * scores.mean((0, 1))
    torch.testing.assert_close(framework.center, wanted)
    assert "center" in framework.state_dict()


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(
        ValueError, match=r"loss: dino takes assignments, and simclr offers .* only; use --framework dino"
    ):
        Run(loss="dino")
    with pytest.raises(ValueError, match="loss: dino needs a teacher, which swav does not have; use --framework dino"):
        Run(loss="dino", framework="swav")
    with pytest.raises(ValueError, match="loss: swav takes the assignments of one network, and dino has two"):
        Run(loss="swav", framework="dino")
    with pytest.raises(
        ValueError, match=r"loss: byol needs a predictor and a target .* simclr does not have; use --framework byol"
    ):
        Run(loss="byol")
    with pytest.raises(ValueError, match=r"loss: simclr.* takes pairs, and swav offers assignments only"):
        Run(framework="swav")
    with pytest.raises(ValueError, match="prototypes: expected at least 2, got 1"):
        SwAV(encoder("tiny"), head("simclr", 64), width=128, prototypes=1)
    with pytest.raises(ValueError, match="prototypes: expected at least 2, or 0 for the method's own number, got 1"):
        Run(loss="dino", framework="dino", prototypes=1)
    with pytest.raises(ValueError, match="queue_start: the queue holds two global crops"):
        Run(loss="swav", framework="swav", queue_start=1, view_count=3)
