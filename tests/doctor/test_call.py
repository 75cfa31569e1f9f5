"""The embeddings, labels and ids among the arguments of a criterion."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from contrapose import Loss, nt_xent, two_views
from contrapose.doctor.call import NotRead, read_call

Z1, Z2, Z3 = torch.randn(3, 12, 5)
LABELS = torch.arange(12) % 3


def takes_anything(*arguments: Any, **keywords: Any) -> Tensor:
    raise AssertionError("not called")


class _Labelled(nn.Module):
    def forward(self, embeddings: Tensor, labels: Tensor, ids: Tensor | None = None) -> Tensor:
        return embeddings.sum()


def test_two_views() -> None:
    call = read_call(takes_anything, (Z1, Z2), {})
    assert [side is z for side, z in zip(call.sides, (Z1, Z2), strict=True)] == [True, True]
    assert call.groups is not None
    assert call.groups.tolist() == list(range(12))
    assert call.views_only


def test_columns_after_the_second_are_negatives() -> None:
    call = read_call(takes_anything, ([Z1, Z2, Z3],), {})
    assert len(call.sides) == 3
    assert not call.views_only


@pytest.mark.parametrize("dim", [0, 1])
def test_views_in_one_tensor(dim: int) -> None:
    call = read_call(takes_anything, (torch.stack([Z1, Z2, Z3], dim),), {})
    assert torch.equal(call.sides[2], Z3)
    assert call.views_only
    received = call.ask(lambda z: z.square().sum(), [Z1, Z2, Z3])
    torch.testing.assert_close(received, sum(z.square().sum() for z in (Z1, Z2, Z3)))


def test_labels_and_ids_are_told_apart_by_name() -> None:
    ids = torch.arange(12)
    call = read_call(_Labelled(), (Z1, LABELS, ids), {})
    assert call.labels is LABELS
    assert call.ids is ids
    call = read_call(Loss(nt_xent, temperature=0.5), (Z1, Z2), {"ids": ids})
    assert call.ids is ids
    assert call.labels is None


def test_a_scale_is_no_embedding() -> None:
    scale = torch.tensor(10.0)
    call = read_call(takes_anything, (Z1, Z2, scale), {"output_dict": True})
    assert len(call.sides) == 2
    value = call.ask(lambda a, b, s, output_dict: {"contrastive_loss": (a + b).sum() * s}, (Z2, Z2))
    torch.testing.assert_close(value, Z2.sum() * 20)


def test_a_subset_takes_the_same_rows_of_all_arguments() -> None:
    targets = torch.arange(144).view(12, 12)
    weight = torch.arange(12.0)
    before = torch.get_rng_state()
    part = read_call(takes_anything, (Z1, Z2), {"ids": LABELS, "weight": weight, "targets": targets}).subset(8)
    assert torch.equal(before, torch.get_rng_state())
    assert part.rows == 4
    kept = part.kept
    assert kept is not None
    assert part.ids is not None
    assert torch.equal(part.sides[1], Z2[kept])
    assert torch.equal(part.ids, LABELS[kept])

    def criterion(a: Tensor, b: Tensor, *, ids: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
        assert torch.equal(weight, kept.float())
        assert torch.equal(targets, kept[:, None] * 12 + kept[None])
        return (a - b).sum()

    part.ask(criterion, part.sides)


def test_a_subset_of_one_labelled_side_keeps_whole_classes() -> None:
    part = read_call(takes_anything, (Z1, LABELS), {}).subset(9)
    assert part.labels is not None
    assert part.labels.bincount().sort(descending=True).values[:2].tolist() == [4, 4]
    assert part.rows == 8


def test_without_embeddings_it_says_what_it_got() -> None:
    with pytest.raises(NotRead, match=r"expected embeddings \(m, d\), got Pairs"):
        read_call(takes_anything, (two_views(Z1, Z2),), {})
