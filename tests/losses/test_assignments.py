"""SwAV's and DINO's losses equal plain loops and lightly's, in value and gradient, on any number of processes."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from typing import Any, cast

import assignment_oracles as plain
import pytest
import torch
from assignment_oracles import Oracle
from hypothesis import given as drawn
from hypothesis import settings
from hypothesis import strategies as st
from processes import run_in_process_group
from redundancy_oracles import gradient as complex_gradient
from redundancy_oracles import value as real_value
from torch import Tensor, nn
from torch.nn.functional import normalize
from torch.nn.parallel import DistributedDataParallel

from contrapose import validate
from contrapose.distributed import gather
from contrapose.embeddings import Assignments, Embeddings, within_batch
from contrapose.losses import CATALOGUE, Loss, dino, sinkhorn, swav
from contrapose.losses.parse import parse
from contrapose.losses.trial import try_loss
from contrapose.pairs import two_views
from contrapose.temperature import CosineSchedule, LinearWarmup, cosine, learned

TOLERANCE = 1e-10
ON, OFF = torch.ones(()), torch.zeros(())


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def cosines(*shape: int, seed: int = 0) -> Tensor:
    """Similarities of random unit vectors to random prototypes, the last number of the shape."""
    *leading, count = shape
    return normalize(draw(*leading, 6, seed=seed), dim=-1) @ normalize(draw(count, 6, seed=seed + 100), dim=-1).T


def nested(scores: Tensor) -> Any:
    return scores.to(torch.complex128).tolist()


SCORES, TARGET, STORED = cosines(3, 4, 5), cosines(2, 4, 5, seed=1), cosines(2, 6, 5, seed=2)
CENTER = 0.1 * draw(5, seed=3)
CASES: dict[str, tuple[partial[Tensor], dict[str, Any], Oracle]] = {
    "swav": (partial(swav), {}, plain.swav(0.1, 0.05, 3)),
    "swav settings": (partial(swav, temperature=0.3, epsilon=0.2, iterations=5), {}, plain.swav(0.3, 0.2, 5)),
    "swav local views": (partial(swav), {"global_views": 2}, plain.swav(0.1, 0.05, 3, views=2)),
    "swav one global view": (partial(swav), {"global_views": 1}, plain.swav(0.1, 0.05, 3, views=1)),
    "swav stored": (
        partial(swav),
        {"global_views": 2, "stored": STORED, "stored_weight": ON},
        plain.swav(0.1, 0.05, 3, stored=nested(STORED), views=2),
    ),
    "swav stored, not counted": (
        partial(swav),
        {"global_views": 2, "stored": STORED, "stored_weight": OFF},
        plain.swav(0.1, 0.05, 3, views=2),
    ),
    "dino": (partial(dino), {"target": TARGET}, plain.dino(nested(TARGET), [0j] * 5, 0.1, 0.04)),
    "dino centred": (
        partial(dino, temperature=0.2, teacher_temperature=0.3),
        {"target": TARGET, "center": CENTER, "global_views": 2},
        plain.dino(nested(TARGET), nested(CENTER), 0.2, 0.3),
    ),
}


def with_gradient(loss: Any, scores: Tensor, **given: Any) -> tuple[Tensor, Tensor]:
    leaf = scores.detach().clone().requires_grad_()
    value = loss(Assignments(scores=leaf, **given))
    return value.detach(), torch.autograd.grad(value, leaf)[0]


@pytest.mark.parametrize("name", CASES)
def test_value_and_gradient_equal_plain_loops(name: str) -> None:
    loss, given, oracle = CASES[name]
    value, gradient = with_gradient(loss, SCORES, **given)
    assert float(value) == pytest.approx(real_value(oracle, nested(SCORES)), rel=TOLERANCE)
    expected = torch.tensor(complex_gradient(oracle, nested(SCORES)), dtype=torch.float64)
    torch.testing.assert_close(gradient, expected, rtol=TOLERANCE, atol=TOLERANCE)


@pytest.mark.parametrize("copies", [2, 3])
def test_a_stored_sample_of_a_fractional_weight_counts_for_that_part(copies: int) -> None:
    """Among `copies` copies of the batch, stored samples count as if each had a weight of 1 / copies beside one batch."""
    batch, stored = SCORES[0], STORED[0]
    codes = sinkhorn(batch, stored=stored, stored_weight=torch.tensor(1 / copies, dtype=torch.float64))
    wanted = plain.sinkhorn(nested(batch) * copies, 0.05, 3, nested(stored))[: len(batch)]
    torch.testing.assert_close(codes, torch.tensor(wanted, dtype=torch.complex128).real, rtol=TOLERANCE, atol=TOLERANCE)
    for other in (OFF, ON):
        assert not torch.allclose(codes, sinkhorn(batch, stored=stored, stored_weight=other), rtol=1e-3)


def test_gradcheck() -> None:
    """DINO's codes are those of the teacher. SwAV's are constants, as those of a local view alone show."""
    leaf = SCORES.clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda scores: dino(Assignments(scores=scores, target=TARGET)), leaf)
    held, local = SCORES[:1], SCORES[1:].clone().requires_grad_()
    assert torch.autograd.gradcheck(
        lambda scores: swav(Assignments(scores=torch.cat([held, scores]), global_views=1)), local
    )


@pytest.mark.parametrize(("high", "low", "stored"), [(2, 0, 0), (2, 3, 0), (2, 0, 7), (3, 2, 9)])
def test_swav_equals_lightly(high: int, low: int, stored: int) -> None:
    from lightly.loss import SwaVLoss  # here, since the processes of other tests import this module

    scores = cosines(high + low, 8, 11)
    queue = cosines(high, stored, 11, seed=5) if stored else None

    def theirs(assignments: Assignments) -> Tensor:
        views = list(assignments.scores)
        loss: Tensor = SwaVLoss()(views[:high], views[high:], None if queue is None else list(queue))
        return loss[0]

    for ours, expected in zip(
        with_gradient(swav, scores, global_views=high, stored=queue), with_gradient(theirs, scores), strict=True
    ):
        torch.testing.assert_close(ours, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("local_views", [0, 3])
def test_dino_equals_lightly_over_epochs(local_views: int) -> None:
    """The center moves as the framework moves it, and the teacher's temperature rises."""
    from lightly.loss import DINOLoss

    theirs, center = DINOLoss(7, warmup_teacher_temp_epochs=4, teacher_temp=0.07).double(), torch.zeros(7).double()
    schedule = LinearWarmup(0.04, 0.07, epochs=4)
    for epoch in range(6):
        scores, target = cosines(2 + local_views, 5, 7, seed=epoch), cosines(2, 5, 7, seed=epoch + 50)
        # lightly rounds the temperature to float32.
        temperature = float(theirs.teacher_temp_schedule[epoch] if epoch < 4 else torch.tensor(0.07))
        assert schedule.at(epoch + 1) == pytest.approx(temperature, rel=1e-6)
        results = [
            with_gradient(partial(dino, teacher_temperature=temperature), scores, target=target, center=center),
            with_gradient(lambda a, t=target, e=epoch: theirs(list(t), list(a.scores), epoch=e), scores),
        ]
        for ours, expected in zip(*results, strict=True):
            torch.testing.assert_close(ours, expected, rtol=1e-12, atol=1e-12)
        center = 0.9 * center + 0.1 * target.mean((0, 1))
    torch.testing.assert_close(theirs.center.flatten(), center, rtol=1e-12, atol=1e-12)


def test_stored_rows_of_weight_0_change_no_bit() -> None:
    scores = torch.randn(2, 33, 47)
    without = sinkhorn(scores)
    assert torch.equal(sinkhorn(scores, stored=torch.randn(2, 100, 47), stored_weight=OFF), without)
    # A queue that holds anything but numbers is not read either.
    assert torch.equal(sinkhorn(scores, stored=torch.full((2, 5, 47), torch.nan), stored_weight=OFF), without)
    counted = sinkhorn(scores, stored=torch.randn(2, 100, 47), stored_weight=ON)
    assert float((counted - without).abs().max()) > 1e-3


def test_stored_rows_of_weight_1_are_rows_without_codes() -> None:
    together = sinkhorn(torch.cat([TARGET, STORED], 1))[:, : TARGET.shape[1]]
    for weight in (ON, None):
        torch.testing.assert_close(sinkhorn(TARGET, stored=STORED, stored_weight=weight), together)


shapes = st.tuples(st.integers(1, 3), st.integers(1, 9), st.integers(1, 9))


@settings(deadline=None, max_examples=40)
@drawn(shape=shapes, scale=st.floats(0, 30), seed=st.integers(0, 99))
def test_identities_of_sinkhorn(shape: tuple[int, int, int], scale: float, seed: int) -> None:
    scores = scale * draw(*shape, seed=seed)
    codes, (_, samples, prototypes) = sinkhorn(scores), shape
    close = partial(torch.testing.assert_close, rtol=1e-9, atol=1e-9)
    close(codes.sum(-1), torch.ones(shape[:2], dtype=torch.float64))
    close(sinkhorn(scores[0]), codes[0])  # views are apart
    rows, columns = torch.arange(samples).flip(0), torch.arange(prototypes).roll(1)
    close(sinkhorn(scores[:, rows][..., columns]), codes[:, rows][..., columns])
    # The first sums over samples take out whatever is common to a prototype's scores.
    close(sinkhorn(scores + draw(prototypes, seed=seed)), codes)


def test_prototypes_get_equal_shares_after_many_iterations() -> None:
    codes = sinkhorn(cosines(2, 12, 5), iterations=500)
    torch.testing.assert_close(codes.sum(-2), torch.full((2, 5), 12 / 5, dtype=torch.float64))
    collapsed = torch.zeros(2, 12, 5).index_fill(2, torch.tensor(0), 1.0)  # all samples are nearest to one prototype
    torch.testing.assert_close(sinkhorn(collapsed), torch.full((2, 12, 5), 1 / 5))


def test_values_that_are_known() -> None:
    one = torch.randn(2, 4, 1)
    assert float(swav(Assignments(scores=one))) == 0  # one prototype: all is certain
    assert float(dino(Assignments(scores=one, target=one))) == 0
    level = Assignments(scores=torch.zeros(2, 4, 8), target=torch.randn(2, 4, 8))
    assert float(dino(level)) == pytest.approx(2.0794415, rel=1e-6)  # log 8
    assert float(swav(Assignments(scores=torch.zeros(2, 4, 8)))) == pytest.approx(2.0794415, rel=1e-6)


@pytest.mark.parametrize("name", CASES)
def test_samples_and_prototypes_may_be_permuted(name: str) -> None:
    loss, given, _ = CASES[name]
    rows, columns = torch.tensor([2, 0, 3, 1]), torch.tensor([4, 1, 0, 2, 3])
    moved = {key: value[:, rows] if key == "target" else value for key, value in given.items()}
    moved = {
        key: value[..., columns] if isinstance(value, Tensor) and value.ndim else value for key, value in moved.items()
    }
    expected = loss(Assignments(scores=SCORES, **given))
    torch.testing.assert_close(loss(Assignments(scores=SCORES[:, rows][..., columns], **moved)), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64], ids=str)
def test_values_and_gradients_stay_finite(dtype: torch.dtype) -> None:
    for shape in ((2, 16, 8), (2, 1, 5), (2, 5, 1), (4, 3, 300)):
        z = torch.randn(shape)
        kinds = {
            "random": z,
            "constant": torch.full(shape, 0.3),
            "zeros": z * 0,
            "large": 3e4 * z.sign(),
            "wide": 1e4 * z,
        }
        for kind, scores in kinds.items():
            for loss, given in (
                (swav, {}),
                (swav, {"stored": scores.flip(1), "stored_weight": ON}),
                (dino, {"target": scores.flip(0), "center": scores.mean((0, 1))}),
            ):
                cast = {key: value.to(dtype) for key, value in given.items()}
                value, gradient = with_gradient(loss, scores.to(dtype), **cast)
                assert bool(value.isfinite()), (loss, kind, shape)
                assert bool(gradient.isfinite().all()), (loss, kind, shape)
                assert value.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)


def test_low_precision_ends_with_the_scores() -> None:
    rounded = SCORES.bfloat16()
    cases: list[tuple[Any, dict[str, Any]]] = [(swav, {}), (dino, {"target": TARGET.bfloat16()})]
    for loss, given in cases:
        value = loss(Assignments(scores=rounded, **given))
        exact = loss(Assignments(scores=rounded.double(), **{key: each.double() for key, each in given.items()}))
        assert float(value) == pytest.approx(float(exact), rel=1e-5)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert torch.equal(loss(Assignments(scores=rounded, **given)), value)


def test_nan_is_propagated() -> None:
    for bad in (torch.nan, torch.inf):
        scores = torch.randn(2, 4, 5)
        scores[0, 3, 2] = bad
        assert bool(swav(Assignments(scores=scores)).isnan())
        assert bool(dino(Assignments(scores=scores, target=scores)).isnan())
        assert bool(dino(Assignments(scores=torch.zeros(2, 4, 5), target=scores)).isnan())


def test_nothing_is_read_on_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors of the meta device have no values: reading one raises an error, as it would in a captured CUDA graph."""
    monkeypatch.setattr(validate, "values_may_be_read", lambda tensor: False)
    with torch.device("meta"):
        scores = torch.empty(4, 8, 16, requires_grad=True)
        temperatures = {"temperature": torch.empty(()), "teacher_temperature": torch.empty(())}
        stored = {"stored": torch.empty(2, 32, 16), "stored_weight": torch.empty(())}
        swav(Assignments(scores=scores, global_views=2, **stored), temperature=torch.empty(())).backward()
        teacher: dict[str, Any] = {"target": torch.empty(2, 8, 16), "center": torch.empty(16)}
        dino(Assignments(scores=scores, global_views=2, **teacher), **temperatures).backward()


def test_schedules_of_both_temperatures_are_held_in_tensors() -> None:
    batch = Assignments(scores=SCORES, target=TARGET)
    settings: dict[str, Any] = {
        "temperature": CosineSchedule(0.1, 0.3, 8),
        "teacher_temperature": LinearWarmup(0.04, 0.07, epochs=4),
    }
    criterion = Loss(dino, **settings)
    assert criterion.can_capture
    expected = []
    for epoch in range(1, 6):
        criterion.epoch = epoch
        expected.append(dino(batch, **{name: schedule.at(epoch) for name, schedule in settings.items()}))
        assert torch.equal(criterion(batch), expected[-1])
    criterion.hold_schedules(torch.device("cpu"))
    for epoch in range(1, 6):
        criterion.epoch = epoch
        criterion.refresh_schedules()
        torch.testing.assert_close(criterion(batch), expected[epoch - 1], rtol=1e-6, atol=0)
    assert len({float(value) for value in expected}) == 5


def test_a_warmup_is_that_of_the_authors() -> None:
    schedule = LinearWarmup()
    rising = torch.linspace(0.04, 0.07, 30, dtype=torch.float64).tolist()  # epochs count from 0 in their code
    assert [schedule.at(epoch + 1) for epoch in range(40)] == pytest.approx(rising + [0.07] * 10)
    assert schedule.at(0) == 0.04
    assert parse("dino(teacher_temperature=warmup(0.04, 0.07, epochs=30))").keywords["teacher_temperature"] == schedule
    for bad in ({"start": 0.0}, {"end": -1.0}, {"epochs": 1}):
        with pytest.raises(ValueError, match=f"{next(iter(bad))}: expected a number above"):
            LinearWarmup(**bad)


def test_a_learned_temperature_gets_a_gradient() -> None:
    cases: list[tuple[Any, dict[str, Any]]] = [(swav, {}), (dino, {"target": TARGET})]
    for loss, given in cases:
        criterion = Loss(loss, temperature=learned(0.2))
        value = criterion(Assignments(scores=SCORES, **given))
        torch.testing.assert_close(value, loss(Assignments(scores=SCORES, **given), temperature=0.2), check_dtype=False)
        value.backward()
        assert all(p.grad is not None and float(p.grad) != 0 for p in criterion.parameters())


def test_loss_makes_assignments_of_embeddings() -> None:
    z, target, prototypes, teacher = draw(3, 4, 6), draw(2, 4, 6, seed=1), draw(5, 6, seed=2), draw(5, 6, seed=3)
    embeddings = partial(Embeddings, z=z, prototypes=prototypes, global_views=2, compare=within_batch)
    scores, other = (normalize(z, dim=-1) @ normalize(rows, dim=-1).T for rows in (prototypes, teacher))
    expected = swav(Assignments(scores=scores, global_views=2))
    torch.testing.assert_close(Loss(CATALOGUE["swav"])(embeddings()), expected)
    other = normalize(target, dim=-1) @ normalize(teacher, dim=-1).T
    expected = dino(Assignments(scores=scores, target=other, center=CENTER))
    made = embeddings(target=target, target_prototypes=teacher, center=CENTER)
    torch.testing.assert_close(Loss(CATALOGUE["dino"])(made), expected)


SMALL, OF_ANY = torch.randn(2, 4, 5), cast(Any, dino)  # for settings that a type checker refuses too
WRONG: list[tuple[Any, dict[str, Any], str]] = [
    (dino, {}, "target: dino needs the scores of a teacher: Assignments(scores=…, target=…), or --framework dino"),
    (dino, {"target": SMALL, "stored": SMALL}, "stored: dino does not use stored scores"),
    (dino, {"target": SMALL[:, :3]}, "target: expected scores of the first views, (2, 4, 5), got shape (2, 3, 5)"),
    (dino, {"target": torch.cat([SMALL, SMALL])}, "target: expected scores of the first views, (2, 4, 5), got shape (4,"),
    (dino, {"target": SMALL, "global_views": 1}, "target: expected scores of the first views, (1, 4, 5), got shape (2,"),
    (dino, {"target": SMALL, "center": torch.zeros(4)}, "center: expected one number per prototype, (5,), got shape (4,)"),
    (swav, {"target": SMALL}, "target, center: swav has no teacher"),
    (swav, {"center": torch.zeros(5)}, "target, center: swav has no teacher"),
    (swav, {"stored": SMALL[:1]}, "stored: expected shape (2, r, 5), got (1, 4, 5)"),
    (swav, {"stored": SMALL, "global_views": 1}, "stored: expected shape (1, r, 5), got (2, 4, 5)"),
    (swav, {"stored": SMALL[..., :3]}, "stored: expected shape (2, r, 5), got (2, 4, 3)"),
    (swav, {"global_views": 3}, "global_views: expected at most 2, the number of views, got 3"),
    (swav, {"scores": SMALL[:1]}, "scores: expected at least two views (V, m, p), got shape (1, 4, 5)"),
    (swav, {"scores": SMALL[0]}, "scores: expected similarities to prototypes, (V, m, p), got shape (4, 5)"),
    (swav, {"scores": SMALL.long()}, "scores: expected a floating point tensor of similarities to prototypes, got torch.int64"),
    (swav, {"scores": None}, "got NoneType"),
    (partial(swav, temperature=torch.ones(4)), {}, "temperature: expected a number, got a tensor of shape (4,)"),
    (partial(swav, temperature=cosine(0.1, 0.2)), {}, "temperature: expected a number, got cosine(low=0.1, high=0.2"),
    (partial(OF_ANY, teacher_temperature=learned(0.1)), {"target": SMALL}, "teacher_temperature: expected a number, got a learned"),
    (partial(OF_ANY, temperature=LinearWarmup()), {"target": SMALL}, "temperature: a schedule needs an epoch"),
]  # fmt: skip


@pytest.mark.parametrize(("loss", "given", "message"), WRONG)
def test_wrong_input_is_refused(loss: Any, given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        loss(Assignments(**{"scores": SMALL, **given}))


def test_tensors_and_pairs_are_refused_with_what_to_pass() -> None:
    call = "pass Assignments(scores=…), similarities (V, m, p) to prototypes"
    losses: tuple[Any, ...] = (swav, dino)
    for loss in losses:
        for batch in ((SMALL,), (SMALL[0], SMALL[1]), (two_views(*SMALL),)):
            with pytest.raises(ValueError, match=f"assignments: {loss.__name__} expected .*{re.escape(call)}"):
                loss(*batch)
        with pytest.raises(ValueError, match=r"prototypes: this loss assigns .* Embeddings\(…, prototypes=…\)"):
            Loss(loss)(SMALL)


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        ("swav(epsilon=0)", "epsilon: expected a number above 0, got 0.0"),
        ("swav(iterations=0)", "iterations: expected a whole number of at least 1, got 0"),
        ("swav(iterations=2.5)", "iterations: expected a whole number of at least 1, got 2.5"),
        ("swav(temperature=-1)", "temperature: expected a number above 0, got -1.0"),
        ("dino(teacher_temperature=0)", "teacher_temperature: expected a number above 0, got 0.0"),
        ("dino(teacher_temperature=cosine(0.1, 0.2))", "teacher_temperature: expected a number, got cosine("),
        ("dino(epsilon=0.1)", "dino has the settings temperature, teacher_temperature, got 'epsilon'"),
        ("dino(teacher_temperature=warmup(epochs=0))", "epochs: expected a number above 1, got 0.0"),
    ],
)
def test_settings_out_of_range_are_refused(loss: str, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        try_loss(parse(loss))


SAMPLES, STEPS = 8, 4


class Network(nn.Module):
    """An encoder and prototypes."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.encoder = nn.Sequential(nn.Linear(6, 7), nn.Tanh(), nn.Linear(7, 4)).double()
        self.prototypes = nn.Parameter(torch.randn(5, 4, dtype=torch.float64))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.encoder(x), self.prototypes


def train(net: nn.Module, rank: int, world: int, name: str) -> dict[str, Tensor]:
    own = slice(rank * SAMPLES // world, (rank + 1) * SAMPLES // world)
    x = draw(1, SAMPLES, 6).expand(3, -1, -1) + 0.3 * draw(3, SAMPLES, 6, seed=1)
    given: dict[str, Any] = {"stored": draw(2, 6, 4, seed=2), "stored_weight": ON}
    optimiser, record = torch.optim.SGD(net.parameters(), lr=0.05), dict[str, Tensor]()
    for step in range(STEPS):
        optimiser.zero_grad()
        z, prototypes = net(x[:, own])
        if name == "dino":
            with torch.no_grad():
                target, rows = Network(9)(x[:2, own])
            given = {"target": gather(target, 1), "target_prototypes": rows, "center": CENTER}
        loss = Loss(CATALOGUE[name])(
            Embeddings(z=gather(z, 1), prototypes=prototypes, global_views=2, compare=within_batch, **given)
        )
        loss.backward()
        record |= {f"loss {step}": loss.detach()}
        optimiser.step()
    return record | {f"weight {i}": p.detach() for i, p in enumerate(net.parameters())}


def work(rank: int, world: int, out: str) -> None:
    records = {name: train(DistributedDataParallel(Network(5)), rank, world, name) for name in ("swav", "dino")}
    if rank == world - 1:
        torch.save(records, out)


@pytest.mark.thorough
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("world", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_several_processes_equal_one(world: int, tmp_path: Path) -> None:
    run_in_process_group(work, world, tmp_path / "records")
    records = torch.load(tmp_path / "records", weights_only=True)
    for name, record in records.items():
        expected = train(Network(5), 0, 1, name)
        assert expected.keys() == record.keys()
        for what, value in expected.items():
            torch.testing.assert_close(record[what], value, rtol=1e-12, atol=1e-12, msg=f"{name} {what}")
