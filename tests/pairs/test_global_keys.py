"""Multi-crop: keys of two global crops are the positives of global and local crops alike."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from contrapose.embeddings import Embeddings, with_queue, within_batch
from contrapose.losses import nt_xent
from contrapose.pairs import Pairs, queue, views
from contrapose.pairs.negatives import STORED, other_views, same_view
from contrapose.pairs.positives import repeated_positives
from contrapose.reduce import Count

VIEWS, SAMPLES, WIDTH = 5, 3, 4
GENERATOR = torch.Generator().manual_seed(1)
Z, KEYS, ROWS = (
    torch.randn(shape, dtype=torch.float64, generator=GENERATOR)
    for shape in ((VIEWS, SAMPLES, WIDTH), (2, SAMPLES, WIDTH), (6, WIDTH))
)


def negatives_of_each_view(pairs: Pairs, *choice: object) -> list[float]:
    (count,) = pairs.reduce(Count(), negatives=choice)  # type: ignore[arg-type]
    by_view = count.reshape(pairs.view_count, -1)
    assert bool((by_view == by_view[:, :1]).all())
    return by_view[:, 0].tolist()


def test_anchors_are_all_views_and_the_pool_is_the_keys() -> None:
    pairs = views(Z, keys=KEYS, ids=torch.tensor([4, 9, 7]))
    assert pairs.shape == (VIEWS * SAMPLES, 2 * SAMPLES)
    assert (pairs.view_count, pairs.global_views, pairs.key_views) == (VIEWS, 2, 2)
    assert pairs.anchor_id.tolist() == [4, 9, 7] * VIEWS
    assert pairs.pool_id.tolist() == [4, 9, 7] * 2
    assert pairs.anchor_view.tolist() == [v for v in range(VIEWS) for _ in range(SAMPLES)]
    assert pairs.pool_view.tolist() == [0, 0, 0, 1, 1, 1]
    assert views(Z[:2], keys=KEYS).global_views == 0


def test_keys_are_other_views_of_a_single_view_of_queries() -> None:
    """The keys of other samples are negatives with `keys=True`: of another view than the queries, unlike stored rows."""
    pairs = queue(Z[0], KEYS[0], ROWS, keys=True)
    assert negatives_of_each_view(pairs) == [len(ROWS) + SAMPLES - 1]
    assert negatives_of_each_view(pairs, other_views()) == [len(ROWS) + SAMPLES - 1]
    assert negatives_of_each_view(pairs, same_view()) == [len(ROWS)]


def test_choices_of_views() -> None:
    pairs = views(Z, keys=KEYS)
    others = float(SAMPLES - 1)
    assert negatives_of_each_view(pairs) == [2 * others] * VIEWS
    assert negatives_of_each_view(pairs, other_views()) == [others, others, *[2 * others] * (VIEWS - 2)]
    with pytest.raises(ValueError, match=r"same_view\(\) leaves an anchor without negatives"):
        nt_xent(pairs, negatives=same_view())
    with_rows = queue(Z, KEYS, ROWS, batch=True)
    assert with_rows.pool_view.tolist() == [STORED] * len(ROWS) + with_rows.anchor_view.tolist()
    assert negatives_of_each_view(with_rows, same_view()) == [len(ROWS) + others] * VIEWS


@pytest.mark.parametrize("pairs", [views(Z, keys=KEYS), queue(Z, KEYS, ROWS)], ids=["views", "queue"])
def test_positives_are_the_keys_of_other_global_crops(pairs: Pairs) -> None:
    def similarity(view: int, key: int) -> Tensor:
        return torch.cosine_similarity(Z[view], KEYS[key], dim=1)

    positives = pairs.positives().reshape(VIEWS, SAMPLES, 2)
    for view, keys in enumerate([(1, 1), (0, 0), *[(0, 1)] * (VIEWS - 2)]):
        torch.testing.assert_close(positives[view], torch.stack([similarity(view, key) for key in keys], 1))
    repeated = repeated_positives(pairs, Z.device)
    assert repeated is not None
    assert repeated.reshape(VIEWS, SAMPLES, 2).all(1).tolist() == [[False, True]] * 2 + [[False, False]] * (VIEWS - 2)
    assert repeated_positives(views(Z), Z.device) is None


def test_each_view_is_compared_with_the_others_keys() -> None:
    pairs = views(Z, keys=KEYS)
    expected = [(v, w) for v in range(VIEWS) for w in range(2) if v != w]
    for of in (pairs, pairs.similarities()):
        compared = {(v, w): between for v, w, between in of.between_views()}
        assert list(compared) == expected
        for (v, w), between in compared.items():
            wanted = torch.cosine_similarity(Z[v], KEYS[w], dim=1)
            torch.testing.assert_close(between.positives()[:, 0], wanted)


@pytest.mark.parametrize("count", [1, 3, 4, 6])
def test_keys_of_another_number_of_views_are_refused(count: int) -> None:
    wrong = torch.zeros(count, SAMPLES, WIDTH)
    either = r"expected the shape of \w, \(5, 3, 4\), or that of its two global crops, \(2, 3, 4\), got"
    with pytest.raises(ValueError, match="keys: " + either):
        views(Z, keys=wrong)
    with pytest.raises(ValueError, match="k: " + either):
        queue(Z, wrong, ROWS)
    with pytest.raises(ValueError, match=r"keys: expected the shape of z, \(2, 3, 4\), got \(\d"):
        views(Z[:2], keys=wrong)


def test_embeddings_pass_such_targets_on() -> None:
    for compare, wanted in (
        (within_batch, views(Z, keys=KEYS)),
        (with_queue(ROWS, batch=True), queue(Z, KEYS, ROWS, batch=True)),
    ):
        pairs = Embeddings(z=Z, target=KEYS, compare=compare).pairs
        assert pairs.global_views == 2
        assert torch.equal(nt_xent(pairs), nt_xent(wanted))
