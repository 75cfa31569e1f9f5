"""Every kind of `Pairs`, and the same comparison spelt out for the oracles."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from oracles import Anchor, Batch, Candidate, dot, normalised
from torch import Tensor

from contrapose.pairs import AnyPairs, bank, cross, from_similarities, queue, two_views, views

Rows = list[list[float]]
Raw = dict[str, Tensor]
Compare = Callable[[list[float], list[float]], float]


@dataclass(frozen=True)
class Kind:
    """`live` names the inputs that carry gradient; `spell` takes the same raw values as `make`."""

    name: str
    shapes: Callable[[int, int], dict[str, tuple[int, ...]]]  # (m, d) -> shapes of the raw inputs
    make: Callable[[Raw], AnyPairs]
    spell: Callable[[Raw], Batch]
    live: tuple[str, ...]
    in_batch: bool = False
    views: int = 1

    def draw(self, m: int = 4, d: int = 3, seed: int = 0) -> Raw:
        generator = torch.Generator().manual_seed(seed)
        raw = {
            name: torch.randn(shape, generator=generator, dtype=torch.float64)
            for name, shape in self.shapes(m, d).items()
        }
        if self.name == "similarities":
            raw = {name: torch.tanh(value) for name, value in raw.items()}
        return raw


def rows(z: Tensor) -> Rows:
    return [normalised([float(x) for x in row]) for row in z]


def candidates(of: Rows, anchor: list[float], view: int, stored: bool = False) -> list[Candidate]:
    return [Candidate(dot(anchor, row), view, stored, place=place) for place, row in enumerate(of)]


def spell_views(
    z: list[Rows], keys: list[Rows] | None = None, ids: list[int] | None = None, compare: Compare = dot
) -> Batch:
    keyed, keys = keys is not None, keys or z
    m, count = len(z[0]), len(z)
    images = ids or list(range(m))
    anchors = []
    for v in range(count):
        for i in range(m):
            order = [(v + step) % count for step in range(1, count)]
            positives = [Candidate(compare(z[v][i], keys[w][i]), w) for w in order]
            negatives = [
                Candidate(compare(z[v][i], keys[w][j]), w, image=images[j])
                for w in range(count)
                for j in range(m)
                if images[j] != images[i]
            ]
            anchors.append(Anchor(images[i], v, positives, negatives))
    return Batch(anchors, count, True, keyed)


def spell_cross(a: Rows, b: Rows, compare: Compare = dot) -> Batch:
    anchors = [
        Anchor(
            i,
            0,
            [Candidate(compare(a[i], b[i]), 1)],
            [Candidate(compare(a[i], b[j]), 1, image=j) for j in range(len(b)) if j != i],
        )
        for i in range(len(a))
    ]
    return Batch(anchors, 1, False)


def spell_queue(q: list[Rows], k: list[Rows], stored: Rows, batch: bool) -> Batch:
    anchors = []
    m, count = len(q[0]), len(q)
    for v in range(count):
        for i in range(m):
            order = [(v + step) % count for step in range(1, count)] if count > 1 else list(range(len(k)))
            positives = [Candidate(dot(q[v][i], k[w][i]), w) for w in order]
            negatives = candidates(stored, q[v][i], -1, True)
            if batch:
                negatives += [
                    Candidate(dot(q[v][i], q[w][j]), w, image=j) for w in range(count) for j in range(m) if j != i
                ]
            anchors.append(Anchor(i, v, positives, negatives))
    return Batch(anchors, count, False)


def spell_bank(z: Rows, index: list[int], stored: Rows) -> Batch:
    anchors = []
    for row, own in zip(z, index, strict=True):
        negatives = [replace(c, image=c.place) for c in candidates(stored, row, -1, True) if c.place != own]
        anchors.append(Anchor(own, 0, [Candidate(dot(row, stored[own]), 0)], negatives))
    return Batch(anchors, 1, False)


def spell_similarities(pos: Tensor, neg: Tensor) -> Batch:
    anchors = [
        Anchor(i, 0, [Candidate(float(s), k) for k, s in enumerate(p)], [Candidate(float(s), 0) for s in n])
        for i, (p, n) in enumerate(zip(pos, neg, strict=True))
    ]
    return Batch(anchors, 1, False)


def index_of(m: int) -> Tensor:
    return torch.tensor([(3 * i + 1) % (2 * m + 1) for i in range(m)])


def ids_of(m: int) -> Tensor:
    """The first image twice."""
    return torch.tensor([7, *range(20, 20 + m - 2), 7])


KINDS = {
    kind.name: kind
    for kind in (
        Kind(
            "two_views",
            lambda m, d: {"z1": (m, d), "z2": (m, d)},
            lambda raw: two_views(raw["z1"], raw["z2"]),
            lambda raw: spell_views([rows(raw["z1"]), rows(raw["z2"])]),
            ("z1", "z2"),
            in_batch=True,
            views=2,
        ),
        Kind(
            "two_views_ids",
            lambda m, d: {"z1": (m, d), "z2": (m, d)},
            lambda raw: two_views(raw["z1"], raw["z2"], ids=ids_of(len(raw["z1"]))),
            lambda raw: spell_views([rows(raw["z1"]), rows(raw["z2"])], ids=ids_of(len(raw["z1"])).tolist()),
            ("z1", "z2"),
            in_batch=True,
            views=2,
        ),
        Kind(
            "views",
            lambda m, d: {"z": (3, m, d)},
            lambda raw: views(raw["z"]),
            lambda raw: spell_views([rows(z) for z in raw["z"]]),
            ("z",),
            in_batch=True,
            views=3,
        ),
        Kind(
            "views_keys",
            lambda m, d: {"z": (2, m, d), "keys": (2, m, d)},
            lambda raw: views(raw["z"], keys=raw["keys"]),
            lambda raw: spell_views([rows(z) for z in raw["z"]], [rows(z) for z in raw["keys"]]),
            ("z",),
            in_batch=True,
            views=2,
        ),
        Kind(
            "cross",
            lambda m, d: {"a": (m, d), "b": (m, d)},
            lambda raw: cross(raw["a"], raw["b"]),
            lambda raw: spell_cross(rows(raw["a"]), rows(raw["b"])),
            ("a", "b"),
        ),
        Kind(
            "queue",
            lambda m, d: {"q": (m, d), "k": (m, d), "rows": (2 * m, d)},
            lambda raw: queue(raw["q"], raw["k"], raw["rows"]),
            lambda raw: spell_queue([rows(raw["q"])], [rows(raw["k"])], rows(raw["rows"]), False),
            ("q",),
        ),
        Kind(
            "queue_batch",
            lambda m, d: {"q": (m, d), "k": (2, m, d), "rows": (2 * m, d)},
            lambda raw: queue(raw["q"], raw["k"], raw["rows"], batch=True),
            lambda raw: spell_queue([rows(raw["q"])], [rows(k) for k in raw["k"]], rows(raw["rows"]), True),
            ("q",),
        ),
        Kind(
            "queue_views",
            lambda m, d: {"q": (3, m, d), "k": (3, m, d), "rows": (2 * m, d)},
            lambda raw: queue(raw["q"], raw["k"], raw["rows"], batch=True),
            lambda raw: spell_queue([rows(q) for q in raw["q"]], [rows(k) for k in raw["k"]], rows(raw["rows"]), True),
            ("q",),
            views=3,
        ),
        Kind(
            "bank",
            lambda m, d: {"z": (m, d), "rows": (2 * m + 1, d)},
            lambda raw: bank(raw["z"], index_of(len(raw["z"])), raw["rows"]),
            lambda raw: spell_bank(rows(raw["z"]), index_of(len(raw["z"])).tolist(), rows(raw["rows"])),
            ("z",),
        ),
        Kind(
            "similarities",
            lambda m, d: {"pos": (m, 2), "neg": (m, 2 * m)},
            lambda raw: from_similarities(raw["pos"], raw["neg"]),
            lambda raw: spell_similarities(raw["pos"], raw["neg"]),
            ("pos", "neg"),
        ),
    )
}
WITH_VIEWS = frozenset(name for name, kind in KINDS.items() if kind.in_batch)
WITH_SAME_VIEW = frozenset(KINDS) - {"cross", "similarities"}
EVERY = frozenset(KINDS)
