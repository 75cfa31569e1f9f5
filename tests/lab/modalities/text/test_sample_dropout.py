"""Dropout by keys: masks depend on the keys alone, and have the statistics of dropout."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from contrapose.lab.modalities.text.dropout import DropoutKeys, SampleDropout, seed_dropout, seeded_attention
from contrapose.randomness import bits


def keys_of(batch: int, tokens: int, *, seed: int = 0) -> torch.Tensor:
    return bits(torch.arange(batch * tokens).view(batch, tokens), seed)


def dropout(p: float = 0.1, layer: int = 0, *, batch: int = 64, tokens: int = 16) -> SampleDropout:
    keys = DropoutKeys()
    keys.value = keys_of(batch, tokens)
    return SampleDropout(p, layer, keys)


@pytest.mark.parametrize("p", [0.1, 0.5])
@pytest.mark.parametrize("count", [64, 66])  # 66 is no multiple of the four values of a hash
def test_the_share_of_dropped_elements_is_p_and_the_mean_is_one(p: float, count: int) -> None:
    mask = dropout(p).mask(count)
    assert mask is not None
    assert mask.shape == (64, 16, count)
    error = (p * (1 - p) / mask.numel()) ** 0.5
    assert float((mask == 0).float().mean()) == pytest.approx(p, abs=5 * error)
    assert float(mask.mean()) == pytest.approx(1, abs=5 * error / (1 - p))
    # No element is dropped in a pattern: features and tokens have the same share, up to chance.
    for dims in ((0, 1), (0, 2)):
        shares = (mask == 0).float().mean(dims)
        assert float((shares - p).abs().max()) < 6 * (p * (1 - p) / (mask.numel() / len(shares))) ** 0.5


def test_masks_are_those_of_the_keys_in_any_batch() -> None:
    drop = dropout()
    states = torch.randn(64, 16, 12)
    whole = drop(states)
    rows = torch.tensor([5, 3, 40])
    drop.keys.value = keys_of(64, 16)[rows]
    torch.testing.assert_close(drop(states[rows]), whole[rows], rtol=0, atol=0)


def test_layers_and_keys_have_different_masks() -> None:
    first, layer = dropout(0.5), dropout(0.5, layer=1)
    other = dropout(0.5)
    other.keys.value = keys_of(64, 16, seed=1)
    masks = [drop.mask(64) for drop in (first, layer, other)]
    for i, mask in enumerate(masks):
        for another in masks[:i]:
            assert mask is not None
            assert another is not None
            assert 0.48 < float((mask == another).float().mean()) < 0.52


def test_without_keys_nothing_is_dropped_even_in_training() -> None:
    network = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)).train()
    seed_dropout(network)
    x = torch.randn(2, 3, 4)
    torch.testing.assert_close(network(x), network[0](x), rtol=0, atol=0)


def test_seeding_replaces_all_dropouts_and_numbers_them() -> None:
    network = nn.Sequential(nn.Dropout(0.1), nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.3)))
    keys = seed_dropout(network)
    replaced = [module for module in network.modules() if isinstance(module, SampleDropout)]
    assert [(drop.p, drop.layer) for drop in replaced] == [(0.1, 0), (0.3, 1)]
    assert all(drop.keys is keys for drop in replaced)
    assert not any(isinstance(module, nn.Dropout) for module in network.modules())


class Attention(nn.Module):
    def __init__(self, p: float) -> None:
        super().__init__()
        self.dropout = dropout(p, batch=3, tokens=5)


def test_attention_without_keys_is_torch_s_and_with_keys_drops_weights() -> None:
    query, key, value = (torch.randn(3, 2, 5, 4, dtype=torch.float64) for _ in range(3))
    allowed = torch.ones(3, 1, 5, 5, dtype=torch.bool)
    allowed[1, :, :, 3:] = False
    module = Attention(0.25)
    dropped, _ = seeded_attention(module, query, key, value, allowed, scaling=0.5)
    # A plain loop over sentences, heads and tokens.
    mask = module.dropout.mask(2 * 5)
    assert mask is not None
    for b in range(3):
        for h in range(2):
            for t in range(5):
                scores = torch.stack([query[b, h, t] @ key[b, h, s] * 0.5 for s in range(5)])
                scores[~allowed[b, 0, t]] = -torch.inf
                weights = scores.softmax(0) * mask[b, t].view(5, 2)[:, h]
                torch.testing.assert_close(dropped[b, t, h], weights @ value[b, h], rtol=1e-6, atol=1e-6)
    module.dropout.keys.value = None
    plain, _ = seeded_attention(module, query, key, value, allowed, scaling=0.5)
    wanted = nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=allowed, scale=0.5)
    torch.testing.assert_close(plain, wanted.transpose(1, 2))


def test_a_dropout_that_cannot_be_seeded_is_refused() -> None:
    query = torch.randn(1, 1, 2, 4)
    with pytest.raises(
        ValueError, match="encoder: the dropout of Linear cannot be a function of the sample; set it to 0"
    ):
        seeded_attention(nn.Linear(1, 1), query, query, query, None, dropout=0.1)


def test_attention_masks_do_not_depend_on_the_length_of_the_batch() -> None:
    drop = dropout(0.5, batch=3, tokens=8)
    weights = torch.ones(3, 2, 8, 8)
    whole = drop.attention(weights)
    assert drop.keys.value is not None
    drop.keys.value = drop.keys.value[:, :5]
    torch.testing.assert_close(drop.attention(weights[:, :, :5, :5]), whole[:, :, :5, :5], rtol=0, atol=0)
    # MPNet computes its attention itself, and drops the weights as if they were states.
    torch.testing.assert_close(drop(weights[:, :, :5, :5]), whole[:, :, :5, :5], rtol=0, atol=0)
