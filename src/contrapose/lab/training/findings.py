"""What `contrapose.Doctor` finds in a run: it looks at the last batch of an epoch, and the epoch's record keeps what it saw."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from contrapose.doctor import Doctor, Finding, Look
from contrapose.embeddings import Embeddings, between_towers, first_to_second, within_batch
from contrapose.lab.training.context import StepContext
from contrapose.losses import Loss

Records = Iterable[Mapping[str, Any]]

_KEY = "doctor"  # in a record
_FIRST_EPOCHS = 2  # looked at in any case, since most mistakes show early
# The trainer itself watches for these, and its messages name the settings that are better.
_REPORTED_ELSEWHERE = frozenset({"collapse", "too easy"})
_COMPARES_THE_BATCH = (within_batch, between_towers, first_to_second)
# What to type, where it differs from what to do in a loop of one's own; keyed by the name of the finding.
_REMEDIES = {
    "nothing learned": "Start over in another --out with a lower --lr; look at the views with contrapose data check, and check "
    "that the texts or captions of a row belong together.",
    "identical views": "Choose --views that change the samples; texts need an encoder with dropout, or word deletion.",
    "temperature too low": "Start over in another --out with a higher --temperature (0.05 to 0.5 suits most data), or let "
    "contrapose tune find one.",
    "temperature too high": "Start over in another --out with a lower --temperature (0.05 to 0.5 suits most data), or let "
    "contrapose tune find one.",
    "modality gap": "Nothing is wrong if retrieval is good. A higher --temperature, or more epochs, brings the towers closer.",
    "duplicates": "Remove copies from the data; files with equal content have one id already and are no negatives of each other.",
    "false negatives": "Look at these samples (contrapose doctor RUN shows them). Remove near-duplicates, or use a loss that "
    "leaves such negatives out: --loss fnc, or --loss 'nt_xent(negatives=self_guided())'.",
    "data not shuffled": "Samples in tars are shuffled within windows of 8,192: if a tar has few classes, write the tars again, "
    "from the folder and in random order (contrapose data convert).",
    "labels all different": "Use a larger --batch, so that a class has several samples in it.",
    "scale at its bound": "Give the learned temperature other bounds: --loss 'nt_xent(temperature=learned(0.07, low=0.005, "
    "high=1))'.",
    "frozen part": "Nothing is wrong if this part is frozen on purpose, or starts to move after a warm-up.",
}


class RunDoctor:
    """Looks at the last batches of a run's epochs."""

    def __init__(self, context: StepContext, log: Callable[[str], None]) -> None:
        self.context, self.log = context, log
        network = context.network
        named = {"the encoder": network.encoder, "the projector": network.projector}
        parts = {name: part for name, part in named.items() if any(p.requires_grad for p in part.parameters())}
        # Of a network that is divided among processes, this one cannot compute the norms alone.
        self.doctor = Doctor(model=None if context.is_sharded else parts, alone=True)

    def resume(self, records: Records) -> None:
        """Continue after the looks and findings in the records so far."""
        known = list(records)
        self.doctor.remember(looks_in(known), findings_in(known))

    def look_after(self, epoch: int, step: int, *, evaluated: bool) -> dict[str, Any]:
        """Look after the first epochs (from 1) and those that are evaluated: a look is short beside an evaluation."""
        if not evaluated and epoch > _FIRST_EPOCHS:
            return {}
        try:
            return self.look(step)
        except Exception as error:  # a mistake in a look must not end training
            self.log(f"doctor: no look after step {step}: {type(error).__name__}: {error}")
            return {}

    def look(self, step: int) -> dict[str, Any]:
        """Look at the last batch and log what is found for the first time; return an entry for the epoch's record."""
        latest, doctor = self.context.latest, self.doctor
        if latest is None:
            return {}
        doctor.step, before = step, len(doctor.looks)
        doctor.criterion, reason = self._criterion(latest)
        given = {"labels": latest.provide("labels")} if latest.sample_labels is not None else {}
        given |= {} if latest.ids is None or given else {"ids": latest.ids}
        # In float32, as the loss sees them; without their graph, which belongs to the step.
        z = latest.z.detach().float().requires_grad_()
        sides = z.unbind() if latest.compare is first_to_second else [z]
        found = [self._for_a_run(finding) for finding in doctor.look(*sides, **given)]
        for finding in found:
            if finding.name not in _REPORTED_ELSEWHERE:
                self.log(str(finding))
        if len(doctor.looks) == before:  # the batch could not be read
            return {}
        look = doctor.looks[-1]
        look = doctor.looks[-1] = replace(look, not_asked=reason or look.not_asked)
        return {_KEY: {"look": look.as_json(), "findings": [finding.as_json() for finding in found]}}

    def _criterion(self, latest: Embeddings) -> tuple[nn.Module | None, str]:
        """Return the loss as a function of the embeddings of a batch; None, and why, if it depends on more."""
        if self.context.world_size > 1:
            return None, "several processes compute the loss together"
        compare = latest.compare.func if isinstance(latest.compare, partial) else latest.compare
        if latest.target is not None or latest.score is not None or compare not in _COMPARES_THE_BATCH:
            return None, "the loss depends on more than the embeddings of the batch"
        return _OfEmbeddings(self.context.criterion, latest), ""

    def _for_a_run(self, finding: Finding) -> Finding:
        """Return a finding with the samples' numbers in the data set, and with a command as its remedy."""
        latest, ids = self.context.latest, self.context.ids
        remedy = _REMEDIES.get(finding.name, finding.do)
        if not finding.rows or latest is None or latest.ids is None:
            return replace(finding, do=remedy, rows=())
        # Samples of equal content share an id; any of them can be shown.
        number = {row: int(latest.ids[row]) for group in finding.rows for row in group}
        if ids is not None and self.context.network.bank is None:  # with a bank, ids are numbers in the data set
            number = {row: int((ids == value).nonzero()[0]) for row, value in number.items()}
        groups = tuple(tuple(number[row] for row in group) for group in finding.rows)
        return replace(finding, do=remedy, rows=groups, numbered="sample")


class _OfEmbeddings(nn.Module):
    """A loss as a function of the embeddings of a batch, which may have another width and fewer rows."""

    def __init__(self, loss: Loss, latest: Embeddings) -> None:
        super().__init__()
        self.loss = loss
        # Copied in each look; a tensor with a graph cannot be.
        self.latest = replace(latest, z=latest.z.detach(), sample_labels=None)

    def forward(self, *z: Tensor, labels: Tensor | None = None, ids: Tensor | None = None) -> Tensor:
        """Return the loss of other embeddings: (V, m, d), or (m, d) for each view."""
        rows = z[0] if z[0].ndim == 3 else torch.stack(z)
        index = torch.arange(rows.shape[1], device=rows.device) if labels is not None else ids
        value: Tensor = self.loss(replace(self.latest, z=rows, ids=index, sample_labels=labels))
        return value


def looks_in(records: Records) -> list[Look]:
    """Return the looks in a run's records."""
    return [Look.from_json(record[_KEY]["look"]) for record in records if _KEY in record]


def findings_in(records: Records) -> list[Finding]:
    """Return what was found, from a run's records."""
    return [Finding.from_json(found) for record in records if _KEY in record for found in record[_KEY]["findings"]]
