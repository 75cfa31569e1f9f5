"""Losses with a state for each sample: a schedule times their temperatures, and FastCLIP's averages and temperature."""

from __future__ import annotations

import math

import pytest
import torch

from contrapose.losses import Loss, fastclip, isogclr, nt_xent, sogclr
from contrapose.losses.objective import with_state
from contrapose.losses.parse import parse
from contrapose.pairs import two_views
from contrapose.temperature import CosineDecay, CosineSchedule, MovingAverage, PerSample, cosine, learned

Z = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("adapt", [False, True])
def test_a_schedule_multiplies_the_temperature_of_each_sample(adapt: bool) -> None:
    """u, v and τ of every image, with the formulas written out at the temperature c(e) τ_n."""
    schedule = CosineSchedule(0.5, 2.0, period=4)
    state = PerSample(3, temperature=0.2, gamma=0.8, adapt=adapt, scale=schedule).double()
    criterion = Loss(isogclr if adapt else sogclr, state=state)
    assert not criterion.can_capture
    tau, velocity, u = [0.2] * 3, [0.0] * 3, [0.0] * 3
    state.temperature[:] = torch.tensor(tau, dtype=torch.float64)
    for epoch in range(4):
        criterion.epoch, c = epoch, schedule.at(epoch)
        pairs = two_views(*torch.randn(2, 3, 4, dtype=torch.float64), ids=torch.arange(3))
        s = (pairs.anchor @ pairs.pool.T).tolist()
        value = criterion(pairs)
        losses: list[float] = []
        averages: list[list[float]] = [[], [], []]
        gradients: list[list[float]] = [[], [], []]
        for anchor in range(6):
            n, at = anchor % 3, c * tau[anchor % 3]
            negatives = [s[anchor][j] for j in range(6) if j % 3 != n]
            g = sum(math.exp(x / at) for x in negatives) / 4
            own = g if epoch == 0 else 0.2 * u[n] + 0.8 * g
            pull = sum(math.exp(x / at) / own * x for x in negatives) / 4
            losses.append(2 * (pull - s[anchor][(anchor + 3) % 6]))
            averages[n].append(own)
            gradients[n].append(c * (math.log(own) + 0.4 - pull / at))
        assert float(value) == pytest.approx(sum(losses) / 6, rel=1e-12)
        for n in range(3):
            u[n] = sum(averages[n]) / 2
            velocity[n] = 0.5 * velocity[n] + 0.5 * min(max(sum(gradients[n]) / 2, -3.0), 3.0)
            tau[n] = min(max(tau[n] - 0.03 * velocity[n], 0.05), 1.0) if adapt else tau[n]
            assert float(state.log_average[n].exp()) == pytest.approx(u[n], rel=1e-12)
            assert float(state.temperature[n]) == pytest.approx(tau[n], rel=1e-12)
    with pytest.raises(ValueError, match="scale: a schedule needs an epoch"):
        state.update(pairs, gamma=0.8)


@pytest.mark.parametrize("towers", [1, 2])
def test_fastclip_averages_and_learns_as_in_the_paper(towers: int) -> None:
    """u of every sample and side over four steps, the loss, and the gradient of log τ, with the formulas written out."""
    gamma = CosineDecay(1.0, 0.2, epochs=4)
    state = MovingAverage(5, towers=towers, gamma=gamma).double()
    criterion = Loss("fastclip", rho=1.5, state=state).double()
    assert not criterion.can_capture
    (log_tau,) = criterion.parameters()
    u: dict[int, float] = {}
    for step, ids in enumerate(([0, 1, 2], [3, 1, 4], [2, 0, 3], [4, 3, 1])):
        criterion.epoch = step
        with torch.no_grad():
            log_tau.fill_(math.log(0.3) - 0.1 * step)
        tau = math.exp(float(log_tau.detach()))
        z = torch.randn(2, 3, 4, dtype=torch.float64)
        s = (torch.nn.functional.normalize(z[0], dim=1) @ torch.nn.functional.normalize(z[1], dim=1).T).tolist()
        criterion.zero_grad()
        loss = criterion(*z, ids=torch.tensor(ids))
        loss.backward()
        value, slope, new = 0.0, 0.0, dict[int, list[float]]()
        for side in (0, 1):
            for i in range(3):
                gaps = [(s[i][k] if side == 0 else s[k][i]) - s[i][i] for k in range(3) if k != i]
                g = sum(math.exp(x / tau) for x in gaps) / 2
                key = ids[i] + (5 * side if towers == 2 else 0)
                own = (1 - gamma.at(step)) * u[key] + gamma.at(step) * g if key in u else g
                new.setdefault(key, []).append(own)
                value += tau * (math.log(own) + 1.5) / 3
                derivative = sum(-x / tau**2 * math.exp(x / tau) for x in gaps) / 2
                slope += (math.log(own) + 1.5 + tau * derivative / own) / 3
        u |= {key: sum(values) / len(values) for key, values in new.items()}
        assert float(loss.detach()) == pytest.approx(value, rel=1e-12)
        assert log_tau.grad is not None
        assert float(log_tau.grad) == pytest.approx(tau * slope, rel=1e-12)  # of log τ, the parameter
        for key, average in u.items():
            assert float(state.log_average[key].exp()) == pytest.approx(average, rel=1e-12)
    assert (state.log_average == -torch.inf).sum() == 5 * towers - len(u)


def test_fastclip_settles_where_the_relative_entropy_of_the_weights_is_rho() -> None:
    pairs = two_views(*torch.randn(2, 12, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64))
    temperature = learned(0.07).double()
    optimiser = torch.optim.Adam(temperature.parameters(), lr=0.02)
    for _ in range(600):
        optimiser.zero_grad()
        fastclip(pairs, temperature=temperature, rho=1.0).backward()
        optimiser.step()
    similarities = pairs.similarities()
    same = similarities.same_id
    assert same is not None
    weights = (similarities.negative / temperature().detach()).masked_fill(same, -torch.inf).softmax(1)
    entropy = torch.special.entr(weights).sum(1)
    assert float((math.log(22) - entropy).mean()) == pytest.approx(1.0, abs=1e-3)


def test_fastclip_checks_its_settings() -> None:
    pairs = two_views(Z, Z + 0.1)
    for settings, message in (
        ({"temperature": cosine(0.1, 0.2)}, "temperature: expected a number, one per anchor or learned"),
        ({"gamma": CosineDecay()}, "gamma: a schedule needs an epoch"),
        ({"gamma": 0.0}, "gamma: expected a number above 0"),
        ({"log_average": torch.zeros(3)}, r"log_average: expected one number per anchor \(12,\), got \(3,\)"),
        ({"rho": math.inf}, "rho: expected a finite number"),
    ):
        with pytest.raises(ValueError, match=message):
            fastclip(pairs, **settings)
    chosen, state = with_state(parse("fastclip(rho=6.5, gamma=decay(1.0, 0.2, epochs=8), towers=1)"), 10)
    assert isinstance(state, MovingAverage)
    assert (state.towers, state.gamma) == (1, CosineDecay(1.0, 0.2, 8))
    assert set(chosen.keywords) == {"temperature", "rho"}
    chosen, state = with_state(parse("fastclip(gamma=1.0)"), 10)
    assert (chosen.keywords["gamma"], state) == (1.0, None)
    assert with_state(parse("fastclip"), 10)[1].log_average.shape == (20,)  # type: ignore[union-attr]


def test_a_schedule_times_a_temperature_is_a_schedule() -> None:
    schedule, individual = CosineSchedule(0.5, 2.0, period=4), torch.linspace(0.1, 0.5, 12, requires_grad=True)
    z, criterion = torch.randn(2, 6, 4), Loss(nt_xent)
    for epoch, product in ((2, individual * schedule), (1, schedule * individual)):
        criterion.epoch = epoch
        loss = criterion(*z, temperature=product)
        expected = nt_xent(two_views(*z), temperature=schedule.at(epoch) * individual)
        assert torch.equal(loss, expected)
        ours, theirs = (torch.autograd.grad(value, individual)[0] for value in (loss, expected))
        assert torch.equal(ours, theirs)
    twice = schedule * CosineDecay(1.0, 0.2, epochs=4) * 0.5
    assert twice.at(3) == pytest.approx(schedule.at(3) * CosineDecay(1.0, 0.2, epochs=4).at(3) * 0.5)
    assert Loss(nt_xent, temperature=twice).can_capture
    assert not Loss(nt_xent, temperature=schedule * individual.detach()).can_capture  # not one number
    with pytest.raises(ValueError, match="factor: expected a number above 0, got -1"):
        schedule * -1
    objective, state = with_state(parse("sogclr(temperature=0.2, scale=schedule(0.5, 2.0, 4))"), 10)
    assert state is None
    assert objective.keywords["temperature"].at(1) == pytest.approx(0.2 * schedule.at(1))
    _, state = with_state(parse("isogclr(scale=schedule(0.5, 2.0, 4))"), 10)
    assert isinstance(state, PerSample)
    assert state.scale == schedule
