"""The rule that tells losses apart is wrong in at most 5 % of comparisons, and finds large differences."""

from __future__ import annotations

from itertools import combinations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from contrapose.lab.studies.differences import Difference, differences, in_words


def simulate(
    accuracies: list[float], seeds: int, images: int, generator: torch.Generator, *, seed_deviation: float = 0.01
) -> dict[str, Tensor]:
    """Draw hits of losses with these true accuracies.

    Images differ in difficulty, a loss is better at some images than at others, and each seed has an accuracy of its own.
    """
    shape = (len(accuracies), seeds, images)
    difficulty = torch.randn(images, generator=generator)
    preference = torch.randn(len(accuracies), 1, images, generator=generator) / 2
    noise = torch.randn(shape, generator=generator) / 2
    normal = torch.distributions.Normal(0.0, 1.5**0.5)  # of the sum of the three
    threshold = normal.icdf(torch.tensor(accuracies))
    # A small shift of the threshold changes the accuracy by the density there.
    seed_effect = seed_deviation / normal.log_prob(threshold).exp()
    shift = seed_effect[:, None, None] * torch.randn(len(accuracies), seeds, 1, generator=generator)
    hits = difficulty + preference + noise < threshold[:, None, None] + shift
    return {f"loss{i}": hit for i, hit in enumerate(hits)}


def share_of_statements(accuracies: list[float], seeds: int, images: int, *, repeats: int, deviation: float) -> float:
    """Return how often any two losses are told apart."""
    generator = torch.Generator().manual_seed(seeds * images)
    made = 0
    for _ in range(repeats):
        hits = simulate(accuracies, seeds, images, generator, seed_deviation=deviation)
        made += any(difference.clear for difference in differences(hits))
    return made / repeats


@pytest.mark.thorough
@pytest.mark.parametrize("deviation", [0.0, 0.02])
@pytest.mark.parametrize(("losses", "seeds", "images"), [(2, 2, 400), (4, 2, 400), (4, 3, 400)])
def test_equal_losses_are_rarely_told_apart(losses: int, seeds: int, images: int, deviation: float) -> None:
    share = share_of_statements([0.8] * losses, seeds, images, repeats=300, deviation=deviation)
    assert share <= 0.05 + 2.5 * (0.05 * 0.95 / 300) ** 0.5  # of 300 repeats, with their own error


@pytest.mark.parametrize(("seeds", "least"), [(2, 0.8), (3, 0.98), (5, 1.0)])
def test_a_large_difference_is_found(seeds: int, least: float) -> None:
    share = share_of_statements([0.8, 0.8, 0.8, 0.65], seeds, 1000, repeats=100, deviation=0.01)
    assert share >= least


@pytest.mark.thorough
@pytest.mark.parametrize(("by_image", "low", "high"), [(True, 0.0, 0.1), (False, 0.15, 1.0)])
def test_captions_of_an_image_are_not_independent(by_image: bool, low: float, high: float) -> None:
    """Five captions share the embedding of their image: as samples of their own, equal losses are told apart too often."""
    generator, made = torch.Generator().manual_seed(0), 0
    for _ in range(200):
        of_image = torch.randn(2, 1, 200, 1, generator=generator)  # how a loss embeds an image, with any seed
        of_caption = torch.randn(2, 3, 200, 5, generator=generator)
        hits = (of_image * 0.6**0.5 + of_caption * 0.4**0.5 < 0).double()
        numbers = hits.mean(3) if by_image else hits.flatten(2)
        made += any(difference.clear for difference in differences({"a": numbers[0], "b": numbers[1]}))
    assert low <= made / 200 <= high


def test_one_unstable_loss_does_not_decide() -> None:
    """A loss whose seeds differ widely is not ahead because the others are stable."""
    generator = torch.Generator().manual_seed(0)
    wrong = 0
    for _ in range(300):
        stable = simulate([0.8, 0.8], 3, 500, generator, seed_deviation=0.002)
        unstable = simulate([0.8, 0.8], 3, 500, generator, seed_deviation=0.05)
        hits = stable | {f"unstable {name}": hit for name, hit in unstable.items()}
        wrong += any(difference.clear for difference in differences(hits))
    assert wrong / 300 <= 0.09


@settings(deadline=None, max_examples=50)
@given(st.integers(2, 4), st.integers(2, 4), st.integers(1, 30), st.integers(0, 2**31))
def test_any_hits_give_every_pair_once(losses: int, seeds: int, images: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    hits = {f"loss{i}": torch.rand(seeds, images, generator=generator) < 0.7 for i in range(losses)}
    found = differences(hits)
    assert {frozenset((d.first, d.second)) for d in found} == {frozenset(pair) for pair in combinations(hits, 2)}
    for d in found:
        assert d.points >= 0
        assert 0 < d.chance < float("inf")
        accuracy = {name: float(hit.double().mean()) for name, hit in hits.items()}
        assert accuracy[d.first] >= accuracy[d.second] - 1e-12
        assert d.points <= 100 * (accuracy[d.first] - accuracy[d.second]) + 1e-9


def test_few_images_decide_nothing() -> None:
    """Ten images on which one loss is always right and the other misses three: the seeds agree, but images are few."""
    always, often = torch.ones(3, 10, dtype=torch.bool), torch.ones(3, 10, dtype=torch.bool)
    often[:, :3] = False
    (difference,) = differences({"always": always, "often": often})
    assert difference.first == "always"
    assert not difference.clear


def test_unequal_test_sets_and_one_seed_are_refused() -> None:
    with pytest.raises(ValueError, match=r"the same test images for all losses, got a \(2, 5\), b \(2, 6\)"):
        differences({"a": torch.ones(2, 5).bool(), "b": torch.ones(2, 6).bool()})
    with pytest.raises(ValueError, match="at least two seeds"):
        differences({"a": torch.ones(1, 5).bool(), "b": torch.ones(1, 5).bool()})


def test_words_say_no_more_than_the_pairs() -> None:
    def found(*clear: str) -> list[Difference]:
        return [Difference(a, b, 2.0, 1.0 if a + b in clear else 3.0) for a, b in combinations("xyz", 2)]

    names = list("xyz")
    assert in_words(names, found()) == "These runs show no clear difference between x, y and z"
    assert in_words(names, found("xz", "yz")) == "x and y are ahead of z; there is no clear difference between x and y"
    assert in_words(names, found("xy", "xz")) == "x is ahead of y and z; there is no clear difference between y and z"
    assert (
        in_words(names, found("xz"))
        == "x is ahead of z; there is no clear difference between x and y, or between y and z"
    )
    assert in_words(names, found("xy", "xz", "yz")) == "x is ahead of y and z; y is ahead of z"
    many = [Difference(a, b, 2.0, 1.0 if a + b == "xw" else 3.0) for a, b in combinations("xyzw", 2)]
    assert in_words(list("xyzw"), many) == "x is ahead of w; there is no clear difference between the others"
