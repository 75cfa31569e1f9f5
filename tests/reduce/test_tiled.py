"""Kernels for wide embeddings, both directions, sigmoids and hard negatives equal the dense formula under Triton's interpreter.

Tiles and blocks are made small, so that a few rows already have several of each. Each test starts a process: Triton reads
TRITON_INTERPRET when a kernel is defined, that is, on import.
"""

from __future__ import annotations

import json

import pytest
from interpreter import SETUP, run

STATISTICS = (
    SETUP
    + """
LOSSES = {
    "nt_xent": lambda p, t: nt_xent(p, temperature=0.2),
    "steep": lambda p, t: nt_xent(p, temperature=0.005),
    "learned": lambda p, t: nt_xent(p, temperature=t[0]),
    "per anchor": lambda p, t: dcl(p, temperature=torch.linspace(0.1, 0.5, p.shape[0])),
    "dystress": lambda p, t: nt_xent(p, temperature=cosine(0.07, 0.2, detach=False)),
    "clip learned": lambda p, t: clip(p, temperature=t[0]),
    "hard_negative": lambda p, t: hard_negative(p, temperature=0.5, beta=1.5),
    "cacr": lambda p, t: cacr(p),
    "sogclr": lambda p, t: sogclr(p, temperature=0.1),
    "align_uniform": lambda p, t: align_uniform(p),
    "siglip": lambda p, t: siglip(p, temperature=0.1, bias=-2.0),
    "siglip learned": lambda p, t: siglip(p, temperature=t[0], bias=t[1]),
    "siglip per anchor": lambda p, t: siglip(p, temperature=torch.linspace(0.1, 0.5, p.shape[0]), bias=-2.0),
    "siglip dystress": lambda p, t: siglip(p, temperature=cosine(0.1, 0.3, detach=False), bias=t[1]),
}
KINDS = {
    "two_views": lambda a, b, c: two_views(a, b),
    "ids": lambda a, b, c: two_views(a, b, ids=torch.arange(len(a)) // 2),
    "views": lambda a, b, c: views(torch.stack([a, b, (a + b).tanh()])),
    "cross": lambda a, b, c: cross(a, b),
    "both directions": lambda a, b, c: cross(a, b, symmetric=True),
    "explicit negatives": lambda a, b, c: cross(a, b, symmetric=True, negatives=c),
    "joint": lambda a, b, c: cross(a, b, directions=("a_to_b", "a_to_a", "b_to_a", "b_to_b"), negatives=c),
    "queue": lambda a, b, c: queue(a, b, c),
    "bank": lambda a, b, c: bank(a, torch.arange(len(a)), c),
}
SOME = ("nt_xent", "learned", "dystress", "siglip learned")  # on every kind; all losses on three of them
m, d, precision, everything = json.loads(sys.argv[1])
torch.manual_seed(m)
raw = [torch.randn(m, d), torch.randn(m, d), torch.randn(2 * m + 1, d)]
found = {}
for position, (kind, make) in enumerate(KINDS.items()):
    if everything == "each once":  # the losses in turns, so that each loss and each kind is tried
        for name in list(LOSSES)[position :: len(KINDS)]:
            found[f"{kind}, {name}"] = errors(make, LOSSES[name], raw, precision)
        continue
    whole = everything or (precision != "bf16" and kind in ("two_views", "cross", "both directions"))
    for name in LOSSES if whole else SOME:
        found[f"{kind}, {name}"] = errors(make, LOSSES[name], raw, precision)
print(json.dumps(found))
"""
)

HARDEST = (
    SETUP
    + """
thresholds.MIN_ROWS, thresholds.MIN_COLUMNS, thresholds._STRIDE, thresholds._DEPTH = 0, 10, 2, 16
thresholds._COLLECT_TILE, thresholds._SPLITS, thresholds._MOST_SPLITS = (16, 16, 4, 2), 1, 1
out = {}
for slots, width in ((8, 0), (8, 256), (1, 256)):  # in the last case many anchors are left to the eight passes
    thresholds.SLOTS, choose.MAX_FUSED_WIDTH = slots, width
    for choice in (hardest(0.1), hardest(3)):
        torch.manual_seed(0)
        raw = [torch.randn(25, 20), torch.randn(25, 20)]
        loss = lambda p, t: nt_xent(p, temperature=0.3, negatives=choice)
        out[f"{slots} {width} {choice}"] = errors(two_views, loss, raw, "tf32x3")
pairs = two_views(*raw)
chosen = pairs.source(pairs.choices(hardest(0.1)), may_be_empty=False).selection
z = torch.nn.functional.normalize(torch.cat(raw), dim=1)
z, k = torch.nn.functional.pad(z, (0, 12)), chosen.kept_counts(torch.int64)
search = thresholds._Search(z, z, chosen.anchor_id, chosen.pool_id, "tf32x3")
for slots, all_found in ((8, True), (1, False)):
    thresholds.SLOTS = slots
    assert bool(thresholds._find_by_sample(search, k, int(k.max()))[1].all()) == all_found, slots
print(json.dumps(out))
"""
)

INTERVALS = """
import math
import torch
from contrapose.reduce.hardest.kernels import interval_kernel
torch.manual_seed(0)
m, n = 500, 3
ids = torch.arange(m)
samples = {
    "bell": torch.randn(n, m) * 0.09, "even": torch.rand(n, m) * 2 - 1, "one value": torch.full((n, m), 0.5),
    "two groups": torch.cat([torch.full((n, m // 2), 0.9), torch.randn(n, m // 2) * 0.05], 1),
    "collapsed": 1 - torch.rand(n, m) ** 4 * 0.1,
}
for name, x in samples.items():
    x = x.clamp(-1, 1).half()
    negatives = x.float()
    negatives[:, 7] = -4.0  # the column with the id of the rows
    for share in (0.005, 0.0819, 0.5, 0.99):
        rank, deviation = share * m, 3 * math.sqrt(share * m * (1 - share)) + 1
        more = torch.full((n,), math.ceil(rank + deviation), dtype=torch.int32)
        fewer = torch.full((n,), max(0, math.floor(rank - deviation)), dtype=torch.int32)
        low, high = torch.empty(n), torch.empty(n)
        interval_kernel[(n,)](x, torch.full((n,), 7), ids, more, fewer, low, high, m, SIZE=512, COARSE=16, NEAR=4)
        above_low, above_high = ((negatives >= bound[:, None]).sum(1) for bound in (low, high))
        assert (above_low >= more.clamp(max=m - 1)).all(), (name, share, above_low, more)
        assert (above_high < fewer.clamp(min=1)).all(), (name, share, above_high, fewer)
        if name in ("bell", "even") and 0.01 < share < 0.9:  # not much wider than it must be
            assert (above_low <= more + 8).all() and (above_high >= fewer - 8).all(), (name, share)
print("held")
"""

ONE_NODE = (
    SETUP
    + """
from contrapose.pairs import other_views
from contrapose.reduce import chosen_engines
for width in (0, 256):
    choose.MAX_FUSED_WIDTH = width
    # 48: tiles are full, so that ids are compared as numbers
    for m, d, dtype, stacked in (
        (7, 20, torch.float32, False), (20, 17, torch.float32, True), (9, 16, torch.bfloat16, False),
        (48, 17, torch.float32, False), (48, 16, torch.bfloat16, False),
    ):
        for negatives in (None, other_views()):
            precision = "bf16" if m == 48 and dtype == torch.bfloat16 else "tf32x3"
            z = torch.randn(2, m, d).to(dtype)
            results = []
            for which in ("fused", "dense"):
                leaf, numbers = z.clone().requires_grad_(), torch.tensor([5.0, -2.0], requires_grad=True)
                pairs = views(leaf) if stacked else two_views(*leaf)
                found = []
                with path(which, precision=precision if which == "fused" else None), chosen_engines() as chosen:
                    tau = 1 / numbers[0] if m == 7 else 0.2
                    for loss in (
                        nt_xent(pairs, temperature=tau, negatives=negatives),
                        siglip(pairs, temperature=1 / numbers[0], bias=numbers[1], negatives=negatives),
                    ):
                        assert loss.grad_fn.name() == "LossOfViewsBackward" or which == "dense", loss.grad_fn.name()
                        of_views, of_numbers = torch.autograd.grad(3 * loss, (leaf, numbers), retain_graph=True, allow_unused=True)
                        assert of_views.dtype == dtype
                        found.append((loss.detach(), of_views, torch.zeros(2) if of_numbers is None else of_numbers))
                assert {choice.name for choice in chosen} <= {"fused", "tiled"} or which == "dense"
                results.append(found)
            near = 1e-5 if precision == "tf32x3" else 5e-3
            tolerance = 1e-2 if dtype == torch.bfloat16 else 2e-5
            for (loss, gradient, learned), (value, reference, expected) in zip(*results):
                torch.testing.assert_close(loss, value, rtol=near, atol=near)
                torch.testing.assert_close(gradient, reference, rtol=tolerance, atol=tolerance)
                torch.testing.assert_close(learned, expected, rtol=10 * near, atol=near)
print("equal")
"""
)

# Negatives that nearly tie: half of them within the band of ties, others at its edges. With an exponent of nearly 0, Σ e^φ
# is how many of them count.
EXACTLY_K = (
    SETUP
    + """
from contrapose.reduce import LogSumExp, Scale
width, d = json.loads(sys.argv[1])
choose.MAX_FUSED_WIDTH, found = width, {}
for kind in ("near ties", "sorted classes", "duplicates"):
    for precision in ("tf32x3", "bf16"):
        torch.manual_seed(d)
        a = torch.nn.functional.normalize(torch.randn(40, d), dim=1)
        if kind == "near ties":
            rows = a[:1] + 4e-7 * torch.randn(300, d)
        elif kind == "sorted classes":
            rows = (torch.randn(6, d)[:, None] + 1e-3 * torch.randn(6, 50, d)).flatten(0, 1)
        else:
            rows = torch.randn(10, d).repeat_interleave(30, 0)
        pairs = queue(a, a.clone(), rows)
        with path("fused", precision=precision):
            (total,) = pairs.reduce(LogSumExp(Scale(1e-6)), negatives=hardest(16))
            (steep,) = pairs.reduce(LogSumExp(Scale(50.0)), negatives=hardest(16))
        s = pairs.anchor @ pairs.pool.T if precision == "tf32x3" else pairs.anchor.bfloat16().float() @ pairs.pool.bfloat16().float().T
        expected = (50.0 * s.double().topk(16).values).logsumexp(1)
        found[f"{kind} {width} {d} {precision}"] = [
            float((total.exp() - 16).abs().max()), float((steep - expected).abs().max()),
        ]
print(json.dumps(found))
"""
)

SHARE = (
    SETUP
    + """
from contrapose.reduce import LogSumExp, Scale, reduce_rows
for width in (0, 256):
    choose.MAX_FUSED_WIDTH = width
    for share in (slice(0, 9), slice(5, 27)):  # within one side, and across both: not all rows of the pool are met
        results = []
        for which in ("dense", "fused"):
            torch.manual_seed(0)
            leaf = torch.randn(2, 20, 18, requires_grad=True)
            pairs = cross(*leaf, symmetric=True)
            source = pairs.source(pairs.choices(None), False, share=share)
            with path(which, precision="tf32x3" if which == "fused" else None):
                (total,) = reduce_rows(source, LogSumExp(Scale(5.0)))
            total.sum().backward()
            results.append((total.detach(), leaf.grad))
        torch.testing.assert_close(results[1], results[0], rtol=1e-5, atol=1e-6)
print("equal")
"""
)


# Ids are compared only in tiles that may hold equal ones. Small tiles of large batches: most are not compared.
KNOWN_IDS = (
    SETUP
    + """
import random
import triton
import triton.language as tl
from contrapose.reduce.kernel_math import may_share_ids

@triton.jit
def answer(out, row, column, period, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    tl.store(out, may_share_ids(row, column, period, ROWS, COLUMNS).to(tl.int32))

random.seed(0)
out, answers = torch.zeros(1, dtype=torch.int32), set()
for _ in range(300):
    rows, columns = random.choice((1, 2, 4, 8)), random.choice((1, 2, 4, 8))
    row, column, period = random.randrange(60), random.randrange(60), random.randrange(1, 40)
    answer[(1,)](out, row, column, period, rows, columns)
    equal = any((row + i) % period == (column + j) % period for i in range(rows) for j in range(columns))
    assert bool(out.item()) == equal, (row, column, period, rows, columns)
    answers.add(equal)
assert answers == {True, False}
found = {}
for width in (0, 256):
    choose.MAX_FUSED_WIDTH = width
    raw = [torch.randn(75, 16), torch.randn(75, 16)]
    for name, make in (("two_views", two_views), ("cross", cross), ("both", lambda a, b: cross(a, b, symmetric=True))):
        found[f"{name} {width}"] = errors(make, lambda p, t: nt_xent(p, temperature=0.2), raw, "tf32x3")
    found[f"siglip {width}"] = errors(two_views, lambda p, t: siglip(p, temperature=0.1, bias=-2.0), raw, "tf32x3")
print(json.dumps(found))
"""
)


@pytest.mark.parametrize(
    ("options", "cases"),
    [
        pytest.param([17, 20, "tf32x3", "each once"], 14, marks=pytest.mark.thorough),
        pytest.param([17, 20, "tf32x3", False], 3 * 14 + 6 * 4, marks=pytest.mark.thorough),
        pytest.param([33, 40, "tf32x3", True], 9 * 14, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_tiles_equal_the_dense_formula(options: list[object], cases: int) -> None:
    found: dict[str, tuple[float, float]] = json.loads(run(STATISTICS, json.dumps(options)))
    assert len(found) == cases
    for name, (plain, tiled) in found.items():
        assert tiled <= 2 * plain + 5e-6, f"{name}: {tiled} against the dense path's {plain}"


@pytest.mark.slow
def test_bf16_tiles_are_as_exact_as_bf16_products() -> None:
    found: dict[str, tuple[float, float]] = json.loads(run(STATISTICS, '[17, 24, "bf16", false]'))
    for name, (_, tiled) in found.items():
        assert tiled <= 0.03, f"{name}: {tiled}"


@pytest.mark.slow
def test_the_hardest_negatives_are_found_in_a_sample() -> None:
    for name, (plain, tiled) in json.loads(run(HARDEST)).items():
        assert tiled <= 2 * plain + 1e-5, f"{name}: {tiled} against the dense path's {plain}"


@pytest.mark.thorough
@pytest.mark.parametrize(
    "widths",
    ["[256, 8]", "[256, 96]", *(pytest.param(widths, marks=pytest.mark.slow) for widths in ("[0, 96]", "[0, 400]"))],
)
def test_exactly_k_negatives_count(widths: str) -> None:
    """However near they are to each other: a threshold that another kernel found does not decide how many there are."""
    found: dict[str, tuple[float, float]] = json.loads(run(EXACTLY_K, widths))
    assert len(found) == 6
    for name, (count, value) in found.items():
        assert count < 1e-4, f"{name}: the number of negatives is off by {count}"
        assert value < 2e-4, f"{name}: {value}"  # the product of 50 and the width of the band of ties, and rounding


@pytest.mark.thorough
def test_an_interval_of_a_sample_holds_the_ranks_it_was_made_for() -> None:
    assert "held" in run(INTERVALS)


@pytest.mark.thorough
def test_one_node_is_the_same_loss() -> None:
    assert "equal" in run(ONE_NODE)


@pytest.mark.thorough
def test_ids_are_compared_wherever_two_can_be_equal() -> None:
    for name, (plain, tiled) in json.loads(run(KNOWN_IDS)).items():
        assert tiled <= 2 * plain + 5e-6, f"{name}: {tiled} against the dense path's {plain}"


@pytest.mark.thorough
def test_a_share_of_the_anchors_meets_a_part_of_the_pool() -> None:
    assert "equal" in run(SHARE)
