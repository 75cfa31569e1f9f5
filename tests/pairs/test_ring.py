"""Losses of pairs in a ring equal those of gathered embeddings, with gradients, on any number of processes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
import torch
import torch.distributed as dist
from processes import Work, run_in_process_group
from tiers import first
from torch import Tensor, nn

from contrapose.distributed import gather
from contrapose.losses import balanced, cacr, clip, cmc, dclw, nt_xent, siglip, supcon
from contrapose.losses.catalogue import CATALOGUE
from contrapose.losses.objective import traits_of
from contrapose.pairs import (
    Negatives,
    Pairs,
    around_ring,
    bank,
    batch_rows,
    cross,
    guided,
    hardest,
    other_views,
    queue,
    same_view,
    self_guided,
    stored_rows,
    two_views,
    views,
)
from contrapose.reduce import Count, Expectation, LogSumExp, Maximum, Mean, Nearest, Scale, Sum, SumOfSquares, path
from contrapose.temperature import cosine, learned, learned_number

SAMPLES, WIDTH = 3, 5  # on each process
Make = Callable[[Tensor, Tensor, Tensor | None], Pairs]


def stored() -> Tensor:
    """Stored rows, the same on every process."""
    return torch.randn(6, WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(4))


KINDS: dict[str, Make] = {
    "two views": lambda a, b, ids: two_views(a, b, ids=ids),
    "dot": lambda a, b, ids: two_views(a, b, ids=ids, similarity="dot"),
    "three views": lambda a, b, ids: views([a, b, a + b], ids=ids),
    "keys": lambda a, b, ids: views([a, b], keys=[b, a], ids=ids),
    "one direction": lambda a, b, ids: cross(a, b, ids=ids),
    "negatives": lambda a, b, ids: cross(a, b, negatives=torch.stack([a.flip(1), b + 1], 1), ids=ids),
    "both directions": lambda a, b, ids: cross(a, b, symmetric=True, ids=ids),
    "both directions, negatives": lambda a, b, ids: cross(a, b, symmetric=True, negatives=a.flip(1), ids=ids),
    "four directions": lambda a, b, ids: cross(a, b, directions=("a_to_b", "a_to_a", "b_to_a", "b_to_b"), ids=ids),
    "queue": lambda a, b, ids: queue(a, b, stored(), ids=ids),
    "queue and batch": lambda a, b, ids: queue(a, b, stored(), batch=True, keys=True, ids=ids),
}
LOSSES: dict[str, Callable[[Pairs], Tensor]] = {
    "nt_xent": lambda pairs: nt_xent(pairs, temperature=0.2),
    "dystress": lambda pairs: nt_xent(pairs, temperature=cosine(0.07, 0.2)),
    "hardest": lambda pairs: nt_xent(pairs, temperature=0.3, negatives=hardest(2)),
    "hardest of other views": lambda pairs: nt_xent(pairs, temperature=0.3, negatives=(other_views(), hardest(0.5))),
    "self guided": lambda pairs: nt_xent(pairs, temperature=0.3, negatives=self_guided(margin=0.05)),
    "self guided, hardest": lambda pairs: nt_xent(
        pairs, temperature=0.3, negatives=(self_guided(margin=0.3), hardest(2))
    ),
    "same view": lambda pairs: nt_xent(pairs, temperature=0.3, negatives=same_view()),
    "one temperature each": lambda pairs: nt_xent(
        pairs, temperature=torch.linspace(0.1, 1, pairs.shape[0], dtype=torch.float64)
    ),
    "cacr": cacr,
    "dclw": dclw,
    "balanced": balanced,
    "clip": clip,
    "siglip": siglip,
    "cmc": partial(cmc, temperature=0.2),
}
STATISTICS = (
    LogSumExp(Scale(3.0)), Expectation(Scale(3.0)), Expectation(Scale(2.0), detach=True), Mean(), Sum(Scale(0.5)), Maximum(),
    Nearest(4), Count(), SumOfSquares(),
)  # fmt: skip


def statistics(negatives: Negatives, pairs: Pairs) -> Tensor:
    """Return a number that depends on every statistic of every anchor."""
    values = pairs.reduce(*STATISTICS, negatives=negatives, may_be_empty=True)
    return sum(
        (value.nan_to_num(0.0, 0.0, 0.0) * torch.linspace(0.5, 1, len(value)).view(-1, *[1] * (value.ndim - 1))).sum()
        for value in values
    )  # type: ignore[return-value]


def of_catalogue() -> dict[str, Callable[[Pairs], Tensor]]:
    """Return every published loss of pairs that needs nothing but pairs."""
    traits = {name: traits_of(method.objective) for name, method in CATALOGUE.items()}
    return {name: CATALOGUE[name]() for name, its in traits.items() if its.takes == "pairs" and not its.provided}


def outcome(
    loss: Callable[[Pairs], Tensor], make: Callable[..., Pairs], rows: Tensor, ids: Tensor | None, *more: Tensor
) -> list[Tensor] | str:
    """Return the loss and the gradients of both views and `more`, or the message of the error."""
    a, b = (row.clone().requires_grad_() for row in rows)
    try:
        value = loss(make(a, b, ids))
        value.backward()
    except ValueError as error:
        return str(error)
    return [value.detach(), *(x.grad if x.grad is not None else torch.zeros_like(x) for x in (a, b, *more))]


def gathered(make: Make) -> Make:
    """Return a function that makes the same pairs from the embeddings of all processes."""
    return lambda a, b, ids: make(gather(a), gather(b), None if ids is None else gather(ids)).sharded()


def in_ring(make: Make) -> Callable[..., Pairs]:
    return lambda a, b, ids: around_ring(make(a, b, ids))  # type: ignore[return-value]


def rows_of(rank: int, world: int) -> tuple[Tensor, Tensor]:
    """Return this process's embeddings of two views, and ids among which one sample is on the first and the last process."""
    z = torch.randn(2, world * SAMPLES, WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(world))
    own = slice(rank * SAMPLES, rank * SAMPLES + SAMPLES)
    ids = torch.arange(world * SAMPLES) % (world * SAMPLES - 1)
    return z[:, own], ids[own]


def compare_some(rank: int, world: int, out: str) -> None:
    """Do the same as `compare` for two kinds of pairs, with and without rows that do not travel."""
    compare(rank, world, out, kinds=("two views", "queue and batch"))


def compare(rank: int, world: int, out: str, *, kinds: Sequence[str] = tuple(KINDS)) -> None:
    """Write the largest difference of every case between a ring and gathered embeddings."""
    rows, ids = rows_of(rank, world)
    of_statistics = {
        f"statistics {negatives}": partial(statistics, negatives)
        for negatives in (None, other_views(), hardest(3), (batch_rows(), hardest(0.3)), stored_rows())
    }
    found: dict[str, float | str] = {}
    for number, kind in enumerate(kinds):
        # Published losses differ in how they use statistics, not in the pairs that they take.
        losses = LOSSES | of_statistics | (of_catalogue() if kind in ("two views", "both directions") else {})
        for position, (name, loss) in enumerate(losses.items()):
            given = ids if (number + position) % 2 else None
            one, other = (outcome(loss, way(KINDS[kind]), rows, given) for way in (gathered, in_ring))
            found[f"{name}, {kind}, {'ids' if given is not None else 'no ids'}"] = difference(one, other)
    temperature = learned(0.3).double()
    for kind in {"two views", "both directions"} & {*kinds}:
        one, other = (
            outcome(partial(nt_xent, temperature=temperature), way(KINDS[kind]), rows, None, *temperature.parameters())
            for way in (gathered, in_ring)
        )
        found[f"learned, {kind}"] = difference(one, other)
    if rank == 0:
        torch.save(found, out)


def compare_in_blocks(rank: int, world: int, out: str) -> None:
    """Do the same as `compare` for large matrices, whose gradient uses what engines have computed before."""
    with path("blocks"):
        compare(rank, world, out, kinds=("two views", "queue and batch"))


def compare_on_cpu(rank: int, world: int, out: str) -> None:
    """Do the same with the engine for CPUs, where it applies."""
    with path("cpu"):
        compare(rank, world, out, kinds=("two views", "both directions, negatives"))


def difference(one: list[Tensor] | str, other: list[Tensor] | str) -> float | str:
    """Return the largest difference; 0 for equal errors, and both outcomes if only one is an error."""
    if isinstance(one, str) or isinstance(other, str):
        return 0.0 if isinstance(one, str) and isinstance(other, str) else f"{one} / {other}"
    return max(float((x - y).abs().max()) for x, y in zip(one, other, strict=True))


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("world", "least", "work"),
    [
        (2, 60, compare_some),
        pytest.param(2, 200, compare, marks=pytest.mark.thorough),
        pytest.param(3, 60, compare_in_blocks, marks=pytest.mark.thorough),
        pytest.param(3, 60, compare_on_cpu, marks=pytest.mark.thorough),
        *(pytest.param(world, 200, compare, marks=pytest.mark.slow) for world in (3, 4, 8)),
    ],
)
def test_a_ring_equals_gathered_embeddings(world: int, least: int, work: Work, tmp_path: Path) -> None:
    run_in_process_group(work, world, tmp_path / "found")
    found = torch.load(tmp_path / "found", weights_only=True)
    assert len(found) > least
    wrong = {case: value for case, value in found.items() if isinstance(value, str) or not value < 1e-12}
    assert not wrong


def refuse(rank: int, world: int, out: str) -> None:
    """Write the messages for pairs, losses and choices that a ring does not support, and for unequal shapes."""
    (a, b), ids = rows_of(rank, world)
    pairs = around_ring(two_views(a, b))
    function = torch.nn.Linear(1, 1).double()
    cases: dict[str, Callable[[], object]] = {
        "sharded": lambda: around_ring(two_views(a, b).sharded()),
        "distances": lambda: around_ring(two_views(a, b, similarity="neg_euclid")),
        "labels": lambda: supcon(pairs, labels=pairs.anchor_id % 2, temperature=0.2),
        "guided": lambda: nt_xent(pairs, temperature=0.2, negatives=guided(two_views(b, a))),
        "hardest first": lambda: nt_xent(pairs, temperature=0.2, negatives=(hardest(2), other_views())),
        "parameters": lambda: nt_xent(pairs, temperature=lambda s: function(s[..., None])[..., 0].exp()),
        "negative ids": lambda: around_ring(cross(a, b, negatives=a.flip(1), negative_ids=ids)),
        "no negatives": lambda: nt_xent(around_ring(cross(a, b)), temperature=0.2, negatives=same_view()),
        "no negatives in a sum": lambda: siglip(around_ring(cross(a, b)), negatives=same_view()),
        "shapes": lambda: nt_xent(around_ring(two_views(a[rank:], b[rank:])), temperature=0.2),
    }
    messages = {}
    for name, case in cases.items():
        try:
            case()
        except ValueError as error:
            messages[name] = str(error)
    if rank == 0:
        torch.save(messages, out)


def test_what_cannot_travel_says_so(tmp_path: Path) -> None:
    run_in_process_group(refuse, 2, tmp_path / "messages")
    messages = torch.load(tmp_path / "messages", weights_only=True)
    assert "expected the pairs of this process's own embeddings" in messages["sharded"]
    assert "similarity='neg_euclid' cannot be used in a ring" in messages["distances"]
    assert "gather the embeddings" in messages["labels"]
    assert "guided" in messages["guided"]
    assert "hardest(…) as the last one" in messages["hardest first"]
    assert "a function of similarity with parameters of its own" in messages["parameters"]
    assert "pass ids=" in messages["negative ids"]
    for name in ("no negatives", "no negatives in a sum"):
        assert "leaves an anchor without negatives" in messages[name]
    assert "expected the same shape on every process" in messages["shapes"]


def repeat(rank: int, world: int, out: str) -> None:
    rows, _ = rows_of(rank, world)
    loss = partial(nt_xent, temperature=0.1)
    results = [outcome(loss, in_ring(KINDS["two views"]), rows.float(), None) for _ in range(3)]
    same = all(torch.equal(x, y) for result in results for x, y in zip(results[0], result, strict=True))  # type: ignore[arg-type]
    everywhere = [False] * world
    dist.all_gather_object(everywhere, same)
    if rank == 0:
        torch.save(everywhere, out)


@pytest.mark.thorough
def test_the_same_bits_in_every_call(tmp_path: Path) -> None:
    run_in_process_group(repeat, 3, tmp_path / "same")
    assert torch.load(tmp_path / "same", weights_only=True) == [True] * 3


def expectation(pairs: Pairs, *, temperature: nn.Module) -> Tensor:
    """Return a number that depends on the expectation of every anchor, and through its weights on the temperature."""
    (value,) = pairs.reduce(Expectation(Scale(1 / temperature())))
    return (value * torch.linspace(0.5, 1, len(value), dtype=value.dtype)).sum()


def learn(rank: int, world: int, out: str) -> None:
    """Write the largest difference of a temperature's and a bias's gradient on any process from those of one process."""
    rows, _ = rows_of(rank, world)
    everything = torch.randn(
        2, world * SAMPLES, WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(world)
    )
    found: dict[str, float | str] = {}
    objectives = {
        "nt_xent": nt_xent,
        "siglip": siglip,
        "hardened": partial(nt_xent, hardness=0.5),
        "expectation": expectation,  # weighted by a log-sum-exp with the same exponent
    }
    for name, objective in objectives.items():
        for kind in ("two views", "both directions"):
            settings: dict[str, nn.Module] = {"temperature": learned(0.3).double()}
            if name == "siglip":
                settings["bias"] = learned_number(-1.0).double()
            parameters = [x for setting in settings.values() for x in setting.parameters()]
            loss: Callable[[Pairs], Tensor] = partial(cast(Any, objective), **settings)
            gradients = []
            makes = ((KINDS[kind], everything), (gathered(KINDS[kind]), rows), (in_ring(KINDS[kind]), rows))
            for make, (a, b) in makes:
                for parameter in parameters:
                    parameter.grad = None
                loss(make(a, b, None)).backward()
                gradients.append([cast(Tensor, parameter.grad) for parameter in parameters])
            found[f"{name}, {kind}, gathered"] = difference(gradients[0], gradients[1])
            found[f"{name}, {kind}, ring"] = difference(gradients[0], gradients[2])
    everywhere: list[dict[str, float | str]] = [{}] * world
    dist.all_gather_object(everywhere, found)
    if rank == 0:
        torch.save(everywhere, out)


@pytest.mark.parametrize("world", first(0, [2, 4]))
def test_a_learned_temperature_outside_of_ddp_has_the_same_gradient_everywhere(world: int, tmp_path: Path) -> None:
    run_in_process_group(learn, world, tmp_path / "found")
    for rank, found in enumerate(torch.load(tmp_path / "found", weights_only=True)):
        wrong = {case: value for case, value in found.items() if isinstance(value, str) or not value < 1e-12}
        assert not wrong, rank


def disagree(rank: int, world: int, out: str) -> None:
    """Write the message of each process for calls that differ between processes."""
    (a, b), ids = rows_of(rank, world)
    odd = rank == world - 1
    temperature = torch.tensor(0.2, dtype=torch.float64, requires_grad=odd)

    def loss(pairs: Any, **settings: Any) -> Tensor:
        return nt_xent(pairs, **{"temperature": 0.2, **settings})

    cases: dict[str, Callable[[], Tensor]] = {
        "dtype": lambda: loss(around_ring(two_views(a.float() if odd else a, b.float() if odd else b))),
        "gradient": lambda: loss(around_ring(two_views(a.clone().requires_grad_(odd), b))),
        "candidates": lambda: loss(around_ring(cross(a.clone().requires_grad_(), b.clone().requires_grad_(odd)))),
        "ids": lambda: loss(around_ring(two_views(a, b, ids=ids if odd else None))),
        "negatives": lambda: loss(around_ring(two_views(a, b)), negatives=hardest(2) if odd else None),
        "learned": lambda: loss(around_ring(two_views(a, b)), temperature=temperature),
        "gather, dtype": lambda: gather(a.float() if odd else a),
        "gather, gradient": lambda: gather(a.clone().requires_grad_(odd)),
    }
    messages = {}
    for name, case in cases.items():
        try:
            case()
        except ValueError as error:
            messages[name] = str(error)
        dist.barrier()
    loss(around_ring(two_views(a, b)))  # the processes can still communicate after an error that all have raised
    everywhere: list[dict[str, str]] = [{}] * world
    dist.all_gather_object(everywhere, messages)
    if rank == 0:
        torch.save((list(cases), everywhere), out)


@pytest.mark.timeout(60)
def test_processes_that_do_not_call_the_same_all_raise(tmp_path: Path) -> None:
    run_in_process_group(disagree, 2, tmp_path / "messages")
    cases, everywhere = torch.load(tmp_path / "messages", weights_only=True)
    for messages in everywhere:
        assert sorted(messages) == sorted(cases)
        assert all("on every process, got [" in message for message in messages.values())
        assert "torch.float64" in messages["dtype"]
        assert "torch.float32" in messages["dtype"]
        for name in ("gradient", "candidates", "gather, gradient"):
            assert "without a gradient" in messages[name]
        assert "Hardest" in messages["negatives"]
        assert "given ids" in messages["ids"]


DIFFERENT: dict[str, Callable[[Tensor], Pairs]] = {
    "rows": lambda z: two_views(z[0, 5:], z[1, 5:]),
    "type": lambda z: two_views(*z.double()),
    "ids": lambda z: two_views(*z, ids=torch.arange(16)),
    "width": lambda z: two_views(z[0, :, 1:], z[1, :, 1:]),
}


def differ_later(case: str, rank: int, world: int, out: str) -> None:
    """Write the message of a process that differs from the other one after several equal steps."""
    z = torch.randn(2, 16, 8)
    loss = partial(nt_xent, temperature=0.2)
    for rows in (16, 16, 12, 16, 16, 12):  # a smaller batch of all processes is no error
        loss(cast(Pairs, around_ring(two_views(*z[:, :rows]))))
    try:
        loss(cast(Pairs, around_ring((DIFFERENT[case] if rank else lambda z: two_views(*z))(z))))
    except (ValueError, RuntimeError) as error:  # the process that has not changed loses its neighbour
        torch.save(str(error), f"{out}.{rank}")
    dist.destroy_process_group()


@pytest.mark.timeout(60)
@pytest.mark.parametrize("case", first(1, list(DIFFERENT)))
def test_a_process_that_differs_in_a_later_step_raises(case: str, tmp_path: Path) -> None:
    run_in_process_group(partial(differ_later, case), 2, tmp_path / "message")
    message = torch.load(tmp_path / "message.1", weights_only=True)
    assert "expected the same" in message
    assert (tmp_path / "message.0").exists()


def in_bank(rank: int, world: int, out: str) -> None:
    (z, _), ids = rows_of(rank, world)
    memory = torch.randn(world * SAMPLES, WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(7))
    loss = partial(nt_xent, temperature=0.2)
    one = outcome(loss, lambda a, b, i: bank(gather(a), gather(i), memory).sharded(), torch.stack([z, z]), ids)
    other = outcome(loss, lambda a, b, i: around_ring(bank(a, i, memory)), torch.stack([z, z]), ids)  # type: ignore[arg-type,return-value]
    if rank == 0:
        torch.save(difference(one, other), out)


@pytest.mark.thorough
def test_a_bank_is_the_same_everywhere_and_does_not_travel(tmp_path: Path) -> None:
    run_in_process_group(in_bank, 2, tmp_path / "difference")
    assert torch.load(tmp_path / "difference", weights_only=True) < 1e-12


def test_one_process_has_no_ring() -> None:
    pairs = two_views(torch.eye(3), torch.eye(3))
    assert around_ring(pairs) is pairs
