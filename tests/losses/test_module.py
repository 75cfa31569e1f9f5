"""`Loss`: pickled as a whole, and messages that name what to write."""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

from contrapose import (
    CosineSchedule,
    Loss,
    MovingAverage,
    PerSample,
    cross,
    explain,
    guide_targets,
    koleo,
    learned,
    nested,
    nt_xent,
    penalties,
    queue,
    self_guided,
    spread_out,
    supcon,
    two_views,
)
from contrapose.embeddings import State, of_two_views
from contrapose.losses.parse import parse
from contrapose.reduce import Count


@pytest.mark.parametrize("name", ["nt_xent(temperature=0.2)", "dystress", "clip", "cacr", "supcon", "dcl", "simsiam"])
def test_a_criterion_can_be_pickled(name: str) -> None:
    """Such as by `torch.save` of a whole model, or to start processes."""
    criterion = Loss(name)
    copy = pickle.loads(pickle.dumps(criterion))
    assert copy.objective is criterion.objective
    assert repr(copy) == repr(criterion)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda z: nt_xent(two_views(z, z), 0.1),  # type: ignore[call-arg]
            r"settings are named, as in nt_xent\(pairs, temperature=…\)",
        ),
        (lambda z: supcon(z, labels=torch.zeros(4)), r"for one view write supcon\(views\(\[z\]\), labels=y\)"),
        (lambda z: Loss("DySTreSS"), "did you mean 'dystress'"),
    ],
)
def test_messages_name_what_to_write(call: Callable[[Tensor], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call(torch.randn(4, 3))


def train(criterion: Loss, steps: int) -> list[str]:
    """Compute a loss this many times, as a training loop does; return the warnings."""
    z = torch.randn(4, 3, requires_grad=True)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(steps):
            criterion(z, z * 2)
    assert all(warning.filename == __file__ for warning in caught)  # the caller, and not a file of torch
    return [str(warning.message) for warning in caught]


def test_a_schedule_without_epochs_warns_once() -> None:
    criterion = Loss(nt_xent, temperature=CosineSchedule(period=10))
    assert train(criterion, 99) == []
    (message,) = train(criterion, 200)
    assert "temperature has a schedule, but the epoch was not set in the first 100 training steps" in message
    assert message.endswith("at the start of each epoch, set criterion.epoch = epoch")


def test_no_warning_where_the_epoch_does_not_matter() -> None:
    assert train(Loss(nt_xent, temperature=0.2), 101) == []
    criterion = Loss(nt_xent, temperature=CosineSchedule(period=10))
    assert train(criterion.eval(), 101) == []
    with torch.no_grad():
        assert train(criterion.train(), 101) == []
    criterion.epoch = 0  # the first epoch of a loop that counts from 0
    assert train(criterion, 101) == []
    assert criterion.epoch == 0


@pytest.mark.thorough
def test_a_schedule_follows_the_epoch_when_compiled() -> None:
    """The count of steps is not part of the graphs: it would compile them again in every step."""
    criterion, graphs = Loss(nt_xent, temperature=CosineSchedule(period=10)), 0

    def backend(graph: torch.fx.GraphModule, inputs: Sequence[Tensor]) -> Callable[..., object]:
        nonlocal graphs
        graphs += 1
        return graph.forward

    torch.compiler.reset()
    z, compiled = torch.randn(4, 3), torch.compile(criterion, backend=backend)
    compiled(z, z * 2)
    once = graphs
    for _ in range(5):
        compiled(z, z * 2)
    assert graphs == once > 0
    for epoch in (1, 5):
        criterion.epoch = epoch
        expected = nt_xent(two_views(z, z * 2), temperature=CosineSchedule(period=10).at(epoch))
        torch.testing.assert_close(compiled(z, z * 2), expected)


@pytest.mark.parametrize(
    ("loss", "negatives"),
    [
        ("nt_xent(temperature=0.001)", 14),
        ("nt_xent(negatives=hardest(5))", 5),
        ("nt_xent(negatives=(same_view(), hardest(0.5)))", 4),
        ("clip", 7),
        ("siglip", 7),
        ("cacr", 7),
        ("triplet", 1),
        ("hard_contrastive", 2),
        ("vicreg", 0),
        ("swav", 0),
    ],
)
def test_the_number_of_negatives(loss: str, negatives: int) -> None:
    z1, z2 = torch.randn(2, 8, 4, requires_grad=True)
    assert Loss(loss).negatives_per_anchor(z1, z2) == negatives
    assert Loss("nt_xent(temperature=0.1)").negatives_per_anchor(z1, z2, ids=torch.tensor([0, 0, *range(1, 7)])) == 13.5
    assert Loss("supcon").negatives_per_anchor(z1, z2, labels=torch.arange(8) % 4) == 14
    stored = queue(z1, z2, torch.randn(20, 4))
    with torch.no_grad():
        assert Loss("nt_xent(temperature=0.1)").negatives_per_anchor(stored) == 20
    assert z1.grad is None


@pytest.mark.parametrize("margin", [-0.2, 0.1, 1.0])
@pytest.mark.parametrize("relative", [False, True])
def test_the_number_of_negatives_of_self_guided(margin: float, relative: bool) -> None:
    z1, z2 = torch.randn(2, 8, 4, dtype=torch.float64)
    chosen = self_guided(margin=margin, relative=relative)
    (counts,) = two_views(z1, z2).reduce(Count(), negatives=chosen, may_be_empty=True)
    expected = counts.sum() / (counts > 0).sum().clamp(min=1)
    assert Loss("nt_xent", negatives=chosen).negatives_per_anchor(z1, z2) == pytest.approx(float(expected))


def test_the_number_of_negatives_of_prefixes() -> None:
    z1, z2 = torch.randn(2, 8, 16)
    assert Loss(nested("nt_xent", dims=(4, 16))).negatives_per_anchor(z1, z2) == 14


def test_only_the_first_part_gets_soft_targets() -> None:
    z1, z2 = torch.randn(2, 8, 16)
    with pytest.raises(
        ValueError, match="only the first part of a sum gets soft targets: write soft_nt_xent before clip"
    ):
        Loss("clip + soft_nt_xent()")
    targets = guide_targets(two_views(z2, z1))
    assert Loss("soft_nt_xent + clip()")(z1, z2, targets=targets).isfinite()


def test_a_network_of_anchors_with_several_directions() -> None:
    net = learned(torch.nn.Linear(16, 1), low=0.05, high=0.5)
    pairs = cross(*torch.randn(2, 8, 16), directions=("a_to_b", "b_to_b"))
    with pytest.raises(ValueError, match="temperature: a network of the anchors needs one direction of comparison"):
        Loss(nt_xent, temperature=net)(pairs)


class TestSum:
    """A loss as text with several parts."""

    Z = torch.randn(2, 8, 5, generator=torch.Generator().manual_seed(3), dtype=torch.float64)

    def test_value_and_gradient_are_those_of_the_weighted_parts(self) -> None:
        results = []
        for loss in (
            Loss("simclr(temperature=0.2) + 0.1*koleo() + spread_out"),
            lambda a, b: nt_xent(two_views(a, b), temperature=0.2) + 0.1 * koleo(a, b) + spread_out(two_views(a, b)),
        ):
            leaf = self.Z.clone().requires_grad_()
            value = loss(*leaf)
            results.append((value.detach(), *torch.autograd.grad(value, leaf)))
        for ours, expected in zip(*results, strict=True):
            torch.testing.assert_close(ours, expected, rtol=1e-12, atol=1e-12)

    def test_parts_have_their_values_and_names(self) -> None:
        criterion = Loss("nt_xent + 0.5*nt_xent(temperature=0.1) + 0.1*koleo()")
        criterion(*self.Z)
        assert {name: float(value) for name, value in criterion.latest_parts.items()} == {
            "nt_xent": pytest.approx(float(nt_xent(two_views(*self.Z)))),
            "nt_xent_2": pytest.approx(float(nt_xent(two_views(*self.Z), temperature=0.1))),
            "koleo": pytest.approx(float(koleo(*self.Z))),
        }
        criterion.eval()(*self.Z.flip(1) * 2 + 1)
        assert criterion.latest_parts["koleo"] == koleo(*self.Z)  # only training steps count
        assert Loss("nt_xent").latest_parts == {}

    def test_parameters_schedules_and_epochs_belong_to_the_sum(self) -> None:
        criterion = Loss("clip + 0.5*nt_xent(temperature=schedule(0.1, 1.0, 10)) + 2*siglip")
        assert len(list(criterion.parameters())) == 3
        criterion.epoch = 5
        expected = nt_xent(two_views(*self.Z), temperature=0.1)
        criterion(*self.Z)
        torch.testing.assert_close(criterion.latest_parts["nt_xent"], expected)
        assert criterion.can_capture
        criterion.hold_schedules(torch.device("cpu"))
        criterion.epoch = 0
        criterion.refresh_schedules()
        criterion(*self.Z)
        torch.testing.assert_close(criterion.latest_parts["nt_xent"], nt_xent(two_views(*self.Z), temperature=1.0))

    def test_a_parsed_sum_can_be_called_and_pickled(self) -> None:
        chosen = parse("simclr + 0.1*spread_out() + 0.2*koleo()")
        embeddings = of_two_views(*self.Z)
        pairs = two_views(*self.Z)
        expected = nt_xent(pairs) + 0.1 * spread_out(pairs) + 0.2 * koleo(*self.Z)
        for own in (chosen, pickle.loads(pickle.dumps(chosen))):
            torch.testing.assert_close(own(embeddings), expected)
        with pytest.raises(ValueError, match="embeddings: koleo expected Embeddings, got Pairs"):
            chosen(pairs)
        criterion = pickle.loads(pickle.dumps(Loss(chosen)))
        torch.testing.assert_close(criterion(embeddings), expected)

    def test_penalties_are_those_of_the_parts_that_take_pairs(self) -> None:
        embeddings = of_two_views(*self.Z)
        with_koleo = Loss("simclr + 3*spread_out() + 0.2*koleo()").with_provided(embeddings)
        without = Loss("simclr + 3*spread_out()").with_provided(embeddings)
        alone = Loss("simclr").with_provided(embeddings)
        push = [penalties(loss, embeddings.pairs).push for loss in (with_koleo, without, alone)]
        assert torch.equal(push[0], push[1])
        assert float((push[1] - push[2]).abs().max()) > 0.01

    def test_explain_shows_what_depends_on_similarities(self) -> None:
        words = "\n".join(explain("simclr + 3*spread_out() + 0.2*koleo()").words().popitem()[1])
        assert words.startswith("nt_xent(temperature=0.5) + 3*spread_out(), shown without koleo, no function of simil")
        assert "are pulled instead of pushed" in words  # negatives with s < 0, by spread_out
        loss = Loss("simclr + 3*spread_out() + 0.2*koleo()")
        assert "are pulled instead of pushed" in "\n".join(explain(loss).words().popitem()[1])


@pytest.mark.parametrize(
    ("loss", "settings", "state", "message"),
    [
        ("sogclr(temperature=0.5)", {}, PerSample(8, adapt=False), "temperature: sogclr reads it from its state"),
        ("sogclr", {"gamma": 0.5}, PerSample(8), r"gamma: .* write state=PerSample\(number_of_samples, gamma=…\)"),
        ("fastclip(gamma=0.1)", {}, MovingAverage(8), "gamma: .* write state=MovingAverage"),
        ("isogclr(rho=0.3)", {}, None, "rho: .* write state=PerSample"),
        ("isogclr(rho=0.3)", {}, PerSample(8), "rho: .* write state=PerSample"),
        ("fastclip", {"towers": 1}, None, "towers: .* write state=MovingAverage"),
    ],
)
def test_a_setting_that_the_state_replaces(
    loss: str, settings: dict[str, object], state: State | None, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        Loss(loss, state=state, **settings)


def test_settings_of_a_method_are_not_those_of_the_user() -> None:
    Loss("sogclr", state=PerSample(8, adapt=False))
    Loss("sogclr(temperature=0.5)")
    Loss("fastclip(rho=6.5)", state=MovingAverage(8))


def test_labels_reach_the_part_that_takes_them() -> None:
    z1, z2 = torch.randn(2, 8, 16)
    labels = torch.arange(8) % 3
    parts = Loss("simclr")(z1, z2), Loss("supcon(temperature=0.1)")(z1, z2, labels=labels)
    for text in ("simclr + supcon(temperature=0.1)", "supcon(temperature=0.1) + simclr"):
        torch.testing.assert_close(Loss(text)(z1, z2, labels=labels), sum(parts))
    with pytest.raises(TypeError, match="labels"):
        Loss("simclr + 0.1*koleo()")(z1, z2, labels=labels)


def test_one_view_of_a_loss_of_embeddings() -> None:
    z, labels = torch.randn(8, 16), torch.arange(8) % 3
    torch.testing.assert_close(Loss("koleo")(z), Loss("koleo")(z[None]))
    total = Loss("supcon + 0.1*koleo()")
    torch.testing.assert_close(total(z, labels=labels), total(z[None], labels=labels))


def test_a_parameter_that_torch_replaces_is_the_one_that_is_used() -> None:
    """By `load_state_dict(assign=True)`, `functional_call` and assignment."""
    z1, z2 = torch.randn(2, 8, 16)
    expected = Loss(nt_xent, temperature=0.1)(z1, z2)
    new = torch.tensor(0.1)

    def criterion() -> Loss:
        return Loss(nt_xent, temperature=nn.Parameter(torch.tensor(0.5)))

    torch.testing.assert_close(functional_call(criterion(), {"temperature": new}, (z1, z2)), expected)
    loaded, assigned, other = criterion(), criterion(), criterion()
    loaded.load_state_dict({"temperature": new}, assign=True)
    assigned.temperature = nn.Parameter(new)
    del other.temperature
    other.temperature = learned(0.1)
    for changed in (loaded, assigned, other):
        torch.testing.assert_close(changed(z1, z2), expected)
