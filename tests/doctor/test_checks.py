"""Each finding, in a loop with the fault, and its absence in the same loop without it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from pytorch_metric_learning.losses import SupConLoss
from tiers import first
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize

from contrapose import Doctor, Loss, clip, cosine, learned, nt_xent
from contrapose.doctor import Finding, Look
from contrapose.doctor.checks import CHECKS
from contrapose.doctor.checks_of_data import CHECKS_OF_DATA

COUNT, WIDTH = 64, 16
Batch = tuple[Any, ...]
Criterion = Callable[..., Tensor]


def pairs(noise: float = 0.5, *, seed: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
    """Embeddings of two views, spread over the sphere."""
    generator = torch.Generator().manual_seed(seed)
    while True:
        z = torch.randn(COUNT, WIDTH, generator=generator)
        z1, z2 = (z + noise * torch.randn(COUNT, WIDTH, generator=generator) for _ in range(2))
        yield z1.requires_grad_(), z2.requires_grad_()


def names(
    criterion: Any, batches: Iterator[Batch], looks: int = 4, *, from_step: int = 0, **settings: Any
) -> list[str]:
    """Return the names of the findings after looks at so many batches."""
    doctor = Doctor(criterion, every=1, **settings)
    doctor.step = from_step
    for _ in range(looks):
        doctor.see(*next(batches))
    assert not [what for what in doctor.left_out if what in ("this look", "all checks")]
    return sorted(finding.name for finding in doctor.findings)


def changed(change: Callable[[Tensor, Tensor], Batch], **settings: Any) -> Iterator[Batch]:
    return (change(z1, z2) for z1, z2 in pairs(**settings))


LOSS = Loss(nt_xent, temperature=0.2)
UNIT = normalize


def dots(z1: Tensor, z2: Tensor) -> Tensor:
    return cross_entropy(z1 @ z2.T / 0.5, torch.arange(len(z1)))


def without_pull(z1: Tensor, z2: Tensor) -> Tensor:
    s = normalize(z1) @ normalize(z2).T / 0.2
    return s.masked_fill(torch.eye(len(s), dtype=torch.bool), -math.inf).logsumexp(1).mean()


def in_bf16(z1: Tensor, z2: Tensor) -> Tensor:
    s = (normalize(z1).bfloat16() @ normalize(z2).bfloat16().T) / 0.01
    return cross_entropy(s, torch.arange(len(z1)))


@pytest.mark.parametrize("loss", [LOSS, Loss(nt_xent, temperature=cosine(0.07, 0.2)), Loss(clip), dots])
def test_a_healthy_batch_has_no_finding(loss: Criterion) -> None:
    batches = changed(lambda a, b: (UNIT(a), UNIT(b))) if loss is dots else pairs()
    assert names(loss, batches, from_step=400) == []


def test_nothing_learned() -> None:
    order = torch.randperm(COUNT, generator=torch.Generator().manual_seed(3))
    batches = changed(lambda a, b: (a, b[order]))
    assert names(LOSS, batches, from_step=400) == ["nothing learned"]
    assert names(None, batches, from_step=400) == ["nothing learned"]
    assert names(LOSS, batches) == []  # too early to tell


def test_identical_views() -> None:
    assert names(LOSS, changed(lambda a, b: (a, a + 0))) == ["identical views"]


def test_too_easy() -> None:
    assert names(Loss(nt_xent, temperature=0.1), pairs(noise=0.05)) == ["too easy"]
    assert names(Loss(nt_xent, temperature=0.1), pairs(noise=0.05), from_step=200) == []


@pytest.mark.parametrize("temperature", [0.002, 0.005])
def test_a_low_temperature(temperature: float) -> None:
    assert names(Loss(nt_xent, temperature=temperature), pairs(noise=1.0)) == ["temperature too low"]
    assert names(Loss(nt_xent, temperature=0.07), pairs(noise=2.0)) == []


def test_a_high_temperature() -> None:
    assert names(Loss(nt_xent, temperature=10.0), pairs()) == ["temperature too high"]
    assert names(Loss(nt_xent, temperature=1.0), pairs()) == []


def test_positives_without_a_pull() -> None:
    assert names(without_pull, pairs()) == ["no pull on positives"]


def test_lengths() -> None:
    assert names(dots, changed(lambda a, b: (0.3 * a, 0.3 * b))) == ["embeddings not normalised"]
    assert names(LOSS, changed(lambda a, b: (0.3 * a, 0.3 * b))) == []


def test_normalised_along_the_batch() -> None:
    batches = changed(lambda a, b: (UNIT(a, dim=0), UNIT(b, dim=0)))
    assert names(LOSS, batches) == ["normalised along the batch"]


def test_low_precision() -> None:
    batches = changed(lambda a, b: ((a + 3).bfloat16(), (b + 3).bfloat16()))
    assert "low precision" in names(in_bf16, batches)
    assert "low precision" not in names(Loss(nt_xent, temperature=0.01), batches)


def test_low_precision_under_autocast() -> None:
    def criterion(z1: Tensor, z2: Tensor) -> Tensor:
        return cross_entropy(normalize(z1) @ normalize(z2).T / 0.004, torch.arange(len(z1)))

    with torch.autocast("cpu", torch.bfloat16):
        assert "low precision" in names(criterion, changed(lambda a, b: (a + 3, b + 3)))
    assert "low precision" not in names(criterion, changed(lambda a, b: (a + 3, b + 3)))


def collapsed(z1: Tensor, z2: Tensor) -> Batch:
    return z1, 1 + 0.01 * z2


def test_collapse_names_the_side() -> None:
    doctor = Doctor(LOSS, every=1)
    doctor.step = 50
    batches = changed(collapsed)
    for _ in range(2):
        doctor.see(*next(batches))
    (finding,) = doctor.findings
    assert finding.name == "collapse"
    assert finding.seen.startswith("side 2 is collapsed")
    assert names(LOSS, changed(collapsed), looks=3) == []  # an untrained network may look like this


def test_collapse_to_a_line() -> None:
    line = torch.randn(1, WIDTH)
    batches = changed(lambda a, b: (a[:, :1] * line + 1e-3 * a, a[:, :1] * line + 1e-3 * b))
    assert "collapse" in names(LOSS, batches, from_step=50)


def test_a_modality_gap() -> None:
    shift = 3 * torch.ones(WIDTH)
    assert "modality gap" in names(LOSS, changed(lambda a, b: (a + shift, b - shift)), from_step=400)


def test_duplicates() -> None:
    def repeat(z1: Tensor, z2: Tensor) -> Batch:
        return torch.cat([z1[:-4], z1[:4]]), z2

    assert names(LOSS, changed(repeat)) == ["duplicates"]
    ids = torch.arange(COUNT)
    ids[-4:] = ids[:4]
    doctor = Doctor(LOSS, every=1)
    for z1, z2 in (next(pairs()) for _ in range(3)):
        doctor.see(*repeat(z1, z2), ids=ids)
    assert doctor.findings == []


def twins(z1: Tensor, z2: Tensor) -> Batch:
    """Rows i and i + 1 show the same, for all even i."""
    base = z1.detach()[::2].repeat_interleave(2, 0)
    return tuple(base + 0.3 * torch.randn(COUNT, WIDTH).requires_grad_() for _ in range(2))


def test_false_negatives() -> None:
    torch.manual_seed(0)
    assert "false negatives" in names(LOSS, changed(twins))
    ids = torch.arange(COUNT) // 2
    doctor = Doctor(LOSS, every=1)
    for z1, z2 in (next(pairs()) for _ in range(3)):
        doctor.see(*twins(z1, z2), ids=ids)
    assert "false negatives" not in [finding.name for finding in doctor.findings]


def test_samples_of_a_finding_are_kept() -> None:
    torch.manual_seed(0)
    doctor = Doctor(LOSS, every=1)
    for _ in range(3):
        doctor.see(*twins(*next(pairs())), samples=[f"text {i}" for i in range(COUNT)])
    (finding,) = [finding for finding in doctor.findings if finding.name == "false negatives"]
    assert {row for group in finding.rows for row in group} == set(doctor.samples)
    assert all(value == f"text {row}" for row, value in doctor.samples.items())


def test_order() -> None:
    centres = torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(1)).repeat_interleave(COUNT // 4, 0)
    blocks = changed(lambda a, b: (a + centres, b + centres))
    assert names(LOSS, blocks) == ["data not shuffled"]
    order = torch.randperm(COUNT, generator=torch.Generator().manual_seed(2))
    shuffled = changed(lambda a, b: ((a + centres)[order], (b + centres)[order]))
    assert names(LOSS, shuffled) == []


def labelled(labels: Tensor) -> Iterator[Batch]:
    return changed(lambda a, b: (a, labels))


def test_labels() -> None:
    assert names(SupConLoss(), labelled(torch.arange(COUNT))) == ["labels all different"]
    assert names(SupConLoss(), labelled(torch.zeros(COUNT, dtype=torch.long))) == ["labels all equal"]
    assert names(SupConLoss(), labelled(torch.arange(COUNT) // 8)) == []


def test_ids() -> None:
    doctor = Doctor(None, every=1)
    doctor.see(*next(pairs()), ids=torch.zeros(COUNT, dtype=torch.long))
    assert "ids all equal" in [finding.name for finding in doctor.findings]


def test_no_gradient() -> None:
    assert names(LOSS, changed(lambda a, b: (a.detach(), b.detach()))) == ["no gradient"]
    assert names(LOSS, changed(lambda a, b: (a, b.detach()))) == []  # as with a momentum encoder


def test_not_finite() -> None:
    assert "not finite" in names(None, changed(lambda a, b: (a * math.inf, b)))


@pytest.mark.parametrize(("moved", "expected"), [("ab", []), ("a", ["frozen part"]), ("", ["weights do not change"])])
def test_parts_that_do_not_move(moved: str, expected: list[str]) -> None:
    towers = {"a": nn.Linear(4, 4), "b": nn.Linear(4, 4)}
    doctor, batches = Doctor(LOSS, every=20, model=towers), pairs()
    for _ in range(80):
        doctor.see(*next(batches))
        with torch.no_grad():
            for name in moved:
                towers[name].weight += 0.01
    assert [finding.name for finding in doctor.findings] == expected


def test_a_small_unused_child_is_no_part() -> None:
    model = nn.Sequential(nn.Linear(20, 20), nn.Linear(20, 20), nn.Linear(20, 2))
    doctor = Doctor(model=model)
    assert {*doctor.parts} == {"0", "1"}


@pytest.mark.parametrize(("start", "low"), first(1, [(0.1, 0.1), (0.1, 0.01)]))
def test_scales(start: float, low: float) -> None:
    loss = Loss(nt_xent, temperature=learned(start, low=low))
    at_bound = start == low
    assert names(loss, pairs(), looks=80) == (["scale at its bound"] if at_bound else ["scale not learned"])
    doctor, batches = Doctor(Loss(nt_xent, temperature=learned(0.1, low=0.01)), every=20), pairs()
    for _ in range(80):
        doctor.see(*next(batches))
        with torch.no_grad():
            for parameter in doctor.criterion.parameters():  # type: ignore[union-attr]
                parameter += 0.01
    assert doctor.findings == []


@pytest.mark.parametrize(("scale", "is_found"), first(1, [(100, True), (20, False), (300, True)]))
def test_a_logit_scale_that_nobody_clamps(scale: float, is_found: bool) -> None:
    """As open_clip passes it, a bound of 100 is passed if the loop does not clamp."""

    def loss(z1: Tensor, z2: Tensor, logit_scale: Tensor) -> Tensor:
        return cross_entropy(logit_scale * normalize(z1) @ normalize(z2).T, torch.arange(len(z1)))

    growing = (torch.tensor(scale + 0.1 * i, requires_grad=True) for i in range(80))
    found = names(loss, changed(lambda a, b: (a, b, next(growing))), looks=80)
    assert ("scale at its bound" in found) == is_found


@pytest.mark.parametrize("check", [*CHECKS, *CHECKS_OF_DATA], ids=lambda check: check.__name__)
def test_a_look_without_numbers_has_no_finding(check: Callable[[list[Look]], Finding | None]) -> None:
    """As with a criterion that cannot be asked, at any step."""
    doctor = Doctor(None, every=1)
    doctor.see(next(pairs())[0])
    (look,) = doctor.looks
    assert look.retrieval is None
    assert check([replace(look, step=500 + i) for i in range(4)]) is None


def test_a_lazy_model_is_refused() -> None:
    with pytest.raises(ValueError, match="pass one batch through it first"):
        Doctor(model=nn.LazyLinear(3))


def as_targets(z1: Tensor, z2: Tensor, rows: Tensor) -> Tensor:
    assert int(rows.max()) < len(z1)  # on a GPU, a target out of range ends the process
    return cross_entropy(normalize(z1) @ normalize(z2).T / 0.2, rows)


def test_targets_that_are_rows_of_the_batch() -> None:
    """A look asks about 128 of 300 rows, whose targets are then 0 to 127."""
    z1 = torch.randn(300, WIDTH, requires_grad=True)
    doctor = Doctor(as_targets)
    doctor.see(z1, z1 + 0.3 * torch.randn(300, WIDTH), torch.arange(300))
    assert doctor.looks[-1].action is not None
    assert not doctor.left_out


def test_a_criterion_with_indices_of_pairs_is_not_asked() -> None:
    """As the tuples of a miner."""

    def mined(z: Tensor, labels: Tensor, chosen: tuple[Tensor, ...]) -> Tensor:
        assert all(int(index.max()) < len(z) for index in chosen)
        return (z[chosen[0]] * z[chosen[1]]).sum(1).mean()

    doctor = Doctor(mined)
    z = torch.randn(400, WIDTH, requires_grad=True)
    doctor.see(z, torch.arange(400) % 40, (torch.arange(350), torch.arange(350) + 1))
    assert "numbers of rows" in doctor.looks[-1].not_asked
    small = torch.randn(40, WIDTH, requires_grad=True)
    doctor.look(small, torch.arange(40) % 4, (torch.arange(30), torch.arange(30) + 4))
    assert doctor.looks[-1].not_asked == "" or "similarities" in doctor.looks[-1].not_asked


def test_data_set_indices_stay_what_they_are() -> None:
    seen = []

    def with_ids(z1: Tensor, z2: Tensor, ids: Tensor) -> Tensor:
        seen.append(ids)
        return nt_xent_of(z1, z2)

    z1 = torch.randn(300, WIDTH, requires_grad=True)
    Doctor(with_ids).see(z1, z1 + 0.3 * torch.randn(300, WIDTH), torch.arange(300))
    assert all(len(ids) == 128 and int(ids.max()) > 128 for ids in seen)


def nt_xent_of(z1: Tensor, z2: Tensor) -> Tensor:
    value: Tensor = LOSS(z1, z2)
    return value


def test_weights_in_bfloat16_that_do_change() -> None:
    torch.manual_seed(0)
    model = nn.ModuleDict({"a": nn.Linear(64, 64), "b": nn.Linear(64, 64)}).bfloat16()
    doctor, batches = Doctor(LOSS, every=20, model=model), pairs()
    for _ in range(120):
        doctor.see(*next(batches))
        with torch.no_grad():  # a few weights by one unit in the last place
            for p in model.parameters():
                p.mul_(1 + 2**-7 * (torch.rand_like(p, dtype=torch.float32) < 0.002).to(p.dtype))
    assert not {"weights do not change", "frozen part"} & {finding.name for finding in doctor.findings}


def test_a_good_network_with_small_batches() -> None:
    batches = ((z, z + 0.01) for z in (torch.randn(4, WIDTH, requires_grad=True) for _ in range(1000)))
    assert "nothing learned" not in names(None, batches, from_step=400)


def cosine_of_two_views(p1: Tensor, z2: Tensor) -> Tensor:
    return -(normalize(p1) * normalize(z2).detach()).sum(1).mean()


def simsiam_like(p1: Tensor, z2: Tensor, p2: Tensor, z1: Tensor) -> Tensor:
    return (cosine_of_two_views(p1, z2) + cosine_of_two_views(p2, z1)) / 2


def test_a_loss_that_is_lower_than_expected_is_not_too_easy() -> None:
    batches = ((z1, z2, z2 + 0.1, z1 + 0.1) for z1, z2 in pairs(0.3))
    assert "too easy" not in names(simsiam_like, batches)


def test_distances_need_no_unit_vectors() -> None:
    batches = ((5 * z1, 5 * z2, 5 * z2.roll(1, 0)) for z1, z2 in pairs())
    assert "embeddings not normalised" not in names(nn.TripletMarginLoss(margin=5.0), batches)
    assert "embeddings not normalised" in names(dots, changed(lambda a, b: (5 * a, 5 * b)))


def test_copies_that_are_not_compared_are_no_duplicates() -> None:
    def pairwise(z1: Tensor, z2: Tensor) -> Tensor:
        return (1 - nn.functional.cosine_similarity(z1, z2)).mean()

    twice = ((torch.cat([a, a]), torch.cat([b, b])) for a, b in pairs())
    assert "duplicates" not in names(pairwise, twice)
    assert "duplicates" in names(LOSS, ((torch.cat([a, a]), torch.cat([b, b])) for a, b in pairs()))


def test_samples_of_another_form_lose_no_finding() -> None:
    lines: list[str] = []
    doctor = Doctor(LOSS, every=1, log=lines.append)
    for z1, z2 in (next(pairs()) for _ in range(3)):
        doctor.see(torch.cat([z1, z1]), torch.cat([z2, z2]), samples={"input_ids": torch.zeros(4)})
    assert "duplicates" in {finding.name for finding in doctor.findings}
    assert len(lines) == len(doctor.findings)
    assert "samples: expected images or texts" in doctor.left_out["samples on the page"]


def test_a_batch_that_cannot_be_read_is_forgotten_after_a_good_look() -> None:
    doctor, batches = Doctor(LOSS, every=1), pairs()
    doctor.see(torch.randn(1, WIDTH, requires_grad=True), torch.randn(1, WIDTH))
    assert "all checks" in doctor.left_out
    doctor.see(*next(batches))
    assert doctor.left_out == {}
