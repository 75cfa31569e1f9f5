"""Objects of every public kind, and what is computed from them before and after they travel to another process."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from framework_cases import FRAMEWORK_CASES
from torch import Tensor, nn

import contrapose
from contrapose import losses, pairs, temperature
from contrapose.embeddings import (
    Embeddings,
    between_towers,
    first_to_second,
    with_bank,
    with_nearest_neighbours,
    with_queue,
    within_batch,
)
from contrapose.integrations import lightly, open_clip
from contrapose.lab.training import Embedder, Model, Run
from contrapose.lab.training.build import build
from contrapose.lab.training.model import model_of
from contrapose.losses import CATALOGUE, Loss
from contrapose.losses.catalogue import Method
from contrapose.losses.objective import with_state
from contrapose.losses.redundancy import FeatureOrder
from contrapose.metrics.embeddings import all_pairs
from contrapose.pairs import AnyPairs, Choice, Pairs
from contrapose.temperature import Profile, Schedule

SAMPLES, WIDTH = 8, 6
# Other temperatures than the catalogue's, with parameters and with schedules.
TEMPERATURES = {
    "learned": "learned(0.3, low=0.1, high=0.9)", "scheduled": "schedule(0.1, 1.0)", "decaying": "decay(1.0, 0.2)", "warming": "warmup(0.04, 0.07)",
    "cosine": "cosine(0.07, 0.2)", "exponential": "exponential(0.1, 0.5)", "linear": "linear(0.1, 0.5)",
    "monotonic": "monotonic_cosine(0.1, 0.5)", "arctanh": "arctanh()",
}  # fmt: skip
CHOICES = (
    "hardest(2)",
    "self_guided()",
    "hardest(0.5)",
    "other_views()",
    "same_view()",
    "batch_rows()",
    "(other_views(), hardest(2))",
)
Results = dict[str, Any]


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def embeddings(
    compare: Callable[[Embeddings], Pairs] = within_batch, *, target: bool = True, views: int = 2
) -> Embeddings:
    """Return embeddings with everything that any objective may need."""
    return Embeddings(
        z=draw(views, SAMPLES, WIDTH).requires_grad_(),
        compare=compare,
        target=draw(views, SAMPLES, WIDTH, seed=1) if target else None,
        ids=torch.arange(SAMPLES) * 2,
        score=draw(views, SAMPLES, seed=2),
        prototypes=draw(5, WIDTH, seed=3).requires_grad_(),
        target_prototypes=draw(5, WIDTH, seed=4),
        center=torch.zeros(5) if target else None,
        sample_labels=torch.arange(20) % 3,
    )


def criteria() -> Iterator[tuple[str, Loss]]:
    """Yield a loss of every objective and method, with other temperatures and choices of negatives, states and schedules."""
    for name, method in CATALOGUE.items():
        chosen, state = with_state(method(), samples=20)
        state = method.state(20) if method.state is not None else state
        yield f"method {name}", Loss(chosen, state=state)
    for name in sorted(one for one in vars(losses) if hasattr(getattr(losses, one), "traits")):
        chosen, state = with_state(partial(getattr(losses, name)), samples=20)
        if name not in ("sogclr", "isogclr"):
            yield f"objective {name}", Loss(chosen, state=state)
    for kind, text in TEMPERATURES.items():
        yield f"{kind} temperature", Loss(f"nt_xent(temperature={text})")
    for choice in CHOICES:
        yield f"negatives {choice}", Loss(f"nt_xent(negatives={choice})")
    yield "parameter", Loss(losses.nt_xent, temperature=nn.Parameter(torch.tensor(0.3)))
    yield "siglip", Loss("siglip(temperature=learned(0.1), bias=learned_number(-10.0))")
    yield "sum", Loss("siglip + 0.1*koleo() + 0.5*sigreg(slices=8)")
    yield "arb, with an order of features", Loss(losses.arb, group_size=3, state=FeatureOrder())


def all_kinds_of_pairs() -> Iterator[tuple[str, AnyPairs]]:
    z1, z2, rows = draw(SAMPLES, WIDTH), draw(SAMPLES, WIDTH, seed=1), draw(20, WIDTH, seed=2)
    three = torch.stack([z1, z2, draw(SAMPLES, WIDTH, seed=3)])
    yield "two views", pairs.two_views(z1, z2)
    yield "views", pairs.views(three)
    yield "views with keys", pairs.views(three, keys=three.roll(1, 0))
    yield "cross", pairs.cross(z1, z2)
    yield "cross, symmetric", pairs.cross(z1, z2, symmetric=True)
    yield "cross, with negatives", pairs.cross(z1, z2, negatives=draw(SAMPLES, WIDTH, seed=4))
    yield "queue", pairs.queue(z1, z2, rows)
    yield "bank", pairs.bank(z1, torch.arange(SAMPLES), rows)
    yield "neighbours", pairs.neighbours(three[:2], three[:2], rows)
    yield "similarities", pairs.two_views(z1, z2).similarities()
    yield "all pairs", all_pairs(pairs.unit(z1))
    used = pairs.two_views(z1, z2)
    losses.nt_xent(used, negatives=pairs.hardest(2))  # what pairs compute on demand has been computed
    yield "two views, used", used


def objects() -> list[tuple[str, Any]]:
    """Return an object of every public kind, with the same random numbers in every call."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return list(_objects())


def _objects() -> Iterator[tuple[str, Any]]:
    yield from criteria()
    yield from ((f"pairs, {kind}", one) for kind, one in all_kinds_of_pairs())
    rows = draw(20, WIDTH, seed=5)
    for name, compare in (
        ("within the batch", within_batch),
        ("with a queue", with_queue(rows, batch=True, keys=True)),
        ("with a bank", with_bank(rows)),
        ("with nearest neighbours", with_nearest_neighbours(rows)),
        ("first to second", first_to_second),
        ("between towers", between_towers),
    ):
        yield f"embeddings {name}", embeddings(compare)
    yield "assignments", dataclasses.replace(embeddings().assignments, scores=draw(2, SAMPLES, 5))
    yield from ((f"{name}, called", method) for name, method in CATALOGUE.items())
    yield from (
        (f"profile {one!r}", one) for one in map(temperature_of, TEMPERATURES.values()) if isinstance(one, Profile)
    )
    yield from (
        (f"schedule {one!r}", one) for one in map(temperature_of, TEMPERATURES.values()) if isinstance(one, Schedule)
    )
    yield "choice, self_guided", pairs.self_guided(margin=0.1)
    yield (
        "choice, guided",
        pairs.guided(pairs.two_views(draw(SAMPLES, WIDTH), draw(SAMPLES, WIDTH, seed=7)), margin=0.1),
    )
    yield "lightly's loss", lightly.NTXentLoss(temperature=temperature.learned(0.2))
    yield "lightly's loss with a memory bank", lightly.NTXentLoss(memory_bank_size=(16, WIDTH), objective="dcl")
    yield "open_clip's loss", open_clip.ClipLoss(objective="dystress")
    yield "open_clip's SigLIP loss", open_clip.SigLipLoss()
    for name, settings in FRAMEWORK_CASES.items():
        run = Run(data="digits", limit=64, batch=16, epochs=1, encoder="tiny", **settings)
        yield f"run of {name}", run
        network = build(run, 64)
        yield f"framework {name}", network
        yield f"model of {name}", model_of(run, network, torch.device("cpu")).eval()


def temperature_of(text: str) -> Any:
    return contrapose.Loss(f"nt_xent(temperature={text})").settings["temperature"]


def compute(one: Any) -> Results:
    """Return values and gradients that depend on everything in an object."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        if isinstance(one, Loss):
            return _trained(one)
        if isinstance(one, lightly.NTXentLoss | open_clip.ClipLoss | open_clip.SigLipLoss):
            return _adapted(one)
        if isinstance(one, Pairs | pairs.Similarities):
            return _compared(one)
        if isinstance(one, Embeddings):
            value = losses.nt_xent(one.pairs) + one.assignments.scores.sum() + one.provide("score").sum()  # type: ignore[union-attr]
            value.backward()
            return {"loss": value, "z": one.z.grad, "prototypes": one.prototypes.grad, "labels": one.provide("labels")}  # type: ignore[union-attr]
        if isinstance(one, Profile):
            s = torch.linspace(-1, 1, 9, requires_grad=True)
            (gradient,) = torch.autograd.grad(
                losses.nt_xent(pairs.two_views(draw(4, 9), s.expand(4, 9)), temperature=one), s
            )
            return {"temperature": one(s), "gradient": gradient}
        if isinstance(one, Schedule):
            return {"values": torch.tensor([one.at(epoch) for epoch in (0, 0.5, 3, 200)])}
        if isinstance(one, Choice):
            return {"loss": losses.nt_xent(embeddings(target=False).pairs, negatives=one)}
        if isinstance(one, Method):
            return _trained(Loss(one(), state=None if one.state is None else one.state(20)))
        if isinstance(one, Model | Embedder):
            images = (draw(4, 3, 16, 16).abs() * 99).to(torch.uint8)
            features = one(one.views.plain(images).requires_grad_())
            features.square().sum().backward()
            return {"embedding": one.embed(images)} | _gradients(one)
        if isinstance(one, Run):
            return {"name": one.name, "objective": str(one.objective), "json": str(vars(one))}
        if isinstance(one, nn.Module):
            return dict(one.state_dict())
    return {name: getattr(one, name) for name in vars(one)}


def compute_all(sent: list[tuple[str, Any]]) -> dict[str, Results]:
    """Return the results of all objects, in a process that has received them."""
    torch.set_num_threads(1)
    return {name: {key: _detached(value) for key, value in compute(one).items()} for name, one in sent}


def save_all(sent: list[tuple[str, Any]], out: str) -> None:
    """Write the results of all objects to a file."""
    torch.save(compute_all(sent), out)


def _detached(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, Tensor) else value


def _trained(criterion: Loss) -> Results:
    """Take two steps of the criterion's own parameters, after which the epoch, the state and the parameters count."""
    results: Results = {}
    optimiser = torch.optim.SGD(parameters, lr=0.1) if (parameters := list(criterion.parameters())) else None
    for step in range(2):
        batch = embeddings(
            target=criterion.traits.needs_target or criterion.objective is losses.dino
        )  # those with a teacher
        more = (
            {"targets": pairs.given_targets(torch.full((1, 1), 0.5), 1.0)}
            if "targets" in criterion.traits.provided
            else {}
        )
        value = criterion(batch, **more)
        value.mean().backward()
        results |= {f"loss {step}": value, f"z {step}": batch.z.grad, "epoch": torch.tensor(criterion.epoch)}
        results |= _gradients(criterion)
        if optimiser is not None:
            optimiser.step()
        criterion.epoch += 1.5
    return results | {f"state {name}": value.clone() for name, value in criterion.state_dict().items()}


def _adapted(criterion: nn.Module) -> Results:
    a, b = draw(SAMPLES, WIDTH).requires_grad_(), draw(SAMPLES, WIDTH, seed=1).requires_grad_()
    scale = () if isinstance(criterion, lightly.NTXentLoss) else (torch.tensor(10.0),)
    value = criterion(a, b, *scale)
    value.backward()
    state = {f"state {name}": tensor.clone() for name, tensor in criterion.state_dict().items()}
    return {"loss": value, "a": a.grad, "b": b.grad} | state | _gradients(criterion)


def _compared(given: AnyPairs) -> Results:
    results: Results = {}
    for name, objective in (("nt_xent", losses.nt_xent), ("cacr", losses.cacr), ("dcl", losses.dcl)):
        if isinstance(given, Pairs):
            anchor = given.anchor.detach().clone().requires_grad_()
            value = objective(replace(given, anchor=anchor))
            value.backward()
            results[f"{name} gradient"] = anchor.grad
        results[name] = objective(given)
    return results | {"views": torch.cat([given.anchor_view, given.pool_view])}  # type: ignore[list-item]


def _gradients(module: nn.Module) -> Results:
    return {f"gradient {name}": one.grad for name, one in module.named_parameters() if one.grad is not None}


def differences(expected: Results, got: Results) -> list[str]:
    """Return the names of results that differ; tensors must be equal bit for bit."""
    return [
        name
        for name in expected.keys() | got.keys()
        if name not in expected or name not in got or not _equal(expected[name], got[name])
    ]


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return one.dtype == other.dtype and torch.equal(one.detach().nan_to_num(7.5), other.detach().nan_to_num(7.5))
    return bool(one == other)
