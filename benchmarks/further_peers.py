"""Criteria of libraries that are not among the development requirements: install them yourself, `pip install --no-deps`.

Each function takes the temperature and returns a criterion. Losses that expect normalised embeddings get them.
"""

from __future__ import annotations

import importlib.util
import io
import math
from contextlib import redirect_stdout
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist
from peer import Peer
from torch import Tensor, nn
from torch.nn.functional import normalize

from contrapose.conformance.measure import Criterion

# All checks that need no ids
WITHOUT_IDS = ("formula", "distributed", "bf16", "fp16", "autocast", "temperature", "degenerate")


def make_info_nce(temperature: float) -> Criterion:
    """InfoNCE of info-nce-pytorch."""
    from info_nce import InfoNCE

    criterion: Criterion = InfoNCE(temperature)
    return criterion


def make_libauc(temperature: float, *, distributed: bool = False) -> Criterion:
    """The first step of LibAUC's GCLoss (SogCLR) for two views. Its value is no objective, so only its gradient is kept."""
    from libauc.losses.contrastive import GCLoss

    with redirect_stdout(io.StringIO()):  # it prints its schedule
        loss = GCLoss(mode="unimodal", N=1000, tau=temperature, distributed=distributed, device=torch.device("cpu"))

    def criterion(z1: Tensor, z2: Tensor) -> Tensor:
        start = dist.get_rank() * len(z1) if distributed else 0
        # Its statistics are float32, and float64 embeddings raise a RuntimeError.
        first, second = (z.float() if z.dtype == torch.float64 else z for z in (z1, z2))
        value: Tensor = loss(first, second, torch.arange(start, start + len(z1)))
        return value - value.detach()

    return criterion


def make_libauc_distributed(temperature: float) -> Criterion:
    """GCLoss on the embeddings of all processes."""
    return make_libauc(temperature, distributed=True)


def global_contrastive(z1: Tensor, z2: Tensor, temperature: float) -> Tensor:
    """The objective of SogCLR on one batch: τ log of the mean of exp(s/τ) over the negatives, minus the positive."""
    unit = normalize(torch.cat([z1, z2]), dim=1)
    m = len(z1)
    similarities = unit @ unit.T
    paired = torch.eye(m, dtype=torch.bool).repeat(2, 2)
    negatives = (similarities / temperature).masked_fill(paired, -torch.inf).logsumexp(1) - math.log(max(1, 2 * m - 2))
    positives = similarities[torch.arange(2 * m), torch.arange(2 * m).roll(m)]
    value = (temperature * negatives - positives).sum() / m
    return value - value.detach()


def make_stable_nt_xent(temperature: float) -> Criterion:
    """NTXEntLoss of stable-pretraining; it gathers by itself in an initialised process group."""
    from stable_pretraining.losses import NTXEntLoss

    criterion: Criterion = NTXEntLoss(temperature)
    return criterion


def make_stable_clip(temperature: float) -> Criterion:
    """CLIPLoss of stable-pretraining; it gathers by itself in an initialised process group."""
    from stable_pretraining.losses import CLIPLoss

    criterion: Criterion = CLIPLoss(temperature)
    return criterion


def make_torchmultimodal(temperature: float) -> Criterion:
    """ContrastiveLossWithTemperature of torchmultimodal, without its upper bound of 100; it gathers by itself."""
    from torchmultimodal.modules.losses.contrastive_loss_with_temperature import ContrastiveLossWithTemperature

    loss = ContrastiveLossWithTemperature(logit_scale=math.log(1 / temperature), logit_scale_max=math.log(1e9))

    def criterion(a: Tensor, b: Tensor) -> Tensor:
        value: Tensor = loss(normalize(a, dim=1), normalize(b, dim=1))
        return value

    return criterion


def make_transformers_clip(temperature: float) -> Criterion:
    """The loss of CLIPModel in transformers, on its logits."""
    from transformers.models.clip.modeling_clip import image_text_contrastive_loss

    def criterion(a: Tensor, b: Tensor) -> Tensor:
        value: Tensor = image_text_contrastive_loss(normalize(b, dim=1) @ normalize(a, dim=1).T / temperature)
        return value

    return criterion


def make_solo(temperature: float) -> Criterion:
    """simclr_loss_func of solo-learn."""
    return lambda z1, z2: _solo().simclr_loss_func(z1, z2, temperature)


@cache
def _solo() -> ModuleType:
    """Import the file of the loss alone: the package needs PyTorch Lightning 1."""
    package = importlib.util.find_spec("solo")
    assert package is not None
    assert package.origin is not None
    spec = importlib.util.spec_from_file_location("solo_simclr", Path(package.origin).parent / "losses/simclr.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def make_flag_embedding(temperature: float, *, cross_device: bool = False) -> Criterion:
    """The loss of FlagEmbedding's encoders, with in-batch negatives, on embeddings."""
    from FlagEmbedding.finetune.embedder.encoder_only.base.modeling import BiEncoderOnlyEmbedderModel

    class Given(BiEncoderOnlyEmbedderModel):  # type: ignore[misc]
        def encode(self, features: Tensor) -> Tensor:
            return normalize(features, dim=1)

    base: Any = nn.Identity()
    base.config = None
    model = Given(base, temperature=temperature, negatives_cross_device=cross_device).train()
    return lambda a, b: model(queries=a, passages=b).loss


def make_flag_embedding_distributed(temperature: float) -> Criterion:
    """The same with negatives_cross_device."""
    return make_flag_embedding(temperature, cross_device=True)


class _Tokens(nn.Module):
    """A late-interaction model whose texts have one token each, with the given embedding."""

    skiplist: tuple[int, ...] = ()
    do_query_expansion = True

    def forward(self, features: dict[str, Tensor]) -> dict[str, Tensor]:
        return {"token_embeddings": features["given"][:, None]}


def make_pylate(temperature: float, *, gather_across_devices: bool = False) -> Criterion:
    """Contrastive of pylate, with one token per text, so that the score is the cosine."""
    from pylate.losses import Contrastive

    loss = Contrastive(model=_Tokens(), temperature=temperature, gather_across_devices=gather_across_devices)

    def criterion(a: Tensor, b: Tensor) -> Tensor:
        ones = torch.ones(len(a), 1, dtype=torch.long)
        value: Tensor = loss([{"given": z, "input_ids": ones, "attention_mask": ones} for z in (a, b)])
        return value

    return criterion


def make_pylate_distributed(temperature: float) -> Criterion:
    """The same with the documents of all processes."""
    return make_pylate(temperature, gather_across_devices=True)


def make_tevatron(temperature: float) -> Criterion:
    """SimpleContrastiveLoss of tevatron, on scaled unit vectors."""
    from tevatron.loss import SimpleContrastiveLoss

    loss = SimpleContrastiveLoss()
    return lambda a, b: loss(normalize(a, dim=1) / temperature, normalize(b, dim=1))


def make_tevatron_distributed(temperature: float) -> Criterion:
    """DistributedContrastiveLoss of tevatron; its factor, the number of processes, is on by default."""
    from tevatron.loss import DistributedContrastiveLoss

    loss = DistributedContrastiveLoss(n_target=1)
    return lambda a, b: loss(normalize(a, dim=1) / temperature, normalize(b, dim=1))


def make_simclr(temperature: float) -> Criterion:
    """NT_Xent of simclr (Spijkervet)."""
    from simclr.modules.nt_xent import NT_Xent

    world_size = dist.get_world_size() if dist.is_initialized() else 1
    return lambda z1, z2: NT_Xent(len(z1), temperature, world_size)(z1, z2)


def make_monai(temperature: float) -> Criterion:
    """ContrastiveLoss of MONAI."""
    from monai.losses.contrastive import ContrastiveLoss

    criterion: Criterion = ContrastiveLoss(temperature)
    return criterion


def make_uniem(temperature: float) -> Criterion:
    """PairInBatchNegSoftmaxContrastLoss of uniem."""
    from uniem.criteria import PairInBatchNegSoftmaxContrastLoss

    criterion: Criterion = PairInBatchNegSoftmaxContrastLoss(temperature)
    return criterion


FURTHER = (
    Peer(name="info_nce", make=make_info_nce, reference="info_nce", module="info_nce", package="info-nce-pytorch"),
    Peer(
        name="libauc",
        make=make_libauc,
        distributed=make_libauc_distributed,
        reference=global_contrastive,
        checks=WITHOUT_IDS,
        module="libauc",
        package="libauc",
    ),
    Peer(
        name="stable-pretraining",
        make=make_stable_nt_xent,
        distributed=make_stable_nt_xent,
        reference="nt_xent",
        module="stable_pretraining",
        package="stable-pretraining",
    ),
    Peer(
        name="stable-pretraining-clip",
        make=make_stable_clip,
        distributed=make_stable_clip,
        reference="clip",
        module="stable_pretraining",
        package="stable-pretraining",
    ),
    Peer(
        name="torchmultimodal",
        make=make_torchmultimodal,
        distributed=make_torchmultimodal,
        reference="clip",
        module="torchmultimodal",
        package="torchmultimodal-nightly",
    ),
    Peer(
        name="transformers-clip",
        make=make_transformers_clip,
        reference="clip",
        module="transformers",
        package="transformers",
    ),
    Peer(name="solo-learn", make=make_solo, reference="nt_xent", module="solo", package="solo-learn"),
    Peer(
        name="flag-embedding",
        make=make_flag_embedding,
        distributed=make_flag_embedding_distributed,
        reference="info_nce",
        module="FlagEmbedding",
        package="FlagEmbedding",
    ),
    Peer(
        name="pylate",
        make=make_pylate,
        distributed=make_pylate_distributed,
        reference="info_nce",
        module="pylate",
        package="pylate",
    ),
    Peer(
        name="tevatron",
        make=make_tevatron,
        distributed=make_tevatron_distributed,
        reference="info_nce",
        module="tevatron",
        package="tevatron",
    ),
    Peer(
        name="simclr",
        make=make_simclr,
        distributed=make_simclr,
        reference="nt_xent",
        module="simclr",
        package="simclr",
    ),
    Peer(
        name="monai",
        make=make_monai,
        reference="nt_xent",
        promised=("formula", "temperature"),  # "can be scaled between 0 and 1"
        module="monai",
        package="monai",
    ),
    Peer(name="uniem", make=make_uniem, reference="info_nce", module="uniem", package="uniem"),
)
