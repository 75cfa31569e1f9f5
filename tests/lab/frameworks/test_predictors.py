from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from contrapose.lab.frameworks import NNCLR, MomentumPredictor, SimSiam
from contrapose.lab.modalities.images.encoders import encoder
from contrapose.lab.networks.heads import head, predictor
from contrapose.lab.training import Run, Trainer
from contrapose.lab.training.build import build
from contrapose.losses import nt_xent
from contrapose.pairs import neighbours, unit

WIDTH = 16


def parts() -> tuple[nn.Module, ...]:
    torch.manual_seed(1)
    return encoder("tiny"), head("simclr", 64, WIDTH), predictor(WIDTH, 8, bias=True)


def images(views: int = 2, batch: int = 6) -> torch.Tensor:
    return torch.randn(views, batch, 3, 32, 32, generator=torch.Generator().manual_seed(0))


def test_simsiam_compares_predictions_with_its_own_embeddings_without_gradient() -> None:
    framework = SimSiam(*parts()).eval()  # type: ignore[arg-type]
    x = images(3)
    embeddings = framework([x], torch.arange(6))
    z = torch.stack([nn.Sequential(framework.encoder, framework.projector)(view) for view in x])
    torch.testing.assert_close(embeddings.z, torch.stack([framework.predictor(view) for view in z]))
    torch.testing.assert_close(embeddings.target, z.detach())
    assert embeddings.target is not None
    assert not embeddings.target.requires_grad
    assert embeddings.z.requires_grad


@pytest.mark.parametrize("name", ["byol", "moco-v3"])
def test_local_crops_have_no_target(name: str) -> None:
    framework = MomentumPredictor(*parts()).eval()  # type: ignore[arg-type]
    x, local = images(), images(3)[..., :16, :16]
    embeddings = framework([x, local], torch.arange(6))
    assert embeddings.z.shape == (5, 6, WIDTH)
    assert embeddings.target is not None
    torch.testing.assert_close(embeddings.target, torch.stack([framework.keys(view) for view in x]))


def test_the_predictors_have_the_widths_of_the_papers() -> None:
    def widths(**settings: object) -> list[int]:
        framework = build(Run(data="digits", loss="nt_xent", **settings), 10)  # type: ignore[arg-type]
        layers = framework.get_submodule("predictor").modules()
        return [layer.out_features for layer in layers if isinstance(layer, nn.Linear)]

    assert widths(framework="moco-v3", head="moco-v3") == [4096, 256]
    assert widths(framework="byol", predictor=32) == [32, 128]
    assert widths(framework="simsiam", width=64) == [16, 64]
    assert widths(framework="nnclr") == [4096, 128]


def test_neighbours_are_anchors_and_predictions_the_pool() -> None:
    """NNCLR in plain loops: the nearest row to z_v against the predictions of the other view."""
    torch.manual_seed(0)
    p, z = torch.randn(2, 2, 5, 4, dtype=torch.float64)
    rows, temperature = torch.randn(7, 4, dtype=torch.float64), 0.3
    p.requires_grad_()
    loss = nt_xent(neighbours(p, z, rows), temperature=temperature)
    total = torch.zeros((), dtype=torch.float64)
    for v, w in ((0, 1), (1, 0)):
        for i in range(5):
            similarities = [float(torch.cosine_similarity(z[v, i], row, dim=0)) for row in rows]
            nearest = rows[similarities.index(max(similarities))]
            logits = torch.stack([torch.cosine_similarity(nearest, p[w, j], dim=0) for j in range(5)]) / temperature
            total = total + logits.logsumexp(0) - logits[i]
    torch.testing.assert_close(loss, total / 10, rtol=1e-12, atol=1e-12)
    ours, wanted = (torch.autograd.grad(value, p)[0] for value in (loss, total / 10))
    torch.testing.assert_close(ours, wanted, rtol=1e-10, atol=1e-12)


def test_neighbours_check_their_input() -> None:
    p = torch.randn(2, 5, 4)
    with pytest.raises(ValueError, match="rows: expected"):
        neighbours(p, p, torch.randn(7, 3))
    with pytest.raises(ValueError, match="at least two views"):
        neighbours(p[:1], p[:1], torch.randn(7, 4))


def test_the_queue_of_nnclr_takes_the_last_view() -> None:
    framework = NNCLR(*parts(), width=WIDTH, size=8)  # type: ignore[arg-type]
    before = framework.rows.clone()
    embeddings = framework([images()], torch.arange(6))
    framework.update(embeddings)
    assert embeddings.target is not None
    torch.testing.assert_close(framework.rows[:6], unit(embeddings.target[-1]))
    assert torch.equal(framework.rows[6:], before[6:])
    embeddings.pairs.positives().sum().backward()  # the pairs have rows of their own, which no update has replaced
    assert all(p.grad is not None for p in framework.predictor.parameters())


def test_a_constant_learning_rate_of_the_predictor(tmp_path: object) -> None:
    from pathlib import Path

    settings = {
        "limit": 64,
        "batch": 32,
        "epochs": 2,
        "metrics": 0,
        "knn": 3,
        "optimiser": "sgd",
        "lr": 0.1,
        "warmup": 0.0,
    }
    run = Run(framework="simsiam", loss="nt_xent", constant_predictor_lr=True, **settings)  # type: ignore[arg-type]
    trainer = Trainer(run, Path(str(tmp_path)), log=lambda text: None)
    trainer.train()
    scheduled, constant = trainer.context.optimiser.param_groups
    assert scheduled["lr"] < 0.05
    assert constant["lr"] == 0.1
    predictor = list(trainer.context.network.get_submodule("predictor").parameters())
    assert [id(p) for p in constant["params"]] == [id(p) for p in predictor]


def test_a_setting_of_other_frameworks_is_refused() -> None:
    with pytest.raises(ValueError, match=r"momentum_schedule: it is for moco-v3, byol, dino; the framework is simclr"):
        Run(momentum_schedule="cosine")
    with pytest.raises(ValueError, match=r"constant_predictor_lr: it is for moco-v3, byol, simsiam, nnclr"):
        Run(constant_predictor_lr=True, framework="moco")


def test_keys_follow_the_whole_query_network() -> None:
    framework = MomentumPredictor(*parts(), momentum=0.9)  # type: ignore[arg-type]
    before = copy.deepcopy(framework.keys)
    with torch.no_grad():
        for parameter in framework.projector.parameters():
            parameter.add_(1.0)
    framework.after_step()
    moved = [not torch.equal(a, b) for a, b in zip(before.parameters(), framework.keys.parameters(), strict=True)]
    assert moved[-1]
    assert not moved[0]


@pytest.mark.parametrize("framework", ["moco", "moco-v3", "byol", "simsiam"])
def test_local_crops_need_two_global_ones(framework: str) -> None:
    loss = {"byol": "byol", "simsiam": "simsiam"}.get(framework, "nt_xent")
    with pytest.raises(ValueError, match=r"view_count: local crops .* need two global crops, got 3"):
        Run(framework=framework, loss=loss, views="digits+local2", view_count=3)


@pytest.mark.parametrize(
    ("settings", "negatives"),
    [({"framework": "nnclr", "loss": "nnclr({})"}, 15), ({"framework": "moco-v3", "views": "digits+local4"}, 30)],
)
def test_hardest_negatives_are_counted(settings: dict[str, str], negatives: int) -> None:
    """A loss that asks for more of them than there are is refused before the first step."""
    loss = settings.pop("loss", "nt_xent({})")
    Run(batch=16, loss=loss.format(f"negatives=hardest({negatives})"), **settings)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=f"asks for more than the {negatives} negatives"):
        Run(batch=16, loss=loss.format(f"negatives=hardest({negatives + 1})"), **settings)  # type: ignore[arg-type]
