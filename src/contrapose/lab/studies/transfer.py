"""Measure how a run's encoder transfers to other data, which the user gives with --data NAME=PATH.

transfer:SET:PROTOCOL             the trained encoder on a data set of TRANSFER_SETS, by a protocol of PROTOCOLS
transfer:SET:PROTOCOL:start       the encoder before its training
transfer:SET:PROTOCOL:supervised  the same network with weights from a file, --data supervised=FILE.safetensors
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path

from contrapose.lab.evaluation import PROTOCOLS, TRANSFER_SETS, transfer_score
from contrapose.lab.modalities import Split
from contrapose.lab.networks.encoder import Encoder
from contrapose.lab.studies.downstream import STAND_IN, SUPERVISED
from contrapose.lab.studies.embeddings import start
from contrapose.lab.training import Model, prepare_other
from contrapose.lab.training.weights import initialise


def is_transfer(measure: str) -> bool:
    """Return whether a measure is of an encoder's transfer."""
    return measure.startswith("transfer:")


def stand_in(measure: str) -> str:
    """Return the measure on the built-in digits in place of its data set."""
    kind, _, *rest = measure.split(":")
    return ":".join((kind, STAND_IN, *rest))


def transfer(
    model: Model, split: Split, name: str, protocol: str, weights: str = "", *, downstream: Mapping[str, str],
    root: Path | None = None,
) -> dict[str, float]:  # fmt: skip
    """Return the value of a transfer measure, by its name.

    model        the trained networks of the run
    split        the run's own data, whose size decides how its network is built
    name         a data set of TRANSFER_SETS
    protocol     a protocol of PROTOCOLS
    weights      which encoder: the trained one, "start" or "supervised"
    downstream   paths, or names of data sets, by the names that measures need
    root         directory of downloads
    """
    source = downstream.get(name, name)
    data = load_transfer_data(model, name, source, root)
    if data.probe is None or data.test is None:
        raise ValueError(f"data: {source} has no labelled training and test images to transfer to")
    encoder = chosen_encoder(model, split, weights, downstream)
    # Other batch sizes than the trainer's would compile its networks again.
    with model.evaluation_context():
        value = transfer_score(
            encoder,
            data.probe,
            data.test,
            to=TRANSFER_SETS[name],
            protocol=protocol,
            views=model.views,
            device=model.device,
            seed=model.run.seed,
            workers=model.reader.workers,
            timeout=model.reader.timeout,
        )
    return {":".join(part for part in ("transfer", name, protocol, weights) if part): value}


def load_transfer_data(model: Model, name: str, data: str, root: Path | None) -> Split:
    """Load a data set to transfer to; images on disk stay there, because a few shots read few of them."""
    return model.kind.load_task(name, data) or prepare_other(model.run, data, root, stream=True)


def chosen_encoder(model: Model, split: Split, weights: str, given: Mapping[str, str]) -> Encoder:
    """Return the encoder of a measure: trained, as it was at the "start", or "supervised", with the user's weights."""
    if not weights:
        return model.encoder
    if weights == SUPERVISED:
        encoder = copy.deepcopy(model.encoder)
        initialise(encoder, Path(given[SUPERVISED]))
        return encoder
    return start(model, split).encoder


def describe_transfer(measure: str) -> str:
    """Return in words what a measure is."""
    _, _, protocol, *weights = measure.split(":")
    # What the encoder is differs between rows, and their names say it.
    assert not weights or weights[0] in ("start", SUPERVISED)
    return PROTOCOLS[protocol]
