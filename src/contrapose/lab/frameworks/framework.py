"""The base class of frameworks, which turn views into embeddings, and a framework's row in the registry."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import torch
from torch import Tensor, nn

from contrapose.distributed import gather
from contrapose.embeddings import Embeddings, State
from contrapose.lab.networks.encoder import Encoder
from contrapose.lab.networks.norms import ReplacementBatchNorm, ViewBatchNorm, replace_norms
from contrapose.lab.networks.tower import Tower
from contrapose.lab.settings import Rule, Settings, setting
from contrapose.losses.objective import Traits, added_to, provided_to, traits_of
from contrapose.losses.parse import parse
from contrapose.pairs import Pairs
from contrapose.pairs.negatives import steps
from contrapose.pairs.ring import cannot_travel


@dataclass(frozen=True, eq=False)
class Parts:
    """The components that a framework is built from."""

    towers: Mapping[str, Tower]  # by modality
    samples: int  # in the training set
    head: str = ""  # name of the projectors in the registry of heads
    has_score: bool = False  # whether the projector has one more output, the certainty that TaU needs

    @property
    def tower(self) -> Tower:
        """The only tower, for frameworks of one modality."""
        (tower,) = self.towers.values()
        return tower


@dataclass(frozen=True, kw_only=True)
class NoSettings:
    """The settings of a framework that has none."""


@dataclass(frozen=True, kw_only=True)
class QueueSettings:
    """The setting of frameworks with a queue."""

    queue: int = setting(4096, Rule(least=1, small=64, always_recorded=True, ignored_elsewhere=True))
    """Rows of the queue."""


@dataclass(frozen=True, kw_only=True)
class NormViewsSettings:
    """The setting of frameworks that can encode all views at once."""

    norm_views: str = setting("together", Rule(choices=("together", "each")))
    """Statistics of batch norms in training: together, over all views of a batch; or each view's own, as with one forward pass
    for each view. Frameworks that encode views one by one always have the second."""


@dataclass(frozen=True, kw_only=True)
class RingSettings:
    """The setting of frameworks that compare embeddings of the batch alone."""

    ring: bool = False
    """With several processes: embeddings are not gathered, but travel from one process to the next, so that the memory for them
    does not grow with the number of processes. The loss is the same, up to rounding."""


@dataclass(frozen=True, kw_only=True)
class FrameworkRow:
    """A framework's row in the registry: how to build it, its settings, and how many negatives an anchor gets.

    In the functions below, `run` is a `Run`, which has all settings as fields; `settings` has only the framework's own.
    """

    name: str
    summary: str  # where positives and negatives come from, for help texts
    settings: type[Any] = NoSettings  # dataclass of the settings that the framework uses; frameworks may share settings
    build: Callable[[Parts, Any], Framework]  # (parts, settings)
    negatives: Callable[
        [Any, int], int | None
    ]  # (run, number of views) -> negatives of an anchor; None: depends on the data
    check: Callable[[Any], None] = lambda run: None  # raises ValueError for settings that do not fit
    unused: Callable[[Any], tuple[str, ...]] = (
        lambda settings: ()
    )  # names of settings that have no effect, given the others
    least_views: int = 2
    supports_grad_cache: bool = False  # whether it has `compare`, which `--grad-cache` needs
    tower_count: int = 1  # number of encoders, one per kind of input
    has_target: bool = (
        False  # whether views predict a target without gradient: a teacher's or the network's own embeddings
    )
    offers: tuple[str, ...] = ("pairs",)  # what its `Embeddings` offer an objective: pairs, embeddings, assignments
    collapse_remedy: str = ""  # what may prevent a collapse, besides a lower learning rate
    # Losses in the catalogue that need this framework, each with the other settings that `train --loss NAME` sets (for CIFAR-like
    # data)
    losses: Mapping[str, Settings] = field(default_factory=dict)
    # Presets such as byol/cifar10: changes to the protocols in protocols.py, keyed by method and protocol
    presets: Mapping[str, Mapping[str, Settings]] = field(default_factory=dict)

    def uses(self, name: str) -> bool:
        """Return whether the framework has a setting with this name."""
        return name in {own.name for own in fields(self.settings)}

    def settings_of(self, run: Any) -> Any:
        """Return the run's values of the framework's settings, as an instance of `settings`."""
        return self.settings(**{own.name: getattr(run, own.name) for own in fields(self.settings)})

    def suits(self, traits: Traits) -> bool:
        """Return whether an objective with these traits can be trained in the framework."""
        if traits.takes not in self.offers or (traits.needs_target and not self.has_target):
            return False
        # Losses of pairs work with or without a target. Other losses need exactly what they declare: SwAV has no target.
        return traits.takes == "pairs" or traits.needs_target == self.has_target


class Framework(State, ABC):
    """An encoder, a projector and the state that a method keeps between steps.

    `update` stores a batch's embeddings (queue, bank); `after_step` updates a moving average of the weights.
    """

    encoder: nn.Module  # an `Encoder`, or a ModuleDict of several
    projector: nn.Module
    norm_views: str = "together"  # as in `NormViewsSettings`
    view_norms: tuple[ViewBatchNorm, ...] = ()  # see `join_views`

    def __init__(self, encoder: nn.Module, projector: nn.Module, *, has_score: bool = False) -> None:
        super().__init__()
        self.encoder, self.projector, self.has_score = encoder, projector, has_score

    @abstractmethod
    def forward(self, views: list[Tensor], index: Tensor) -> Embeddings:
        """Return the embeddings of samples `index`, and how to compare them; `views` has one (V, B, …) tensor per input shape."""

    def compare(self, z: Tensor, index: Tensor) -> Embeddings:
        """Compare this process's embeddings (V, B, d) from `embed`; this is the second half of `forward`."""
        raise NotImplementedError(f"{type(self).__name__} does not support encoding and comparing as separate steps")

    def compared(
        self, z: Tensor, index: Tensor, compare: Callable[[Embeddings], Pairs], *, ring: bool = False
    ) -> Embeddings:
        """Return the projector's outputs (V, B, d) with those of the other processes, to be compared with each other."""
        if not ring:
            z, index = gather(z, 1), gather(index)
        z, score = self.split_score(z)
        return Embeddings(z=z, score=score, ids=index, compare=compare, in_ring=ring)

    def begin_epoch(self, epoch: int, *, step: int, steps: int) -> None:
        """Set scheduled values before `epoch`, whose next step is `step` of the run's `steps` (both counted from 0)."""
        return

    @property
    def bank(self) -> Tensor | None:
        """The stored embeddings (N, d), one per training sample; None if the method has no memory bank."""
        return None

    def compiled_networks(self) -> list[nn.Module]:
        """Return the networks that views pass through, which training may compile."""
        # Only the inner network is compiled, not the conversion of the inputs' memory layout.
        return [module.network for module in self.encoder.modules() if isinstance(module, Encoder)]

    def embed(self, views: list[Tensor]) -> Tensor:
        """Encode and project all views; return (V, B, d)."""
        return self.encode(nn.Sequential(self.encoder, self.projector), views)

    def encode(self, network: nn.Module, views: list[Tensor]) -> Tensor:
        """Encode views, list of (V_i, B, …) -> (V, B, d), with the batch norm statistics that `norm_views` names."""
        if self.norm_views == "together":
            return encode(network, views)
        if not self.view_norms:
            return encode(network, separate_views(views))
        return torch.cat([self._encode_joined(network, group) for group in views])

    def _encode_joined(self, network: nn.Module, group: Tensor) -> Tensor:
        """Encode views (V, B, …) in one pass, with batch norm statistics of each view."""
        for norm in self.view_norms:
            norm.views = len(group)
        z = encode(network, [group])
        for norm in self.view_norms:
            norm.views = 1
        return z

    def join_views(self) -> None:
        """Replace batch norms so that views with statistics of their own pass the network together, which is faster.

        Batch norms that are split or synchronised are not replaced; views then pass one by one.
        """
        if self.norm_views == "each" and not any(isinstance(module, ReplacementBatchNorm) for module in self.modules()):
            replace_norms(self, ViewBatchNorm)
            self.view_norms = tuple(module for module in self.modules() if isinstance(module, ViewBatchNorm))

    def split_score(self, z: Tensor) -> tuple[Tensor, Tensor | None]:
        """Split the projector's output into the embedding (…, d) and the certainty (…), which is None without a score."""
        return (z[..., :-1], z[..., -1]) if self.has_score else (z, None)


class Embed(nn.Module):
    """The first half of a framework as a module: views -> this process's embeddings (V, B, d)."""

    def __init__(self, framework: Framework) -> None:
        super().__init__()
        self.framework = framework

    def forward(self, views: list[Tensor]) -> Tensor:
        """Encode and project all views."""
        return self.framework.embed(views)


def encode(network: nn.Module, views: list[Tensor]) -> Tensor:
    """Encode views, with one forward pass per input shape: list of (V_i, B, …) -> (V, B, d)."""
    return torch.cat([network(group.flatten(0, 1)).unflatten(0, group.shape[:2]) for group in views])


def global_crops(views: list[Tensor]) -> list[Tensor]:
    """Return the full-size views, which are the first group; smaller local crops (multi-crop) are in later groups."""
    return views[:1]


def separate_views(views: list[Tensor]) -> list[Tensor]:
    """Return one group per view, so that each view has its own forward pass and batch statistics."""
    return [view[None] for group in views for view in group]


def register_queue(framework: nn.Module, rows: Tensor) -> None:
    """Register a queue that starts with these rows (r, d): the buffers `rows` and `place`, the index of the oldest row."""
    if not len(rows):
        raise ValueError("size: expected a queue of at least one row, got 0")
    framework.register_buffer("rows", rows)
    framework.register_buffer("place", torch.zeros((), dtype=torch.long))


@torch.no_grad()
def replace_oldest(rows: Tensor, place: Tensor, fresh: Tensor) -> None:
    """Overwrite the oldest rows of a queue (r, d) with new rows (b, d), in place; `place` is the index of the oldest row."""
    fresh = fresh[-len(rows) :]
    # `place` stays a tensor, so that the host never waits for the device and a captured step can use it.
    places = (place + torch.arange(len(fresh), device=rows.device)) % len(rows)
    rows[places] = fresh.to(rows.dtype)
    place.copy_((place + len(fresh)) % len(rows))


def check_global_crops(run: Any) -> None:
    """Raise ValueError for local crops without exactly two global crops: anchors would have unequal numbers of positives."""
    if "+local" in run.views and run.view_count != 2:
        raise ValueError(f"view_count: local crops (--views {run.views}) need two global crops, got {run.view_count}")


def keys_of_batch(run: Any, views: int) -> int:
    """Return the number of negatives of an anchor that is compared with the batch's keys; local crops have no keys."""
    return other_views_of_batch(run, min(views, int(run.view_count)))


def other_views_of_batch(run: Any, views: int) -> int:
    """Return the number of negatives of an anchor that is compared with all views in the batch."""
    return views * (int(run.contrast_size) - 1)


def check_ring(run: Any) -> None:
    """Raise ValueError for `ring` with a loss that needs more than similarities, which no process of a ring has."""
    if not run.ring:
        return
    if run.similarity == "neg_euclid":
        raise ValueError(
            "ring: --similarity neg_euclid cannot be used in a ring; leave out --ring, or use cosine or dot"
        )
    chosen = parse(run.loss)
    traits = [traits_of(function) for function in (chosen.func, *(term.func for _, term in added_to(chosen)))]
    has_state = any(own.make_state is not None or own.own_state is not None for own in traits)
    if has_state or any(own.takes != "pairs" for own in traits) or provided_to(chosen):
        raise ValueError(
            f"ring: {run.loss} reads the embeddings, labels or states of all processes, which do not travel in a ring; "
            "leave out --ring, or use a loss of similarities alone, such as simclr or dystress"
        )
    unknown = cannot_travel(steps(chosen.keywords.get("negatives")))
    if unknown is not None:
        raise ValueError(
            f"ring: {unknown!r} needs the similarities to all candidates at once; leave it out, or leave out --ring"
        )
