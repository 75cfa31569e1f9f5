"""What a run is made of: its data and its network."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from torch import nn

from contrapose.frameworks import Framework, MemoryBank, MoCo, MoCoV3, SimCLR
from contrapose.modalities.images.encoders import encoder
from contrapose.modalities.images.imbalance import by_rule
from contrapose.modalities.images.load import Split, load
from contrapose.modalities.images.views import Views
from contrapose.networks.encoder import Encoder
from contrapose.networks.heads import head, predictor
from contrapose.training.run import Run
from contrapose.training.weights import initialise


def prepare(run: Run, root: Path | None = None) -> Split:
    """The run's data: loaded, cut to its limit and thinned out."""
    split = load(run.data, limit=run.limit, root=root, stream=run.stream, classes=run.classes)
    if run.imbalance:
        thin = by_rule(split.train, run.imbalance)
        split = Split(thin, thin if run.probe == "train" and split.probe is not None else split.probe, split.test)
    return split


def check_same_images(run: Run, folder: Path, here: dict[str, object]) -> None:
    """A training goes on with the images that it began with: those that its data.json tells of."""
    path = folder / "data.json"
    there = json.loads(path.read_text()) if path.exists() else here
    if here != there:
        raise ValueError(
            f"data: the {there['images']} images that {folder} was trained on are not the {here['images']} that are in "
            f"{run.data} now; --out another directory begins anew"
        )


def build(run: Run, size: int) -> Framework:
    """The run's network, with weights that its seed decides; `size` is the number of training images."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(run.seed)
        body = encoder(run.encoder)
        _check_size(run, body)
        if run.init:
            initialise(body, Path(run.init))
        projector = head(run.head, body.width, run.width)
        width = [m for m in projector.modules() if isinstance(m, nn.Linear)][-1].out_features
        if run.framework == "simclr":
            return SimCLR(body, projector)
        if run.framework == "moco":
            return MoCo(
                body,
                projector,
                width=width,
                size=run.queue,
                momentum=run.momentum,
                norm_splits=run.norm_splits,
                symmetric=run.symmetric,
                batch_negatives=run.batch_negatives,
            )
        if run.framework == "moco-v3":
            return MoCoV3(body, projector, predictor(width), momentum=run.momentum, rising=run.rising)
        return MemoryBank(body, projector, width=width, size=size)


def _check_size(run: Run, body: Encoder) -> None:
    """Some networks take images of one size."""
    wanted = getattr(body.network, "image_size", None)
    other = [r.size for r in Views.named(run.views, run.view_count).recipes if wanted not in (None, r.size)]
    if other:
        raise ValueError(
            f"views: {run.encoder} takes images of {wanted} pixels, and {run.views} makes {other[0]} "
            "(--views simclr makes 224)"
        )
