"""The sample id and the view of each row of embeddings."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor
from torch.utils._python_dispatch import is_in_torch_dispatch_mode

from contrapose.pairs.negatives import STORED
from contrapose.validate import check_index, check_values

ONE_IMAGE = "one image in the batch has no negatives: expected at least two images"


def sample_ids(
    ids: Tensor | None, m: int, device: torch.device, *, times: int = 1, allow_single: bool = False
) -> Tensor:
    """Return the checked ids, by default 0…m-1, repeated `times` times; two different ids are required unless `allow_single`."""
    if ids is None:
        if m < 2 and not allow_single:
            raise ValueError(ONE_IMAGE)
        # A tensor created during graph capture has no values yet, and a traced tensor never has any: neither may be cached.
        uncached = torch.compiler.is_compiling() or is_in_torch_dispatch_mode()
        uncached = uncached or (device.type == "cuda" and torch.cuda.is_current_stream_capturing())
        return _sequence(m, times, device) if uncached else _cached_sequence(m, times, device)
    check_index("ids", ids, m)
    ids = ids.to(device).long()
    if not allow_single:
        different = (ids != ids[0]).any()
        check_values(different, lambda: f"ids: all {m} images have the id {int(ids[0])}, so there are no negatives")
    return ids.repeat(times) if times > 1 else ids


def stored_ids(count: int, sample: Tensor) -> Tensor:
    """Return an id that no sample has, repeated `count` times, for rows that are negatives of every anchor."""
    return sample.new_full((count,), torch.iinfo(sample.dtype).min)


def _sequence(m: int, times: int, device: torch.device) -> Tensor:
    return torch.arange(m, device=device, dtype=torch.int32).repeat(times)  # kernels compare 32-bit ids faster


@lru_cache(maxsize=16)
def _cached_sequence(m: int, times: int, device: torch.device) -> Tensor:
    with torch.inference_mode(False):
        ids = _sequence(m, times, device)
    if ids.is_cuda:  # any stream may read it from now on
        torch.cuda.current_stream(device).synchronize()
    return ids


def views_in_order(
    views: int, samples: int, device: torch.device, *, stored: int = 0, pool_views: int | None = None
) -> tuple[Tensor, Tensor]:
    """Return the view of each anchor, ordered view by view, and the view of each pool row.

    The pool consists of stored rows and the samples' first `pool_views` views; default: all views.
    """
    anchors = torch.arange(views, device=device).repeat_interleave(samples)
    in_batch = anchors if pool_views is None else anchors[: pool_views * samples]
    return anchors, torch.cat([anchors.new_full((stored,), STORED), in_batch])


def opposite_views(samples: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return views for anchors that are all in view 0 and a pool that is all in view 1."""
    return views_by_count([(0, samples)], [(1, samples)], device)


def views_by_count(
    anchors: list[tuple[int, int]], pool: list[tuple[int, int]], device: torch.device
) -> tuple[Tensor, Tensor]:
    """Return the views of anchors and of pool rows, each written as (view, number of rows) in order."""
    of_anchors, of_pool = (
        torch.cat([torch.full((count,), view, device=device) for view, count in runs]) for runs in (anchors, pool)
    )
    return of_anchors, of_pool
