"""FNC: plain loops with support views on every kind of pairs, identities, extremes, what is refused."""

from __future__ import annotations

import re
from math import exp, log
from typing import Any

import oracles as plain
import pytest
import torch
from tiers import every
from torch import Tensor

from contrapose.embeddings import Embeddings, within_batch
from contrapose.losses import CATALOGUE, Loss, fnc, nt_xent, supcon
from contrapose.losses.parse import parse
from contrapose.losses.trial import try_loss
from contrapose.metrics import penalties
from contrapose.pairs import Pairs, bank, cross, from_similarities, guided, queue, two_views, views
from contrapose.pairs import false_negatives as search
from contrapose.temperature import cosine

FORMS = ("attraction", "elimination")
M, D, TAU = 5, 3, 0.3
Vector = list[float]
Row = tuple[Vector, int]  # and the image that it is of; -1 if unknown


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def rows(z: Tensor, images: list[int]) -> list[Row]:
    return [(plain.normalised(row.tolist()), image) for row, image in zip(z, images, strict=True)]


class Comparison:
    """Pairs, and the same comparison in plain rows: each anchor with its positives and its candidates."""

    def __init__(self, pairs: Pairs, anchors: list[tuple[Row, list[Row], list[Row]]]) -> None:
        self.pairs, self.anchors = pairs, anchors


def comparisons(z: Tensor) -> dict[str, Comparison]:
    """Return every kind of comparison of views z (3, M, D), whose first and last image are one."""
    images = [7, 20, 21, 22, 7]
    ids, keys, stored = torch.tensor(images), draw(3, M, D, seed=1), draw(9, D, seed=2)
    view, key = [rows(v, images) for v in z], [rows(k, images) for k in keys]
    all_keys = [row for k in key for row in k]
    memory, bank_rows = rows(stored, [-1] * 9), rows(draw(23, D, seed=3), list(range(23)))

    def spell(
        sides: list[list[Row]], positives: list[list[Row]], pool: list[Row]
    ) -> list[tuple[Row, list[Row], list[Row]]]:
        count = len(sides)
        return [
            (sides[v][i], [positives[(v + step) % count][i] for step in range(1, count)], pool)
            for v in range(count)
            for i in range(M)
        ]

    return {
        "two_views": Comparison(two_views(z[0], z[1], ids=ids), spell(view[:2], view[:2], view[0] + view[1])),
        "views": Comparison(views(z, ids=ids), spell(view, view, view[0] + view[1] + view[2])),
        "queue": Comparison(queue(z, keys, stored, ids=ids), spell(view, key, memory)),
        "queue and keys": Comparison(queue(z, keys, stored, keys=True, ids=ids), spell(view, key, memory + all_keys)),
        "queue, queries and keys": Comparison(
            queue(z[0], keys, stored, batch=True, keys=True, ids=ids),
            [(view[0][i], [k[i] for k in key], memory + view[0] + all_keys) for i in range(M)],
        ),
        "bank": Comparison(
            bank(z[0], ids, draw(23, D, seed=3)), [(row, [bank_rows[row[1]]], bank_rows) for row in view[0]]
        ),
        "both directions": Comparison(
            cross(z[0], z[1], symmetric=True, ids=ids),
            [(a, [b], view[1]) for a, b in zip(*view[:2], strict=True)]
            + [(b, [a], view[0]) for a, b in zip(*view[:2], strict=True)],
        ),
    }


def oracle(compared: Comparison, support: Tensor, form: str, top: int, threshold: float) -> list[float]:
    values, each = [], [[plain.normalised(view[i].tolist()) for view in support] for i in range(M)]
    for n, ((anchor, image), positives, pool) in enumerate(compared.anchors):
        candidates = [row for row, of in pool if of != image]
        scores = [max(plain.dot(row, view) for view in each[n % M]) for row in candidates]
        best = sorted(range(len(scores)), key=lambda j: (-scores[j], j))[:top]
        found = [j for j in best if scores[j] > threshold]
        attracted = [plain.dot(anchor, row) / TAU for row, _ in positives]
        repelled = [plain.dot(anchor, row) / TAU for row in candidates]
        if form == "attraction":
            attracted += [repelled[j] for j in found]
        rest = [s for j, s in enumerate(repelled) if j not in found]
        total = log(sum(exp(s) for s in attracted + rest))
        values.append(sum(total - s for s in attracted) / len(attracted))
    return values


KINDS = tuple(comparisons(draw(3, M, D)))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("top", "threshold"), [(2, 0.3), (100, 0.5), (3, -2.0), (100, -2.0)])
def test_support_views_in_plain_loops(kind: str, form: str, top: int, threshold: float) -> None:
    compared, support = comparisons(draw(3, M, D))[kind], draw(4, M, D, seed=9)
    found = fnc(
        compared.pairs,
        support=support * 5,
        form=form,
        top=top,
        threshold=threshold,
        temperature=TAU,
        reduction="none",
    )
    wanted = torch.tensor(oracle(compared, support, form, top, threshold), dtype=torch.float64)
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-10)
    assert (
        float(
            (found - fnc(compared.pairs, support=support, threshold=2.0, temperature=TAU, reduction="none")).abs().max()
        )
        > 0.01
    )


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", every(3, KINDS))
def test_gradcheck(kind: str, form: str) -> None:
    support = draw(4, M, D, seed=9).requires_grad_()

    def loss(z: Tensor) -> Tensor:
        return fnc(comparisons(z)[kind].pairs, support=support, form=form, top=2, threshold=0.3, temperature=TAU)

    z = draw(3, M, D).requires_grad_()
    assert torch.autograd.gradcheck(loss, z)
    loss(z).backward()
    assert support.grad is None


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", KINDS)
def test_without_false_negatives_it_is_nt_xent(kind: str, form: str) -> None:
    pairs = comparisons(draw(3, M, D))[kind].pairs
    for temperature in (0.3, cosine(0.1, 0.3)):
        ours = fnc(pairs, form=form, threshold=1.01, temperature=temperature, reduction="none")
        if pairs.positives().shape[1] == 1:
            wanted = nt_xent(pairs, temperature=temperature, reduction="none")
        else:  # all positives are in the sum
            unknown = torch.full((len(pairs.anchor),), -1)
            wanted = supcon(pairs, labels=unknown, temperature=temperature, reduction="none")
        torch.testing.assert_close(ours, wanted, rtol=1e-12, atol=1e-12)


def test_classes_that_the_support_tells_apart_are_labels() -> None:
    """With orthogonal classes, attraction is SupCon, and elimination leaves out what a guide would."""
    labels = torch.tensor([0, 1, 2, 0, 1])
    support = torch.eye(3, dtype=torch.float64)[labels][None] + 0.01 * draw(2, 5, 3)
    z = torch.eye(3, dtype=torch.float64)[labels] + 0.1 * draw(2, 5, 3, seed=1)
    pairs = two_views(*z)
    torch.testing.assert_close(fnc(pairs, support=support), supcon(pairs, labels=labels, temperature=0.1))
    guide = two_views(support[0], support[0])
    without = nt_xent(pairs, temperature=0.1, negatives=guided(guide, margin=0.5))
    torch.testing.assert_close(fnc(pairs, support=support, form="elimination"), without)


@pytest.mark.parametrize("form", FORMS)
def test_all_candidates_are_false_negatives(form: str) -> None:
    pairs = two_views(*draw(2, M, D))
    value = fnc(pairs, form=form, top=100, threshold=-2.0, reduction="none")
    everything = torch.zeros(M, dtype=torch.long)
    # Nothing is repelled: the one positive has all the probability.
    wanted = supcon(pairs, labels=everything, reduction="none") if form == "attraction" else torch.zeros_like(value)
    torch.testing.assert_close(value, wanted, rtol=1e-12, atol=1e-12)


def test_the_anchors_are_the_support_where_none_is_given() -> None:
    z = draw(3, M, D)
    for form in FORMS:
        assert torch.equal(fnc(views(z), form=form, threshold=0.3), fnc(views(z), support=z, form=form, threshold=0.3))
    pos, neg = torch.tensor([0.9]), torch.tensor([[0.8, 0.75, 0.6, -0.2]])
    kept = fnc(from_similarities(pos, neg), form="elimination", top=1)
    torch.testing.assert_close(kept, nt_xent(from_similarities(pos, neg[:, 1:]), temperature=0.1))


@pytest.mark.parametrize("form", FORMS)
def test_blocks_of_samples_change_nothing(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for kind, compared in comparisons(draw(3, M, D)).items():
        settings: dict[str, Any] = {"support": draw(4, M, D, seed=9), "form": form, "threshold": 0.3}
        whole = fnc(compared.pairs, **settings)
        with monkeypatch.context() as patch:
            patch.setattr(search, "_BLOCK", 50)
            torch.testing.assert_close(fnc(compared.pairs, **settings), whole, rtol=1e-13, atol=0, msg=kind)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("form", FORMS)
def test_constant_features_and_small_batches_stay_finite(form: str, dtype: torch.dtype) -> None:
    for m in (2, 3, 40):
        for z in (
            torch.ones(2, m, 4),
            torch.zeros(2, m, 4),
            torch.randn(2, m, 4),
            torch.randn(2, 1, 4).expand(2, m, 4),
        ):
            leaf = z.to(dtype).clone().requires_grad_()
            stored = torch.zeros(3, 4, dtype=dtype)
            for pairs in (two_views(*leaf), queue(leaf, leaf.detach(), stored, keys=True)):
                value = fnc(pairs, support=leaf.detach(), form=form)
                (gradient,) = torch.autograd.grad(value, leaf, retain_graph=True)
                assert bool(value.isfinite())
                assert bool(gradient.isfinite().all())
                assert value.dtype == torch.float32


@pytest.mark.parametrize("form", FORMS)
def test_low_precision_ends_with_the_embeddings(form: str) -> None:
    z, support = torch.randn(2, 64, 16).bfloat16(), torch.randn(3, 64, 16).bfloat16()
    value = fnc(two_views(*z), support=support, form=form, threshold=0.4)
    exact = fnc(two_views(*z.double()), support=support.double(), form=form, threshold=0.4)
    assert float(value) == pytest.approx(float(exact), rel=1e-5)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(fnc(two_views(*z), support=support, form=form, threshold=0.4), value)


def test_empty_rows_of_a_queue_are_never_false_negatives() -> None:
    pairs = queue(draw(2, M, D), draw(2, M, D), torch.zeros(4, D))
    for form in FORMS:
        assert torch.equal(fnc(pairs, form=form, threshold=0.0), fnc(pairs, form=form, threshold=2.0))


def test_embeddings_provide_support_views() -> None:
    z, support = draw(2, M, D), draw(3, M, D, seed=5)
    given = Embeddings(z=z, compare=within_batch, support=support)
    for name in ("fnc", "fnc_elimination"):
        loss = Loss(CATALOGUE[name](threshold=0.3))
        assert torch.equal(loss(given), CATALOGUE[name](threshold=0.3)(views(z), support=support))
        assert torch.equal(loss(Embeddings(z=z, compare=within_batch)), CATALOGUE[name](threshold=0.3)(views(z)))
        assert not torch.equal(loss(given), loss(*z))
        result = penalties(loss.with_provided(given), given.pairs)
        torch.testing.assert_close(loss.with_provided(given)(result.at), loss(given), rtol=1e-12, atol=0)
        assert (
            float(result.push.min()) < 0 if name == "fnc" else float(result.push.min()) == 0
        )  # false negatives are pulled


def test_the_catalogue_and_the_parser() -> None:
    assert parse("fnc").keywords == {"top": 10, "threshold": 0.7, "temperature": 0.1}
    assert parse("fnc_elimination(top=3)").keywords["form"] == "elimination"
    for text in ("fnc", "fnc_elimination", "fnc(form='elimination', temperature=cosine(0.07, 0.2))"):
        try_loss(parse(text))


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        ("fnc(form='both')", "form: expected one of 'attraction', 'elimination', got 'both'"),
        ("fnc(top=0)", "top: expected a whole number of at least 1, got 0"),
        ("fnc(top=2.5)", "top: expected a whole number of at least 1, got 2.5"),
        ("fnc(threshold='x')", "threshold: expected a finite number, got 'x'"),
        ("fnc(temperature=0)", "temperature: expected a number above 0, got 0.0"),
        ("fnc(support=3)", "fnc has the settings form, top, threshold, temperature, negatives, got 'support'"),
    ],
)
def test_settings_out_of_range_are_refused(loss: str, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        try_loss(parse(loss))


def test_support_of_other_shapes_is_refused() -> None:
    pairs = two_views(*draw(2, M, D))
    for support, message in (
        (draw(M, D), "support: expected embeddings of shape (S, m, d), got shape (5, 3)"),
        (draw(2, M + 1, D), "support: expected views of 5 samples, (S, 5, d), got (2, 6, 3)"),
        (draw(2, M, D + 1), "support: expected rows of the embeddings' width 3, got shape (2, 5, 4)"),
    ):
        with pytest.raises(ValueError, match=re.escape(message)):
            fnc(pairs, support=support)
    with pytest.raises(ValueError, match="support: pairs made from similarity values have no rows"):
        fnc(from_similarities(torch.zeros(M), torch.zeros(M, 2)), support=draw(2, M, D))
    with pytest.raises(ValueError, match="fnc is a loss of unit vectors, got 'dot'"):
        fnc(two_views(*draw(2, M, D), similarity="dot"))
