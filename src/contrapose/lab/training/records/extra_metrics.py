"""Extra measures in a run's records, written MEASURE@EVERY: taken after every EVERY epochs, and always after the last epoch.

linear:PROBE@10     top-1 accuracy of a linear probe after its last epoch, as `linear:PROBE`, and after its best epoch, as
                    `linear_best:PROBE`; top-5 as `linear_top5:PROBE` and `linear_best_top5:PROBE`. linear:PROBE:5@10 trains the
                    probe for 5 epochs, and the names then include the 5
entropy:T@1         CACR's conditional entropy H(X⁻|X) with t⁻ = T, as `entropy`, and ln(M - 1) - H, its distance from the
                    maximum, as `entropy_deficit`: of the projector's output on all held-out samples, in mini-batches of
                    the run's batch size M; entropy:T:M@1 sets another M
sts:FILE@1          100 · Spearman's correlation on the dev split in a file of scored sentence pairs, as `stsb_dev` for the data
                    set stsb, with alignment and uniformity on STS-B; only for texts, whose modality declares this measure in
                    `Modality.recorded`
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from contrapose.lab.evaluation import PROBES
from contrapose.lab.modalities import Split
from contrapose.lab.modalities.evaluations import RecordedEvaluation
from contrapose.validate import check_known

OwnMeasures = Mapping[str, RecordedEvaluation]  # a modality's own measures, keyed by name
# Names of a probe's scores in the records and the evaluations of studies.
PROBE_SCORES = {
    "top1": "linear",
    "top5": "linear_top5",
    "best_top1": "linear_best",
    "best_top5": "linear_best_top5",
}
_LINEAR = r"linear:(?P<probe>[\w.-]+)(?::(?P<probe_epochs>[1-9]\d*))?"
_ENTROPY = r"entropy:(?P<t_neg>\d+(?:\.\d+)?)(?::(?P<batch>[3-9]|[1-9]\d+))?"
_OWN = r"(?P<own>\w+):(?P<argument>.+)"
_EVERY = r"@(?P<every>[1-9]\d*)"
_ITEM = re.compile(rf"(?:{_LINEAR}|{_ENTROPY}){_EVERY}", re.ASCII)
_OWN_ITEM = re.compile(rf"{_OWN}{_EVERY}", re.ASCII)


@dataclass(frozen=True)
class RecordedMeasure:
    """A measure and the number of epochs between its entries in the records."""

    text: str  # as in the run's settings
    every: int
    probe: str = ""  # of a linear probe; empty for other measures
    probe_epochs: int = 0  # of the probe; 0: its own
    t_neg: float = 0.0  # t⁻ of the entropy
    batch: int = 0  # M of the entropy; 0: the batch size of the run
    own: str = ""  # name of a measure in the modality's `Modality.recorded`
    argument: str = ""  # argument of that measure, such as a file

    @property
    def probe_name(self) -> str:
        """Return the probe as it is named in the records."""
        return f"{self.probe}:{self.probe_epochs}" if self.probe_epochs else self.probe

    def is_due(self, epoch: int, epochs: int) -> bool:
        """Return whether the record of an epoch (counted from 1) includes the measure."""
        return epoch % self.every == 0 or epoch == epochs


def recorded_measures(items: tuple[str, ...], own: OwnMeasures = MappingProxyType({})) -> list[RecordedMeasure]:
    """Return the measures in a run's setting `extra_metrics`; raise ValueError for an item that is not a measure.

    own   measures that only the run's modality offers
    """
    measures = [_parse(item, own) for item in items]
    names = [measure.probe_name or measure.own or "entropy" for measure in measures]
    # Repeated measures would have the same name in the records.
    repeated = next((m.text for m, name in zip(measures, names, strict=True) if names.count(name) > 1), None)
    if repeated is not None:
        raise ValueError(f"extra_metrics: expected each measure once, got {repeated!r} beside another of its kind")
    return measures


def check_record(items: tuple[str, ...], split: Split, batch: int, own: OwnMeasures = MappingProxyType({})) -> None:
    """Raise ValueError for measures whose labels or samples the data lacks; `batch` is the run's batch size."""
    labelled = all(source is not None and source.labels is not None for source in (split.probe, split.test))
    samples = len(split.held_out)
    for measure in recorded_measures(items, own):
        size = measure.batch or batch
        if measure.probe and not labelled:
            raise ValueError(
                f"extra_metrics: {measure.text} needs labelled training and test samples, and the data has none"
            )
        if measure.own:
            own[measure.own].check(measure.argument)
        elif not measure.probe and not 3 <= size <= samples:
            raise ValueError(
                f"extra_metrics: {measure.text} has mini-batches of {size}, and there are {samples} held-out samples "
                f"(entropy:{measure.t_neg:g}:{max(3, samples // 2)}@{measure.every} would do)"
            )


def _parse(item: str, own: OwnMeasures) -> RecordedMeasure:
    """Return the measure that one item of `extra_metrics` describes."""
    found = _OWN_ITEM.fullmatch(item)
    if found is not None and found["own"] in own:
        return RecordedMeasure(text=item, every=int(found["every"]), own=found["own"], argument=found["argument"])
    found = _ITEM.fullmatch(item)
    if found is None:
        others = "".join(f", {name}:{measure.argument}" for name, measure in own.items())
        raise ValueError(
            "extra_metrics: expected MEASURE@EPOCHS with linear:PROBE, linear:PROBE:EPOCHS, entropy:T, entropy:T:M (M from 3 on)"
            f"{others}, such as linear:cacr@10 or entropy:2:768@1, got {item!r}"
        )
    probe, t_neg, batch, every = found["probe"], found["t_neg"], found["batch"], int(found["every"])
    if probe is not None:
        check_known("extra_metrics", probe, PROBES)
        return RecordedMeasure(text=found[0], every=every, probe=probe, probe_epochs=int(found["probe_epochs"] or 0))
    return RecordedMeasure(text=found[0], every=every, t_neg=float(t_neg), batch=int(batch or 0))
