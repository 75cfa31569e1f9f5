"""Load a trained encoder: from the directory of a run, or from an exported file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from contrapose.extras import train_extra
from contrapose.lab.devices import own_device
from contrapose.lab.memory_budget import model_budget
from contrapose.lab.modalities import modality
from contrapose.lab.training import model
from contrapose.lab.training.embedder import Embedder
from contrapose.lab.training.weights import initialise, read_metadata


@train_extra("contrapose.load")
def load(
    path: str | Path, *, epoch: int | None = None, dims: int = 0, device: torch.device | str | None = None
) -> model.Model | Embedder:
    """Load a trained encoder: a `Model` from the directory of a run, an `Embedder` from an exported file.

    A run on images with captions has two encoders: `.images.embed(…)` and `.text.embed(…)`.

    path     directory of a run, or a .safetensors file from `contrapose export`
    epoch    an epoch whose weights the run kept (`train --keep`); default: the newest weights
    dims     a prefix that the run trained (`train --dims`): embeddings are cut to it and have unit length; 0: the whole features
    device   device on which the encoder runs; default: a GPU if there is one, else the CPU

    >>> import contrapose
    >>> features = contrapose.load("encoder.safetensors").embed(["one.jpg", "two.png"])  # doctest: +SKIP
    """
    if Path(path).suffix == ".safetensors" and not Path(path).is_dir():
        if epoch is not None:
            raise ValueError(
                f"epoch: {path} is an exported file, which has only one set of weights; give the run's directory"
            )
        if dims:
            raise ValueError(
                f"dims: {path} is an exported file; `contrapose export RUN --dims {dims}` writes one with this prefix"
            )
        return load_exported(Path(path), device=device)
    return model.load_any(path, epoch=epoch, dims=dims, device=device)


@dataclass(frozen=True)
class _Exported:
    """The metadata of an exported file, which replaces a run's settings."""

    encoder: str
    text_encoder: str = ""


def load_exported(path: Path, *, device: torch.device | str | None = None) -> Embedder:
    """Load an exported .safetensors file, whose metadata names the encoder and the preprocessing of its inputs."""
    metadata = read_metadata(path)
    missing = [name for name in ("modality", "encoder") if name not in metadata]
    try:
        dims = int(metadata.get("dims", 0))  # raises ValueError
        if missing:
            raise ValueError(f"its metadata has no {', '.join(missing)}")
        kind = modality(metadata["modality"])
        views = kind.described_views(metadata)
        # The initial weights drawn here are replaced immediately, and must not affect the caller's random state.
        with (
            torch.random.fork_rng(devices=[]),
            model_budget(f"encoder: {metadata['encoder']}", size=path.stat().st_size),
        ):
            (encoder,) = kind.encoders(_Exported(metadata["encoder"]), views).values()
    except ValueError as error:
        raise ValueError(
            f"path: expected a file of `contrapose export`, but {path} cannot be loaded: {error}; "
            f"`contrapose train --init {path}` starts a run from its weights"
        ) from error
    initialise(encoder, path)
    target = torch.device(device) if device is not None else own_device()
    embedder = Embedder(encoder, views, kind, target, dims=dims)
    kind.prepare(embedder.to(target))
    return embedder.eval()
