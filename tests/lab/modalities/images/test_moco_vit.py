"""MoCo v3's ViT: positions, initial weights and what stays fixed, from its own definition; and how it is used here."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torchvision
from processes import run_in_process_group
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import contrapose
from contrapose.lab.evaluation.finetune import FineTune
from contrapose.lab.modalities.images import encoders
from contrapose.lab.modalities.images.encoders import Encoder, check_sizes, encoder
from contrapose.lab.modalities.images.moco_vit import MoCoVisionTransformer, position_embedding
from contrapose.lab.training import Run, Trainer, prepare
from contrapose.lab.training.weights import export

FIXED = ["conv_proj.weight", "conv_proj.bias", "encoder.pos_embedding"]


def fixed(network: nn.Module) -> set[str]:
    return {name for name, parameter in network.named_parameters() if not parameter.requires_grad}


def small_vit(size: int = 32) -> MoCoVisionTransformer:
    return MoCoVisionTransformer(size=size, width=32, heads=4, depth=2)


def make_small_vit(size: int = 32) -> Encoder:
    return Encoder(small_vit(size), 32)


@pytest.mark.parametrize(
    ("name", "width", "parameters"), [("vit-b16-moco", 768, 85_798_656), ("vit-s16-moco", 384, 21_665_664)]
)
def test_the_published_networks(name: str, width: int, parameters: int) -> None:
    with torch.device("meta"):
        built = encoder(name, 224)
        assert built(torch.zeros(2, 3, 224, 224)).shape == (2, width)
        assert built(torch.zeros(2, 3, 96, 96)).shape == (2, width)  # local crops
    assert sum(p.numel() for p in built.parameters()) == parameters
    assert fixed(built.network) == set(FIXED)
    attention = [m for m in built.modules() if isinstance(m, nn.MultiheadAttention)]
    assert [m.num_heads for m in attention] == [12] * 12
    assert {m.eps for m in built.modules() if isinstance(m, nn.LayerNorm)} == {1e-6}


@pytest.mark.thorough
def test_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        ValueError, match=r"vit-b16-moco takes images of a multiple of 16 pixels, got 100 \(--size 96\)"
    ):
        check_sizes("vit-b16-moco", [100])
    monkeypatch.setitem(encoders.NETWORKS, "vit-s16-moco", make_small_vit)
    check_sizes("vit-s16-moco", [224, 96])
    message = (
        r"vit-s16-moco takes images of 160 pixels, and not local crops of 69; .* another --size or another --encoder"
    )
    with pytest.raises(ValueError, match=message):
        check_sizes("vit-s16-moco", [160, 69])
    with pytest.raises(ValueError, match=r"a ViT takes images of a multiple of 16 pixels, got \(32, 40\)"):
        small_vit()(torch.zeros(1, 3, 32, 40))


@pytest.mark.parametrize(("side", "width"), [(3, 8), (14, 384)])
def test_positions_are_sines_and_cosines_of_row_and_column(side: int, width: int) -> None:
    positions = position_embedding(side, width)
    assert positions.shape == (1, 1 + side * side, width)
    assert float(positions[0, 0].abs().max()) == 0
    quarter = width // 4
    for patch in (0, 1, side, side * side - 1):
        row, column = divmod(patch, side)
        angles = [[place / 10_000 ** (k / quarter) for k in range(quarter)] for place in (row, column)]
        expected = [wave(x) for of_axis in angles for wave in (math.sin, math.cos) for x in of_axis]
        torch.testing.assert_close(positions[0, 1 + patch], torch.tensor(expected), rtol=1e-5, atol=1e-5)


def test_initial_weights() -> None:
    torch.manual_seed(0)
    network = MoCoVisionTransformer(size=32, width=96, heads=4, depth=1).requires_grad_(False)

    def is_uniform(weight: Tensor, fan_in: int, fan_out: int) -> bool:
        bound = math.sqrt(6 / (fan_in + fan_out))
        return 0.99 * bound < float(weight.abs().max()) <= bound

    assert is_uniform(network.conv_proj.weight, 3 * 16 * 16, 96)
    layer = network.encoder.layers[0]
    for part in layer.self_attention.in_proj_weight.chunk(3):
        assert is_uniform(part, 96, 96)
    assert is_uniform(layer.self_attention.out_proj.weight, 96, 96)
    assert is_uniform(layer.mlp[0].weight, 96, 4 * 96)
    biases = [p for name, p in network.named_parameters() if name.endswith("bias") and "ln" not in name]
    assert all(float(bias.abs().max()) == 0 for bias in biases)
    assert 0 < float(network.class_token.abs().max()) < 1e-5


def test_it_is_torchvisions_network_at_its_own_size() -> None:
    ours = small_vit().eval()
    theirs = torchvision.models.VisionTransformer(32, 16, num_layers=2, num_heads=4, hidden_dim=32, mlp_dim=128)
    theirs.heads = nn.Identity()
    theirs.load_state_dict(ours.state_dict())
    x = torch.randn(2, 3, 32, 32)
    torch.testing.assert_close(ours(x), theirs.eval()(x))


def test_what_is_fixed_gets_no_gradient() -> None:
    network = small_vit()
    (network(torch.randn(2, 3, 32, 32)) + network(torch.randn(2, 3, 48, 16))).square().sum().backward()
    assert {name for name, p in network.named_parameters() if p.grad is None} == set(FIXED)


def in_ranks(rank: int, world: int, out: str) -> None:
    torch.manual_seed(0)
    network = small_vit()
    x = torch.randn(4, 3, 32, 32)[2 * rank : 2 * rank + 2]
    parallel = DistributedDataParallel(network)  # a name keeps it until the backward pass
    (parallel(x) * torch.arange(32)).mean().backward()
    if rank == 0:
        torch.save([p.grad for p in network.parameters() if p.grad is not None], out)


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_distributed_data_parallel(tmp_path: Path) -> None:
    run_in_process_group(in_ranks, 2, tmp_path / "gradients")
    torch.manual_seed(0)
    network = small_vit()
    # Not a mean of squares, which the last layer norm keeps at 1.
    (network(torch.randn(4, 3, 32, 32)) * torch.arange(32)).mean().backward()
    expected = [p.grad for p in network.parameters() if p.grad is not None]
    torch.testing.assert_close(torch.load(tmp_path / "gradients", weights_only=True), expected, rtol=1e-4, atol=1e-6)


SETTINGS: dict[str, Any] = {
    "limit": 64, "batch": 32, "views": "digits", "encoder": "vit-s16-moco", "head": "simclr", "framework": "moco-v3",
    "loss": "moco_v3(temperature=0.2)", "lr": 1e-3, "metrics": 0, "knn": 5, "epochs": 1,
}  # fmt: skip


@pytest.mark.thorough
def test_a_run_with_fixed_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Training, resuming, loading, export, starting from a file and fine-tuning, with a smaller network of the same class."""
    monkeypatch.setitem(encoders.NETWORKS, "vit-s16-moco", make_small_vit)
    run = Run(**SETTINGS)

    def quiet(text: str) -> None:
        return

    trainer = Trainer(run, tmp_path / "run", log=quiet)
    start = {name: p.detach().clone() for name, p in trainer.model.encoder.network.named_parameters()}
    trainer.train()
    trainer = Trainer(replace(run, epochs=2), tmp_path / "run", extend=True, log=quiet)  # from its checkpoint
    trainer.train()
    network = contrapose.load(tmp_path / "run").encoder.network
    moved = {name for name, p in network.named_parameters() if not torch.equal(p, start[name])}
    assert moved == set(start) - set(FIXED)
    momentum_encoder = trainer.context.network.get_submodule("keys.0.network")
    for name, key in momentum_encoder.named_parameters():
        assert torch.equal(key, start[name]) == (name in FIXED), name

    export(contrapose.load(tmp_path / "run").encoder, tmp_path / "weights.safetensors")
    again = Trainer(replace(run, init=str(tmp_path / "weights.safetensors")), tmp_path / "again", log=quiet)
    for name, p in again.model.encoder.network.named_parameters():
        assert torch.equal(p, network.get_parameter(name))
    assert fixed(again.model.encoder.network) == set(FIXED)

    split = prepare(run)
    model = contrapose.load(tmp_path / "run")
    assert split.probe is not None
    assert split.test is not None
    FineTune(epochs=1, batch=32)(model.encoder, split.probe, split.test, views=model.views)
    assert fixed(model.encoder.network) == set(FIXED)  # a copy was trained
