"""`two_towers`: its losses beside open_clip's and beside plain loops, on one process and on two, and frozen towers."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from captioned import run_of, trainer_of, write_folder
from processes import run_in_process_group
from torch import Tensor, nn
from torch.nn.functional import normalize
from torch.nn.parallel import DistributedDataParallel

from contrapose.lab.frameworks import TwoTowers
from contrapose.lab.networks.encoder import Encoder
from contrapose.lab.networks.tower import Tower
from contrapose.lab.training.eager import EagerSteps
from contrapose.losses import Loss
from contrapose.losses.parse import parse

SAMPLES, WIDTH = 8, 5
LOSSES = ("clip", "siglip")


def network() -> TwoTowers:
    """Return towers with encoders of unequal widths, which meet in one space."""
    torch.manual_seed(3)
    sizes = {"images": 7, "text": 9}
    encoders = {name: Encoder(nn.Sequential(nn.Linear(WIDTH, n), nn.Tanh()), n) for name, n in sizes.items()}
    towers = {name: Tower(encoders[name], nn.Linear(n, 4, bias=False), 4) for name, n in sizes.items()}
    return TwoTowers(towers).double()


def batch() -> tuple[list[Tensor], Tensor]:
    """Return inputs (1, B, d) of each side, and the samples' numbers."""
    generator = torch.Generator().manual_seed(4)
    inputs = torch.randn(2, 1, SAMPLES, WIDTH, dtype=torch.float64, generator=generator)
    return list(inputs), torch.arange(SAMPLES)


def own_share(rank: int, world: int) -> tuple[list[Tensor], Tensor]:
    own = slice(rank * SAMPLES // world, (rank + 1) * SAMPLES // world)
    views, index = batch()
    return [view[:, own] for view in views], index[own]


def gradients(towers: nn.Module) -> dict[str, Tensor]:
    return {name.removeprefix("module."): p.grad.clone() for name, p in towers.named_parameters() if p.grad is not None}


def ours(name: str, rank: int, world: int) -> dict[str, Tensor]:
    """Return loss and gradients of the framework; those of the criterion are averaged as a training does it."""
    towers: Any = network()
    towers = DistributedDataParallel(towers) if world > 1 else towers
    criterion = Loss(parse(name)).double()
    loss = criterion(towers(*own_share(rank, world)))
    loss.backward()
    learned = {parameter: p.grad for parameter, p in criterion.named_parameters() if p.grad is not None}
    for gradient in learned.values():
        if world > 1:
            dist.all_reduce(gradient)
            gradient /= world
    return {"loss": loss.detach(), **gradients(towers), **learned}


def theirs(name: str) -> dict[str, Tensor]:
    """Return the same of open_clip's criterion on the whole batch, whose parameters are those of its CLIP."""
    from open_clip import loss as reference  # not by the other processes, which would wait seconds for it

    towers = network()
    images, texts = normalize(towers.embed(batch()[0]), dim=-1)
    start = {"clip": 1 / 0.07, "siglip": 10.0}[name]
    # Our parameter is the logarithm of the temperature, a float32 number at the start; open_clip's is that of its inverse.
    log_temperature = torch.tensor(-math.log(start)).double().requires_grad_()
    bias = torch.tensor(-10.0, dtype=torch.float64, requires_grad=True)
    options = (bias,) if name == "siglip" else ()
    criterion = {"clip": reference.ClipLoss, "siglip": reference.SigLipLoss}[name]()
    loss = criterion(images, texts, torch.exp(-log_temperature), *options)
    loss.backward()
    assert log_temperature.grad is not None
    learned = {"temperature.log_temperature": log_temperature.grad} | ({"bias.value": bias.grad} if options else {})
    return {"loss": loss.detach(), **gradients(towers), **learned}


@pytest.mark.parametrize("name", LOSSES)
def test_losses_and_gradients_equal_open_clips(name: str) -> None:
    expected = theirs(name)
    assert {"projector.images.weight", "projector.text.weight", "temperature.log_temperature"} < expected.keys()
    torch.testing.assert_close(ours(name, 0, 1), expected, rtol=1e-11, atol=1e-12)


def work(rank: int, world: int, out: str) -> None:
    records = {name: ours(name, rank, world) for name in LOSSES}
    if rank == 0:
        torch.save(records, out)


@pytest.mark.thorough
@pytest.mark.filterwarnings("default")
def test_two_processes_equal_open_clip_on_one(tmp_path: Path) -> None:
    run_in_process_group(work, 2, tmp_path / "records")
    records = torch.load(tmp_path / "records", weights_only=True)
    for name in LOSSES:
        torch.testing.assert_close(records[name], theirs(name), rtol=1e-11, atol=1e-12)


def test_cacr_is_its_form_for_clip() -> None:
    """Attraction of each pair, and the mean repulsion of both directions, with weights over the other samples."""
    towers, (views, index) = network(), batch()
    loss = Loss(parse("cacr(t_pos=1, t_neg=2)"))(towers(views, index))
    images, texts = (normalize(side, dim=-1).tolist() for side in towers.embed(views).detach())

    def cost(one: list[float], other: list[float]) -> float:
        return sum((a - b) ** 2 for a, b in zip(one, other, strict=True))

    attraction = sum(map(cost, images, texts)) / SAMPLES
    repulsion = 0.0
    for queries, keys in ((images, texts), (texts, images)):
        for i, query in enumerate(queries):
            costs = [cost(query, key) for j, key in enumerate(keys) if j != i]
            weights = [math.exp(-2 * c) for c in costs]
            repulsion -= sum(w * c for w, c in zip(weights, costs, strict=True)) / sum(weights) / (2 * SAMPLES)
    assert float(loss.detach()) == pytest.approx(attraction + repulsion, rel=1e-11)


@pytest.mark.parametrize(
    "loss",
    [
        "cacr",
        "cacr_rbf",
        "siglip",
        "dystress",
        "nt_xent(temperature=0.1, negatives=hardest(2))",
        "dcl",
        "isogclr",
        "fastclip",
    ],
)
def test_other_losses_train(loss: str, tmp_path: Path) -> None:
    trainer = trainer_of(run_of(write_folder(tmp_path / "data"), loss=loss, metrics=0, epochs=1), tmp_path / "run")
    before = {name: p.detach().clone() for name, p in trainer.context.network.named_parameters()}
    trainer.train()
    for name, parameter in trainer.context.network.named_parameters():
        assert bool(parameter.isfinite().all()), name
    for name in ("projector.images.weight", "projector.text.weight"):
        assert not torch.equal(before[name], trainer.context.network.get_parameter(name))


def test_samples_with_one_id_are_no_negatives() -> None:
    towers, (views, index) = network(), batch()
    ids = index.clone()
    ids[5] = 2
    loss = Loss(parse("nt_xent(temperature=0.5)"))(towers(views, ids))
    images, texts = normalize(towers.embed(views).detach(), dim=-1)
    total = 0.0
    for similarity in (images @ texts.T / 0.5, texts @ images.T / 0.5):
        for i in range(SAMPLES):
            row = [float(similarity[i, j]) for j in range(SAMPLES) if j == i or ids[j] != ids[i]]
            total += math.log(sum(map(math.exp, row))) - float(similarity[i, i])
    assert float(loss.detach()) == pytest.approx(total / (2 * SAMPLES), rel=1e-11)


@pytest.mark.parametrize(("frozen", "other"), [("images", "text"), ("text", "images")])
def test_a_frozen_tower_keeps_its_encoder(frozen: str, other: str, tmp_path: Path) -> None:
    run = run_of(write_folder(tmp_path / "data"), frozen_tower=frozen, weight_decay=0.1)
    trainer = trainer_of(run, tmp_path / "run")
    before = {name: value.clone() for name, value in trainer.context.network.state_dict().items()}
    if frozen == "images":
        assert any("running_mean" in name for name in before)
    trainer.train()
    changed = {
        name for name, value in trainer.context.network.state_dict().items() if not torch.equal(value, before[name])
    }
    assert not [name for name in changed if name.startswith(f"encoder.{frozen}.")]
    assert {f"projector.{frozen}.weight", f"projector.{other}.weight"} <= changed
    assert [name for name in changed if name.startswith(f"encoder.{other}.")]


def test_a_frozen_encoder_has_no_graph(tmp_path: Path) -> None:
    trainer = trainer_of(run_of(write_folder(tmp_path / "data"), frozen_tower="images"), tmp_path / "run")
    index, views = next(iter(EagerSteps(trainer.context).batches(0, 0)))
    towers = trainer.context.network
    towers.train()
    trainer.context.loss(views, index).backward()
    assert not towers.encoder["images"].training  # type: ignore[index]
    assert towers.encoder["text"].training  # type: ignore[index]
    assert all(p.grad is None for p in towers.encoder["images"].parameters())  # type: ignore[index]
    assert towers.projector["images"].weight.grad is not None  # type: ignore[index]
