"""Show each wrong cell of the conformance table without contrapose: a library's loss against float64 autograd.

python benchmarks/verify_conformance.py simclr          # or open_clip-local-loss, flag-embedding, pylate, monai, …
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.multiprocessing.spawn import spawn
from torch.nn.functional import cross_entropy, normalize

TEMPERATURE, WORLD_SIZE, ROWS = 0.5, 2, 4
Loss = Callable[[Tensor, Tensor], Tensor]


def nt_xent(z1: Tensor, z2: Tensor, temperature: float = TEMPERATURE) -> Tensor:
    z = normalize(torch.cat([z1, z2]), dim=1)
    logits = (z @ z.T / temperature).masked_fill(torch.eye(len(z), dtype=torch.bool), -torch.inf)
    return cross_entropy(logits, torch.arange(len(z)).roll(len(z1)))


def info_nce(a: Tensor, b: Tensor, temperature: float = TEMPERATURE) -> Tensor:
    return cross_entropy(normalize(a, dim=1) @ normalize(b, dim=1).T / temperature, torch.arange(len(a)))


def clip(a: Tensor, b: Tensor, temperature: float = TEMPERATURE) -> Tensor:
    return (info_nce(a, b, temperature) + info_nce(b, a, temperature)) / 2


# In two processes


def simclr(z1: Tensor, z2: Tensor) -> Tensor:
    from simclr.modules.nt_xent import NT_Xent

    value: Tensor = NT_Xent(len(z1), TEMPERATURE, WORLD_SIZE)(z1, z2)
    return value


def open_clip_default(a: Tensor, b: Tensor, **options: bool) -> Tensor:
    from open_clip.loss import ClipLoss

    loss = ClipLoss(rank=dist.get_rank(), world_size=WORLD_SIZE, **options)
    value: Tensor = loss(normalize(a, dim=1), normalize(b, dim=1), 1 / TEMPERATURE)
    return value


def open_clip_local(a: Tensor, b: Tensor) -> Tensor:
    return open_clip_default(a, b, local_loss=True)


def flag_embedding(a: Tensor, b: Tensor) -> Tensor:
    from FlagEmbedding.finetune.embedder.encoder_only.base.modeling import BiEncoderOnlyEmbedderModel

    class Given(BiEncoderOnlyEmbedderModel):  # type: ignore[misc]
        def encode(self, features: Tensor) -> Tensor:
            return normalize(features, dim=1)

    base: Any = nn.Identity()
    base.config = None
    value: Tensor = Given(base, temperature=TEMPERATURE, negatives_cross_device=True).train()(a, b).loss
    return value


def pylate(a: Tensor, b: Tensor) -> Tensor:
    from pylate.losses import Contrastive

    class OneToken(nn.Module):
        skiplist, do_query_expansion = (), True

        def forward(self, features: dict[str, Tensor]) -> dict[str, Tensor]:
            return {"token_embeddings": features["given"][:, None]}

    ones = torch.ones(len(a), 1, dtype=torch.long)
    loss = Contrastive(OneToken(), temperature=TEMPERATURE, gather_across_devices=True)
    value: Tensor = loss([{"given": z, "input_ids": ones, "attention_mask": ones} for z in (a, b)])
    return value


DISTRIBUTED: dict[str, tuple[Loss, Loss]] = {
    "simclr": (simclr, nt_xent),
    "open_clip-default": (open_clip_default, clip),
    "open_clip-local-loss": (open_clip_local, clip),
    "flag-embedding": (flag_embedding, info_nce),
    "pylate": (pylate, info_nce),
}


def compare_in_two_processes(rank: int, name: str, store: str) -> None:
    """Print how the gradient of a linear encoder, averaged over processes, differs from that of the whole batch."""
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=WORLD_SIZE)
    loss, exact = DISTRIBUTED[name]
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, WORLD_SIZE * ROWS, 6, dtype=torch.float64, generator=generator)
    weight = torch.randn(6, 4, dtype=torch.float64, generator=generator).requires_grad_()
    (expected,) = torch.autograd.grad(exact(*(x @ weight)), weight)
    own = x[:, rank * ROWS : (rank + 1) * ROWS]
    (gradient,) = torch.autograd.grad(loss(*(own @ weight)), weight)
    dist.all_reduce(gradient)
    gradient /= WORLD_SIZE
    if rank == 0:
        cosine = float((gradient * expected).sum() / gradient.norm() / expected.norm())
        print(
            f"{name}: length of the gradient {float(gradient.norm() / expected.norm()):.3f} × exact, cosine {cosine:.3f}"
        )


# In one process


def similar_views(noise: float) -> tuple[Tensor, Tensor]:
    a, difference = torch.randn(2, 16, 32, generator=torch.Generator().manual_seed(0))
    return a, a + noise * difference


def monai() -> tuple[float, float]:
    from monai.losses.contrastive import ContrastiveLoss

    z1, z2 = similar_views(10.0)
    return float(ContrastiveLoss(temperature=0.01)(z1, z2)), float(nt_xent(z1.double(), z2.double(), 0.01))


def sentence_transformers_autocast() -> tuple[float, float]:
    from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss

    model: Any = nn.Identity()
    loss, (a, b) = MultipleNegativesRankingLoss(model, scale=10.0), similar_views(0.1)
    with torch.autocast("cpu", torch.bfloat16):
        low = loss.compute_loss_from_embeddings([a, b], torch.empty(0))
    return float(low), float(info_nce(a.double(), b.double(), 0.1))


def open_clip_bf16() -> tuple[float, float]:
    from open_clip.loss import ClipLoss

    a, b = (normalize(z, dim=1).bfloat16() for z in similar_views(0.1))
    exact = ClipLoss()(a.double(), b.double(), 10.0)
    return float(ClipLoss()(a, b, 10.0)), float(exact)


VALUES: dict[str, Callable[[], tuple[float, float]]] = {
    "monai": monai,
    "sentence-transformers": sentence_transformers_autocast,
    "open_clip": open_clip_bf16,
}


def main() -> None:
    for name in sys.argv[1:] or [*DISTRIBUTED, *VALUES]:
        if name in VALUES:
            theirs, exact = VALUES[name]()
            print(f"{name}: loss {theirs:.6f}, exact {exact:.6f}")
        else:
            with tempfile.TemporaryDirectory() as folder:
                spawn(compare_in_two_processes, args=(name, f"{folder}/store"), nprocs=WORLD_SIZE)


if __name__ == "__main__":
    main()
