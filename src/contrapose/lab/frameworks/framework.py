"""What a framework is: views in, embeddings out; and its row in the registry."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import torch
from torch import Tensor, nn

from contrapose.embeddings import Embeddings, State
from contrapose.lab.networks.encoder import Encoder
from contrapose.lab.networks.tower import Tower
from contrapose.lab.settings import Rule, Settings, setting
from contrapose.losses.objective import Traits


@dataclass(frozen=True, eq=False)
class Parts:
    """What a framework is built from."""

    towers: Mapping[str, Tower]  # by modality
    samples: int  # in the training set
    head: str = ""  # name of the projectors in the registry of heads
    has_score: bool = False  # whether the projector has one more output, the certainty that TaU asks for

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
class FrameworkRow:
    """A framework's row in the registry: how it is built, its settings, and the negatives it gives an anchor.

    `run` is the description of the run, in which all settings are fields; `settings` are those of the framework alone.
    """

    name: str
    summary: str  # where positives and negatives come from, for help texts
    settings: type[Any] = (
        NoSettings  # a dataclass of the settings that it uses; other frameworks may have the same ones
    )
    build: Callable[[Parts, Any], Framework]  # (parts, settings)
    negatives: Callable[
        [Any, int], int | None
    ]  # (run, number of views) -> negatives of an anchor; None: depends on the data
    check: Callable[[Any], None] = lambda run: None  # raises ValueError for settings that do not fit
    unused: Callable[[Any], tuple[str, ...]] = lambda settings: ()  # names of settings without effect beside the others
    least_views: int = 2
    supports_grad_cache: bool = False  # whether it has `compare`, which `--grad-cache` needs
    tower_count: int = 1  # number of encoders, of different kinds of input
    has_target: bool = False  # whether views predict a target without gradient: a teacher's embeddings, or their own
    offers: tuple[str, ...] = ("pairs",)  # what its `Embeddings` offer an objective: pairs, embeddings, assignments
    collapse_remedy: str = ""  # what may prevent a collapse, beside a lower learning rate
    # Losses of the catalogue that need it, each with further settings that suit it on data like CIFAR: `train --loss byol`
    losses: Mapping[str, Settings] = field(default_factory=dict)
    # Presets such as byol/cifar10: what methods change of the protocols in protocols.py, by method and protocol
    presets: Mapping[str, Mapping[str, Settings]] = field(default_factory=dict)

    def uses(self, name: str) -> bool:
        """Return whether the framework has a setting of this name."""
        return name in {own.name for own in fields(self.settings)}

    def settings_of(self, run: Any) -> Any:
        """Return the framework's settings of a run, as an instance of `settings`."""
        return self.settings(**{own.name: getattr(run, own.name) for own in fields(self.settings)})

    def suits(self, traits: Traits) -> bool:
        """Return whether an objective with these traits can be trained in the framework."""
        if traits.takes not in self.offers or (traits.needs_target and not self.has_target):
            return False
        # Contrastive losses do with a target or without one; SwAV's codes are those of one network.
        return traits.takes == "pairs" or traits.needs_target == self.has_target


class Framework(State, ABC):
    """An encoder, a projector and what the method keeps between steps: `update` stores a batch, `after_step` moves an average."""

    encoder: nn.Module  # an `Encoder`, or a ModuleDict of several
    projector: nn.Module

    def __init__(self, encoder: nn.Module, projector: nn.Module, *, has_score: bool = False) -> None:
        super().__init__()
        self.encoder, self.projector, self.has_score = encoder, projector, has_score

    @abstractmethod
    def forward(self, views: list[Tensor], index: Tensor) -> Embeddings:
        """Views, (V, B, …) for each shape of input, of the samples `index` -> their embeddings and how to compare them."""

    def compare(self, z: Tensor, index: Tensor) -> Embeddings:
        """Compare this process's embeddings (V, B, d), as `embed` returns them: the second half of `forward`."""
        raise NotImplementedError(f"{type(self).__name__} does not encode and compare in two parts")

    def begin_epoch(self, epoch: int, epochs: int) -> None:
        """Set scheduled values before an epoch, counted from 0, of a run of `epochs` epochs."""
        return

    @property
    def bank(self) -> Tensor | None:
        """One stored embedding for each training sample, (N, d), if the method keeps any."""
        return None

    def compile_encoders(self) -> None:
        """Compile the networks that views pass through."""
        for module in self.encoder.modules():
            if isinstance(module, Encoder):
                # The inner network: laying out the inputs stays outside of what is compiled.
                module.network.compile(dynamic=False)

    def embed(self, views: list[Tensor]) -> Tensor:
        """Return (V, B, d): all views through encoder and projector, one pass for each shape of input."""
        return encode(nn.Sequential(self.encoder, self.projector), views)

    def split_score(self, z: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return the embedding (…, d) and, if the projector has it, its last output: the certainty (…)."""
        return (z[..., :-1], z[..., -1]) if self.has_score else (z, None)


class Embed(nn.Module):
    """The first half of a framework, as a module: views -> embeddings of this process (V, B, d)."""

    def __init__(self, framework: Framework) -> None:
        super().__init__()
        self.framework = framework

    def forward(self, views: list[Tensor]) -> Tensor:
        """Encode and project all views."""
        return self.framework.embed(views)


def encode(network: nn.Module, views: list[Tensor]) -> Tensor:
    """Encode views, with one forward pass for each shape of input: list of (V_i, B, …) -> (V, B, d)."""
    return torch.cat([network(group.flatten(0, 1)).unflatten(0, group.shape[:2]) for group in views])


def global_crops(views: list[Tensor]) -> list[Tensor]:
    """Return the views of full size: the first group, which smaller local crops follow if there are any (multi-crop)."""
    return views[:1]


def separate_views(views: list[Tensor]) -> list[Tensor]:
    """Return one group for each view, so that each has its own forward pass and its own batch statistics."""
    return [view[None] for group in views for view in group]


def register_queue(framework: nn.Module, rows: Tensor) -> None:
    """Give a framework a queue that starts with these rows (r, d): the buffers `rows` and `place`, the number of the oldest."""
    if not len(rows):
        raise ValueError("size: expected a queue of at least one row, got 0")
    framework.register_buffer("rows", rows)
    framework.register_buffer("place", torch.zeros((), dtype=torch.long))


@torch.no_grad()
def replace_oldest(rows: Tensor, place: Tensor, fresh: Tensor) -> None:
    """Write new rows (b, d) over the oldest ones of a queue (r, d), in place; `place` is the number of the oldest row."""
    fresh = fresh[-len(rows) :]
    # The place stays a tensor, so that nothing waits for the device and a captured step can write here.
    places = (place + torch.arange(len(fresh), device=rows.device)) % len(rows)
    rows[places] = fresh.to(rows.dtype)
    place.copy_((place + len(fresh)) % len(rows))


def check_global_crops(run: Any) -> None:
    """Refuse local crops beside another number of global ones than two: anchors would have unequal numbers of positives."""
    if "+local" in run.views and run.view_count != 2:
        raise ValueError(f"view_count: local crops (--views {run.views}) need two global crops, got {run.view_count}")


def keys_of_batch(run: Any, views: int) -> int:
    """Negatives of an anchor that is compared with the keys of the batch; local crops have none."""
    return other_views_of_batch(run, min(views, int(run.view_count)))


def other_views_of_batch(run: Any, views: int) -> int:
    """Negatives of an anchor that is compared with all views of the batch."""
    return views * (int(run.contrast_size) - 1)
