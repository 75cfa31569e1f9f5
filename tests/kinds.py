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
    """With keys of fewer views than z has, these are those of the first ones."""
    keyed, keys = keys is not None, keys or z
    m, count = len(z[0]), len(z)
    images = ids or list(range(m))
    anchors = []
    for v in range(count):
        for i in range(m):
            order = [(v + step) % count for step in range(1, count)]
            positives = [Candidate(compare(z[v][i], keys[w][i]), w) for w in order if w < len(keys)]
            negatives = [
                Candidate(compare(z[v][i], keys[w][j]), w, image=images[j])
                for w in range(len(keys))
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


def spell_symmetric(a: Rows, b: Rows, negatives: Rows, negative_ids: list[int]) -> Batch:
    """Both directions; explicit negatives are met by the anchors of a only."""
    anchors = []
    for i in range(len(a)):
        candidates = [Candidate(dot(a[i], b[j]), 1, image=j) for j in range(len(b)) if j != i]
        candidates += [
            Candidate(dot(a[i], h), 1, image=k if k < len(a) else -1)
            for h, k in zip(negatives, negative_ids, strict=True)
            if k != i
        ]
        anchors.append(Anchor(i, 0, [Candidate(dot(a[i], b[i]), 1)], candidates))
    for i in range(len(b)):
        candidates = [Candidate(dot(b[i], a[j]), 0, image=j) for j in range(len(a)) if j != i]
        anchors.append(Anchor(i, 1, [Candidate(dot(b[i], a[i]), 0)], candidates))
    return Batch(anchors, 2, False)


def spell_joint(a: Rows, b: Rows, negatives: list[Rows], directions: set[str]) -> Batch:
    """One anchor per pair, with k explicit negatives per sample: a_i meets all of them, b_i those of other samples."""
    anchors = []
    for i in range(len(a)):
        found = [Candidate(dot(a[i], b[j]), 1, image=j) for j in range(len(b)) if j != i]
        found += [Candidate(dot(a[i], h), 1) for own in negatives for h in own]
        for j in range(len(a)):
            if j == i:
                continue
            if "a_to_a" in directions:
                found.append(Candidate(dot(a[i], a[j]), 0, image=j))
            if "b_to_a" in directions:
                found.append(Candidate(dot(b[i], a[j]), 1, image=j))
            if "b_to_b" in directions:
                found.append(Candidate(dot(b[i], b[j]), 0, image=j))
                found += [Candidate(dot(b[i], h), 0, image=j) for h in negatives[j]]
        anchors.append(Anchor(i, 0, [Candidate(dot(a[i], b[i]), 1)], found))
    return Batch(anchors, 1, False)


def spell_queue(q: list[Rows], k: list[Rows], stored: Rows, batch: bool) -> Batch:
    anchors = []
    m, count = len(q[0]), len(q)
    for v in range(count):
        for i in range(m):
            order = [(v + step) % count for step in range(1, count)] if count > 1 else list(range(len(k)))
            positives = [Candidate(dot(q[v][i], k[w][i]), w) for w in order if w < len(k)]
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


def negative_ids_of(m: int) -> Tensor:
    """The first and the last sample's own, and two of samples that are not in the batch."""
    return torch.tensor([0, 100, m - 1, 101])


ALL_DIRECTIONS = ("a_to_b", "a_to_a", "b_to_a", "b_to_b")

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
            "views_global_keys",
            lambda m, d: {"z": (4, m, d), "keys": (2, m, d)},
            lambda raw: views(raw["z"], keys=raw["keys"], ids=ids_of(raw["z"].shape[1])),
            lambda raw: spell_views(
                [rows(z) for z in raw["z"]], [rows(z) for z in raw["keys"]], ids=ids_of(raw["z"].shape[1]).tolist()
            ),
            ("z",),
            in_batch=True,
            views=4,
        ),
        Kind(
            "cross",
            lambda m, d: {"a": (m, d), "b": (m, d)},
            lambda raw: cross(raw["a"], raw["b"]),
            lambda raw: spell_cross(rows(raw["a"]), rows(raw["b"])),
            ("a", "b"),
        ),
        Kind(
            "cross_negatives",
            lambda m, d: {"a": (m, d), "b": (m, d), "h": (m, 2, d)},
            lambda raw: cross(raw["a"], raw["b"], negatives=raw["h"]),
            lambda raw: spell_joint(rows(raw["a"]), rows(raw["b"]), [rows(h) for h in raw["h"]], {"a_to_b"}),
            ("a", "b", "h"),
        ),
        Kind(
            "cross_joint",
            lambda m, d: {"a": (m, d), "b": (m, d), "h": (m, 1, d)},
            lambda raw: cross(raw["a"], raw["b"], directions=ALL_DIRECTIONS, negatives=raw["h"]),
            lambda raw: spell_joint(rows(raw["a"]), rows(raw["b"]), [rows(h) for h in raw["h"]], set(ALL_DIRECTIONS)),
            ("a", "b", "h"),
        ),
        Kind(
            "cross_symmetric",
            lambda m, d: {"a": (m, d), "b": (m, d)},
            lambda raw: cross(raw["a"], raw["b"], symmetric=True),
            lambda raw: spell_symmetric(rows(raw["a"]), rows(raw["b"]), [], []),
            ("a", "b"),
            views=2,
        ),
        Kind(
            "cross_symmetric_negatives",
            lambda m, d: {"a": (m, d), "b": (m, d), "h": (4, d)},
            lambda raw: cross(
                raw["a"], raw["b"], symmetric=True, negatives=raw["h"], negative_ids=negative_ids_of(len(raw["a"]))
            ),
            lambda raw: spell_symmetric(
                rows(raw["a"]), rows(raw["b"]), rows(raw["h"]), negative_ids_of(len(raw["a"])).tolist()
            ),
            ("a", "b", "h"),
            views=2,
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
            "queue_global_keys",
            lambda m, d: {"q": (3, m, d), "k": (2, m, d), "rows": (2 * m, d)},
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
WITH_OWN_KEYS = WITH_VIEWS - {"views_global_keys"}  # each view has rows of its own in the pool
WITH_SAME_VIEW = frozenset(KINDS) - {
    "views_global_keys",
    "cross",
    "cross_negatives",
    "cross_symmetric",
    "cross_symmetric_negatives",
    "similarities",
}
EVERY = frozenset(KINDS)
# Positives without gradient, or similarity values: losses that only pull refuse all other kinds.
WITH_TARGETS = frozenset(name for name in KINDS if "queue" in name or "keys" in name) | {"bank", "similarities"}
