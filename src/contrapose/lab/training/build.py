"""Build the parts of a run: its data, its network and its loss."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch

from contrapose.lab.frameworks import FRAMEWORKS, Framework, Parts
from contrapose.lab.modalities import Split
from contrapose.lab.networks.encoder import Encoder
from contrapose.lab.networks.heads import head
from contrapose.lab.networks.tower import Tower, embedding_width
from contrapose.lab.training.checks.dims import check_width
from contrapose.lab.training.run import Run
from contrapose.lab.training.weights import initialise
from contrapose.losses import Loss, nested
from contrapose.losses.objective import with_state
from contrapose.losses.parse import parse


def prepare(run: Run, root: Path | None = None, *, folder: Path | None = None) -> Split:
    """Load the run's data, with the run's sample limit and class imbalance applied.

    run      description of the run
    root     directory for downloads; default: data
    folder   directory of the run if it is already trained, whose tokenizer is then used for texts
    """
    return run.kind.load(run, root, run.view_maker(folder), encoder=run.encoder)


def prepare_other(
    run: Run,
    data: str,
    root: Path | None = None,
    *,
    folder: Path | None = None,
    hold_out: float | None = None,
    stream: bool = False,
    columns: tuple[str, ...] = (),
) -> Split:
    """Load all samples of another data set, prepared for a run's networks.

    run        description of the run
    data       name of a data set, folder of images, .npz file or file of texts
    root       directory for downloads; default: data
    folder     directory of the run, if the run is trained
    hold_out   fraction of each class to hold out if a folder has no test images; default: the run's setting
    stream     whether to leave images on disk, if each image is a file
    columns    columns to read from a file of texts; default: columns with common names, otherwise all columns
    """
    if run.kind.needs_run_directory and folder is None:
        raise ValueError("folder: texts need the run's tokenizer; expected the directory of the run, got None")
    settings = other_settings(run, data, hold_out=hold_out, stream=stream, columns=columns)
    return settings.kind.load_for_evaluation(settings, root, settings.view_maker(folder), encoder=settings.encoder)


def other_settings(
    run: Run, data: str, *, hold_out: float | None = None, stream: bool = False, columns: tuple[str, ...] = ()
) -> Run:
    """Return a run's settings for all samples of another data set; the arguments are those of `prepare_other`."""
    return replace(
        run,
        data=data,
        columns=columns,
        stream=stream and run.kind.can_stream(data),
        classes="",
        limit=0,
        imbalance="",
        probe="all",
        eval_data="",
        hold_out=run.hold_out if hold_out is None else hold_out,
    )


def build_towers(run: Run, folder: Path | None = None) -> dict[str, Tower]:
    """Build the run's towers, keyed by modality; initial weights are drawn from torch's random generator.

    `folder` is the directory of the run if it is already trained.
    """
    encoders = run.kind.encoders(run, run.view_maker(folder))
    if run.init:
        initialise(
            next(iter(encoders.values())), Path(run.init)
        )  # the first encoder: with captions, that of the images
    elif folder is None:  # a trained run does not need its initial weights, whose package may no longer be installed
        run.kind.load_initial_weights(run, encoders)
    towers = {name: _tower(run, encoder) for name, encoder in encoders.items()}
    widths = {name: tower.width for name, tower in towers.items()}
    if len(set(widths.values())) > 1:
        described = " and ".join(f"{width} of {name}" for name, width in widths.items())
        raise ValueError(
            f"head: {run.head} gives embeddings of unequal widths, {described}; use --head clip, or set --width"
        )
    check_width(run.dims, widths)
    return towers


def _tower(run: Run, encoder: Encoder) -> Tower:
    """Return an encoder with its projector."""
    projector = head(run.head, encoder.width, run.width)
    width = embedding_width(encoder, projector)
    if run.needs_score:  # one more output than the embedding has dimensions
        projector = head(run.head, encoder.width, width + 1)
    return Tower(encoder, projector, width)


def build(run: Run, samples: int) -> Framework:
    """Build the run's network, with initial weights determined by the run's seed; `samples` is the size of the training set."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(run.seed)  # encoder, projector and predictor draw from it in this order
        parts = Parts(build_towers(run), samples, head=run.head, has_score=run.needs_score)
        row = FRAMEWORKS[run.framework]
        network = row.build(parts, row.settings_of(run))
    network.norm_views = run.norm_views
    return network


def build_loss(run: Run, samples: int) -> Loss:
    """Build the run's criterion; `samples` is the size of the training set, for losses that keep a state for each sample."""
    objective, state = with_state(parse(run.loss, run.loss_data), samples)
    if run.dims:  # `Run` has refused losses with a state
        objective = nested(objective, dims=run.dims)
    return Loss(objective, state=state)
