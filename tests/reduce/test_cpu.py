"""The path of a constant temperature on the CPU: pairs of the same sample are left out wherever a block lies."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from contrapose.reduce.block import Selection
from contrapose.reduce.comparisons import Comparison
from contrapose.reduce.cpu import _clear_same_samples


@given(samples=st.integers(2, 12), views=st.integers(1, 3), known=st.booleans(), data=st.data())
def test_pairs_of_the_same_sample_are_cleared(samples: int, views: int, known: bool, data: st.DataObject) -> None:
    total = samples * views
    ids = torch.arange(total) % samples

    def some_rows() -> slice:
        start = data.draw(st.integers(0, total - 1))
        return slice(start, data.draw(st.integers(start + 1, total)))

    block = Comparison(some_rows(), some_rows(), both=False)
    selection = Selection(ids, ids, [], None, samples if known else 1)
    e = _clear_same_samples(torch.ones(block.height, block.width), block, selection)
    assert torch.equal(e == 0, ids[block.rows, None] == ids[block.columns])
