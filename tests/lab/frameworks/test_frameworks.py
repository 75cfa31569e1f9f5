from __future__ import annotations

import copy
import math

import pytest
import torch
from cases import NOT_OF_PAIRS, OF_VIEWS
from torch import nn

from contrapose.embeddings import Embeddings
from contrapose.lab.frameworks import FNC, Framework, MemoryBank, MoCo, MomentumPredictor, SimCLR
from contrapose.lab.modalities.images.encoders import encoder
from contrapose.lab.networks.heads import head, predictor
from contrapose.lab.networks.norms import SplitBatchNorm
from contrapose.lab.training import PRESETS, Run
from contrapose.lab.training.build import build
from contrapose.lab.training.options import make_run
from contrapose.losses import CATALOGUE, moco_v3, nt_xent
from contrapose.losses.objective import traits_of
from contrapose.pairs import cross, unit
from contrapose.pairs.negatives import other_views

SIZE = 40


def make(name: str, **settings: float | str) -> Framework:
    torch.manual_seed(1)
    body, projector = encoder("tiny"), head("simclr", 64)
    if name == "simclr":
        return SimCLR(body, projector)
    if name == "moco":
        return MoCo(body, projector, width=128, size=20, **settings)  # type: ignore[arg-type]
    if name == "fnc":
        return FNC(body, projector, width=128, size=20, **settings)  # type: ignore[arg-type]
    if name == "moco-v3":
        return MomentumPredictor(body, projector, predictor(128), **settings)  # type: ignore[arg-type]
    return MemoryBank(body, projector, width=128, size=SIZE, **settings)  # type: ignore[arg-type]


def images(views: int = 2, batch: int = 6) -> list[torch.Tensor]:
    return [torch.randn(views, batch, 3, 32, 32)]


def settle(framework: Framework, embeddings: Embeddings) -> None:
    framework.update(embeddings)
    framework.after_step()


NAMES = ("simclr", "moco", "moco-v3", "memory-bank", "fnc")
METHODS = sorted(set(CATALOGUE) - {"isogclr", "supcon", "tau", "temperature_schedule"} - NOT_OF_PAIRS)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("views", [pytest.param(2, marks=pytest.mark.thorough), 3])
def test_any_objective_runs_on_any_framework(name: str, views: int) -> None:
    framework = make(name)
    embeddings = framework(images(views), torch.arange(6))
    for method in METHODS:
        if method in OF_VIEWS and not embeddings.pairs.has_views:
            continue
        if method == "align_uniform" and name == "fnc":  # it spreads out queries, and here keys are among the negatives
            with pytest.raises(ValueError, match="pairs: align_uniform spreads out queries"):
                CATALOGUE[method]()(embeddings.pairs)
            continue
        if traits_of(CATALOGUE[method].objective).needs_target and name == "simclr":
            with pytest.raises(ValueError, match=f"pairs: {method} only pulls"):
                CATALOGUE[method]()(embeddings.pairs)
            continue
        framework.zero_grad()
        CATALOGUE[method]()(embeddings.pairs).backward(retain_graph=True)
        gradients = [p.grad for p in framework.parameters() if p.requires_grad]
        assert all(g is not None and torch.isfinite(g).all() for g in gradients), method
    settle(framework, embeddings)


@pytest.mark.parametrize("name", NAMES)
def test_state_survives_a_round_trip(name: str) -> None:
    framework, other = make(name), make(name)
    for step in range(3):
        settle(framework, framework(images(), torch.arange(6) + step))
    other.load_state_dict(framework.state_dict())
    x = images()
    framework.eval()
    other.eval()
    losses = [nt_xent(f(x, torch.arange(6)).pairs) for f in (framework, other)]
    assert torch.equal(*losses)


def test_the_queue_is_first_in_first_out() -> None:
    framework = make("moco")
    assert isinstance(framework, MoCo)
    before, keys = framework.rows.clone(), []
    for _ in range(4):  # 4 · 6 rows into 20
        embeddings = framework(images(), torch.arange(6))
        keys.append(unit(embeddings.target[-1]))
        settle(framework, embeddings)
    assert not torch.equal(before, framework.rows)
    newest = torch.cat(keys)[-20:]
    found = {tuple(row.tolist()) for row in framework.rows}
    assert found == {tuple(row.tolist()) for row in newest}
    assert int(framework.place) == 24 % 20
    torch.testing.assert_close(framework.rows.norm(dim=1), torch.ones(20))


@pytest.mark.parametrize("views", [2, 3])
def test_keys_of_a_view_are_made_of_it_alone(views: int) -> None:
    """Batch norms of the key network must not see the queries."""
    framework = make("moco").train()
    assert isinstance(framework, MoCo)
    (x,), network = images(views), copy.deepcopy(framework.keys)
    embeddings = framework([x], torch.arange(6))
    torch.testing.assert_close(unit(embeddings.target[-1]), unit(network(x[-1])))


@pytest.mark.parametrize("splits", [1, 3])
def test_symmetric_moco_is_the_mean_of_both_directions(splits: int) -> None:
    """Also in training: each view has its own batch statistics, as where each direction is a pass of its own."""
    both, one = (make("moco", symmetric=symmetric, norm_splits=splits).train() for symmetric in (True, False))
    (x,), index = images(), torch.arange(6)
    wanted = (nt_xent(one([x], index).pairs) + nt_xent(one([x.flip(0)], index).pairs)) / 2
    torch.testing.assert_close(nt_xent(both([x], index).pairs), wanted)


@pytest.mark.parametrize("symmetric", [False, True])
def test_queries_of_the_batch_join_the_queue(symmetric: bool) -> None:
    framework = make("moco", symmetric=symmetric, batch_negatives=True).eval()
    assert isinstance(framework, MoCo)
    (x,), index = images(), torch.arange(6)
    queries = unit(framework.embed([x])).unbind()[: 1 + symmetric]
    total = torch.zeros(())
    for view, rows in enumerate(queries):
        positive = (rows * unit(framework.keys(x[1 - view]))).sum(1) / 0.2
        for i in range(6):
            others = torch.cat([torch.cat([q[:i], q[i + 1 :]]) for q in queries])
            negatives = torch.cat([framework.rows, others]) @ rows[i] / 0.2
            total = total + torch.cat([positive[i : i + 1], negatives]).logsumexp(0) - positive[i]
    found = nt_xent(framework([x], index).pairs, temperature=0.2)
    torch.testing.assert_close(found, total / (6 * len(queries)))


def test_the_key_encoder_is_an_exact_average() -> None:
    framework = make("moco", momentum=0.9)
    assert isinstance(framework, MoCo)
    key, query = next(framework.keys.parameters()), next(framework.encoder.parameters())
    wanted = key.clone()
    for _ in range(5):
        with torch.no_grad():
            query.add_(0.1)
        framework.after_step()
        wanted = 0.9 * wanted + 0.1 * query.detach()
    torch.testing.assert_close(key, wanted)
    assert not any(p.requires_grad for p in framework.keys.parameters())


def test_a_momentum_that_rises_to_one_step_by_step() -> None:
    framework = make("moco-v3", momentum=0.9, momentum_schedule="cosine")
    assert isinstance(framework, MomentumPredictor)
    key, query = next(framework.keys.parameters()), next(framework.encoder.parameters())
    momenta = [1 - 0.1 * (1 + math.cos(math.pi * step / 8)) / 2 for step in range(9)]  # BYOL, Eq. of τ
    assert (momenta[0], momenta[4], momenta[8]) == pytest.approx((0.9, 0.95, 1.0))
    for first in (0, 5):  # the second epoch is resumed after one of its steps
        framework.begin_epoch(first // 4, step=first, steps=8)
        for momentum in momenta[first:]:
            with torch.no_grad():
                query.add_(0.1)
            wanted = momentum * key + (1 - momentum) * query.detach()
            framework.after_step()
            torch.testing.assert_close(key, wanted)
    assert "step" not in framework.state_dict()


def test_the_bank_moves_the_rows_it_saw_and_no_other() -> None:
    framework = make("memory-bank")
    assert isinstance(framework, MemoryBank)
    assert framework.rows.abs().max() <= (3 / 128) ** 0.5
    before, index = framework.rows.clone(), torch.tensor([3, 0, 17, 39, 5, 6])
    embeddings = framework(images(1), index)
    z = unit(embeddings.z.detach()).mean(0)
    settle(framework, embeddings)
    others = torch.ones(SIZE, dtype=torch.bool)
    others[index] = False
    assert torch.equal(framework.rows[others], before[others])
    torch.testing.assert_close(framework.rows[index], unit(0.5 * before[index] + 0.5 * z))
    torch.testing.assert_close(framework.rows[index].norm(dim=1), torch.ones(6))


@pytest.mark.parametrize(("name", "layers", "last"), [("moco-v3", 2, nn.Linear), ("moco-v3-vit", 3, nn.BatchNorm1d)])
def test_moco_v3_has_its_own_heads_for_a_vit(name: str, layers: int, last: type[nn.Module]) -> None:
    """A ViT has a projector of three layers, and a batch norm at the end of its predictor."""
    framework = build(Run(data="digits", framework="moco-v3", head=name, loss="moco_v3"), 10)
    assert isinstance(framework, MomentumPredictor)
    assert isinstance(framework.projector, nn.Sequential)
    assert isinstance(framework.predictor, nn.Sequential)
    assert sum(isinstance(module, nn.Linear) for module in framework.projector) == layers
    assert isinstance(framework.predictor[-1], last)


def test_moco_v3_is_symmetric_cross_entropy() -> None:
    framework = make("moco-v3").eval()
    assert isinstance(framework, MomentumPredictor)
    (x,) = images()
    pairs = framework([x], torch.arange(6)).pairs
    query = nn.Sequential(framework.encoder, framework.projector, framework.predictor)
    q1, q2, k1, k2 = query(x[0]), query(x[1]), framework.keys(x[0]), framework.keys(x[1])
    wanted = (nt_xent(cross(q1, k2)) + nt_xent(cross(q2, k1))) / 2
    torch.testing.assert_close(nt_xent(pairs, negatives=other_views()), wanted)
    torch.testing.assert_close(moco_v3(pairs, temperature=0.5), 2 * 0.5 * 2 * wanted)  # 2τ[CE + CE]


def test_bad_momentum_is_named() -> None:
    with pytest.raises(ValueError, match=r"momentum: expected a number from 0 to 1, got 1\.5"):
        make("moco", momentum=1.5)


@pytest.mark.parametrize("shape", [(12, 5), (12, 5, 4, 4)])
@pytest.mark.parametrize("form", ["grouped", "explicit"])
@pytest.mark.parametrize("affine", [True, False])
def test_split_norms_are_norms_of_the_parts(shape: tuple[int, ...], form: str, affine: bool) -> None:
    make_norm = nn.BatchNorm1d if len(shape) == 2 else nn.BatchNorm2d
    plain = make_norm(5, affine=affine).double()
    if affine:
        nn.init.uniform_(plain.weight)
    norms = [SplitBatchNorm(copy.deepcopy(plain), splits) for splits in (3, 1)]
    x, upstream = torch.randn(shape, dtype=torch.float64, requires_grad=True), torch.randn(shape, dtype=torch.float64)
    made = getattr(norms[0], form)(x)
    wanted = torch.empty_like(made)
    for part in range(3):
        wanted[part::3] = copy.deepcopy(plain)(x[part::3])
    torch.testing.assert_close(made, wanted)
    ours, theirs = (torch.autograd.grad((y * upstream).sum(), x)[0] for y in (made, wanted))
    torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(getattr(norms[1], form)(x), plain(x))
    torch.testing.assert_close(norms[1].running_mean, plain.running_mean)
    torch.testing.assert_close(norms[1].running_var, plain.running_var)
    assert int(norms[1].num_batches_tracked) == 1


def test_split_norms_know_when_to_refuse() -> None:
    split = SplitBatchNorm(nn.BatchNorm1d(5), 3)
    assert split.eval()(torch.randn(7, 5)).shape == (7, 5)
    with pytest.raises(ValueError, match="a batch of 7 cannot be split into 3"):
        split.train()(torch.randn(7, 5))
    with pytest.raises(ValueError, match="3 parts of 3 images leave nothing to average over"):
        split(torch.randn(3, 5))


def test_shuffled_keys_are_the_same_images() -> None:
    """With running statistics, where parts do not matter, shuffling and back again changes nothing."""
    framework = make("moco", norm_splits=3).eval()
    plain = make("moco").eval()
    x, index = images(), torch.tensor([5, 3, 9, 1, 0, 7])
    assert framework.state_dict().keys() == plain.state_dict().keys()
    torch.testing.assert_close(nt_xent(framework(x, index).pairs), nt_xent(plain(x, index).pairs))
    assert not torch.allclose(nt_xent(framework.train()(x, index).pairs), nt_xent(plain.train()(x, index).pairs))


def _embedded(framework: Framework, views: list[torch.Tensor]) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Return embeddings, and gradients and buffers after a backward pass."""
    z = framework.embed(views)
    z.square().mul(torch.arange(z.numel(), dtype=z.dtype).view_as(z)).sum().backward()
    gradients = {name: weight.grad for name, weight in framework.named_parameters() if weight.grad is not None}
    return z.detach(), {**gradients, **dict(framework.named_buffers())}


@pytest.mark.parametrize("joined", [False, True], ids=["passes", "joined"])
@pytest.mark.parametrize("shapes", [[(2, 6, 32)], [(5, 4, 32)], [(2, 4, 32), (3, 4, 16)]], ids=["2", "5", "multi-crop"])
def test_statistics_of_each_view(shapes: list[tuple[int, int, int]], joined: bool) -> None:
    torch.manual_seed(2)
    views = [torch.randn(v, b, 3, side, side, dtype=torch.float64) for v, b, side in shapes]
    together, each, by_hand = (make("simclr").double() for _ in range(3))
    each.norm_views = "each"
    if joined:
        each.join_views()
        passes: list[int] = []
        each.encoder.register_forward_hook(lambda module, inputs, output: passes.append(len(output)))
    # The authors' code: one forward pass for each view, one after the other.
    network = nn.Sequential(by_hand.encoder, by_hand.projector)
    z = torch.stack([network(view) for group in views for view in group])
    z.square().mul(torch.arange(z.numel(), dtype=z.dtype).view_as(z)).sum().backward()
    expected = {name: weight.grad for name, weight in by_hand.named_parameters() if weight.grad is not None}
    expected |= dict(by_hand.named_buffers())
    found, state = _embedded(each, views)
    if joined:
        assert passes == [v * b for v, b, _ in shapes]
    torch.testing.assert_close(found, z.detach())
    assert state.keys() == expected.keys()
    for name, value in state.items():
        torch.testing.assert_close(value, expected[name], msg=f"{name} differs")
    assert (_embedded(together, views)[0] - z).abs().max() > 1e-3


def test_a_preset_has_its_authors_statistics() -> None:
    each = ["dystress/cifar10", "dystress/cifar100-lt", "dystress/tiny-imagenet", "cacr/cifar10", "cacr/stl10-k4",
            "cacr/resnet50-cifar10", "barlow-twins/cifar10", "swav/cifar10", "dino/cifar10", "zero-cl/imagenet100"]  # fmt: skip
    together = [
        "dystress/imagenet",
        "dystress/table4-cifar10-lt",
        "cacr/simclr-imagenet",
        "swav/imagenet",
        "dino/imagenet",
    ]
    assert {PRESETS[name].get("norm_views", "together") for name in each} == {"each"}
    assert {PRESETS[name].get("norm_views", "together") for name in together} == {"together"}
    # Frameworks that encode views one by one do not have the setting; a loss that needs one drops the preset's value.
    assert "norm_views" not in PRESETS["byol/cifar10"]
    assert make_run({"loss": "byol"}, preset="dystress/cifar10", log=lambda text: None).framework == "byol"
