from __future__ import annotations

import copy
import inspect
import math
import re
from typing import Any

import pytest
import torch
from cases import OF_VIEWS

from contrapose.losses import CATALOGUE, Loss, isogclr, nt_xent, sogclr
from contrapose.losses.objective import with_state
from contrapose.losses.parse import parse
from contrapose.pairs import bank, cross, from_similarities, queue, two_views, views
from contrapose.pairs.negatives import hardest, other_views
from contrapose.temperature import CosineDecay, CosineSchedule, PerSample, cosine

NAMED = [
    "simclr",
    "temperature_free",
    "dystress",
    "dystress_shifted",
    "dystress_dcl",
    "dystress_dcl_authors",
    "dcl",
    "dclw",
    "macl",
    "moco_v3",
    "temperature_schedule",
    "isogclr",
    "tau",
    "simple",
    "hard_contrastive",
    "hard_simple",
    "triplet",
    "align_uniform",
    "hard_negative",
    "cmc",
    "cacr",
    "cacr_rbf",
    "cacr_moco_v3",
    "uaur",
    "balanced",
    "generalized_nt_xent",
    "clip",
    "siglip",
]
Z = torch.randn(6, 4)


def test_every_method_of_the_papers_is_in_the_catalogue() -> None:
    assert set(NAMED) <= set(CATALOGUE)
    for name, method in CATALOGUE.items():
        assert "\n" not in method.summary
        assert re.search(r"\(.+\)", method.summary), f"{name}: name the paper"
        accepted = inspect.signature(method.objective).parameters
        for settings in (method.values, *method.by_data.values()):
            assert set(settings) <= set(accepted), name


@pytest.mark.parametrize("name", sorted(set(NAMED) - {"isogclr", "tau", "temperature_schedule"}))
def test_every_method_runs_on_every_source_of_negatives(name: str) -> None:
    """Default values work with any pairs; `reduction="none"` returns one value per anchor."""
    for pairs in (
        two_views(Z, Z + 0.1),
        views(torch.randn(3, 6, 4)),
        cross(Z, Z + 0.1),
        cross(Z, Z + 0.1, symmetric=True, negatives=torch.randn(3, 4)),
        cross(Z, Z + 0.1, directions=("a_to_b", "a_to_a", "b_to_a", "b_to_b")),
        queue(Z, Z + 0.1, torch.randn(20, 4)),
        bank(Z, torch.arange(6), torch.randn(20, 4)),
        from_similarities(torch.rand(5), torch.rand(5, 30)),
    ):
        if name in OF_VIEWS and not pairs.has_views:
            with pytest.raises(ValueError, match="split_views: expected the batch itself in several views"):
                CATALOGUE[name]()(pairs)
            continue
        values = CATALOGUE[name]()(pairs, reduction="none")
        assert values.shape == (pairs.shape[0],)
        assert torch.isfinite(values).all()


def test_the_papers_values() -> None:
    assert CATALOGUE["dystress"]("cifar100").keywords == {"temperature": cosine(0.07, 0.2)}
    assert CATALOGUE["dystress"]("imagenet100").keywords == {"temperature": cosine(0.1, 0.2)}
    assert CATALOGUE["dystress_shifted"]("imagenet100").keywords == {"temperature": cosine(0.1, 0.2, shift=-0.4)}
    assert CATALOGUE["hard_contrastive"]("cifar10").keywords == {"temperature": 0.6, "negatives": hardest(4095)}
    assert CATALOGUE["cacr"]("cifar100").keywords == {"t_pos": 1.0, "t_neg": 3.0}
    assert CATALOGUE["cacr"]("cifar10-k4").keywords == {"t_pos": 1.0, "t_neg": 0.9}
    assert CATALOGUE["balanced"]("cifar10").keywords == {"alpha": 2.0, "weight": 4.0}
    assert CATALOGUE["balanced"]("imagenet").keywords == {"alpha": 4.0, "weight": 2.0}
    assert CATALOGUE["hard_negative"]("cifar100").keywords == {"temperature": 0.5, "beta": 1.0, "tau_plus": 0.05}
    assert CATALOGUE["macl"]("simcse").keywords == {
        "temperature": 0.05,
        "alpha": 2.0,
        "center": 0.8,
        "negatives": other_views(),
    }


def test_dystress_dcl_has_the_form_of_the_papers_and_that_of_the_authors_code() -> None:
    """Written out from the authors' code: two log-sum-exps, of each view's own rows and of the other's, and τ not detached."""
    z = torch.randn(2, 5, 4, dtype=torch.float64)
    others = ~torch.eye(5, dtype=torch.bool)

    def logits(a: torch.Tensor, b: torch.Tensor, detach: bool) -> torch.Tensor:
        s = a @ b.T
        tau = 0.1 + 0.05 * (1 + torch.cos(torch.pi * (1 + (s.detach() if detach else s))))
        return s / tau

    def direction(a: torch.Tensor, b: torch.Tensor, authors: bool) -> torch.Tensor:
        same, cross_view = (logits(a, x, detach=not authors) for x in (a, b))
        kept = [x[others].view(5, 4) for x in (same, cross_view)]
        total = kept[0].logsumexp(1) + kept[1].logsumexp(1) if authors else torch.cat(kept, 1).logsumexp(1)
        return (total - cross_view.diagonal()).mean()

    for name, authors in (("dystress_dcl", False), ("dystress_dcl_authors", True)):
        leaf = z.clone().requires_grad_()
        ours = CATALOGUE[name]()(two_views(*leaf))
        (gradient,) = torch.autograd.grad(ours, leaf)
        u1, u2 = (torch.nn.functional.normalize(z, dim=1) for z in leaf)
        expected = (direction(u1, u2, authors) + direction(u2, u1, authors)) / 2
        torch.testing.assert_close(ours, expected)
        torch.testing.assert_close(gradient, torch.autograd.grad(expected, leaf)[0])


def test_dhel_has_the_form_of_the_paper_and_that_of_the_authors_code() -> None:
    """Written out: in the authors' code, each pair has the energies of both views; in the paper, that of the anchor's."""
    z = torch.randn(2, 5, 4, dtype=torch.float64)
    for name, both in (("dhel", False), ("dhel_authors", True)):
        leaf = z.clone().requires_grad_()
        ours = CATALOGUE[name]()(two_views(*leaf))
        (gradient,) = torch.autograd.grad(ours, leaf)
        views_of = [[row / row.square().sum().sqrt() for row in view] for view in leaf]
        total: Any = 0.0
        for first, second in ((0, 1), (1, 0)):
            for i in range(5):
                energies = [
                    sum((views_of[v][i] @ views_of[v][j] / 0.3).exp() for j in range(5) if j != i)
                    for v in ((first, second) if both else (first,))
                ]
                pull = (views_of[first][i] @ views_of[second][i] / 0.3).exp()
                total = total - (pull / math.prod(energies)).log() / 10
        torch.testing.assert_close(ours, total, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(gradient, torch.autograd.grad(total, leaf)[0], rtol=1e-12, atol=1e-12)


def test_an_unknown_data_set_is_named_with_its_nearest() -> None:
    with pytest.raises(ValueError, match="got 'cifar-10'; did you mean 'cifar10"):
        CATALOGUE["simclr"]("cifar-10")


def test_the_module_equals_the_function() -> None:
    z1, z2 = torch.randn(6, 4), torch.randn(6, 4)
    criterion = Loss(nt_xent, temperature=cosine(0.07, 0.2))
    expected = nt_xent(two_views(z1, z2), temperature=cosine(0.07, 0.2))
    assert torch.equal(criterion(z1, z2), expected)
    assert torch.equal(criterion(torch.stack([z1, z2])), expected)
    assert torch.equal(criterion(two_views(z1, z2)), expected)
    assert torch.equal(criterion(z1, z2, temperature=0.5), nt_xent(two_views(z1, z2), temperature=0.5))
    assert "nt_xent, temperature=cosine(low=0.07" in repr(criterion)
    with pytest.raises(ValueError, match="z: got Pairs, which already contains views and ids"):
        criterion(two_views(z1, z2), z2)
    with pytest.raises(ValueError, match="objective: expected a function of pairs"):
        Loss(0.5)  # type: ignore[arg-type]
    text = Loss("nt_xent(temperature=cosine(0.07, 0.2))")
    assert torch.equal(text(z1, z2), expected)
    assert repr(text) == repr(criterion)
    assert torch.equal(Loss("dystress")(z1, z2), expected)
    assert torch.equal(Loss("dystress", temperature=0.5)(z1, z2), nt_xent(two_views(z1, z2), temperature=0.5))


def test_a_schedule_follows_the_epoch() -> None:
    z1, z2 = torch.randn(6, 4), torch.randn(6, 4)
    criterion = Loss(CATALOGUE["temperature_schedule"]())
    for epoch in (0, 100, 200):
        criterion.epoch = epoch
        expected = nt_xent(two_views(z1, z2), temperature=CosineSchedule().at(epoch))
        assert torch.equal(criterion(z1, z2), expected)


def test_tau_takes_scores_and_gives_them_gradients() -> None:
    score = torch.zeros(12, requires_grad=True)
    Loss(CATALOGUE["tau"]())(torch.randn(6, 4), torch.randn(6, 4), score=score).backward()
    assert score.grad is not None
    assert score.grad.abs().min() > 0


def test_isogclr_state_survives_a_round_trip() -> None:
    method = CATALOGUE["isogclr"]
    assert method.state is not None
    criterion = Loss(method(), state=method.state(10))
    ids = torch.tensor([9, 1, 4, 0, 2, 3])
    for _ in range(3):
        criterion(torch.randn(6, 4), torch.randn(6, 4), ids=ids)
    restored = Loss(method(), state=method.state(10))
    restored.load_state_dict(criterion.state_dict())
    z1, z2 = torch.randn(6, 4), torch.randn(6, 4)
    assert torch.equal(criterion.eval()(z1, z2, ids=ids), restored.eval()(z1, z2, ids=ids))
    unvisited = torch.tensor([5, 6, 7, 8])
    state = criterion.state
    assert isinstance(state, PerSample)
    assert (state.log_average[unvisited] == -torch.inf).all()
    assert torch.isfinite(state.log_average[ids]).all()


def test_per_sample_state_is_the_papers_update() -> None:
    """Compare u, v and τ of one image after two visits with the formulas written out."""
    # In float64, so that the comparison can be exact to 1e-12.
    torch.set_default_dtype(torch.float64)
    try:
        state = PerSample(3, temperature=0.2, gamma=0.8, rho=0.4, beta=0.5, rate=0.03, low=0.05, high=1.0)
        u, v, tau = 0.0, 0.0, 0.2
        for visit in range(2):
            pairs = two_views(torch.randn(3, 4), torch.randn(3, 4), ids=torch.tensor([1, 0, 2]))
            s = pairs.anchor @ pairs.pool.T
            averages, pulls = [], []
            for anchor in (0, 3):  # both views of image 1
                negatives = torch.stack([s[anchor, j] for j in range(6) if j % 3 != 0])
                g = torch.exp(negatives / tau).mean()
                u_a = g if visit == 0 else 0.2 * u + 0.8 * g
                pulls.append(torch.log(u_a) + 0.4 - (torch.exp(negatives / tau) / u_a * negatives / tau).mean())
                averages.append(u_a)
            state.update(pairs)
            u = float(sum(averages) / 2)
            v = 0.5 * v + 0.5 * max(-3.0, min(3.0, float(sum(pulls) / 2)))
            tau = min(max(tau - 0.03 * v, 0.05), 1.0)
            assert float(state.log_average[1].exp()) == pytest.approx(u, rel=1e-12)
            assert float(state.velocity[1]) == pytest.approx(v, rel=1e-12)
            assert float(state.temperature[1]) == pytest.approx(tau, rel=1e-12)
        assert torch.isfinite(sogclr(pairs, **state.settings(pairs)))
    finally:
        torch.set_default_dtype(torch.float32)


def test_state_is_built_from_settings() -> None:
    objective, state = with_state(parse("isogclr(temperature=0.3, gamma=0.9, rho=0.3, rate=0.01, high=0.7)"), 10)
    assert objective.keywords == {}
    assert isinstance(state, PerSample)
    assert state.adapt
    assert (state.gamma, state.rho, state.rate, state.high) == (0.9, 0.3, 0.01, 0.7)
    torch.testing.assert_close(state.temperature, torch.full((10,), 0.3))
    objective, state = with_state(parse("sogclr(temperature=0.3, gamma=0.5, negatives=hardest(2))"), 10)
    assert objective.keywords == {"negatives": hardest(2)}
    assert isinstance(state, PerSample)
    assert not state.adapt
    criterion, ids = Loss(objective, state=state), torch.arange(6)
    first, again = (criterion(torch.randn(6, 4), torch.randn(6, 4), ids=ids) for _ in range(2))
    assert torch.isfinite(first + again)
    assert torch.isfinite(state.log_average[:6]).all()
    for text in ("sogclr", "sogclr(gamma=1.0)", "nt_xent"):  # these keep nothing between steps
        assert with_state(parse(text), 10)[1] is None


def test_an_image_twice_in_a_batch_is_updated_once() -> None:
    """Its state is updated with the mean over all its views; images outside the batch do not change."""
    state, ids = PerSample(4, temperature=0.2).double(), torch.tensor([2, 0, 2])
    pairs = two_views(torch.randn(3, 4).double(), torch.randn(3, 4).double(), ids=ids)
    s, image = pairs.anchor @ pairs.pool.T, ids.tolist() * 2
    state.update(pairs)
    for n in (0, 2):
        visits = []
        for anchor in range(6):
            if image[anchor] == n:
                negatives = torch.stack([s[anchor, j] for j in range(6) if image[j] != n]) / 0.2
                g = negatives.exp().mean()
                visits.append((g, g.log() + 0.4 - (negatives.exp() / g * negatives).mean()))
        u, gradient = (sum(column) / len(visits) for column in zip(*visits, strict=True))
        velocity = 0.5 * min(max(float(gradient), -3.0), 3.0)
        assert float(state.log_average[n].exp()) == pytest.approx(float(u), rel=1e-5)
        assert float(state.velocity[n]) == pytest.approx(velocity, rel=1e-5)
        assert float(state.temperature[n]) == pytest.approx(min(max(0.2 - 0.03 * velocity, 0.05), 1.0), rel=1e-6)
    assert state.log_average[[1, 3]].tolist() == [-math.inf, -math.inf]
    assert state.temperature[[1, 3]].tolist() == pytest.approx([0.2, 0.2])


def test_two_towers_have_states_of_their_own() -> None:
    """Image and text anchors in one loss equal two losses, one for each direction, with a state each."""
    settings: dict[str, Any] = {"temperature": 0.2, "gamma": 0.6, "rate": 0.05}
    both = Loss(isogclr, state=PerSample(9, towers=2, **settings), negatives=other_views())
    states = [PerSample(9, **settings) for _ in range(2)]
    apart = [Loss(isogclr, state=state) for state in states]
    for ids in (torch.tensor([3, 0, 8, 5]), torch.tensor([8, 1, 3, 2]), torch.tensor([3, 3, 1, 0])):
        a, b = torch.randn(2, 4, 5, dtype=torch.float64)
        directions = [one(cross(*z, ids=ids)) for one, z in zip(apart, ((a, b), (b, a)), strict=True)]
        torch.testing.assert_close(both(two_views(a, b, ids=ids)), sum(directions))
    state = both.state
    assert isinstance(state, PerSample)
    for name in ("log_average", "temperature", "velocity"):
        ours = state.state_dict()[name]
        assert ours.shape == (18,)
        torch.testing.assert_close(ours, torch.cat([s.state_dict()[name] for s in states]))
    assert not torch.equal(state.temperature[:9], state.temperature[9:])
    assert PerSample(9).temperature.shape == (9,)  # one tower is stored as before
    for pairs in (cross(Z, Z), views(torch.randn(3, 6, 4))):
        with pytest.raises(ValueError, match="pairs: expected the anchors of 2 towers, one view each"):
            state.settings(pairs)
    with pytest.raises(ValueError, match="expected image ids from 0 to 8"):
        state.settings(two_views(Z, Z, ids=torch.tensor([0, 1, 2, 3, 4, 12])))
    with pytest.raises(ValueError, match="towers: expected a number of at least 1"):
        PerSample(9, towers=0)


def test_gamma_follows_the_epoch() -> None:
    """FastCLIP's γ: each visit averages with the epoch's value, in the loss and in the state."""
    decay = CosineDecay(1.0, 0.2, epochs=4)
    criterion = Loss(sogclr, state=PerSample(6, adapt=False, gamma=decay))
    plain, ids = PerSample(6, adapt=False), torch.arange(6)
    for epoch in range(6):
        criterion.epoch, gamma = epoch, decay.at(epoch)
        pairs = two_views(torch.randn(6, 4), torch.randn(6, 4), ids=ids)
        wanted = sogclr(pairs, **plain.settings(pairs) | {"gamma": gamma})
        plain.update(pairs, gamma=gamma)
        assert torch.equal(criterion(pairs), wanted)
    state = criterion.state
    assert isinstance(state, PerSample)
    assert torch.equal(state.log_average, plain.log_average)
    assert not criterion.can_capture  # a CUDA graph would keep the first epoch's value
    assert Loss(sogclr, state=plain).can_capture
    with pytest.raises(ValueError, match=r"gamma: a schedule needs an epoch: pass gamma=schedule\.at\(epoch\)"):
        state.update(pairs)
    with pytest.raises(ValueError, match="gamma: a schedule needs an epoch"):
        sogclr(pairs, **state.settings(pairs))
    for bad in ({"end": 0.0}, {"epochs": 0}, {"start": math.nan}):
        with pytest.raises(ValueError, match=f"{next(iter(bad))}: expected"):
            CosineDecay(**bad)


def test_towers_and_schedules_are_parsed() -> None:
    for text in (
        "sogclr(gamma=decay(1.0, 0.3, epochs=8), towers=2)",
        "isogclr(gamma=decay(end=0.3, epochs=8), towers=2)",
    ):
        objective, state = with_state(parse(text), 10)
        assert objective.keywords == {}
        assert isinstance(state, PerSample)
        assert state.gamma == CosineDecay(1.0, 0.3, 8)
        assert state.towers == 2
    objective, state = with_state(parse("sogclr(towers=2)"), 10)  # γ = 1: nothing to keep
    assert state is None
    assert torch.isfinite(objective(two_views(Z, Z + 0.1)))


def test_state_needs_ids_and_sees_the_chosen_negatives() -> None:
    with pytest.raises(ValueError, match="ids: expected the data-set index of each image"):
        Loss(CATALOGUE["isogclr"], state=PerSample(10))(Z, Z + 0.1)
    with pytest.raises(ValueError, match="state=PerSample"):
        Loss(CATALOGUE["isogclr"])(Z, Z + 0.1)
    criterion = Loss(sogclr, state=PerSample(10, adapt=False, gamma=0.5), negatives=hardest(2))
    ids = torch.arange(6)
    # The same batch each time: the moving average is already that of the chosen negatives, so the loss is constant.
    first, second, third = (criterion(Z, Z, ids=ids) for _ in range(3))
    torch.testing.assert_close(first, second)
    torch.testing.assert_close(second, third)


def test_a_learned_temperature_belongs_to_the_criterion() -> None:
    criterion = Loss(nt_xent, temperature=torch.nn.Parameter(torch.tensor(0.5)))
    assert [name for name, _ in criterion.named_parameters()] == ["temperature"]
    criterion(torch.randn(6, 4), torch.randn(6, 4)).backward()
    assert criterion.temperature.grad is not None
    copied = copy.deepcopy(criterion)
    copied.load_state_dict({"temperature": torch.tensor(0.1)})
    assert not torch.equal(criterion(Z, Z + 0.1), copied(Z, Z + 0.1))


def test_a_function_of_similarity_may_have_parameters() -> None:
    width = torch.tensor(0.3, requires_grad=True)
    z1, z2 = torch.randn(6, 4), torch.randn(6, 4)
    nt_xent(two_views(z1, z2), temperature=lambda s: 0.2 + width * s.square()).backward()
    assert width.grad is not None
    assert width.grad.abs() > 0


def test_a_state_per_sample_without_explicit_ids() -> None:
    state = PerSample(6)
    state.update(two_views(torch.randn(6, 4), torch.randn(6, 4)))
    assert torch.isfinite(state.log_average).all()


def test_an_unknown_method_has_a_hint() -> None:
    with pytest.raises(KeyError, match="no method 'dystres'; did you mean 'dystress'"):
        CATALOGUE["dystres"]
    with pytest.raises(ValueError, match="got 'dystres'; did you mean 'dystress'"):
        Loss("dystres")
    assert "dystres" not in CATALOGUE
    assert CATALOGUE.get("dystres") is None
