"""Views of sentences: functions of seed, epoch, index and view, which keep the order of tokens."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from contrapose.lab.modalities.text.views import NO_TOKEN, TextViews


def sentences(count: int = 200, length: int = 20) -> Tensor:
    """Sentences of 4 to 20 tokens: 1 at the start, 2 at the end, and their places between."""
    rows = torch.full((count, 1, length), NO_TOKEN, dtype=torch.int32)
    for row in range(count):
        size = 4 + row % (length - 3)
        rows[row, 0, :size] = torch.tensor([1, *range(100, 100 + size - 2), 2])
    return rows


def train(views: TextViews, raw: Tensor, index: Tensor, *, seed: int = 0, epoch: int = 0) -> Tensor:
    (made,) = views.train(raw, index, seed=seed, epoch=epoch)
    return made


@pytest.mark.parametrize("recipe", ["dropout", "deletion", "deletion:0.7", "cropping"])
def test_views_are_a_function_of_seed_epoch_index_and_view(recipe: str) -> None:
    views, raw, index = TextViews(recipe, length=20), sentences(), torch.arange(200)
    made = train(views, raw, index)
    assert made.shape == (2, 200, 2, 20)
    assert made.dtype == torch.long
    some = torch.tensor([7, 150, 3])
    torch.testing.assert_close(train(views, raw[some], index[some]), made[:, some])
    assert not torch.equal(made[0], made[1])
    for other in (train(views, raw, index, seed=1), train(views, raw, index, epoch=1)):
        assert not torch.equal(other[:, :, 1], made[:, :, 1])
    torch.testing.assert_close(views.draw(raw, index, seed=0, epoch=0), made[0])


def test_dropout_leaves_the_tokens_as_they_are() -> None:
    raw = sentences()
    made = train(TextViews("dropout", length=20), raw, torch.arange(200))
    for view in made:
        torch.testing.assert_close(view[:, 0], raw[:, 0].long())


@pytest.mark.parametrize(
    ("recipe", "least"), [("deletion", 0.0), ("deletion:0.7", 0.0), ("cropping", 0.6), ("cropping:0.2", 0.2)]
)
def test_tokens_are_taken_out_in_order_and_the_ends_stay(recipe: str, least: float) -> None:
    raw = sentences()
    made = train(TextViews(recipe, length=20), raw, torch.arange(200))[0, :, 0]
    shares = []
    for row, kept in zip(raw[:, 0].tolist(), made.tolist(), strict=True):
        before, after = ([token for token in tokens if token != NO_TOKEN] for tokens in (row, kept))
        assert kept == after + [NO_TOKEN] * (20 - len(after))  # no holes
        assert (after[0], after[-1]) == (1, 2)
        inner = after[1:-1]
        assert inner == sorted(inner)
        assert set(inner) <= set(before)
        if recipe.startswith("cropping"):
            assert inner == list(range(inner[0], inner[0] + len(inner)))  # one run
            assert len(inner) >= least * (len(before) - 2)
        shares.append(len(inner) / (len(before) - 2))
    shares_of = {"deletion": 0.9, "deletion:0.7": 0.3, "cropping": 0.84, "cropping:0.2": 0.66}
    mean = sum(shares) / len(shares)
    assert mean == pytest.approx(shares_of[recipe], abs=0.04)


def test_columns_are_the_views_and_must_agree_in_number() -> None:
    raw = torch.cat([sentences(5), sentences(5) + 1, sentences(5) + 2], 1)
    made = train(TextViews("columns", 3, 20), raw, torch.arange(5))
    torch.testing.assert_close(made[:, :, 0], raw.transpose(0, 1).long())
    with pytest.raises(ValueError, match="view_count: expected 3, one view for each column of the data, got 2"):
        train(TextViews("columns", 2, 20), raw, torch.arange(5))


def test_a_recipe_without_a_share_is_the_same_as_with_its_default() -> None:
    for recipe, share in (("deletion", 0.1), ("cropping", 0.6)):
        made = [
            train(TextViews(name, length=20), sentences(), torch.arange(200)) for name in (recipe, f"{recipe}:{share}")
        ]
        assert torch.equal(*made)


@pytest.mark.thorough
def test_views_with_a_share_can_be_compiled() -> None:
    views, raw, index = TextViews("deletion:0.7", length=20), sentences(), torch.arange(200)
    compiled = torch.compile(views.train, backend="eager", fullgraph=True)
    assert torch.equal(compiled(raw, index, seed=0, epoch=0)[0], train(views, raw, index))


@pytest.mark.parametrize("recipe", ["deletion:", "deletion:1", "deletion:0", "deletion:much", "dropout:0.3"])
def test_a_share_that_makes_no_sense_is_refused(recipe: str) -> None:
    with pytest.raises(ValueError, match=r"views: expected deletion:P or cropping:P with a number P between 0 and 1"):
        TextViews(recipe)


def test_bad_settings_are_refused() -> None:
    with pytest.raises(ValueError, match="views"):
        TextViews("dropuot")
    with pytest.raises(ValueError, match="size: expected at least 3 tokens"):
        TextViews("dropout", length=2)
