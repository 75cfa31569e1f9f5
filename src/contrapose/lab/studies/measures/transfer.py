"""How a run's encoder transfers to other data."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from contrapose.lab.evaluation import PROTOCOLS, TRANSFER_SETS, transfer_score
from contrapose.lab.modalities import Split
from contrapose.lab.networks.encoder import Encoder
from contrapose.lab.studies.measures.downstream import SUPERVISED, DownstreamEvaluation, weights_file
from contrapose.lab.studies.measures.measure import Context, Words
from contrapose.lab.training import Model, Run, prepare_other
from contrapose.lab.training.initial_model import start
from contrapose.lab.training.weights import initialise

_BUILT_IN = "digits"  # the target data set at the smoke scale if no data is given


@dataclass(frozen=True)
class Transfer(DownstreamEvaluation):
    """The score of an encoder on a data set in TRANSFER_SETS, with a protocol from PROTOCOLS."""

    kind = "transfer"
    protocol: str
    weights: str = ""  # selects the encoder: trained (""), "start", or "supervised" (from --data supervised=FILE)

    def describe(self, run: Run) -> Words:
        """Describe the protocol. Rows differ in the encoder, which the row's name states."""
        return Words(PROTOCOLS[self.protocol])

    @property
    def files(self) -> tuple[str, ...]:
        """Return the name of the file of weights, if the measure needs one."""
        return weights_file(self.weights)

    @property
    def needs_data(self) -> tuple[str, ...]:
        """Return the name of the data, unless it is built in, and the name of the file."""
        return tuple(name for name in super().needs_data if name != _BUILT_IN)

    @property
    def synthetic_data(self) -> tuple[str, ...]:
        """Return nothing: no data is generated, since the built-in digits replace one data set."""
        return ()

    def on_built_in_data(self) -> Transfer:
        """Return the transfer to the built-in digits."""
        return replace(self, data_set=_BUILT_IN)

    def evaluate(self, context: Context) -> dict[str, float]:
        """Return the score."""
        model = context.model
        source = context.downstream.get(self.data_set, self.data_set)
        data = load_transfer_data(model, self.data_set, source, context.data_root)
        if data.probe is None or data.test is None:
            raise ValueError(f"data: {source} has no labelled training and test images to transfer to")
        encoder = chosen_encoder(model, context.split, self.weights, context.downstream)
        # Other batch sizes than in training would compile the networks again.
        with model.evaluation_context():
            value = transfer_score(
                encoder,
                data.probe,
                data.test,
                to=TRANSFER_SETS[self.data_set],
                protocol=self.protocol,
                views=model.views,
                device=model.device,
                seed=model.run.seed,
                workers=model.reader.workers,
                timeout=model.reader.timeout,
            )
        return {self.key: value}


def load_transfer_data(model: Model, name: str, data: str, root: Path | None) -> Split:
    """Load a target data set; images stay on disk, because few-shot protocols read only a few of them."""
    return model.kind.load_task(name, data) or prepare_other(model.run, data, root, stream=True)


def chosen_encoder(model: Model, split: Split, weights: str, given: Mapping[str, str]) -> Encoder:
    """Return the encoder to measure: trained, initial ("start"), or with the user's weights ("supervised")."""
    if not weights:
        return model.encoder
    if weights == SUPERVISED:
        encoder = copy.deepcopy(model.encoder)
        initialise(encoder, Path(given[SUPERVISED]))
        return encoder
    return start(model, split).encoder
