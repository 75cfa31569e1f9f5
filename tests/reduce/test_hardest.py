"""`hardest(k)` counts exactly k negatives on every path, however near they are to each other.

Kernels in Triton's interpreter are tested in test_tiled.py; here are plain torch and, on a machine with one, a GPU.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from contrapose.pairs import hardest, queue
from contrapose.reduce import LogSumExp, Scale, chosen_engines

K, STEEP = 16, 50.0
on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def stored_rows(kind: str, anchors: Tensor, generator: torch.Generator) -> Tensor:
    """Return 3,000 rows of which many are nearly as similar to an anchor as its k-th hardest."""
    d = anchors.shape[1]
    if kind == "near ties":  # of the first anchor: about as wide as the band of similarities that count as ties
        return anchors[:1] + 4e-7 * torch.randn(3000, d, generator=generator)
    if kind == "sorted classes":
        centres = torch.randn(60, 1, d, generator=generator)
        return (centres + 1e-3 * torch.randn(60, 50, d, generator=generator)).flatten(0, 1)
    return torch.randn(100, d, generator=generator).repeat_interleave(30, 0)  # duplicates


@pytest.mark.parametrize("kind", ["near ties", "sorted classes", "duplicates"])
@pytest.mark.parametrize(
    ("device", "d", "dtype"),
    [
        ("cpu", 128, torch.float32),
        *(
            pytest.param("cuda", d, dtype, marks=on_gpu)
            for d in (32, 128, 256, 384, 768, 1536)
            for dtype in (torch.float32, torch.bfloat16)
        ),
    ],
    ids=str,
)
def test_exactly_k_negatives_count(device: str, d: int, dtype: torch.dtype, kind: str) -> None:
    generator = torch.Generator().manual_seed(d)
    anchors = torch.nn.functional.normalize(torch.randn(400, d, generator=generator), dim=1)
    rows = stored_rows(kind, anchors, generator).to(device, dtype)
    anchors = anchors.to(device, dtype)
    pairs = queue(anchors, anchors.clone(), rows)
    with chosen_engines() as chosen:
        # With an exponent of nearly 0, Σ e^φ is how many negatives count.
        (flat,) = pairs.reduce(LogSumExp(Scale(1e-6)), negatives=hardest(K))
        (steep,) = pairs.reduce(LogSumExp(Scale(STEEP)), negatives=hardest(K))
    expected_engine = "blocks" if device == "cpu" else "fused" if d <= 256 else "tiled"
    assert {choice.name for choice in chosen} == {expected_engine}
    torch.testing.assert_close(flat.exp(), torch.full_like(flat, K), rtol=0, atol=1e-4)
    rounded = (pairs.anchor, pairs.pool) if dtype == torch.float32 else (pairs.anchor.bfloat16(), pairs.pool.bfloat16())
    s = rounded[0].double() @ rounded[1].double().T
    expected = (STEEP * s.topk(K).values).logsumexp(1)
    # Ties share their weight: a similarity is off by the width of their band at most, 2e-6, and by rounding.
    torch.testing.assert_close(steep.double(), expected, rtol=0, atol=STEEP * 5e-6)
