"""Which image, and which of its views, a row of embeddings is."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor
from torch.utils._python_dispatch import is_in_torch_dispatch_mode

from contrapose.negatives import STORED
from contrapose.validate import check_index, check_values


def image_ids(ids: Tensor | None, m: int, device: torch.device, *, times: int = 1, alone: bool = False) -> Tensor:
    """Given ids, checked, or 0…m-1, `times` over. Unless an image may stand `alone`, there must be two different ones."""
    if ids is None:
        if m < 2 and not alone:
            raise ValueError("one image in the batch has no negatives: expected at least two images")
        # What is recorded has no values yet, and what is traced never has: only the rest can be kept.
        passing = torch.compiler.is_compiling() or is_in_torch_dispatch_mode()
        passing = passing or (device.type == "cuda" and torch.cuda.is_current_stream_capturing())
        return _sequence(m, times, device) if passing else _kept_sequence(m, times, device)
    check_index("ids", ids, m)
    ids = ids.to(device).long()
    if not alone:
        different = (ids != ids[0]).any()
        check_values(different, lambda: f"ids: all {m} images have the id {int(ids[0])}, so there are no negatives")
    return ids.repeat(times) if times > 1 else ids


def _sequence(m: int, times: int, device: torch.device) -> Tensor:
    return torch.arange(m, device=device, dtype=torch.int32).repeat(times)  # of 32 bits: kernels compare them faster


@lru_cache(maxsize=16)
def _kept_sequence(m: int, times: int, device: torch.device) -> Tensor:
    with torch.inference_mode(False):
        made = _sequence(m, times, device)
    if made.is_cuda:  # whichever stream reads it
        torch.cuda.current_stream(device).synchronize()
    return made


def in_order(
    views: int, images: int, device: torch.device, *, stored: int = 0, batch: bool = True
) -> tuple[Tensor, Tensor]:
    """The views of anchors, view after view, and of a pool of stored rows and, with `batch`, the same again."""
    anchors = torch.arange(views, device=device).repeat_interleave(images)
    rows = anchors.new_full((stored,), STORED)
    return anchors, torch.cat([rows, anchors]) if batch else rows


def opposite(images: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Anchors in one view, the pool in another."""
    anchors = torch.zeros(images, dtype=torch.long, device=device)
    return anchors, anchors + 1
