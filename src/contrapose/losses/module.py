"""`Loss`: an objective and its settings as an `nn.Module`, for code that expects a criterion."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from inspect import signature
from typing import Any, cast

import torch
from torch import Tensor, nn

from contrapose.embeddings import PROVIDED, Assignments, Embeddings, State, within_batch
from contrapose.losses.catalogue import Method
from contrapose.losses.finish import REDUCTIONS
from contrapose.losses.nested import Nested
from contrapose.losses.objective import added_to, input_of, nearest_setting, traits_of
from contrapose.pairs import AnyPairs, Pairs, Similarities, two_views, views
from contrapose.pairs.guided import AtMost, SelfGuided
from contrapose.pairs.negatives import steps
from contrapose.pairs.prefix import width_of
from contrapose.temperature import Learned, LearnedTemperature, Schedule, TemperatureNet
from contrapose.validate import check_choice

# More steps than an example takes, and fewer than training takes.
_MOST_STEPS_WITHOUT_EPOCH = 100
Batch = Tensor | AnyPairs | Embeddings | Assignments


class Loss(nn.Module):
    """An objective with its settings; call it with views, `Pairs`, `Embeddings` or `Assignments`.

    objective   `nt_xent` or another objective, a method, `CATALOGUE["dystress"]`, or either as text, with or without
                settings: `"nt_xent(temperature=0.2)"`; or a sum as text: `"simclr + 0.1*koleo()"`
    state       `PerSample(number_of_images)`, for sogclr and isogclr, or `MovingAverage(number_of_pairs)`, for fastclip
    settings    arguments of the objective, such as `temperature`

    >>> import torch
    >>> from contrapose.losses import nt_xent
    >>> from contrapose.temperature import cosine
    >>> criterion = Loss(nt_xent, temperature=cosine(0.07, 0.2))
    >>> z1, z2 = torch.eye(4), torch.eye(4)
    >>> round(criterion(z1, z2).item(), 4)
    0.0396
    >>> Loss("nt_xent(temperature=cosine(0.07, 0.2))")
    Loss(nt_xent, temperature=cosine(low=0.07, high=0.2))

    If a setting is a schedule, its value at `criterion.epoch` is used: the training loop sets `criterion.epoch = epoch` at the
    start of each epoch. If it is not set in the first 100 training steps, a warning says so (except under `torch.compile`, where
    steps are not counted). A learned setting (an `nn.Parameter`, `learned(0.1)` or another module) belongs to the criterion:
    pass `criterion.parameters()` to the optimiser. With `state` (SogCLR, iSogCLR), each call needs `ids` (data-set indices) and
    reads the state; in training mode, each call also updates it. Of a sum, the settings, the traits and the state are those of
    the first part, and `latest_parts` has the value of each part, without its weight, in the last training step.
    """

    def __init__(
        self, objective: Callable[..., Tensor] | Method | str, *, state: State | None = None, **settings: Any
    ) -> None:
        super().__init__()
        given = {*settings}  # those of the user, without those of a method
        if isinstance(objective, str):
            from contrapose.losses.parse import given_settings, parse  # imported here: the parser needs all objectives

            given |= given_settings(objective)
            objective = parse(objective)
        if not callable(objective):
            raise ValueError(
                f"objective: expected a function of pairs such as nt_xent, or text such as 'nt_xent(temperature=0.2)', "
                f"got {objective!r}"
            )
        if state is not None and not isinstance(state, State):
            raise ValueError(f"state: expected a PerSample(number_of_images), got {state!r}")
        if isinstance(objective, Method):
            objective = objective()
        parts = added_to(objective)
        if isinstance(objective, partial):  # the result of calling a method of the catalogue
            settings, objective = {**objective.keywords, **settings}, objective.func
        _check_state_settings(objective, given, state)
        _check_settings(objective, settings)
        self.objective, self.traits, self.settings = objective, traits_of(objective), settings
        if state is None and self.traits.own_state is not None:
            state = self.traits.own_state()
        self.state, self._epoch = state, 0.0
        self._scheduled = [name for name, value in settings.items() if isinstance(value, Schedule)]
        self._steps_without_epoch = 0
        self.scheduled_tensors: dict[str, Tensor] = {}
        for name, value in settings.items():  # so that learned settings are moved and saved with the module
            if isinstance(value, nn.Parameter):
                self.register_parameter(name, value)
            elif isinstance(value, nn.Module):
                self.add_module(name, value)
        self.weights = tuple(weight for weight, _ in parts)
        self.added: Sequence[nn.Module] = ()
        for _, term in parts:
            if "targets" in traits_of(term.func).provided and "targets" not in term.keywords:
                raise ValueError(
                    f"objective: only the first part of a sum gets soft targets: write {term.func.__name__} before "
                    f"{objective.__name__}"
                )
        if parts:
            self.added = nn.ModuleList(Loss(term) for _, term in parts)  # type: ignore[assignment]
        self.latest_parts: dict[str, Tensor] = {}

    @property
    def epoch(self) -> float:
        """The epoch at which schedules are evaluated; the training loop sets it."""
        return self._epoch

    @epoch.setter
    def epoch(self, epoch: float) -> None:
        self._epoch, self._steps_without_epoch = epoch, -1
        for _, part in self._terms():
            part.epoch = epoch

    def forward(self, z: Batch, z2: Tensor | None = None, *, ids: Tensor | None = None, **more: Any) -> Tensor:
        """Return the loss. `more` overrides settings for this call, such as a per-anchor temperature.

        z      embeddings (m, d) of a view, or (V, m, d) of V views; or `Pairs`, `Embeddings` or `Assignments`
        z2     embeddings (m, d) of the other view
        ids    data-set indices (m,), for a `state` or for duplicates in the batch
        more   settings for this call
        """
        if self.state is not None and self.traits.takes == "pairs" and ids is None and isinstance(z, Tensor):
            raise ValueError(
                "ids: expected the data-set index of each image, since the loss keeps a state for each image"
            )
        # While tracing, a counter would be a constant of the graph, and recompile it in every step.
        if not torch.compiler.is_compiling() and self._scheduled:
            self._warn_without_epoch()
        batch = self._input(z, z2, ids)
        settings = self._settings_of_call(z, batch, self._of_first(more))
        loss = self.objective(batch, **settings)
        # In evaluation the state is only read: `penalties` computes the loss of a batch a second time.
        if self.state is not None and self.training:
            # The values of this step are passed in, since the state does not know the epoch.
            used = {name: settings.get(name) for name in ("negatives", "gamma", "temperature")}
            self.state.update(batch, **used)
        return self._add(loss, z, z2, ids=ids, **more) if self.weights else loss

    def _terms(self) -> list[tuple[float, Loss]]:
        """Return the losses that are added to this one, with their weights."""
        return [(weight, cast(Loss, part)) for weight, part in zip(self.weights, self.added, strict=True)]

    def _of_first(self, more: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments of a call without those, such as labels, that only an added part takes."""
        for_others = {name for _, part in self._terms() for name in part.traits.provided}
        if for_others:  # a signature is not read in every step of other losses
            for_others -= {*signature(self.objective).parameters}
        return {name: value for name, value in more.items() if name not in for_others}

    def _add(self, first: Tensor, z: Batch, z2: Tensor | None, *, ids: Tensor | None, **more: Any) -> Tensor:
        """Return the first part's loss plus those of the other parts with their weights, which share labels and the like."""
        terms = self._terms()
        values = [
            part(z, z2, ids=ids, **{k: value for k, value in more.items() if k in part.traits.provided})
            for _, part in terms
        ]
        if self.training:
            names = [part.objective.__name__ for part in (self, *(part for _, part in terms))]
            # The second part of the same name is called name_2.
            unique = [name if (n := names[:i].count(name)) == 0 else f"{name}_{n + 1}" for i, name in enumerate(names)]
            # Not read here, since that would wait for the device.
            self.latest_parts = {name: x.detach().mean() for name, x in zip(unique, (first, *values), strict=True)}
        total = first
        for (weight, _), value in zip(terms, values, strict=True):
            total = total + weight * value
        return total

    def negatives_per_anchor(
        self, z: Batch, z2: Tensor | None = None, *, ids: Tensor | None = None, **more: Any
    ) -> float:
        """Return how many negatives an anchor of this batch is compared with, on average; 0 for losses without negatives.

        These are the candidates on whose similarity the loss depends: samples of other ids, as far as the loss and the choice
        of negatives use them. The similarities of all pairs are computed. Arguments are those of a call of the loss.

        z, z2   embeddings of the views; or `Pairs` or `Embeddings`, without z2
        ids     data-set indices (m,)
        more    settings for this call, such as labels

        >>> from contrapose import Loss, clip, nt_xent
        >>> z1, z2 = torch.randn(2, 8, 4)
        >>> Loss(nt_xent, temperature=0.5).negatives_per_anchor(z1, z2), Loss(clip).negatives_per_anchor(z1, z2)
        (14.0, 7.0)
        """
        if self.traits.takes != "pairs":
            return 0.0
        batch = self._input(z, z2, ids)
        given = batch if isinstance(batch, Similarities) else batch.similarities()
        # Small similarities, all different, and positives below them: every negative that counts has a gradient above zero,
        # at any temperature and any margin.
        small = torch.linspace(-0.1, 0.1, given.negative.numel(), dtype=torch.float64, device=given.negative.device)
        positive = torch.full_like(given.positive, -1.0, dtype=torch.float64)
        negative = small.view_as(given.negative).requires_grad_()
        with torch.enable_grad():
            settings = self._settings_of_call(z, batch, self._of_first(more))
            objective = self.objective.base if isinstance(self.objective, Nested) else self.objective
            changed = replace(given, positive=positive, negative=negative + _left_out(settings, given))
            loss = objective(changed, **settings | _with_threshold(settings, len(positive), positive.device)).sum()
            if not loss.requires_grad:
                return 0.0
            (gradient,) = torch.autograd.grad(loss, negative, allow_unused=True)
        counts = negative.new_zeros(1) if gradient is None else (gradient != 0).sum(1).double()
        # An anchor may be compared with nothing: in `cacr`, only the first view's rows are queries.
        return float(counts.sum() / (counts > 0).sum().clamp(min=1))

    def _settings_of_call(self, z: Batch, batch: Any, more: Mapping[str, Any], anchors: Any = None) -> dict[str, Any]:
        """Return the values of all settings; highest priority first: this call, the state, schedules, the network, defaults.

        A network of the anchors gets those of `anchors`, or of `batch`.
        """
        settings = {**self._registered(), **self._provided(z, more), **self.scheduled_tensors}
        if self.state is not None:
            settings |= self.state.settings(batch)
        source = batch if anchors is None else anchors
        return {name: self._current(name, value, source) for name, value in (settings | dict(more)).items()}

    def _registered(self) -> dict[str, Any]:
        """Return the settings, learned ones as they are registered now: torch can replace parameters, as on another device."""
        learned = {**self._parameters, **self._modules}
        return {name: learned.get(name, value) for name, value in self.settings.items()}

    def _warn_without_epoch(self) -> None:
        """Warn once if schedules stay at epoch 0 because the training loop does not set the epoch."""
        if self._steps_without_epoch < 0 or not self.training or not torch.is_grad_enabled():
            return
        self._steps_without_epoch += 1
        if self._steps_without_epoch == _MOST_STEPS_WITHOUT_EPOCH:
            warnings.warn(
                f"Loss: {', '.join(self._scheduled)} has a schedule, but the epoch was not set in the first "
                f"{_MOST_STEPS_WITHOUT_EPOCH} training steps, so the value is still that of epoch 0; at the start of each epoch, "
                "set criterion.epoch = epoch",
                stacklevel=5,  # the caller of the module, above the two functions of nn.Module that call `forward`
            )

    def _provided(self, z: Batch, given: Collection[str] = ()) -> dict[str, Tensor | None]:
        """Return the arguments that the embeddings provide, except those that are already `given`."""
        if not isinstance(z, Embeddings) or self.state is not None:
            return {}
        return {name: z.provide(name) for name in self.traits.provided if name in PROVIDED and name not in given}

    def with_provided(self, embeddings: Embeddings) -> Callable[[AnyPairs], Tensor]:
        """Return this loss as a function of pairs only, with the arguments that `embeddings` provide filled in.

        Parts of a sum that do not take pairs are left out.
        """
        return partial(self._of_pairs, embeddings)

    def _of_pairs(self, embeddings: Embeddings, pairs: AnyPairs) -> Tensor:
        # The similarities of these pairs may be all that is left of them.
        reads_anchors = any(isinstance(value, TemperatureNet) for value in self.settings.values())
        anchors = embeddings.pairs if reads_anchors else None
        loss: Tensor = self.objective(
            pairs, **self._settings_of_call(pairs, pairs, self._provided(embeddings), anchors=anchors)
        )
        for weight, part in self._terms():
            if part.traits.takes == "pairs":
                loss = loss + weight * part._of_pairs(embeddings, pairs)
        return loss

    def _current(self, name: str, value: Any, batch: Any) -> Any:
        """The value of a setting in this step."""
        if isinstance(value, TemperatureNet):
            if not isinstance(batch, Pairs):
                raise ValueError(
                    f"{name}: a network of the anchors needs their embeddings, which {type(batch).__name__} do not have"
                )
            if batch.similarity == "neg_euclid" or batch.anchor.shape[1] != width_of(batch):
                raise ValueError(
                    f"{name}: a network of the anchors needs one direction of comparison, and similarity 'cosine' or 'dot'"
                )
            return value(batch.anchor)
        if isinstance(value, Schedule):
            return value.at(self.epoch)
        # A learned temperature goes to the objective as it is: its value need not be checked, which would wait for the device.
        return value() if isinstance(value, Learned) and not isinstance(value, LearnedTemperature) else value

    @property
    def can_capture(self) -> bool:
        """Whether a CUDA graph can capture the objective, with its schedules: these need settings that may be tensors."""
        if not self.traits.can_capture or (self.state is not None and self.state.is_scheduled):
            return False
        own = set(self._scheduled) <= set(self.traits.tensor_settings)
        own = own and not any(isinstance(self.settings[name].at(self.epoch), Tensor) for name in self._scheduled)
        return own and all(part.can_capture for _, part in self._terms())

    def hold_schedules(self, device: torch.device) -> None:
        """Keep scheduled values in tensors on `device`, for a captured graph; `refresh_schedules` updates them."""
        self.scheduled_tensors = {name: torch.zeros((), device=device) for name in self._scheduled}
        for _, part in self._terms():
            part.hold_schedules(device)
        self.refresh_schedules()

    def refresh_schedules(self) -> None:
        """Write the scheduled values for the current epoch into the tensors."""
        for name, tensor in self.scheduled_tensors.items():
            tensor.fill_(self.settings[name].at(self.epoch))
        for _, part in self._terms():
            part.refresh_schedules()

    def extra_repr(self) -> str:
        """Objective and settings, for `print`."""
        name = getattr(self.objective, "__name__", repr(self.objective))
        weights = [f"weights={self.weights}"] if self.weights else []
        return ", ".join([name, *(f"{key}={value!r}" for key, value in self.settings.items()), *weights])

    def _input(self, z: Batch, z2: Tensor | None, ids: Tensor | None) -> Any:
        """What the objective takes: pairs, embeddings or assignments."""
        takes = self.traits.takes
        if isinstance(z, AnyPairs | Embeddings | Assignments):
            if z2 is not None or ids is not None:
                name = type(z).__name__
                raise ValueError(
                    f"z: got {name}, which already contains views and ids; call the loss without z2 and ids"
                )
            return input_of(self.traits, z) if isinstance(z, Embeddings) else z
        if takes == "pairs":
            return self._pairs(z, z2, ids)
        stacked = torch.stack([z, z2]) if z2 is not None else z[None] if z.ndim == 2 else z
        return self._input(Embeddings(z=stacked, ids=ids, compare=within_batch), None, None)

    def _pairs(self, z: Tensor, z2: Tensor | None, ids: Tensor | None) -> Pairs:
        make = self.traits.make_pairs
        if make is not None and z2 is None and z.ndim == 3 and len(z) == 2:  # (2, m, d) is taken as two views
            z, z2 = z
        if z2 is None:  # a single view (m, d) is for losses that take labels
            return views(z[None] if z.ndim == 2 else z, ids=ids)
        return (make or two_views)(z, z2, ids=ids)


def _check_state_settings(objective: Callable[..., Tensor], given: Collection[str], state: State | None) -> None:
    """Raise ValueError for a setting of the user that belongs to the state: the state's own value would replace it."""
    known, traits = signature(objective).parameters, traits_of(objective)
    for name in given:
        of_state = name in traits.state_settings and name not in known
        if of_state or (state is not None and name in state.replaces):
            needed = traits.make_state({}, 1)[1] if state is None and traits.make_state is not None else state
            made = "PerSample" if needed is None else type(needed).__name__
            raise ValueError(
                f"{name}: {objective.__name__} reads it from its state: write state={made}(number_of_samples, {name}=…)"
            )


def _check_settings(objective: Callable[..., Tensor], settings: Mapping[str, Any]) -> None:
    """Raise an error for a setting that the objective does not have, before the first batch fails."""
    if "reduction" in settings:
        check_choice("reduction", settings["reduction"], *REDUCTIONS)
    known = signature(objective).parameters
    if any(p.kind is p.VAR_KEYWORD for p in known.values()):
        return
    accepted = list(known)[1:]  # the first parameter is the batch
    for name in settings:
        if name not in accepted:
            raise ValueError(
                f"{name}: {objective.__name__} has the settings {', '.join(accepted)}{nearest_setting(name, accepted)}"
            )


def _left_out(settings: Mapping[str, Any], given: Similarities) -> Tensor | float:
    """Return 1 for candidates that `self_guided` leaves out at these similarities, and 0 for the others, (n, c)."""
    limits = [choice.of_positives(lambda: given.positive) for choice in _self_guided(settings)]
    above = [given.negative > limit.threshold[:, None] for limit in limits]
    return torch.stack(above).any(0).double() if above else 0.0


def _with_threshold(settings: Mapping[str, Any], anchors: int, device: torch.device) -> dict[str, Any]:
    """Return the choice of negatives with a threshold in place of `self_guided`, below what `_left_out` has raised."""
    if not _self_guided(settings):
        return {}
    limit = AtMost(torch.full((anchors,), 0.5, dtype=torch.float64, device=device), "self_guided")
    return {"negatives": tuple(limit if isinstance(own, SelfGuided) else own for own in steps(settings["negatives"]))}


def _self_guided(settings: Mapping[str, Any]) -> list[SelfGuided]:
    return [own for own in steps(settings.get("negatives")) if isinstance(own, SelfGuided)]
