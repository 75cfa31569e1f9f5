"""Which texts of a batch count as the same."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from contrapose.integrations.duplicates import group_ids, text_ids

TEXTS = [[4, 5], [5, 4], [4, 5], [4], [4, 5, 5], [6, 4, 5], [4]]


def padded(texts: list[list[int]], width: int, *, left: bool = False, pad: int = 0) -> dict[str, Tensor]:
    rows = [[pad] * (width - len(t)) + t if left else t + [pad] * (width - len(t)) for t in texts]
    masks = [[0] * (width - len(t)) + [1] * len(t) if left else [1] * len(t) + [0] * (width - len(t)) for t in texts]
    return {"input_ids": torch.tensor(rows), "attention_mask": torch.tensor(masks)}


def test_equal_tokens_have_equal_ids_in_every_layout() -> None:
    flat = torch.tensor([token for text in TEXTS for token in text])
    ends = torch.tensor([0, *(len(text) for text in TEXTS)]).cumsum(0)
    layouts = [
        padded(TEXTS, 3),
        padded(TEXTS, 7, pad=9),
        padded(TEXTS, 7, left=True),
        {"input_ids": flat, "offsets": ends[:-1]},
        {"input_ids": flat[None], "cu_seq_lens_q": ends.int()},
    ]
    first, *rest = (text_ids(layout) for layout in layouts)
    assert first is not None
    for ids in rest:
        assert ids is not None
        assert torch.equal(ids, first)
    expected = torch.tensor([[a == b for b in TEXTS] for a in TEXTS])
    assert torch.equal(first[:, None] == first, expected)


def test_many_texts_without_a_collision() -> None:
    rows = torch.cartesian_prod(*[torch.arange(12)] * 4)
    ids = text_ids({"input_ids": rows})
    assert ids is not None
    assert len(ids.unique()) == len(rows) == 12**4


def test_images_with_one_prompt_are_not_the_same() -> None:
    assert text_ids({**padded(TEXTS, 3), "pixel_values": torch.zeros(7, 3, 2, 2)}) is None
    assert text_ids({**padded(TEXTS, 3), "modality": "image"}) is None
    assert text_ids({**padded(TEXTS, 3), "modality": "text"}) is not None
    assert text_ids({"pixel_values": torch.zeros(7, 3, 2, 2)}) is None


def components(queries: list[int], positives: list[int]) -> list[set[int]]:
    """The same by merging sets one at a time."""
    groups: list[set[int]] = []
    for pair in zip(queries, positives, strict=True):
        touched = [group for group in groups if group & set(pair)]
        groups = [group for group in groups if group not in touched] + [set(pair).union(*touched)]
    return groups


Texts = st.lists(st.integers(0, 12), min_size=7, max_size=7)


@given(Texts, Texts, Texts)
def test_groups_are_connected_components(queries: list[int], positives: list[int], negatives: list[int]) -> None:
    ids, negative_ids = group_ids(*(torch.tensor(texts) for texts in (queries, positives, negatives)))
    groups = components(queries, positives)

    def group(text: int) -> frozenset[int]:
        return next((frozenset(g) for g in groups if text in g), frozenset([text]))

    for i, query in enumerate(queries):
        for j, positive in enumerate(positives):
            assert (ids[i] == ids[j]) == (group(query) == group(positive))
        for k, negative in enumerate(negatives):
            assert (ids[i] == negative_ids[k]) == (group(query) == group(negative))


def test_a_chain_of_pairs_is_one_group() -> None:
    n = 50
    ids, none = group_ids(torch.arange(n), torch.arange(n) + 1, torch.tensor([], dtype=torch.long))
    assert ids.unique().tolist() == [0]
    assert len(none) == 0
