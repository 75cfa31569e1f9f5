"""One pass for all prefixes of a nested loss equals a pass for each, and the dense formula in float64."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from interpreter import SETUP, run

from contrapose.losses import Loss, hard_negative, nested, nt_xent
from contrapose.pairs import Pairs, cross, hardest, queue, self_guided, two_views
from contrapose.reduce import NestedPrefixes, choose, chosen_engines, path
from contrapose.temperature import cosine

NESTED = (
    SETUP
    + """
from contrapose.losses import nested
from contrapose.reduce import chosen_engines
from contrapose.reduce.tiled import prefixes

prefixes.BLOCK, prefixes._FORWARD_BLOCK = 60, 32  # blocks of 32 for three prefixes
for precision in launch.TILES:
    prefixes._TILES[precision], prefixes._FORWARD_TILES[precision] = (8, 16, 32, 4, 2), (16, 16, 32, 4, 2)

KINDS = {
    "two_views": lambda a, b, c: two_views(a, b),
    "ids": lambda a, b, c: two_views(a, b, ids=torch.arange(len(a)) // 2),
    "views": lambda a, b, c: views(torch.stack([a, b, (a + b).tanh()])),
    "cross": lambda a, b, c: cross(a, b),
    "both directions": lambda a, b, c: cross(a, b, symmetric=True),
    "explicit negatives": lambda a, b, c: cross(a, b, symmetric=True, negatives=c),
    "queue": lambda a, b, c: queue(a, b, c),
    "bank": lambda a, b, c: bank(a, torch.arange(len(a)), c),
}
BOTH = {"two_views", "ids", "both directions", "explicit negatives"}
LOSSES = {  # objective, settings
    "nt_xent": (nt_xent, {"temperature": 0.2}),
    "per anchor": (nt_xent, {"temperature": 0.2, "reduction": "none"}),
    "clip": (clip, {"temperature": 0.2}),
    "dcl": (dcl, {"temperature": 0.1}),
    "split views": (dcl, {"temperature": 0.1, "split_views": True}),
    "dystress": (nt_xent, {"temperature": cosine(0.07, 0.2, detach=False)}),
}
m, width, dims, precision, step = json.loads(sys.argv[1])
torch.manual_seed(m)
raw = [torch.randn(m, width), torch.randn(m, width), torch.randn(2 * m + 1, width)]
raw[0][1, : dims[0]] = 0  # the first prefix of this row has no direction
weights = [1.0 + k for k in range(len(dims))]
found = {}
for position, (kind, make) in enumerate(KINDS.items()):
    for name, (objective, settings) in LOSSES.items():
        needs = {"clip": BOTH | {"cross"}, "split views": BOTH - {"both directions", "explicit negatives"}}
        if kind not in needs.get(name, KINDS) or (position + len(name)) % step:
            continue
        criterion = nested(objective, dims=dims, weights=weights)
        loss = lambda p, t: (criterion(p, **settings) * torch.linspace(1, 2, p.shape[0]).to(p.anchor)).mean()
        with chosen_engines() as chosen:
            plain, one_pass = errors(make, loss, raw, precision)
        reasons = [choice.reason for choice in chosen if choice.name == "tiled"]
        repeated = 2 if name == "split views" else 1
        assert reasons == ["all prefixes of the embeddings in one pass"] * (repeated * len(dims)), reasons
        choose.MAX_PREFIXES, kept = 0, choose.MAX_PREFIXES
        _, loop = errors(make, loss, raw, precision)
        choose.MAX_PREFIXES = kept
        found[f"{kind}, {name}"] = [plain, one_pass, loop]
print(json.dumps(found))
"""
)


@pytest.mark.parametrize(
    "options",
    [
        pytest.param([11, 64, [32, 64], "tf32x3", 7], marks=pytest.mark.thorough),
        pytest.param([21, 104, [32, 64, 96], "tf32x3", 3], marks=pytest.mark.slow),
        pytest.param([32, 104, [32, 64, 96], "tf32x3", 2], marks=pytest.mark.slow),
        pytest.param([21, 192, [32, 64, 96, 128, 160, 192], "tf32x3", 5], marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_kernels_equal_the_dense_formula(options: list[Any]) -> None:
    found: dict[str, tuple[float, float, float]] = json.loads(run(NESTED, json.dumps(options)))
    assert len(found) == {2: 19, 3: 12, 5: 8, 7: 6}[options[-1]]
    for name, (plain, one_pass, _) in found.items():
        assert one_pass <= 2 * plain + 5e-6, f"{name}: {one_pass} against the dense path's {plain}"


@pytest.mark.thorough
def test_bf16_kernels_are_as_exact_as_a_pass_for_each_prefix() -> None:
    for name, (_, one_pass, loop) in json.loads(run(NESTED, '[24, 72, [32, 64], "bf16", 3]')).items():
        assert one_pass <= 1.5 * loop + 1e-4, f"{name}: {one_pass} against {loop}"


def reason(criterion: Callable[..., Any], pairs: Pairs, **settings: Any) -> str:
    """Return the first choice of an engine for a loss, without running a kernel."""
    with path("tiled"), chosen_engines() as chosen, pytest.MonkeyPatch.context() as patch:
        patch.setattr("contrapose.reduce.autograd._kernel_inputs", stop)
        patch.setattr("contrapose.reduce.autograd._prefix_in_kernels", stop)
        with pytest.raises(StopIteration):
            criterion(pairs, **settings)
    return chosen[0].reason


def stop(*_: Any) -> None:
    raise StopIteration


Z = torch.randn(2, 6, 128)
EACH = "a pass for each prefix, since "


def test_the_engine_says_when_there_is_one_pass() -> None:
    short = nested(nt_xent, dims=(32, 64))
    assert reason(short, two_views(*Z)) == "all prefixes of the embeddings in one pass"
    assert reason(nested("dystress", dims=(32, 64)), two_views(*Z)) == "all prefixes of the embeddings in one pass"
    assert EACH not in reason(nt_xent, two_views(*Z))


@pytest.mark.parametrize(
    ("objective", "dims", "settings", "expected"),
    [
        (nt_xent, (16, 64), {}, "not all widths are multiples of 32"),
        (nt_xent, (64,), {}, "there are 1 prefixes, and not 2 to 6"),
        (nt_xent, tuple(range(16, 128, 16)), {}, "there are 7 prefixes, and not 2 to 6"),
        (nt_xent, (32, 64), {"temperature": 0.01}, "no constant bounds the exponent"),
        (nt_xent, (32, 64), {"temperature": torch.tensor(0.1)}, "no constant bounds the exponent"),
        (nt_xent, (32, 64), {"temperature": torch.full((12,), 0.1)}, "no constant bounds the exponent"),
        (nt_xent, (32, 64), {"negatives": hardest(2)}, "not all rows with other ids are negatives"),
        (nt_xent, (32, 64), {"negatives": self_guided(margin=0.1)}, "not all rows with other ids are negatives"),
        (hard_negative, (32, 64), {}, "the loss needs more than one log-sum-exp"),
    ],
)  # fmt: skip
def test_the_engine_says_why_there_is_a_pass_for_each_prefix(
    objective: Any, dims: tuple[int, ...], settings: dict[str, Any], expected: str
) -> None:
    assert reason(nested(objective, dims=dims), two_views(*Z), **settings).endswith(EACH + expected)


def test_anchors_of_two_vectors_have_a_pass_for_each_prefix() -> None:
    pairs = cross(*Z, directions=("a_to_b", "b_to_a"))
    assert reason(nested(nt_xent, dims=(32, 64)), pairs).endswith(EACH + "an anchor consists of two vectors")


def test_replaced_rows_have_a_pass_for_each_prefix() -> None:
    """The kernels of all prefixes read the rows of the pairs from which the prefixes were made."""

    def repelled(pairs: Pairs) -> torch.Tensor:
        return nt_xent(replace(pairs, pool=-pairs.pool))

    assert reason(nested(repelled, dims=(32, 64)), cross(*Z)).endswith(
        EACH + "the objective has replaced anchors or candidates"
    )


def test_sums_without_a_graph_are_not_used_for_gradients() -> None:
    leaf, known = torch.randn(4, 64, requires_grad=True), torch.zeros(4)
    selection = cross(leaf, leaf).source((), may_be_empty=False).selection
    assert selection is not None
    prefixes = NestedPrefixes(leaf, leaf, None, (32, 64))
    prefixes.computed.append(("exponent", selection, (known, known)))
    assert prefixes.totals("exponent", selection) is None
    with torch.no_grad():
        assert prefixes.totals("exponent", selection) == (known, known)
    assert prefixes.totals("another exponent", selection) is None


def test_only_the_first_prefix_starts_a_pass() -> None:
    """An objective whose temperature depends on the prefix: a pass for all prefixes would be repeated for each."""

    def changing(pairs: Pairs) -> torch.Tensor:
        return nt_xent(pairs, temperature=0.1 if pairs.anchor.shape[1] == 32 else 0.2)

    with path("tiled"), chosen_engines() as chosen, pytest.MonkeyPatch.context() as patch:
        patch.setattr("contrapose.reduce.autograd._prefix_in_kernels", lambda *_: torch.zeros(12))
        patch.setattr("contrapose.reduce.autograd._kernel_inputs", stop)
        with pytest.raises(StopIteration):
            nested(changing, dims=(32, 64))(two_views(*Z))
    assert [choice.prefix is None for choice in chosen] == [False, True]
    assert chosen[1].reason.endswith("the first prefix requested another statistic")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("precision", ["tf32x3", "bf16"])
@pytest.mark.parametrize(
    ("kind", "temperature", "dims"),
    [
        ("two_views", 0.05, (64, 128, 256)),
        ("two_views", cosine(0.07, 0.2), (64, 320)),
        ("ids", 0.05, (32, 64, 96, 128, 256, 320)),
        ("both directions", 0.05, (64, 128, 256)),
        ("cross", 0.05, (64, 128, 256)),
        ("queue", 0.05, (64, 128, 256)),
    ],
)
def test_a_gpu_is_as_exact_as_a_pass_for_each_prefix(
    kind: str, precision: str, temperature: Any, dims: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    makers: dict[str, Callable[..., Pairs]] = {
        "two_views": two_views,
        "ids": partial(two_views, ids=torch.arange(700, device="cuda") // 2),
        "both directions": partial(cross, symmetric=True),
        "cross": cross,
        "queue": queue,
    }
    raw = [torch.randn(m, 320, device="cuda") for m in ([700, 700, 1100] if kind == "queue" else [700, 700])]
    criterion = Loss(nested(nt_xent, dims=dims, weights=[1.0 + k for k in range(len(dims))]), temperature=temperature)
    results = []
    for dtype, which, most in ((torch.float64, "dense", 0), (torch.float32, "tiled", 0), (torch.float32, "tiled", 6)):
        monkeypatch.setattr(choose, "MAX_PREFIXES", most)
        leaves = [x.to(dtype, copy=True).requires_grad_() for x in raw]
        with path(which, precision=precision if which == "tiled" else None), chosen_engines() as chosen:
            loss = criterion(makers[kind](*leaves))
            loss.backward()
        gradient = torch.cat([x.grad.double().flatten() for x in leaves if x.grad is not None])
        results.append((float(loss.detach()), gradient))
    assert all(choice.prefix is not None for choice in chosen)
    (value, exact), *others = results
    loop, one_pass = (
        abs(v - value) / abs(value) + float((gradient - exact).norm() / exact.norm()) for v, gradient in others
    )
    # In bf16 a coordinate's weights are rounded as a sum, whose error is larger than that of its parts.
    assert one_pass <= (2.0 if precision == "bf16" else 1.2) * loop + 1e-6
