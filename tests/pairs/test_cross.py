"""`cross`: its directions, its explicit negatives and its errors."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, normalize

from contrapose.losses import cacr, clip, dcl, nt_xent, siglip
from contrapose.pairs import Pairs, cross, two_views
from contrapose.pairs.negatives import hardest, other_views, same_view
from contrapose.reduce import Count, LogSumExp, Scale

A, B = torch.randn(2, 5, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
H = torch.randn(5, 2, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
FOUR = ("a_to_b", "a_to_a", "b_to_a", "b_to_b")

WRONG: dict[str, tuple[Callable[[], object], str]] = {
    "lengths": (lambda: cross(A, B[:3]), "b: expected the shape of a, (5, 4), got (3, 4)"),
    "negatives vector": (lambda: cross(A, B, negatives=H[0, 0]), "negatives: expected embeddings of shape (r, d) or (m, k, d), got shape (4,)"),
    "negatives samples": (lambda: cross(A, B, negatives=H[:3]), "negatives: expected (m, k, d) for m = 5 samples, or (r, d), got (3, 2, 4)"),
    "negatives width": (lambda: cross(A, B, negatives=H[..., :3]), "negatives: expected rows of the embeddings' width 4, got shape (5, 2, 3)"),
    "negatives integers": (lambda: cross(A, B, negatives=H.long()), "negatives: expected floating point embeddings, got torch.int64"),
    "negatives empty": (lambda: cross(A, B, negatives=H[:, :0]), "negatives: expected at least one embedding, got shape (5, 0, 4)"),
    "ids of nothing": (lambda: cross(A, B, negative_ids=torch.arange(5)), "negative_ids: expected None, since there are no explicit negatives"),
    "ids shape": (lambda: cross(A, B, negatives=H, negative_ids=torch.arange(10)), "negative_ids: expected one integer per row of negatives, shape (5, 2), got (10,)"),
    "ids list": (lambda: cross(A, B, negatives=H, negative_ids=[1]), "negative_ids: expected one integer per row of negatives, shape (5, 2), got list; write torch.tensor(negative_ids)"),  # type: ignore[arg-type]
    "ids floats": (lambda: cross(A, B, negatives=H, negative_ids=torch.rand(5, 2)), "negative_ids: expected integers, got torch.float32"),
    "all one sample": (lambda: cross(A[:1], B[:1], negatives=H[0], negative_ids=torch.zeros(2, dtype=torch.long)), "negative_ids: all rows have the id 0, so there are no negatives"),
    "one sample": (lambda: cross(A[:1], B[:1]), "expected at least two images"),
    "one sample both ways": (lambda: cross(A[:1], B[:1], symmetric=True, negatives=H[0]), "expected at least two images"),
    "sample ids": (lambda: cross(A, B, ids=torch.arange(4)), "ids: expected one integer per image, shape (5,), got (4,)"),
    "direction": (lambda: cross(A, B, directions=("a_to_b", "b_to_c")), "directions: expected one of 'a_to_b', 'a_to_a', 'b_to_a', 'b_to_b', got 'b_to_c'"),
    "no positives": (lambda: cross(A, B, directions=("b_to_a",)), "directions: expected 'a_to_b', which has the positives, to be included, got ('b_to_a',)"),
    "no direction": (lambda: cross(A, B, directions=()), "directions: expected 'a_to_b'"),
    "two softmaxes": (lambda: cross(A, B, symmetric=True, directions=("a_to_b", "a_to_a")), "directions: expected ('a_to_b',) with symmetric=True"),
    "own side": (lambda: nt_xent(cross(A, B, symmetric=True), negatives=same_view()), "negatives: same_view() leaves an anchor without negatives"),
    "split": (lambda: dcl(cross(A, B, symmetric=True), split_views=True), "split_views: expected the batch itself in several views"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_bad_input_is_named_in_the_message(name: str) -> None:
    make, message = WRONG[name]
    with pytest.raises(ValueError, match=re.escape(message)):
        make()


def count(pairs: Pairs) -> list[float]:
    values: list[float] = pairs.reduce(Count())[0].tolist()
    return values


def test_the_number_of_negatives() -> None:
    assert count(cross(A, B)) == [4] * 5
    assert count(cross(A, B, symmetric=True)) == [4] * 10
    assert count(cross(A, B, negatives=H)) == [14] * 5
    assert count(cross(A, B, negatives=H.flatten(0, 1)[:3])) == [7] * 5
    assert count(cross(A, B, symmetric=True, negatives=H)) == [14] * 5 + [4] * 5
    assert count(cross(A, B, directions=FOUR)) == [16] * 5
    assert count(cross(A, B, directions=FOUR, negatives=H)) == [16 + 10 + 8] * 5
    # The same rows without an owner are also negatives of each b_i.
    assert count(cross(A, B, directions=FOUR, negatives=H.flatten(0, 1))) == [16 + 10 + 10] * 5
    assert count(cross(A[:1], B[:1], negatives=H[0])) == [2]


def test_rows_with_an_anchors_id_are_not_its_negatives() -> None:
    ids, negative_ids = torch.tensor([3, 4, 3, 5, 6]), torch.tensor([[3, 9], [9, 9], [9, 9], [9, 5], [9, 9]])
    assert count(cross(A, B, ids=ids)) == [3, 4, 3, 4, 4]
    assert count(cross(A, B, ids=ids, negatives=H, negative_ids=negative_ids)) == [12, 14, 12, 13, 14]
    both = cross(A, B, ids=ids, negatives=H, negative_ids=negative_ids, symmetric=True)
    assert count(both) == [12, 14, 12, 13, 14, 3, 4, 3, 4, 4]
    # Given ids apply in every direction, and an id that no sample has does not bring a sample's own into "b_to_b".
    joint = cross(A, B, ids=ids, negatives=H, negative_ids=negative_ids, directions=("a_to_b", "b_to_b"))
    assert count(joint) == [12 + 3 + 6, 14 + 4 + 8, 12 + 3 + 6, 13 + 4 + 8, 14 + 4 + 8]


def test_both_directions_are_the_mean_of_two() -> None:
    both = cross(A, B, symmetric=True, negatives=H)
    one, other = cross(A, B, negatives=H), cross(B, A)
    for loss in (nt_xent, dcl, siglip, cacr):
        values = loss(both, reduction="none")
        torch.testing.assert_close(values, torch.cat([loss(one, reduction="none"), loss(other, reduction="none")]))
    torch.testing.assert_close(siglip(cross(A, B, symmetric=True)), siglip(cross(A, B)))  # each pair counted twice
    torch.testing.assert_close(nt_xent(cross(A, B, symmetric=True)), nt_xent(two_views(A, B), negatives=other_views()))
    assert both.positive.shape == (10, 1, 4)


def test_a_choice_applies_to_the_other_side() -> None:
    both = cross(A, B, symmetric=True, negatives=H)
    for chosen in (hardest(2), (other_views(), hardest(2))):
        values = nt_xent(both, negatives=chosen, reduction="none")
        expected = [nt_xent(p, negatives=hardest(2), reduction="none") for p in (cross(A, B, negatives=H), cross(B, A))]
        torch.testing.assert_close(values, torch.cat(expected))


@pytest.mark.parametrize(
    "pairs",
    [
        cross(A, B, symmetric=True),
        cross(A, B, symmetric=True, negatives=H),
        cross(A, B, negatives=H, negative_ids=torch.arange(10).reshape(5, 2)),
        cross(A, B, directions=FOUR, negatives=H),
    ],
    ids=["symmetric", "symmetric negatives", "negatives", "joint"],
)
def test_similarity_values_are_the_same_comparison(pairs: Pairs) -> None:
    for loss in (nt_xent, siglip, cacr, clip):
        torch.testing.assert_close(loss(pairs.similarities()), loss(pairs))


@pytest.mark.parametrize("symmetric", [False, True])
def test_low_precision_products_need_low_precision_everywhere(symmetric: bool) -> None:
    a, b, h = A.bfloat16(), B.bfloat16(), H.bfloat16()
    assert cross(a, b, negatives=h, symmetric=symmetric).kernel_inputs.half_precision
    assert not cross(a, b, negatives=h.float(), symmetric=symmetric).kernel_inputs.half_precision
    assert not cross(a.float(), b, negatives=h, symmetric=symmetric).kernel_inputs.half_precision


def test_views_tell_the_sides_apart() -> None:
    joint = cross(A, B, directions=FOUR)
    across = cross(A, B, directions=("a_to_b", "b_to_a"))
    within = joint.reduce(LogSumExp(Scale(5.0)), negatives=same_view())[0]
    torch.testing.assert_close(nt_xent(joint, negatives=other_views()), nt_xent(across))
    a, b = normalize(A), normalize(B)
    off = ~torch.eye(5, dtype=torch.bool)
    sides = torch.cat([(a @ a.T)[off].reshape(5, 4), (b @ b.T)[off].reshape(5, 4)], dim=1)
    torch.testing.assert_close(within, (5 * sides).logsumexp(1))


def ranking_loss(directions: tuple[str, ...], partition_mode: str, embeddings: list[Tensor]) -> Tensor:
    """The loss of sentence-transformers at a scale of 20."""
    from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss

    names = {"a_to_b": "query_to_doc", "a_to_a": "query_to_query", "b_to_a": "doc_to_query", "b_to_b": "doc_to_doc"}
    loss = MultipleNegativesRankingLoss(
        torch.nn.Identity(),
        directions=tuple(names[direction] for direction in directions),
        partition_mode=partition_mode,
    )
    value: Tensor = loss.compute_loss_from_embeddings(embeddings, torch.empty(0))
    return value


@pytest.mark.parametrize("extra", [e for r in range(4) for e in itertools.combinations(FOUR[1:], r)], ids=str)
@pytest.mark.parametrize("explicit", [False, True])
def test_directions_equal_those_of_sentence_transformers(extra: tuple[str, ...], explicit: bool) -> None:
    pytest.importorskip("sentence_transformers")
    directions = ("a_to_b", *extra)
    pairs = cross(A, B, directions=directions, negatives=H if explicit else None)
    embeddings = [A, B, *(H.unbind(1) if explicit else ())]
    (total,) = pairs.reduce(LogSumExp(Scale(20.0)))
    positive = 20 * pairs.positives()[:, 0]
    # Theirs has the positive in the denominator for each direction that contains it, ours once.
    times = torch.tensor(2.0 if "b_to_a" in directions else 1.0, dtype=torch.float64)
    ours = (torch.logaddexp(total, positive + times.log()) - positive).mean()
    torch.testing.assert_close(ours, ranking_loss(directions, "joint", embeddings), rtol=1e-12, atol=1e-12)
    if "b_to_a" not in directions:
        torch.testing.assert_close(nt_xent(pairs, temperature=0.05), ours, rtol=1e-12, atol=1e-12)
    if extra == ("b_to_a",):
        both = cross(A, B, symmetric=True, negatives=H if explicit else None)
        expected = ranking_loss(directions, "per_direction", embeddings)
        torch.testing.assert_close(nt_xent(both, temperature=0.05), expected, rtol=1e-12, atol=1e-12)


def test_clip_is_the_mean_of_two_cross_entropies() -> None:
    """Value, and gradients of the embeddings and of the temperature."""
    results = []
    calls: tuple[Callable[[Tensor, Tensor, Tensor], Tensor], ...] = (
        lambda a, b, t: clip(a, b, temperature=t),
        lambda a, b, t: clip(two_views(a, b), temperature=t),
        lambda a, b, t: clip(cross(a, b, symmetric=True), temperature=t),
        plain_clip,
    )
    for call in calls:
        a, b = A.clone().requires_grad_(), B.clone().requires_grad_()
        temperature = torch.tensor(0.07, dtype=torch.float64, requires_grad=True)
        value = call(a, b, temperature)
        results.append([value.detach(), *torch.autograd.grad(value, [a, b, temperature])])
    for ours in results[:-1]:
        torch.testing.assert_close(ours, results[-1], rtol=1e-12, atol=1e-12)


def plain_clip(a: Tensor, b: Tensor, temperature: Tensor) -> Tensor:
    logits, target = normalize(a) @ normalize(b).T / temperature, torch.arange(len(a))
    return (cross_entropy(logits, target) + cross_entropy(logits.T, target)) / 2
