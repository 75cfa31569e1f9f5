"""Recall between images and captions: a plain loop, chance, equal captions, ties, blocks, and bad input."""

from __future__ import annotations

import itertools
import math
import re
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from contrapose.lab.modalities.captions.recall import CaptionIndex, caption_chance, caption_recall
from contrapose.metrics import recall_at, retrieval

KS = (1, 5, 10)


def is_right(image: int, text: int, image_of_text: list[int], ids: list[int]) -> bool:
    """Whether an image has a caption with the id of this text."""
    return any(owner == image and ids[other] == ids[text] for other, owner in enumerate(image_of_text))


def cosine(a: list[float], b: list[float]) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True)) / math.sqrt(sum(x * x for x in a) * sum(y * y for y in b))


def is_hit(similarity: list[float], right: list[bool], k: int) -> bool:
    best = max(s for s, r in zip(similarity, right, strict=True) if r)
    return sum(s >= best - 1e-14 for s, r in zip(similarity, right, strict=True) if not r) < k


def recall_oracle(images: Tensor, texts: Tensor, image_of_text: list[int], ids: list[int]) -> dict[str, float]:
    """By plain loops over float64, from the protocol's description."""
    rows, columns = images.double().tolist(), texts.double().tolist()
    scores: dict[str, float] = {}
    for k in KS:
        hits = [
            is_hit(
                [cosine(image, text) for text in columns],
                [is_right(i, j, image_of_text, ids) for j in range(len(texts))],
                k,
            )
            for i, image in enumerate(rows)
        ]
        scores |= {f"image_to_text_recall_{k}": 100 * sum(hits) / len(hits)} if k <= len(texts) else {}
        hits = [
            is_hit(
                [cosine(image, text) for image in rows],
                [is_right(i, j, image_of_text, ids) for i in range(len(images))],
                k,
            )
            for j, text in enumerate(columns)
        ]
        scores |= {f"text_to_image_recall_{k}": 100 * sum(hits) / len(hits)} if k <= len(images) else {}
    return scores


def owners(images: int, texts: int, generator: torch.Generator) -> Tensor:
    """An image for each text, in any order, at least one text for each image."""
    others = torch.randint(images, (texts - images,), generator=generator)
    return torch.cat([torch.arange(images), others])[torch.randperm(texts, generator=generator)]


@settings(max_examples=30, deadline=None)
@given(n=st.integers(2, 12), more=st.integers(0, 15), distinct=st.integers(1, 20), seed=st.integers(0, 100))
def test_recall_equals_a_plain_loop(n: int, more: int, distinct: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    image_of_text = owners(n, n + more, generator)
    images = torch.randn(n, 3, generator=generator, dtype=torch.float64)
    texts = images[image_of_text] + torch.randn(n + more, 3, generator=generator, dtype=torch.float64)
    ids = torch.randint(distinct, (n + more,), generator=generator)
    for given_ids in (None, ids):
        listed = (torch.arange(n + more) if given_ids is None else given_ids).tolist()
        scores = caption_recall(images, texts, image_of_text, ids=given_ids)
        assert scores == pytest.approx(recall_oracle(images, texts, image_of_text.tolist(), listed))


def test_one_caption_per_image_is_recall_at() -> None:
    images = torch.randn(40, 8)
    texts = images + torch.randn(40, 8)
    scores = caption_recall(images, texts, torch.arange(40))
    for name, expected in (("image_to_text", recall_at(images, texts)), ("text_to_image", recall_at(texts, images))):
        assert [scores[f"{name}_recall_{k}"] for k in KS] == [expected[f"recall@{k}"] for k in KS]
        assert 0 < expected["recall@5"] < 100


def test_chance_is_the_mean_over_all_rankings() -> None:
    """Of three images with seven captions, of which two are equal: all 5,040 orders of the texts, all six of the images."""
    image_of_text, ids = torch.tensor([0, 1, 1, 2, 2, 2, 0]), torch.tensor([0, 1, 2, 3, 4, 1, 6])
    right = [[is_right(i, j, image_of_text.tolist(), ids.tolist()) for j in range(7)] for i in range(3)]
    chance = caption_chance(image_of_text, ids=ids)
    assert sorted(chance) == ["image_to_text_recall_1", "image_to_text_recall_5", "text_to_image_recall_1"]
    for k in (1, 5):
        hits = [any(row[j] for j in order[:k]) for row in right for order in itertools.permutations(range(7))]
        assert chance[f"image_to_text_recall_{k}"] == pytest.approx(100 * sum(hits) / len(hits))
    hits = [right[order[0]][j] for j in range(7) for order in itertools.permutations(range(3))]
    assert chance["text_to_image_recall_1"] == pytest.approx(100 * sum(hits) / len(hits))


def test_random_embeddings_score_chance() -> None:
    image_of_text = torch.arange(300).repeat_interleave(5)
    scores = caption_recall(torch.randn(300, 64), torch.randn(1500, 64), image_of_text)
    for name, chance in caption_chance(image_of_text).items():
        rows = 300 if name.startswith("image") else 1500
        # Five standard deviations of a share of independent hits.
        assert abs(scores[name] - chance) < 500 * math.sqrt(chance / 100 / rows), name


@pytest.mark.parametrize("noise", [0.0, 1e-9])
def test_a_collapsed_model_finds_nothing(noise: float) -> None:
    image_of_text = torch.arange(20).repeat_interleave(5)
    images, texts = (torch.ones(count, 8) + noise * torch.randn(count, 8) for count in (20, 100))
    assert set(caption_recall(images, texts, image_of_text).values()) == {0.0}


def test_equal_captions_of_two_images_are_right_for_both() -> None:
    images = torch.eye(4)
    texts = torch.tensor(
        [[0.0, 1, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]]
    )  # images 0 and 1 have the same caption
    scores = caption_recall(images, texts, torch.arange(4))
    assert (scores["image_to_text_recall_1"], scores["text_to_image_recall_1"]) == (50.0, 75.0)
    scores = caption_recall(images, texts, torch.arange(4), ids=torch.tensor([7, 7, 8, 9]))
    assert (scores["image_to_text_recall_1"], scores["text_to_image_recall_1"]) == (75.0, 100.0)


@pytest.mark.parametrize("similarities", [1, 37, 120, 2**24])
def test_blocks_give_the_same_scores(monkeypatch: pytest.MonkeyPatch, similarities: int) -> None:
    generator = torch.Generator().manual_seed(0)
    image_of_text = owners(13, 31, generator)
    images = torch.randn(13, 4, generator=generator)
    texts = images[image_of_text] + torch.randn(31, 4, generator=generator)
    ids = torch.randint(25, (31,), generator=generator)
    expected = caption_recall(images, texts, image_of_text, ids=ids)
    monkeypatch.setattr(retrieval, "_BLOCK", similarities)
    assert caption_recall(images, texts, image_of_text, ids=ids) == expected


def test_captions_are_listed_in_order() -> None:
    index = CaptionIndex.of([["a dog", "a cat"], ["a bird", "a dog"], ["a fish"]])
    assert index.texts == ["a dog", "a cat", "a bird", "a dog", "a fish"]
    assert index.image_of_text.tolist() == [0, 0, 1, 1, 2]
    assert index.ids.tolist() == [0, 1, 2, 0, 3]


BAD: list[tuple[dict[str, Any], str]] = [
    ({"images": torch.eye(4)[:1]}, "images: expected at least two, got 1"),
    ({"images": torch.ones(4, 3)}, "texts: expected rows of the embeddings' width 3, got shape (4, 4)"),
    ({"texts": torch.full((4, 4), torch.nan)}, "texts: the embedding of row 0 is not finite"),
    ({"image_of_text": torch.arange(3)}, "image_of_text: expected one integer per text, shape (4,), got (3,)"),
    ({"image_of_text": torch.tensor([0, 1, 2, 4])}, "image_of_text: expected numbers from 0 to 3, got 4"),
    ({"image_of_text": torch.tensor([0, 1, 1, 3])}, "image_of_text: image 2 has no text; leave out such images"),
    ({"ids": torch.arange(5)}, "ids: expected one integer per text, shape (4,), got (5,)"),
]


@pytest.mark.parametrize(("arguments", "message"), BAD)
def test_messages(arguments: dict[str, Any], message: str) -> None:
    defaults = {"images": torch.eye(4), "texts": torch.eye(4), "image_of_text": torch.arange(4)}
    with pytest.raises(ValueError, match=re.escape(message)):
        caption_recall(**(defaults | arguments))


def test_chance_refuses_numbers_without_images() -> None:
    with pytest.raises(ValueError, match="image 1 has no text"):
        caption_chance(torch.tensor([0, 2]))
    with pytest.raises(ValueError, match="expected at least one text, got none"):
        caption_chance(torch.tensor([], dtype=torch.long))
