"""Pairs: validation of input, normalisation, choices of negatives and ids."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from contrapose.losses import nt_xent
from contrapose.pairs import bank, cross, from_similarities, neighbours, queue, two_views, unit, views
from contrapose.pairs.negatives import batch_rows, hardest, other_views, same_view

Z = torch.randn(4, 3)
VIEWS = torch.randn(2, 4, 3)

WRONG: dict[str, tuple[Callable[[], object], str]] = {
    "shapes": (lambda: two_views(Z, Z[:3]), "z2: expected the shape of z1, (4, 3), got (3, 3)"),
    "widths": (lambda: cross(Z, torch.randn(4, 5)), "b: expected the shape of a, (4, 3), got (4, 5)"),
    "one dimension": (lambda: two_views(Z[0], Z[0]), "z1: expected embeddings of shape (m, d), got shape (3,)"),
    "integers": (lambda: two_views(Z.long(), Z.long()), "z1: expected floating point embeddings, got torch.int64"),
    "no tensor": (lambda: two_views([[1.0]], Z), "z1: expected a tensor of embeddings, got list"),  # type: ignore[arg-type]
    "empty": (lambda: two_views(Z[:0], Z[:0]), "z1: expected at least one embedding"),
    "one image": (lambda: two_views(Z[:1], Z[:1]), "expected at least two images"),
    "one id": (lambda: two_views(Z, Z, ids=torch.full((4,), 7)), "ids: all 4 images have the id 7"),
    "ids shape": (lambda: two_views(Z, Z, ids=torch.arange(5)), "ids: expected one integer per image, shape (4,)"),
    "ids list": (lambda: two_views(Z, Z, ids=[0, 1, 2, 3]), "shape (4,), got list; write torch.tensor(ids)"),  # type: ignore[arg-type]
    "ids array": (lambda: two_views(Z, Z, ids=Z.numpy()), "shape (4,), got ndarray; write torch.tensor(ids)"),  # type: ignore[arg-type]
    "ids number": (lambda: two_views(Z, Z, ids=4), "shape (4,), got int"),  # type: ignore[arg-type]
    "ids floats": (lambda: two_views(Z, Z, ids=torch.rand(4)), "ids: expected integers, got torch.float32"),
    "one view": (lambda: views(Z[None], keys=Z[None]), "z: expected at least two views of each image, got shape (1, 4, 3)"),
    "views 2-d": (lambda: views(Z), "z: expected embeddings of shape (V, m, d), got shape (4, 3)"),
    "keys": (lambda: views(Z[None].repeat(2, 1, 1), keys=Z[None]), "keys: expected the shape of z"),
    "key shape": (lambda: queue(Z, Z[:2], Z), "k: expected the shape of q, (4, 3), got (2, 3)"),
    "keys shape": (lambda: queue(Z, Z[None, :2], Z), "k: expected (K, m, d) = (K, 4, 3), got (1, 2, 3)"),
    "one query view": (lambda: queue(Z[None], Z[None], Z), "q: expected (m, d), or at least two views"),
    "queue width": (lambda: queue(Z, Z, torch.randn(9, 2)), "rows: expected rows of the embeddings' width 3"),
    "bank width": (lambda: bank(Z, torch.arange(4), torch.randn(9, 2)), "rows: expected rows of the embeddings'"),
    "outside": (lambda: bank(Z, torch.tensor([0, 1, 2, 9]), torch.randn(9, 3)), "bank rows, 0 to 8, got values from 0 to 9"),
    "below": (lambda: bank(Z, torch.tensor([0, -1, 2, 3]), torch.randn(9, 3)), "got values from -1 to 3"),
    "bank of one": (lambda: bank(Z[:1], torch.tensor([0]), Z[:1]), "rows: expected a bank of at least two images"),
    "other view": (lambda: two_views(Z, Z[0]), "z2: expected embeddings of shape (m, d), got shape (3,)"),
    "first side": (lambda: cross(Z[0], Z), "a: expected embeddings of shape (m, d), got shape (3,)"),
    "second side": (lambda: cross(Z, Z.long()), "b: expected floating point embeddings, got torch.int64"),
    "keys 2-d": (lambda: views(Z[None].repeat(2, 1, 1), keys=Z), "keys: expected embeddings of shape (V, m, d), got shape (4, 3)"),
    "queries": (lambda: queue(Z[0], Z, Z), "q: expected embeddings of shape (m, d) or (V, m, d), got shape (3,)"),
    "key dimension": (lambda: queue(Z, Z[0], Z), "k: expected embeddings of shape (m, d) or (V, m, d), got shape (3,)"),
    "queue rows": (lambda: queue(Z, Z, Z[None]), "rows: expected embeddings of shape (m, d), got shape (1, 4, 3)"),
    "bank views": (lambda: bank(Z[0], torch.arange(4), Z), "z: expected embeddings of shape (m, d) or (V, m, d), got shape (3,)"),
    "bank rows": (lambda: bank(Z, torch.arange(4), Z[None]), "rows: expected embeddings of shape (m, d), got shape (1, 4, 3)"),
    "bank index": (lambda: bank(Z, torch.arange(3), Z), "index: expected one integer per image, shape (4,), got (3,)"),
    "predictions": (lambda: neighbours(Z, Z, Z), "p: expected embeddings of shape (V, m, d), got shape (4, 3)"),
    "one prediction": (lambda: neighbours(Z[None], Z[None], Z), "p: expected at least two views of each image, got shape (1, 4, 3)"),
    "neighbours": (lambda: neighbours(VIEWS, VIEWS[:, 1:], Z), "z: expected the shape of p, (2, 4, 3), got (2, 3, 3)"),
    "stored rows": (lambda: neighbours(VIEWS, VIEWS, VIEWS), "rows: expected embeddings of shape (m, d), got shape (2, 4, 3)"),
    "stored width": (lambda: neighbours(VIEWS, VIEWS, Z[:, 1:]), "rows: expected rows of the embeddings' width 3"),
    "similarities": (lambda: from_similarities(torch.rand(3), torch.rand(4, 2)), "got (3, 1) and (4, 2)"),
    "k and fraction": (lambda: hardest(3, fraction=0.5), "hardest: expected either k or fraction"),
    "neither": (lambda: hardest(), "hardest: expected either k or fraction"),
    "no negatives": (lambda: hardest(0), "hardest: k: expected a number of at least 1, got 0"),
    "strict": (lambda: hardest(0.5, strict=True), "hardest: strict: expected True or False, and True only with a number k"),
    "strict how": (lambda: hardest(5, strict=1), "hardest: strict: expected True or False"),  # type: ignore[arg-type]
    "share": (lambda: hardest(fraction=1.5), "hardest: fraction: expected a number of at most 1, got 1.5"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_bad_input_is_named_in_the_message(name: str) -> None:
    make, message = WRONG[name]
    with pytest.raises(ValueError, match=re.escape(message)):
        make()


def test_normalised_once_and_in_full_precision() -> None:
    z = torch.randn(6, 8, dtype=torch.bfloat16)
    pairs = two_views(z, 3 * z)
    assert pairs.anchor.dtype == torch.float32
    torch.testing.assert_close(pairs.anchor.norm(dim=1), torch.ones(12))
    torch.testing.assert_close(pairs.positives(), torch.ones(12, 1), atol=1e-2, rtol=0)
    assert unit(torch.randn(2, 3, dtype=torch.float64)).dtype == torch.float64


def test_every_view_is_an_anchor_with_the_others_as_positives() -> None:
    z = torch.randn(4, 5, 3)
    pairs = views(z)
    assert pairs.anchor.shape == (20, 3)
    assert pairs.positive.shape == (20, 3, 3)
    expected = {tuple(unit(z)[w, 2].tolist()) for w in (0, 2, 3)}
    assert {tuple(row.tolist()) for row in pairs.positive[1 * 5 + 2]} == expected


def test_similarities_have_no_views() -> None:
    pairs = from_similarities(torch.rand(2), torch.rand(2, 3))
    for choice in (same_view(), other_views()):
        with pytest.raises(ValueError, match="have none"):
            pairs.reduce(negatives=choice)


def test_a_view_choice_that_leaves_no_negatives_raises() -> None:
    with pytest.raises(ValueError, match=r"negatives: same_view\(\) leaves an anchor without negatives"):
        cross(Z, Z).reduce(negatives=same_view())


def test_more_hardest_negatives_than_rows_raises() -> None:
    pairs = two_views(Z, Z)
    with pytest.raises(ValueError, match=r"hardest\(9, strict=True\) needs 9 negatives .*, but the pool has 8 rows"):
        pairs.reduce(negatives=hardest(9, strict=True))
    with pytest.raises(ValueError, match=r"hardest\(7, strict=True\) needs 7 negatives .*, but an anchor has 6, and"):
        pairs.reduce(negatives=hardest(7, strict=True))
    with pytest.raises(ValueError, match="negatives: expected None, other_views"):
        pairs.reduce(negatives=hardest)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="negatives: expected None, other_views"):
        pairs.reduce(negatives="hardest")  # type: ignore[arg-type]


def test_views_need_not_be_contiguous() -> None:
    z = torch.randn(5, 2, 3, requires_grad=True)
    views(z.transpose(0, 1)).positives().sum().backward()
    assert z.grad is not None
    assert bool(z.grad.isfinite().all())


def test_a_fraction_of_no_negatives_raises() -> None:
    q, k, rows = torch.randn(1, 3), torch.randn(1, 3), torch.randn(4, 3)
    with pytest.raises(ValueError, match="without negatives"):
        nt_xent(queue(q, k, rows, batch=True), negatives=(batch_rows(), hardest(0.5)))


def test_ids_cached_in_inference_mode_can_be_used_in_training() -> None:
    z = torch.randn(2, 9, 5)  # a size that no other test caches ids for
    with torch.inference_mode():
        first = two_views(*z)
    leaf = z.clone().requires_grad_()
    second = two_views(leaf[0], leaf[1])
    nt_xent(second).backward()
    assert second.anchor_id is first.anchor_id
    assert not second.anchor_id.is_inference()
    assert second.anchor_id.tolist() == [*range(9), *range(9)]
    assert leaf.grad is not None
    assert leaf.grad.abs().max() > 0


def test_ids_of_traced_pairs_are_not_cached() -> None:
    z = torch.randn(2, 11, 5)
    mode = FakeTensorMode()
    traced = [mode.from_tensor(x) for x in z]
    with mode:
        two_views(*traced)
    assert type(two_views(*z).anchor_id) is torch.Tensor
    with mode:  # and cached ids are not mixed with traced tensors
        assert nt_xent(two_views(*traced)).ndim == 0
    retraced = make_fx(lambda a, b: nt_xent(two_views(a, b)), tracing_mode="symbolic")(*z)
    torch.testing.assert_close(retraced(*z), nt_xent(two_views(*z)))


def test_views_can_be_a_list() -> None:
    z = torch.randn(3, 5, 4)
    torch.testing.assert_close(nt_xent(views(list(z))), nt_xent(views(z)))
    assert repr(views(z)) == "Pairs(15 anchors in 3 views, 2 positives each, 15 candidates, 0 of them stored)"


def test_candidates_of_each_view_are_counted() -> None:
    """The numbers decide the size of blocks, and how many negatives may be asked for."""
    pairs = two_views(Z, -Z)
    assert pairs.source((), may_be_empty=False).spans == [(0, 8, 8)]
    for choice in (same_view(), other_views()):
        source = pairs.source((choice,), may_be_empty=False)
        assert source.spans == [(0, 4, 4), (4, 8, 4)]
        assert pairs.source((choice,), may_be_empty=False, share=slice(5, 8)).spans == [(0, 3, 4)]


def test_a_share_of_a_single_candidate_is_that_candidate() -> None:
    (q, k), stored = torch.randn(2, 5, 3, dtype=torch.float64), torch.randn(1, 3, dtype=torch.float64)
    pairs = queue(q, k, stored)
    all_rows, share = (nt_xent(pairs, temperature=0.2, negatives=choice) for choice in (None, hardest(0.5)))
    torch.testing.assert_close(share, all_rows, rtol=0, atol=0)
