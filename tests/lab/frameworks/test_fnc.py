"""FNC's framework: which views are encoded by whom, what they are compared with, and what the queue holds."""

from __future__ import annotations

import copy
import re
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from contrapose.lab.frameworks import FNC
from contrapose.lab.modalities.images.encoders import encoder
from contrapose.lab.networks.heads import head
from contrapose.lab.training import Run
from contrapose.losses import CATALOGUE, Loss, fnc, nt_xent
from contrapose.pairs import unit

BATCH, SIZE, WIDTH = 5, 24, 16
INDEX = torch.arange(BATCH)


def make(**settings: Any) -> FNC:
    torch.manual_seed(1)
    return FNC(encoder("tiny"), head("simclr", 64, WIDTH), width=WIDTH, size=SIZE, **settings)


def images(views: int, *, local: int = 0) -> list[Tensor]:
    groups = [torch.randn(views, BATCH, 3, 32, 32)]
    return [*groups, torch.randn(local, BATCH, 3, 16, 16)] if local else groups


def passes(network: nn.Module) -> list[tuple[int, ...]]:
    """Return the shapes that a network is called with from now on."""
    shapes = list[tuple[int, ...]]()
    network.register_forward_pre_hook(lambda module, inputs: shapes.append(tuple(inputs[0].shape[::2])))
    return shapes


@pytest.mark.parametrize(
    ("anchor_views", "local", "queries", "keys"),
    [
        (2, 0, [(10, 32)], [(20, 32)]),
        (2, 3, [(10, 32)], [(20, 32), (15, 16)]),
        (3, 0, [(15, 32)], [(20, 32)]),
        (0, 3, [(20, 32), (15, 16)], [(20, 32), (15, 16)]),
    ],
)
def test_anchors_are_encoded_twice_and_support_views_once(
    anchor_views: int, local: int, queries: list[tuple[int, int]], keys: list[tuple[int, int]]
) -> None:
    framework = make(anchor_views=anchor_views)
    query_shapes, key_shapes = passes(framework.encoder), passes(framework.keys[0])
    embeddings = framework(images(4, local=local), INDEX)
    assert [(shape[0], shape[1]) for shape in query_shapes] == queries
    assert [(shape[0], shape[1]) for shape in key_shapes] == keys
    anchors = anchor_views or 4 + local
    assert embeddings.z.shape == (anchors, BATCH, WIDTH)
    assert embeddings.support is not None
    assert embeddings.target is not None
    assert embeddings.support.shape == (4 + local, BATCH, WIDTH)
    assert torch.equal(embeddings.target, embeddings.support[:anchors])
    assert not embeddings.support.requires_grad


def test_candidates_are_the_keys_of_the_batch_and_of_earlier_ones() -> None:
    framework = make().eval()
    framework.rows.copy_(unit(torch.randn(SIZE, WIDTH)))
    (x,) = images(3)
    query, keys = unit(framework.embed([x[:2]])), unit(framework.keys(x.flatten(0, 1))).unflatten(0, (3, BATCH))
    total = torch.zeros(())
    for view in range(2):
        for i in range(BATCH):
            others = torch.cat([k[torch.arange(BATCH) != i] for k in keys[:2]])
            positive = query[view, i] @ keys[1 - view, i] / 0.2
            negatives = torch.cat([framework.rows, others]) @ query[view, i] / 0.2
            total = total + torch.cat([positive[None], negatives]).logsumexp(0) - positive
    pairs = framework([x], INDEX).pairs
    torch.testing.assert_close(nt_xent(pairs, temperature=0.2), total / (2 * BATCH))
    torch.testing.assert_close(fnc(pairs, temperature=0.2, threshold=2.0), total / (2 * BATCH))
    assert pairs.stored == SIZE


@pytest.mark.parametrize("name", ["fnc", "fnc_elimination"])
def test_all_views_support_the_search(name: str) -> None:
    embeddings = make()(images(2, local=3), INDEX)
    method = CATALOGUE[name](threshold=0.2)
    assert torch.equal(Loss(method)(embeddings), method(embeddings.pairs, support=embeddings.support))
    assert not torch.equal(Loss(method)(embeddings), method(embeddings.pairs, support=embeddings.target[:1]))


def test_no_gradient_reaches_the_momentum_encoder() -> None:
    framework = make()
    Loss(CATALOGUE["fnc"](threshold=0.0))(framework(images(3), INDEX)).backward()
    assert all(p.grad is None and not p.requires_grad for p in framework.keys.parameters())
    learned = [*framework.encoder.parameters(), *framework.projector.parameters()]
    assert all(p.grad is not None and bool(p.grad.isfinite().all()) for p in learned)


def test_the_queue_holds_the_newest_keys_of_the_anchor_views() -> None:
    framework, keys = make(), list[Tensor]()
    assert not bool(framework.rows.any())
    for step in range(3):  # 3 · 2 · 5 rows into 24
        embeddings = framework(images(3), INDEX)
        before = embeddings.pairs.pool[:SIZE].clone()
        keys.append(unit(embeddings.target).flatten(0, 1))
        framework.update(embeddings)
        assert torch.equal(embeddings.pairs.pool[:SIZE], before)  # those of the step, for its backward pass
        assert int(framework.rows.any(1).sum()) == min(SIZE, 10 * (step + 1))
    found = {tuple(row.tolist()) for row in framework.rows}
    assert found == {tuple(row.tolist()) for row in torch.cat(keys)[-SIZE:]}
    assert int(framework.place) == 30 % SIZE


def test_all_state_is_saved() -> None:
    framework, other = make(), make()
    for _ in range(2):
        framework.update(framework(images(3), INDEX))
        framework.after_step()
    other.load_state_dict(copy.deepcopy(framework.state_dict()))
    x = images(3)
    losses = [Loss(CATALOGUE["fnc"])(f.eval()(x, INDEX)) for f in (framework, other)]
    assert torch.equal(*losses)
    assert {"rows", "place"} <= framework.state_dict().keys()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"anchor_views": 1}, "anchor_views: expected 0 for all, or from 2 to the 2 views of full size"),
        ({"anchor_views": 3, "views": "digits+local4"}, "(--view-count), got 3"),
        ({"anchor_views": -1}, "anchor_views: expected a whole number of at least 0, got -1"),
        ({"view_count": 1}, "view_count: fnc needs at least 2 views of each sample, got 1"),
        (
            {"loss": "nt_xent(negatives=hardest(65))", "queue": 8, "batch": 16},
            "more than the 38 negatives that fnc has",
        ),
    ],
)
def test_settings_that_do_not_fit_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        Run(**dict[str, Any]({"framework": "fnc", "loss": "fnc"}) | settings)


def test_its_setting_is_refused_elsewhere() -> None:
    with pytest.raises(ValueError, match="anchor_views: it is for fnc; the framework is moco"):
        Run(framework="moco", anchor_views=0)
    assert "anchor_views" not in Run(framework="fnc", loss="fnc").describe()  # names of existing runs stay valid
    with pytest.raises(ValueError, match="size: expected a queue of at least one row, got 0"):
        FNC(encoder("tiny"), head("simclr", 64, WIDTH), width=WIDTH, size=0)
