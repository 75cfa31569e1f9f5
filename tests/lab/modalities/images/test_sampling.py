from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from contrapose.lab.modalities.images.sampling import hold_out, sample

Sizes = st.lists(st.integers(1, 60), min_size=1, max_size=12)


def labels_of(sizes: list[int]) -> torch.Tensor:
    return torch.cat([torch.full((n,), c) for c, n in enumerate(sizes)])


@given(Sizes, st.data())
def test_a_sample_keeps_the_share_of_each_class(sizes: list[int], data: st.DataObject) -> None:
    labels = labels_of(sizes)
    count = data.draw(st.integers(1, len(labels)))
    index = sample(labels, len(labels), count)
    assert len(index.unique()) == len(index) == count
    assert torch.equal(index, index.sort().values)
    kept = labels[index].bincount(minlength=len(sizes)).tolist()
    for n, k in zip(sizes, kept, strict=True):
        assert k <= n
        assert k >= (1 if count >= len(sizes) else 0)
        # At most one from the exact share, but for what the large classes give so that each class has one.
        assert k <= count * n / len(labels) + 1
    assert torch.equal(sample(labels, len(labels), count), index)


def test_a_sample_is_not_the_first_images() -> None:
    index = sample(labels_of([100, 100]), 200, 20)
    assert labels_of([100, 100])[index].bincount().tolist() == [10, 10]
    assert index.tolist() != [*range(10), *range(100, 110)]
    assert sorted(sample(None, 100, 10).tolist()) != list(range(10))
    assert len(sample(None, 100, 10).unique()) == 10


@given(Sizes, st.floats(0.01, 0.99))
def test_held_out_samples(sizes: list[int], share: float) -> None:
    labels = labels_of(sizes)
    stays, held = hold_out(labels, share)
    assert torch.equal(torch.cat([stays, held]).sort().values, torch.arange(len(labels)))
    counts = labels[held].bincount(minlength=len(sizes)).tolist()
    for n, k in zip(sizes, counts, strict=True):
        assert (k == 0) if n == 1 else (1 <= k < n and abs(k - n * share) <= 1)
