"""The criteria that conformance.py checks: ours, plain PyTorch, and those in installed libraries.

Each function takes the temperature and returns a criterion. Libraries are imported when they are used.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from further_peers import FURTHER
from peer import Peer
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize

from contrapose.conformance.checks import CHECKS
from contrapose.conformance.measure import Criterion
from contrapose.conformance.references import SIGLIP_BIAS
from contrapose.distributed import gather
from contrapose.losses import Loss
from contrapose.losses import clip as our_clip
from contrapose.losses import nt_xent as our_nt_xent
from contrapose.pairs import around_ring, cross, two_views


def make_ours(temperature: float) -> Criterion:
    """NT-Xent of contrapose."""
    return Loss(our_nt_xent, temperature=temperature)


def make_ours_distributed(temperature: float) -> Criterion:
    """NT-Xent of contrapose, on the embeddings of all processes."""

    def criterion(z1: Tensor, z2: Tensor, ids: Tensor) -> Tensor:
        pairs = two_views(gather(z1), gather(z2), ids=gather(ids))
        return our_nt_xent(pairs.sharded(), temperature=temperature)

    return criterion


def make_ours_in_ring(temperature: float) -> Criterion:
    """NT-Xent of contrapose, with candidates that travel around a ring."""

    def criterion(z1: Tensor, z2: Tensor, ids: Tensor) -> Tensor:
        return our_nt_xent(around_ring(two_views(z1, z2, ids=ids)), temperature=temperature)

    return criterion


def make_our_clip(temperature: float) -> Criterion:
    """CLIP's loss in contrapose, in both directions."""

    def criterion(a: Tensor, b: Tensor, ids: Tensor | None = None) -> Tensor:
        return our_clip(cross(a, b, symmetric=True, ids=ids).sharded(), temperature=temperature)

    return criterion


def make_our_clip_distributed(temperature: float) -> Criterion:
    """CLIP's loss of contrapose, on the embeddings of all processes."""
    clip = make_our_clip(temperature)

    def criterion(a: Tensor, b: Tensor, ids: Tensor) -> Tensor:
        return clip(gather(a), gather(b), ids=gather(ids))

    return criterion


def make_our_clip_in_ring(temperature: float) -> Criterion:
    """CLIP's loss of contrapose, with candidates that travel around a ring."""

    def criterion(a: Tensor, b: Tensor, ids: Tensor) -> Tensor:
        return our_clip(around_ring(cross(a, b, symmetric=True, ids=ids)), temperature=temperature)

    return criterion


def make_dense(temperature: float) -> Criterion:
    """NT-Xent as a cross-entropy of the whole matrix."""

    def criterion(z1: Tensor, z2: Tensor) -> Tensor:
        z = normalize(torch.cat([z1, z2]), dim=1)
        itself = torch.eye(len(z), dtype=torch.bool)
        logits = (z @ z.T / temperature).masked_fill(itself, -torch.inf)
        return cross_entropy(logits, torch.arange(len(z)).roll(len(z1)))

    return criterion


def make_exponentials(temperature: float) -> Criterion:
    """NT-Xent as in the paper: a quotient of sums of exponentials, as solo-learn and many repositories compute it."""

    def criterion(z1: Tensor, z2: Tensor) -> Tensor:
        z = normalize(torch.cat([z1, z2]), dim=1)
        others = 1 - torch.eye(len(z), dtype=z.dtype)
        exponentials = torch.exp(z @ z.T / temperature)
        positive = exponentials[torch.arange(len(z)), torch.arange(len(z)).roll(len(z1))]
        return -torch.log(positive / (exponentials * others).sum(1)).mean()

    return criterion


def make_lightly(temperature: float, *, gather_distributed: bool = False) -> Criterion:
    """NTXentLoss of lightly."""
    from lightly.loss import NTXentLoss

    criterion: Criterion = NTXentLoss(temperature=temperature, gather_distributed=gather_distributed)
    return criterion


def make_lightly_distributed(temperature: float) -> Criterion:
    """NTXentLoss of lightly, on the embeddings of all processes."""
    return make_lightly(temperature, gather_distributed=True)


def make_metric_learning(temperature: float) -> Criterion:
    """NTXentLoss of pytorch-metric-learning, with ids as labels."""
    from pytorch_metric_learning.losses import NTXentLoss

    return _with_labels(NTXentLoss(temperature=temperature))


def make_metric_learning_distributed(temperature: float) -> Criterion:
    """NTXentLoss of pytorch-metric-learning, on the embeddings of all processes."""
    from pytorch_metric_learning.losses import NTXentLoss
    from pytorch_metric_learning.utils.distributed import DistributedLossWrapper

    return _with_labels(DistributedLossWrapper(NTXentLoss(temperature=temperature)))


def _with_labels(loss: Any) -> Criterion:
    def criterion(z1: Tensor, z2: Tensor, ids: Tensor | None = None) -> Tensor:
        labels = torch.arange(len(z1)) if ids is None else ids
        value: Tensor = loss(torch.cat([z1, z2]), torch.cat([labels, labels]))
        return value

    return criterion


def make_self_supervised(temperature: float) -> Criterion:
    """SelfSupervisedLoss of pytorch-metric-learning."""
    from pytorch_metric_learning.losses import NTXentLoss, SelfSupervisedLoss

    criterion: Criterion = SelfSupervisedLoss(NTXentLoss(temperature=temperature))
    return criterion


def make_open_clip(temperature: float, **options: Any) -> Criterion:
    """ClipLoss of open_clip, on features that are normalised as its models do."""
    from open_clip.loss import ClipLoss

    loss = ClipLoss(**options)

    def criterion(a: Tensor, b: Tensor) -> Tensor:
        value: Tensor = loss(normalize(a, dim=-1), normalize(b, dim=-1), 1 / temperature)
        return value

    return criterion


def make_open_clip_default(temperature: float) -> Criterion:
    """ClipLoss in several processes with neither option: only own rows have a gradient."""
    return make_open_clip(temperature, **_ranks())


def make_open_clip_local(temperature: float) -> Criterion:
    """ClipLoss with only local_loss: rows from other processes have no gradient."""
    return make_open_clip(temperature, local_loss=True, **_ranks())


def make_open_clip_distributed(temperature: float) -> Criterion:
    """ClipLoss with the two options that its README recommends for many GPUs."""
    return make_open_clip(temperature, local_loss=True, gather_with_grad=True, **_ranks())


def make_siglip(temperature: float, **options: Any) -> Criterion:
    """SigLipLoss of open_clip, on features that are normalised as its models do."""
    from open_clip.loss import SigLipLoss

    loss = SigLipLoss(**options)

    def criterion(a: Tensor, b: Tensor) -> Tensor:
        value: Tensor = loss(normalize(a, dim=-1), normalize(b, dim=-1), 1 / temperature, SIGLIP_BIAS)
        return value

    return criterion


def make_siglip_distributed(temperature: float) -> Criterion:
    """SigLipLoss, with the embeddings of other processes passed around."""
    return make_siglip(temperature, **_ranks())


def _ranks() -> dict[str, int]:
    return {"rank": dist.get_rank(), "world_size": dist.get_world_size()}


def make_ranking(temperature: float, *, gather_across_devices: bool = False) -> Criterion:
    """MultipleNegativesRankingLoss of sentence-transformers, on embeddings."""
    from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss

    model: Any = nn.Identity()  # its embeddings are given
    loss = MultipleNegativesRankingLoss(model, scale=1 / temperature, gather_across_devices=gather_across_devices)

    def criterion(a: Tensor, b: Tensor) -> Tensor:
        value: Tensor = loss.compute_loss_from_embeddings([a, b], torch.empty(0))
        return value

    return criterion


def make_ranking_distributed(temperature: float) -> Criterion:
    """MultipleNegativesRankingLoss, on the embeddings of all processes."""
    return make_ranking(temperature, gather_across_devices=True)


_OPEN_CLIP: dict[str, Any] = {"module": "open_clip.loss", "package": "open_clip_torch"}
_PRECISIONS = ("formula", "distributed", "bf16", "fp16", "autocast")  # its option --precision
_METRIC_LEARNING: dict[str, Any] = {
    "module": "pytorch_metric_learning.utils.distributed",
    "package": "pytorch-metric-learning",
}
_OURS: dict[str, Any] = {"module": "contrapose", "package": "contrapose", "promised": tuple(CHECKS), "ours": True}
_ROWS = (
    Peer(
        name="contrapose",
        make=make_ours,
        distributed=make_ours_distributed,
        reference="nt_xent",
        **_OURS,
    ),
    Peer(
        name="contrapose-ring",
        make=make_ours,
        distributed=make_ours_in_ring,
        reference="nt_xent",
        checks=("distributed",),
        **_OURS,
    ),
    Peer(
        name="contrapose-clip",
        make=make_our_clip,
        distributed=make_our_clip_distributed,
        reference="clip",
        **_OURS,
    ),
    Peer(
        name="contrapose-clip-ring",
        make=make_our_clip,
        distributed=make_our_clip_in_ring,
        reference="clip",
        checks=("distributed",),
        **_OURS,
    ),
    Peer(name="pytorch", make=make_dense, reference="nt_xent", promised=tuple(CHECKS)),
    Peer(name="pytorch-exp", make=make_exponentials, reference="nt_xent", promised=tuple(CHECKS)),
    Peer(
        name="lightly",
        make=make_lightly,
        distributed=make_lightly_distributed,
        reference="nt_xent",
        module="lightly.loss",
        package="lightly",
    ),
    Peer(
        name="pml",
        make=make_metric_learning,
        distributed=make_metric_learning_distributed,
        reference="nt_xent",
        **_METRIC_LEARNING,
    ),
    Peer(name="pml-self-supervised", make=make_self_supervised, reference="nt_xent", **_METRIC_LEARNING),
    Peer(
        name="open_clip",
        make=make_open_clip,
        distributed=make_open_clip_distributed,
        reference="clip",
        promised=_PRECISIONS,
        **_OPEN_CLIP,
    ),
    Peer(
        name="open_clip-default",
        make=make_open_clip,
        distributed=make_open_clip_default,
        reference="clip",
        checks=("distributed",),
        **_OPEN_CLIP,
    ),
    Peer(
        name="open_clip-local-loss",
        make=make_open_clip,
        distributed=make_open_clip_local,
        reference="clip",
        checks=("distributed",),
        **_OPEN_CLIP,
    ),
    Peer(
        name="open_clip-siglip",
        make=make_siglip,
        distributed=make_siglip_distributed,
        reference="siglip",
        **_OPEN_CLIP,
    ),
    Peer(
        name="sentence-transformers",
        make=make_ranking,
        distributed=make_ranking_distributed,
        reference="info_nce",
        promised=("formula", "distributed", "autocast"),  # the training argument bf16
        module="sentence_transformers",
        package="sentence-transformers",
    ),
)
PEERS: dict[str, Peer] = {peer.name: peer for peer in (*_ROWS, *FURTHER)}
