"""Who is compared with whom: `Pairs`, the one noun between encoders and losses.

An anchor has positives (other views of its image) and a pool of candidates. **A pool row is a negative of an
anchor exactly if their image ids differ.** Ids may be data-set indices, so that the same image twice in a batch is
never its own negative; rows of a queue carry an id that no anchor has.

    two_views(z1, z2)    SimCLR: both views are anchors, 2m - 2 negatives
    views(z)             V views, each an anchor with V - 1 positives
    cross(a, b)          one direction, b the only pool: CLIP, SimCSE
    queue(q, k, rows)    MoCo: a key as positive, stored rows as negatives
    bank(z, index, rows) Wu et al.: the image's own entry as positive, all other entries as negatives
    from_similarities(pos, neg)   the same questions asked of bare similarity values
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property, partial

import torch
from torch import Tensor

from contrapose.compared import Compared, Given, ViewByView
from contrapose.distributed import gather, processes, share_of_rows, together
from contrapose.ids import image_ids, in_order, opposite
from contrapose.negatives import Negatives, ViewChoice, steps
from contrapose.reduce import Statistic, of_rows, reduce_rows
from contrapose.unit import is_half, matmul, products, unit, unit_views, units
from contrapose.validate import check_embeddings, check_index, check_same_shape, check_values

__all__ = [
    "AnyPairs",
    "Pairs",
    "Similarities",
    "bank",
    "cross",
    "from_similarities",
    "queue",
    "two_views",
    "unit",
    "views",
]


@dataclass(frozen=True, eq=False)
class Pairs:
    """Anchors, their positives and a pool of candidates, all unit vectors.

    Made by the functions of this module, which check and normalise; anchors are laid out view by view.
    """

    anchor: Tensor  # (n, d)
    given: Tensor  # (n, k, d): the positives; or (n, k): the products with them, the same image's anchors in the views after
    pool: Tensor  # (m, d)
    anchor_image: Tensor  # (n,); both may be shared with other pairs, and are not to be written to
    pool_image: Tensor  # (m,)
    seen: Callable[[], tuple[Tensor, Tensor]]  # (n,) and (m,): the views of anchors and pool, for who asks
    views: int  # how many views the anchors are laid out in: n = views · images
    stored: int  # how many pool rows, the first ones, come from a queue or a bank
    detached: bool  # whether positives, and the pool's stored rows or keys, carry no gradient
    low: bool = False  # whether the embeddings came in half precision
    rounded: Tensor | None = None  # (n, d): anchors, which are the pool too, in bf16, where that was made in passing
    shared: bool = False  # whether each process reduces a part of the anchors; see `shared_out`

    def __repr__(self) -> str:
        n, m = self.shape
        each = self.given.shape[1]
        return f"Pairs({n} anchors in {self.views} views, {each} positives each, {m} candidates, {self.stored} of them stored)"

    @cached_property
    def anchor_view(self) -> Tensor:
        """(n,)."""
        return self.seen()[0]

    @cached_property
    def pool_view(self) -> Tensor:
        """(m,); STORED for rows of a queue or a bank."""
        return self.seen()[1]

    @property
    def positive(self) -> Tensor:
        """(n, k, d)."""
        if self.given.ndim == 3:
            return self.given
        return _other_views(self.anchor.view(self.views, -1, self.anchor.shape[1]))

    @property
    def shape(self) -> tuple[int, int]:
        """Anchors, candidates."""
        return self.anchor.shape[0], self.pool.shape[0]

    @property
    def has_views(self) -> bool:
        """Whether the pool is the batch itself, in several views."""
        return self.views > 1 and not self.stored

    def positives(self) -> Tensor:
        """Similarities to the positives, (n, k)."""
        return products(self.anchor, self.given) if self.given.ndim == 3 else self.given

    def reduce(
        self, *statistics: Statistic, negatives: Negatives = None, may_be_empty: bool = False
    ) -> tuple[Tensor, ...]:
        """Statistics of each anchor's negatives, (n,) each.

        With `may_be_empty` a choice may leave anchors without any: their log-sum-exp is -inf, their expectation 0.
        """
        chosen = steps(negatives)
        if self.shared:
            own = share_of_rows(self.shape[0])
            mine = Compared(self._some(own), chosen, may_be_empty)
            found = together(lambda: reduce_rows(mine, *(of_rows(statistic, own) for statistic in statistics)))
            return tuple(gather(values) for values in found)
        if chosen and isinstance(chosen[0], ViewChoice) and self.has_views and (chosen[0].same or self.views == 2):
            return reduce_rows(ViewByView(self, chosen[1:], may_be_empty, chosen[0].same), *statistics)
        return reduce_rows(Compared(self, chosen, may_be_empty), *statistics)

    def shared_out(self) -> Pairs:
        """The same pairs, made of gathered embeddings, with the work shared out between processes.

        Each process reduces its part of the anchors, and the statistics, a few numbers for each anchor, are exchanged. Values
        and, after DistributedDataParallel, gradients are those of one process (a learned temperature must be under it, too):

            loss = nt_xent(two_views(gather(z1), gather(z2)).shared_out(), temperature=0.5)
        """
        return replace(self, shared=True) if processes() > 1 else self

    def _some(self, rows: slice) -> Pairs:
        return replace(
            self,
            anchor=self.anchor[rows],
            given=self.anchor[rows, None],  # not asked for
            anchor_image=self.anchor_image[rows],
            seen=lambda: (self.anchor_view[rows], self.pool_view),
            rounded=None,
            shared=False,
        )

    def similarities(self) -> Similarities:
        """The same comparison as values, (n, k) and (n, m), without its embeddings: for gradients with respect to them."""
        positive, negative = self.positives().detach(), matmul(self.anchor.detach(), self.pool.detach().T)
        own = self.anchor_image[:, None] == self.pool_image
        seen = (self.anchor_image, self.anchor_view, self.pool_view)
        return Similarities(positive, negative, own, *seen, self.views, self.stored, self.detached)

    def between_views(self) -> Iterator[tuple[int, int, Pairs | Similarities]]:
        """(v, w, the comparison of view v as anchors with view w) for every ordered pair of different views.

        Where the pool belongs to no view (queue, bank, one direction), this is the whole, once.
        """
        if not self.has_views:
            yield 0, 1, self
            return
        anchors, pool = (z.reshape(self.views, -1, z.shape[1]) for z in (self.anchor, self.pool))
        images = self.anchor_image.reshape(self.views, -1)
        for v in range(self.views):
            for w in range(self.views):
                if v != w:
                    who = (images[v], images[w], partial(opposite, len(images[v]), images.device))
                    made = Pairs(anchors[v], pool[w][:, None], pool[w], *who, 1, 0, self.detached, self.low)
                    yield v, w, replace(made, shared=self.shared)


@dataclass(frozen=True, eq=False)
class Similarities:
    """The twin of `Pairs` made straight from similarity values: what autograd on similarities is asked of."""

    positive: Tensor  # (n, k)
    negative: Tensor  # (n, m)
    own: Tensor | None = None  # (n, m) bool: true where a candidate is no negative; None: all are
    anchor_image: Tensor | None = None  # (n,)
    anchor_view: Tensor | None = None  # (n,); None where nobody knows views
    pool_view: Tensor | None = None  # (m,)
    views: int = 1
    stored: int = 0
    detached: bool = False

    @property
    def shape(self) -> tuple[int, int]:
        """Anchors, candidates."""
        return self.negative.shape[0], self.negative.shape[1]

    @property
    def has_views(self) -> bool:
        """Whether the pool is the batch itself, in several views."""
        return self.views > 1 and not self.stored

    def positives(self) -> Tensor:
        """Similarities to the positives, (n, k)."""
        return self.positive

    def reduce(
        self, *statistics: Statistic, negatives: Negatives = None, may_be_empty: bool = False
    ) -> tuple[Tensor, ...]:
        """Statistics of each anchor's negatives, (n,) each.

        With `may_be_empty` a choice may leave anchors without any: their log-sum-exp is -inf, their expectation 0.
        """
        return reduce_rows(Given(self, steps(negatives), may_be_empty), *statistics)

    def between_views(self) -> Iterator[tuple[int, int, Pairs | Similarities]]:
        """The same as that of `Pairs`; the whole, once, where nobody knows views."""
        if not self.has_views:
            yield 0, 1, self
            return
        n, m = (size // self.views for size in self.shape)
        for v in range(self.views):
            for w in range(self.views):
                if v != w:
                    rows, columns, place = slice(v * n, v * n + n), slice(w * m, w * m + m), (w - v) % self.views - 1
                    yield (
                        v,
                        w,
                        Similarities(
                            self.positive[rows, place : place + 1],
                            self.negative[rows, columns],
                            None if self.own is None else self.own[rows, columns],
                            None if self.anchor_image is None else self.anchor_image[rows],
                            None if self.anchor_view is None else self.anchor_view[rows],
                            None if self.pool_view is None else self.pool_view[columns],
                            detached=self.detached,
                        ),
                    )


AnyPairs = Pairs | Similarities


def two_views(z1: Tensor, z2: Tensor, *, ids: Tensor | None = None) -> Pairs:
    """Two views of m images, (m, d) each: every view an anchor, the other its positive, 2m - 2 negatives.

    >>> z1, z2 = torch.eye(3), torch.eye(3)
    >>> two_views(z1, z2).positives().flatten()
    tensor([1., 1., 1., 1., 1., 1.])
    """
    check_embeddings("z1", z1, 2)
    check_embeddings("z2", z2, 2)
    check_same_shape("z2", z2, "z1", z1)
    return _of_views(z1, z2, ids=ids)


def views(
    z: Tensor | list[Tensor] | tuple[Tensor, ...], *, keys: Tensor | None = None, ids: Tensor | None = None
) -> Pairs:
    """V views of m images, (V, m, d) or V times (m, d): every view once an anchor, the other V - 1 its positives.

    With `keys` (V, m, d), from a momentum encoder, positives and pool are the keys, without gradient (MoCo v3
    with `negatives=other_views()`).
    """
    z = torch.stack(list(z)) if isinstance(z, list | tuple) else z
    check_embeddings("z", z, 3)
    if z.shape[0] < 2:
        raise ValueError(f"z: expected at least two views of each image, got shape {tuple(z.shape)}")
    if keys is None:
        return _of_views(z, ids=ids)
    check_embeddings("keys", keys, 3)
    check_same_shape("keys", keys, "z", z)
    low, (count, m, _) = is_half(z), z.shape
    image, seen = image_ids(ids, m, z.device, times=count), partial(in_order, count, m, z.device)
    z, keys = units(z, keys.detach())
    rows = (z.flatten(0, 1), _other_views(keys), keys.flatten(0, 1))
    return Pairs(*rows, image, image, seen, count, 0, True, low)


def _of_views(*given: Tensor, ids: Tensor | None) -> Pairs:
    """Views one by one, or all in one tensor: each row an anchor, and all of them the pool."""
    low, device = is_half(*given), given[0].device
    z, found, rounded = unit_views(*given)
    count, m, _ = z.shape
    image, seen = image_ids(ids, m, device, times=count), partial(in_order, count, m, device)
    anchor = z.flatten(0, 1)
    rounded = None if rounded is None else rounded.flatten(0, 1)
    return Pairs(anchor, found, anchor, image, image, seen, count, 0, False, low, rounded)


def cross(a: Tensor, b: Tensor, *, ids: Tensor | None = None) -> Pairs:
    """One direction: a_i against b_i, with the other rows of b as negatives, m - 1 of them (CLIP, SimCSE)."""
    check_embeddings("a", a, 2)
    check_embeddings("b", b, 2)
    check_same_shape("b", b, "a", a)
    low = is_half(a, b)
    a, b = units(a, b)
    image, seen = image_ids(ids, len(a), a.device), partial(opposite, len(a), a.device)
    return Pairs(a, b[:, None], b, image, image, seen, 1, 0, False, low)


def queue(q: Tensor, k: Tensor, rows: Tensor, *, batch: bool = False, ids: Tensor | None = None) -> Pairs:
    """Queries against their keys, with stored rows as negatives, all of keys and rows without gradient (MoCo).

    q (m, d) with k (m, d), or with k (K, m, d) for K positives each. q (V, m, d) with k (V, m, d): every view is a
    query and the keys of the other views are its positives. With `batch`, the other queries join the negatives
    (of all views; `negatives=same_view()` keeps those of the query's own, as CACR's MoCo form has it).
    """
    check_embeddings("q", q, 2, 3)
    check_embeddings("k", k, 2, 3)
    check_embeddings("rows", rows, 2)
    if q.ndim == 3 and len(q) < 2:
        raise ValueError(f"q: expected (m, d), or at least two views (V, m, d), got shape {tuple(q.shape)}")
    if q.ndim == 3 or k.ndim == 2:
        check_same_shape("k", k, "q", q)
    elif k.shape[1:] != q.shape:
        raise ValueError(f"k: expected (K, m, d) = (K, {q.shape[0]}, {q.shape[1]}), got {tuple(k.shape)}")
    _check_width("rows", rows, q)
    low = is_half(q)
    q, k, rows = units(q, k.detach(), rows.detach())
    q, k = (q, k) if q.ndim == 3 else (q[None], k if k.ndim == 3 else k[None])
    views_, m, _ = q.shape
    # One view of queries takes all keys; several views take the keys of the others.
    positive = _other_views(k) if views_ > 1 else k.transpose(0, 1)
    images = image_ids(ids, m, q.device, times=views_, alone=True)
    seen = partial(in_order, views_, m, q.device, stored=len(rows), batch=batch)
    anchor, pool = q.flatten(0, 1), rows
    pool_image = images.new_full((len(rows),), torch.iinfo(images.dtype).min)
    if batch:
        pool = torch.cat([rows, anchor])
        pool_image = torch.cat([pool_image, images])
    return Pairs(anchor, positive, pool, images, pool_image, seen, views_, len(rows), True, low)


def bank(z: Tensor, index: Tensor, rows: Tensor) -> Pairs:
    """Views z (m, d) of the images `index` against a bank with one row for each image of the data set.

    The positive is the image's own row, the negatives are all other rows (Wu et al.; Wang & Liu, Eq. 1).
    z may be (V, m, d). Rows carry no gradient.
    """
    check_embeddings("z", z, 2, 3)
    check_embeddings("rows", rows, 2)
    _check_width("rows", rows, z)
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
    low = is_half(z)
    z, rows = units(z, rows.detach())
    z = z if z.ndim == 3 else z[None]
    count, m, _ = z.shape
    index = index.to(z.device).long()
    image, seen = index.repeat(count), partial(in_order, count, m, z.device, stored=size, batch=False)
    positive = rows[index].repeat(count, 1)[:, None]
    pool_image = torch.arange(size, device=z.device)
    return Pairs(z.flatten(0, 1), positive, rows, image, pool_image, seen, count, size, True, low)


def from_similarities(pos: Tensor, neg: Tensor) -> Similarities:
    """Similarity values themselves: pos (n,) or (n, k), neg (n, m). For gradients with respect to similarities.

    >>> from contrapose.losses import nt_xent
    >>> s = torch.tensor([[0.5, 0.0, -0.5]], requires_grad=True)
    >>> nt_xent(from_similarities(torch.tensor([0.9]), s), temperature=0.5).backward()
    >>> s.grad.argmax().item()  # the hardest negative is pushed most
    0
    """
    for name, values in (("pos", pos), ("neg", neg)):
        if not isinstance(values, Tensor) or not values.is_floating_point():
            came = values.dtype if isinstance(values, Tensor) else type(values).__name__
            raise ValueError(f"{name}: expected a floating point tensor of similarities, got {came}")
    pos = pos[:, None] if pos.ndim == 1 else pos
    if pos.ndim != 2 or neg.ndim != 2 or len(pos) != len(neg) or 0 in (*pos.shape, *neg.shape):
        raise ValueError(
            f"pos, neg: expected shapes (n,) or (n, k), and (n, m), got {tuple(pos.shape)} and {tuple(neg.shape)}"
        )
    low = (torch.float16, torch.bfloat16)
    return Similarities(pos.float() if pos.dtype in low else pos, neg.float() if neg.dtype in low else neg)


def _other_views(z: Tensor) -> Tensor:
    # (V, m, d) -> (V · m, V - 1, d): of each view's rows, the same image's rows in the views after it, cyclically.
    return torch.stack([z.roll(-step, 0) for step in range(1, len(z))], dim=2).flatten(0, 1)


def _check_width(name: str, rows: Tensor, z: Tensor) -> None:
    if rows.shape[-1] != z.shape[-1]:
        raise ValueError(f"{name}: expected rows of the embeddings' width {z.shape[-1]}, got shape {tuple(rows.shape)}")
