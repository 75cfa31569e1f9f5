"""Learned settings: their bounds, their gradients and who owns them."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import oracles
import pytest
import torch
from kinds import KINDS
from torch import nn

from contrapose.embeddings import of_two_views
from contrapose.losses import CATALOGUE, Loss, fastclip, nt_xent, siglip
from contrapose.losses.parse import parse
from contrapose.metrics import penalties
from contrapose.pairs import from_similarities, two_views
from contrapose.reduce import memory
from contrapose.temperature import MovingAverage, cosine, learned, learned_number

Z = torch.randn(2, 6, 4, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(("direction", "bound"), [(1.0, 0.01), (-1.0, 1.0)])
@pytest.mark.parametrize("optimiser", [torch.optim.SGD, torch.optim.Adam])
def test_a_bounded_temperature_stays_inside_and_comes_back(
    direction: float, bound: float, optimiser: type[torch.optim.Optimizer]
) -> None:
    temperature = learned(0.07, low=0.01, high=1.0)
    steps = optimiser(temperature.parameters(), lr=0.3)  # type: ignore[call-arg]

    def step(sign: float) -> float:
        steps.zero_grad()
        value = temperature()
        (sign * value.log()).backward()
        assert temperature.log_temperature.grad is not None
        assert float(temperature.log_temperature.grad) == pytest.approx(sign)  # at the bound too
        steps.step()
        return float(value.detach())

    pushed = [step(direction) for _ in range(50)]
    assert pushed[-1] == pytest.approx(bound, rel=1e-6)
    assert all(0.01 * (1 - 1e-6) <= value <= 1 + 1e-6 for value in pushed)
    back = [step(-direction) for _ in range(50)]
    assert abs(math.log(back[-1] / bound)) > 2


def test_without_bounds_the_parameter_is_free() -> None:
    temperature = learned(0.1)
    with torch.no_grad():
        temperature.log_temperature.fill_(3.0)
    assert float(temperature().detach()) == pytest.approx(math.exp(3))


def test_a_learned_setting_works_without_a_criterion() -> None:
    temperature, bias = learned(0.2), learned_number(-3.0)
    pairs = two_views(*Z)
    siglip(pairs, temperature=temperature, bias=bias).backward()
    assert temperature.log_temperature.grad is not None
    assert bias.value.grad is not None
    torch.testing.assert_close(nt_xent(pairs, temperature=temperature), nt_xent(pairs, temperature=0.2))


@pytest.mark.parametrize("relative", [False, True], ids=["bias", "relative_bias"])
@pytest.mark.parametrize("kind", sorted(KINDS))
def test_learned_numbers_get_the_gradient_of_the_formula(kind: str, relative: bool) -> None:
    """Central differences of the oracle in the logarithm of the temperature, and in the bias."""
    raw = KINDS[kind].draw(m=4, d=3, seed=5)
    batch, pairs = KINDS[kind].spell(raw), KINDS[kind].make(raw)
    value = 0.4 if relative else -1.5
    bias: dict[str, Any] = {"relative_bias" if relative else "bias": learned_number(value)}
    criterion = Loss(siglip, temperature=learned(0.3), **bias).double()
    start = {"temperature": math.log(0.3), "bias": value}
    with torch.no_grad():  # float32's log 0.3 is not that of float64
        for parameter, value in zip(criterion.parameters(), start.values(), strict=True):
            parameter.fill_(value)

    def oracle(**moved: float) -> float:
        at = start | moved
        tau = math.exp(at["temperature"])
        values = oracles.siglip(oracles.constant(tau), -at["bias"] / tau if relative else at["bias"])(batch, batch)
        return sum(values) / len(values)

    step = 1e-6
    for limits in (10**9, 7):
        criterion.zero_grad()
        with memory(block=limits, kept=limits):
            criterion(pairs).backward()
        for (name, value), parameter in zip(start.items(), criterion.parameters(), strict=True):
            difference = (oracle(**{name: value + step}) - oracle(**{name: value - step})) / (2 * step)
            assert parameter.grad is not None
            assert float(parameter.grad) == pytest.approx(difference, rel=1e-6, abs=1e-9)


def test_a_relative_bias_starts_where_siglip_does_and_stays_a_similarity() -> None:
    pairs = two_views(*Z.double())
    relative, usual = Loss("siglip_relative").double(), Loss("siglip").double()
    torch.testing.assert_close(relative(pairs), usual(pairs), rtol=1e-6, atol=0)
    # At any temperature, a pair with s = b_rel is undecided: its logit is 0.
    at = from_similarities(torch.tensor([[0.3]]).double(), torch.tensor([[0.3]]).double())
    for temperature in (0.01, 0.1, 1.0):
        value = siglip(at, temperature=temperature, relative_bias=0.3)
        assert value.item() == pytest.approx(2 * math.log(2))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"relative_bias": 0.5, "bias": -2.0}, "bias, relative_bias: expected one of them, got both, with bias=-2.0"),
        ({"relative_bias": 0.5, "temperature": cosine(0.1, 0.2)}, "temperature: with relative_bias, expected a number"),
        (
            {"relative_bias": 0.5, "temperature": torch.full((12,), 0.1)},
            "temperature: with relative_bias, expected a n",
        ),
        ({"relative_bias": torch.zeros(2)}, r"relative_bias: expected a number .* got shape \(2,\)"),
        ({"relative_bias": math.nan}, "relative_bias"),
    ],
)
def test_a_relative_bias_is_checked(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        siglip(two_views(*Z), **settings)


def test_criteria_of_one_method_do_not_share_what_they_learn() -> None:
    first, second, third = Loss(CATALOGUE["siglip"]), Loss(CATALOGUE["siglip"]), Loss(parse("siglip"))
    assert len({id(p) for criterion in (first, second, third) for p in criterion.parameters()}) == 6
    assert set(first.state_dict()) == {"temperature.log_temperature", "bias.value"}


def test_what_the_user_gives_is_not_copied() -> None:
    shared = learned(0.2)
    own = nn.Parameter(torch.tensor(-1.0))
    for objective in (CATALOGUE["siglip"](temperature=shared, bias=own), siglip):
        criterion = Loss(objective, temperature=shared, bias=own)
        assert {id(p) for p in criterion.parameters()} == {id(own), id(shared.log_temperature)}


def test_bounds_do_not_invalidate_a_graph_that_was_made_before() -> None:
    temperature = learned(0.07, low=0.01)
    penalty = temperature.log_temperature.square()
    temperature()
    penalty.backward()
    assert temperature.log_temperature.grad is not None


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_bad_learned_temperature_is_refused_without_waiting_in_each_step() -> None:
    """The check of one step is read in a later one, so that the host does not wait for the device."""
    z1, z2 = torch.randn(2, 8, 4, device="cuda")
    temperature = torch.tensor(-1.0, device="cuda", requires_grad=True)
    nt_xent(two_views(z1, z2), temperature=temperature)
    torch.cuda.synchronize()
    with pytest.raises(
        ValueError, match=r"temperature: expected temperatures of at least 1e-06, got -1 in an earlier step"
    ):
        nt_xent(two_views(z1, z2), temperature=temperature)


class TestTemperatureNet:
    """τ_i = net(z_i), for each anchor (TempNet)."""

    @staticmethod
    def net(width: int = 4) -> nn.Module:
        torch.manual_seed(7)
        return nn.Sequential(nn.Linear(width, 5), nn.Tanh(), nn.Linear(5, 1)).double()

    def test_each_anchor_has_the_temperature_of_its_embedding(self) -> None:
        net, z = self.net(), Z.double().requires_grad_()
        criterion = Loss(nt_xent, temperature=learned(net, low=0.1, high=0.5))
        assert {id(p) for p in criterion.parameters()} == {id(p) for p in net.parameters()}
        pairs = two_views(*z)
        scores = net(torch.nn.functional.normalize(z.detach(), dim=-1).flatten(0, 1))[:, 0]
        tau = 0.1 + 0.4 / (1 + torch.exp(-scores))
        assert float(tau.detach().std()) > 0.01
        results = []
        for loss in (criterion(*z), criterion(pairs), nt_xent(pairs, temperature=tau)):
            gradients = torch.autograd.grad(loss, (z, *net.parameters()), retain_graph=True)
            results.append((loss.detach(), *gradients))
        for other in results[1:]:
            for ours, expected in zip(results[0], other, strict=True):
                torch.testing.assert_close(ours, expected, rtol=1e-12, atol=1e-14)
        assert float(results[0][2].abs().max()) > 1e-5

    @pytest.mark.parametrize("visited", [False, True])
    def test_with_fastclip_it_is_tempnet(self, visited: bool) -> None:
        """Written out from the authors' code: a loss of the encoders, and one of the net with everything else detached."""
        net, z, rho, gamma = self.net(), Z.double().requires_grad_(), 6.0, 0.8
        state = MovingAverage(6, gamma=gamma).double()
        if visited:
            state.log_average[:] = torch.linspace(-1.0, 1.0, 12)
        old = state.log_average.exp()
        criterion = Loss(fastclip, temperature=learned(net, low=0.05, high=0.3), rho=rho, state=state)
        ours = torch.autograd.grad(criterion(*z, ids=torch.arange(6)), (z, *net.parameters()))
        sides = torch.nn.functional.normalize(z, dim=-1)
        total = torch.zeros((), dtype=torch.float64)
        for side, (a, b) in enumerate(((sides[0], sides[1]), (sides[1], sides[0]))):
            s = a @ b.T
            tau = 0.05 + 0.25 * torch.sigmoid(net(a.detach())[:, 0])
            difference = s - s.diagonal()[:, None]
            e = torch.exp((difference / tau[:, None]).detach()) * (1 - torch.eye(6))
            u = e.sum(1) / 5
            u = (1 - gamma) * old[6 * side : 6 * side + 6] + gamma * u if visited else u
            weight = e / u[:, None] / 5
            of_temperature = u.log() + rho - (weight * difference.detach() / tau.detach()[:, None]).sum(1)
            total = total + (weight * difference).sum(1).mean() + (of_temperature * tau).mean()
        for one, other in zip(ours, torch.autograd.grad(total, (z, *net.parameters())), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)

    def test_penalties_use_the_anchors_of_the_batch(self) -> None:
        criterion = Loss(nt_xent, temperature=learned(self.net(), low=0.1, high=0.5))
        embeddings = of_two_views(*Z.double())
        pairs = embeddings.pairs
        expected = penalties(partial(nt_xent, temperature=criterion.settings["temperature"](pairs.anchor)), pairs)
        torch.testing.assert_close(penalties(criterion.with_provided(embeddings), pairs).push, expected.push)

    def test_messages(self) -> None:
        z, net = Z.double(), self.net()
        for make, message in (
            (lambda: learned(net), "low, high: expected the range of the temperatures that a network predicts"),  # type: ignore[call-overload]
            (lambda: learned(net, low=0.2, high=0.1), "high: expected a number above 0.2, got 0.1"),
            (
                lambda: nt_xent(two_views(*z), temperature=learned(net, low=0.1, high=0.2)),
                "a network needs the anchors'",
            ),
            (
                lambda: Loss(nt_xent, temperature=learned(nn.Identity(), low=0.1, high=0.2))(*z),
                r"net: expected one number per anchor, shape \(12,\) or \(…, 1\), got \(12, 4\)",
            ),
            (
                lambda: Loss(nt_xent, temperature=learned(net, low=0.1, high=0.2))(two_views(*z).similarities()),
                "temperature: a network of the anchors needs their embeddings, which Similarities do not have",
            ),
        ):
            with pytest.raises(ValueError, match=message):
                make()
        assert repr(learned(nn.Identity(), low=0.1, high=0.2)).startswith("TemperatureNet(\n  low=0.1, high=0.2")
