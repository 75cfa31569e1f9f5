"""Make `Pairs` from embeddings: from the batch itself, with a queue or with a memory bank."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from contrapose.pairs.ids import sample_ids, stored_ids, views_by_count, views_in_order
from contrapose.pairs.negatives import STORED
from contrapose.pairs.pairs import Pairs
from contrapose.pairs.positives import keys_of_others, other_views_of
from contrapose.pairs.similarity import comparable_rows
from contrapose.reduce import KernelInputs
from contrapose.reduce.hardware import is_half
from contrapose.reduce.unit import matmul, unit_views, units
from contrapose.validate import check_embeddings, check_index, check_same_shape, check_values, check_width


def two_views(z1: Tensor, z2: Tensor, *, similarity: str = "cosine", ids: Tensor | None = None) -> Pairs:
    """Compare two views of m samples, (m, d) each: every row is an anchor, with one positive and 2m - 2 negatives.

    `similarity` is "cosine" or, for embeddings that are not normalised, "dot" (z · z') or "neg_euclid" (-‖z - z'‖²; Lee, Table
    1). "dot" and "neg_euclid" are unbounded: GPU kernels do not support them, and losses that assume unit vectors reject them.

    z1, z2       embeddings (m, d) of two views; row i of both is the same sample
    similarity   "cosine", "dot" or "neg_euclid"
    ids          data-set index of each sample, (m,): rows with the same id are never negatives of each other

    >>> z1, z2 = torch.eye(3), torch.eye(3)
    >>> two_views(z1, z2).positives().flatten()
    tensor([1., 1., 1., 1., 1., 1.])
    """
    check_embeddings("z1", z1, 2)
    check_embeddings("z2", z2, 2)
    check_same_shape("z2", z2, "z1", z1)
    if similarity != "cosine":
        return within_raw_views(torch.stack([z1, z2]), similarity=similarity, ids=ids)
    return within_views(z1, z2, ids=ids)


def views(
    z: Tensor | list[Tensor] | tuple[Tensor, ...],
    *,
    keys: Tensor | list[Tensor] | tuple[Tensor, ...] | None = None,
    similarity: str = "cosine",
    ids: Tensor | None = None,
) -> Pairs:
    """Compare V views of m samples, (V, m, d) or V times (m, d): every row is an anchor with V - 1 positives.

    A single view, `views([z])`, has no positives of its own: only losses that take labels accept it, such as `supcon`.

    With `keys` (V, m, d) from a momentum encoder, positives and pool are the keys, without gradient (MoCo v3 with
    `negatives=other_views()`). With multi-crop, the first two views are global crops, the others are local crops, and `keys`
    (2, m, d) belong to the global crops: a global crop's positive is the key of the other global crop, and a local crop's
    positives are both keys. `similarity` has the same meaning as in `two_views`.

    z            embeddings (V, m, d), or a list of V tensors (m, d)
    keys         embeddings from a momentum encoder, (V, m, d), or (2, m, d) for two global crops; or a list of tensors (m, d)
    similarity   "cosine", "dot" or "neg_euclid"
    ids          data-set index of each sample, (m,): rows with the same id are never negatives of each other

    >>> views(torch.randn(3, 4, 8)).shape  # three views of 4 samples: 12 anchors, 12 candidates
    (12, 12)
    """
    z = torch.stack(list(z)) if isinstance(z, list | tuple) else z
    check_embeddings("z", z, 3)
    if keys is None:
        if similarity != "cosine":
            return within_raw_views(z, similarity=similarity, ids=ids)
        return within_views(z, ids=ids)
    keys = torch.stack(list(keys)) if isinstance(keys, list | tuple) else keys
    check_embeddings("keys", keys, 3)
    if len(z) < 2:
        raise ValueError(f"z: expected at least two views of each image, got shape {tuple(z.shape)}")
    _check_keys("keys", keys, "z", z)
    half, (count, m, _) = is_half(z) and similarity == "cosine", z.shape
    # Losses that only pull need no negatives; the other ones refuse a single image themselves.
    sample = sample_ids(ids, m, z.device, times=count, allow_single=m == 1)
    z, keys = comparable_rows(similarity, z, keys.detach())
    return Pairs(
        ids_are_positions=ids is None,
        anchor=z.flatten(0, 1),
        positive_rows=keys_of_others(keys, count),
        pool=keys.flatten(0, 1),
        anchor_id=sample,
        pool_id=sample[: len(keys) * m],
        view_ids=partial(views_in_order, count, m, z.device, pool_views=len(keys)),
        view_count=count,
        global_views=_global_views(keys, count),
        detached=True,
        kernel_inputs=KernelInputs(half),
        similarity=similarity,
    )


def within_views(*embeddings: Tensor, ids: Tensor | None) -> Pairs:
    """Compare views, given as separate tensors or as one: each row is an anchor, and all rows are the pool."""
    # Checked before normalisation, which returns float32.
    half, device = is_half(*embeddings), embeddings[0].device
    # Normalisation also computes the positives, so the backward pass computes one gradient of the embeddings instead of two.
    anchor, similarity, bf16 = unit_views(*embeddings)
    count, m = (len(embeddings), len(embeddings[0])) if len(embeddings) > 1 else embeddings[0].shape[:2]
    sample = sample_ids(ids, m, device, times=count)
    return Pairs(
        ids_are_positions=ids is None,
        anchor=anchor,
        positive_similarity=similarity,
        pool=anchor,
        anchor_id=sample,
        pool_id=sample,
        view_ids=partial(views_in_order, count, m, device),
        view_count=count,
        kernel_inputs=KernelInputs(half, bf16, m if ids is None else 1),
    )


def within_raw_views(z: Tensor, *, similarity: str, ids: Tensor | None) -> Pairs:
    """Compare views (V, m, d) that are not normalised: each row is an anchor, and all rows are the pool."""
    (count, m, _), device = z.shape, z.device
    sample = sample_ids(ids, m, device, times=count)
    anchor, pool = comparable_rows(similarity, z, z)
    rows = anchor.flatten(0, 1)
    return Pairs(
        ids_are_positions=ids is None,
        anchor=rows,
        positive_rows=other_views_of(pool),
        pool=rows if pool is anchor else pool.flatten(0, 1),
        anchor_id=sample,
        pool_id=sample,
        view_ids=partial(views_in_order, count, m, device),
        view_count=count,
        similarity=similarity,
    )


def queue(
    q: Tensor, k: Tensor, rows: Tensor, *, batch: bool = False, keys: bool = False, ids: Tensor | None = None
) -> Pairs:
    """Compare queries with their keys, with stored rows as negatives. Keys and rows carry no gradient (MoCo).

    Queries q (m, d) have keys k (m, d), or k (K, m, d) for K positives each. With q (V, m, d) and k (V, m, d), every view
    is a query and the keys of the other views are its positives; k (2, m, d) are the keys of two global crops, as in
    `views`. With `batch`, other queries from all views are negatives too (`negatives=same_view()` keeps only those in the
    query's own view, as CACR's MoCo form does). With `keys`, the keys of other samples are negatives too (FNC).

    q       queries (m, d) or (V, m, d)
    k       the queries' keys (m, d), (K, m, d) or (V, m, d), or (2, m, d) for two global crops
    rows    stored rows (r, d)
    batch   whether other queries are negatives too
    keys    whether the keys of other samples are negatives too
    ids     data-set index of each sample, (m,): rows with the same id are never negatives of each other

    >>> queue(torch.randn(4, 8), torch.randn(4, 8), torch.randn(10, 8)).shape  # 4 queries, 10 stored rows
    (4, 10)
    """
    check_embeddings("q", q, 2, 3)
    check_embeddings("k", k, 2, 3)
    check_embeddings("rows", rows, 2)
    if q.ndim == 3 and len(q) < 2:
        raise ValueError(f"q: expected (m, d), or at least two views (V, m, d), got shape {tuple(q.shape)}")
    if q.ndim == 3:
        _check_keys("k", k, "q", q)
    elif k.ndim == 2:
        check_same_shape("k", k, "q", q)
    elif k.shape[1:] != q.shape:
        raise ValueError(f"k: expected (K, m, d) = (K, {q.shape[0]}, {q.shape[1]}), got {tuple(k.shape)}")
    check_width("rows", rows, q)
    half = is_half(q)
    q, k, rows = units(q, k.detach(), rows.detach())
    q, k = (q, k) if q.ndim == 3 else (q[None], k if k.ndim == 3 else k[None])
    count, m, _ = q.shape
    sample = sample_ids(ids, m, q.device, times=count, allow_single=True)
    anchor, pool = q.flatten(0, 1), rows
    pool_id = stored_ids(len(rows), sample)
    query_views = [(view, m) for view in range(count)]
    pool_views = [(STORED, len(rows))]
    if batch:
        pool = torch.cat([pool, anchor])
        pool_id = torch.cat([pool_id, sample])
        pool_views += query_views
    if keys:
        pool = torch.cat([pool, k.flatten(0, 1)])
        pool_id = torch.cat([pool_id, sample[:m].repeat(len(k))])
        first = 0 if count > 1 else 1  # with a single view of queries, the keys come from other views
        pool_views += [(first + view, m) for view in range(len(k))]
    return Pairs(
        ids_are_positions=ids is None,
        anchor=anchor,
        # With a single view of queries, all keys are positives; with several views, only the keys of the other views are.
        positive_rows=keys_of_others(k, count) if count > 1 else k.transpose(0, 1),
        pool=pool,
        anchor_id=sample,
        pool_id=pool_id,
        view_ids=partial(views_by_count, query_views, pool_views, q.device),
        view_count=count,
        global_views=_global_views(k, count),
        stored=len(rows),
        has_keys=keys,
        detached=True,
        kernel_inputs=KernelInputs(half),
    )


def neighbours(p: Tensor, z: Tensor, rows: Tensor, *, ids: Tensor | None = None) -> Pairs:
    """Compare the nearest stored row of each embedding with the predictions of the sample's other views (NNCLR).

    Anchors are the stored rows nearest to z. Their positives are the predictions of the other views; their negatives are the
    predictions of other samples (with two views, only those in the other view). Only the predictions get a gradient.

    p      predictions (V, m, d)
    z      embeddings (V, m, d), whose neighbours are looked up
    rows   stored rows (r, d)
    ids    data-set index of each sample, (m,): rows with the same id are never negatives of each other
    """
    check_embeddings("p", p, 3)
    check_embeddings("rows", rows, 2)
    check_same_shape("z", z, "p", p)
    check_width("rows", rows, p)
    if len(p) < 2:
        raise ValueError(f"p: expected at least two views of each image, got shape {tuple(p.shape)}")
    half, (count, m, _) = is_half(p), p.shape
    p, z, rows = units(p, z.detach(), rows.detach())
    nearest = matmul(z.flatten(0, 1), rows.T).argmax(1)
    sample = sample_ids(ids, m, p.device, times=count)
    return Pairs(
        ids_are_positions=ids is None,
        anchor=rows[nearest],
        positive_rows=other_views_of(p),
        pool=p.flatten(0, 1),
        anchor_id=sample,
        pool_id=sample,
        view_ids=partial(views_in_order, count, m, p.device),
        view_count=count,
        between_views_only=count == 2,
        kernel_inputs=KernelInputs(half),
    )


def bank(z: Tensor, index: Tensor, rows: Tensor) -> Pairs:
    """Compare views z (m, d) or (V, m, d) of the samples `index` with a bank that has one row per sample in the data set.

    The positive is the sample's own row, the negatives are all other rows (Wu et al.; Wang & Liu, Eq. 1). Rows carry no
    gradient.

    z       embeddings (m, d) or (V, m, d)
    index   data-set index of each sample, (m,)
    rows    one row per sample in the data set, (N, d)

    >>> bank(torch.randn(4, 8), torch.tensor([0, 5, 9, 2]), torch.randn(10, 8)).shape  # 4 anchors, 10 candidates
    (4, 10)
    """
    check_embeddings("z", z, 2, 3)
    check_embeddings("rows", rows, 2)
    check_width("rows", rows, z)
    check_index("index", index, z.shape[-2])
    size = len(rows)
    if size < 2:
        raise ValueError("rows: expected a bank of at least two images, got one: it would have no negatives")
    check_values(
        (index >= 0) & (index < size),
        lambda: (
            f"index: expected indices of bank rows, 0 to {size - 1}, "
            f"got values from {int(index.min())} to {int(index.max())}"
        ),
    )
    half = is_half(z)
    z, rows = units(z, rows.detach())
    z = z if z.ndim == 3 else z[None]
    count, m, _ = z.shape
    index = index.to(z.device).long()
    return Pairs(
        anchor=z.flatten(0, 1),
        positive_rows=rows[index].repeat(count, 1)[:, None],
        pool=rows,
        anchor_id=index.repeat(count),
        pool_id=torch.arange(size, device=z.device),
        view_ids=partial(views_in_order, count, m, z.device, stored=size, pool_views=0),
        view_count=count,
        stored=size,
        detached=True,
        kernel_inputs=KernelInputs(half),
    )


def _check_keys(name: str, keys: Tensor, other: str, z: Tensor) -> None:
    """Check that keys have the shape (V, m, d) of all views or, with multi-crop, (2, m, d) of the two global crops."""
    of_globals = keys.shape == (2, *z.shape[1:]) and len(z) > 2
    if keys.shape != z.shape and not of_globals:
        also = f", or that of its two global crops, {(2, *z.shape[1:])}" if len(z) > 2 else ""
        raise ValueError(f"{name}: expected the shape of {other}, {tuple(z.shape)}{also}, got {tuple(keys.shape)}")


def _global_views(keys: Tensor, views: int) -> int:
    """Return the number of global crops if there are also local crops, otherwise 0."""
    return len(keys) if len(keys) < views else 0
