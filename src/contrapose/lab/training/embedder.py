"""`Embedder`: an encoder and the preprocessing of its inputs, without a run or training data."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from contrapose.lab.evaluation.features import features
from contrapose.lab.modalities import Modality, Reader, Source, ViewMaker
from contrapose.lab.networks.encoder import Encoder
from contrapose.lab.training.precision import autocast
from contrapose.lab.workers import TIMEOUT
from contrapose.pairs import unit


class Readers:
    """Keeps data sets on a device, because training and evaluation read them repeatedly."""

    def __init__(self, views: ViewMaker, device: torch.device) -> None:
        self.views, self.device = views, device
        self.workers, self.timeout = 0, TIMEOUT
        self._readers: dict[int, tuple[Source, Reader]] = {}

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for pickle and copy without readers, which belong to a process: workers, and keys that are ids."""
        return {**vars(self), "_readers": {}}

    def __call__(self, source: Source) -> Reader:
        """Return a reader of `source` on the device; the same source gives the same reader."""
        if id(source) not in self._readers:
            made = source.reader(self.views, self.device, workers=self.workers, timeout=self.timeout)
            self._readers[id(source)] = source, made  # keeps the source alive, since ids are reused
        return self._readers[id(source)][1]


def _no_features(source: Source) -> None:
    """Return None: no features are kept. A function of the module, because a lambda cannot be pickled."""


def first_dims(z: Tensor, dims: int) -> Tensor:
    """Return the first `dims` coordinates of embeddings (…, d) as unit vectors in float32: a prefix is normalised on its own."""
    return unit(z[..., :dims].float())


class Embedder(nn.Module):
    """An encoder and the preprocessing of its inputs. `contrapose.load` returns an `Embedder` for an exported file.

    encoder     network: samples -> features (B, width)
    views       makes the encoder's inputs from samples
    kind        modality of the data
    device      device on which the networks run
    precision   fp32, bf16 or fp16 autocast for the encoder on a GPU
    projector   network: features -> the embedding (B, d) that the loss sees; None for an exported encoder
    projects    whether `embed` and `features` return the projector's output, the space in which two towers are compared
    dims        `embed` and `features` return the first `dims` coordinates of the projector's output, as unit vectors; 0: all
    """

    def __init__(
        self,
        encoder: Encoder,
        views: ViewMaker,
        kind: Modality[Any],
        device: torch.device,
        *,
        precision: str = "fp32",
        projector: nn.Module | None = None,
        projects: bool = False,
        dims: int = 0,
    ) -> None:
        super().__init__()
        self.encoder, self.views, self.kind, self.device, self.precision = encoder, views, kind, device, precision
        self.projector, self.projects, self.dims = projector or nn.Identity(), projects, dims
        self.reader = Readers(views, device)
        # If a trainer has compiled the networks for its batch size, it disables the compiler here during evaluation.
        self.evaluation_context: Callable[[], AbstractContextManager[None]] = nullcontext
        # Returns features that need not be computed, or None; `evaluate` sets it.
        self.kept_features: Callable[[Source], Tensor | None] = _no_features

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the encoder's features (B, width) for `inputs` from `views.plain`."""
        output: Tensor = self.encoder(inputs)
        return output

    @torch.no_grad()
    def embed(self, samples: Tensor | Sequence[Any]) -> Tensor:
        """Return the encoder's features of samples, (B, width) in float32.

        samples   a tensor, such as uint8 images (B, 3, H, W) of any size; or a list of paths, PIL images or texts
        """
        if isinstance(samples, str | Path):
            raise ValueError(f"samples: expected a list, got one text or path; write embed([{str(samples)!r}])")
        if not len(samples):
            raise ValueError("samples: expected at least one sample, got none")
        self.eval()
        # A tensor is encoded as one batch. Files are decoded in batches, since not all of them may fit in memory.
        size = len(samples) if isinstance(samples, Tensor) else self.views.evaluation_batch(self.device)
        parts = (samples[first : first + size] for first in range(0, len(samples), size))
        raw = (self.kind.decode(part, self.views).to(self.device) for part in parts)
        return torch.cat([self.encode(self.views.plain(batch)).float() for batch in raw])

    def features(self, source: Source) -> Tensor:
        """Return the encoder's features of a whole data set, (N, width), without augmentation.

        source   a data set, such as `prepare(run).test`
        """
        self.eval()
        kept = self.kept_features(source)
        return features(self.encode, self.reader(source).plain()) if kept is None else kept

    def encode(self, inputs: Tensor) -> Tensor:
        """Return the features for `inputs` from `views.plain`, in the evaluation precision."""
        if self.dims:
            return first_dims(self.project(inputs), self.dims)
        if self.projects:
            return self.project(inputs)
        with self._evaluating():
            output: Tensor = self.encoder(inputs)
        return output

    def project(self, inputs: Tensor) -> Tensor:
        """Return the projector's output for `inputs` from `views.plain`, in the evaluation precision."""
        with self._evaluating():
            output: Tensor = self.projector(self.encoder(inputs))
        return output

    @torch.no_grad()
    def prefix(self, features: Tensor, dims: int) -> Tensor:
        """Return the embeddings (N, dims) of a prefix, as unit vectors, from the output of `embed` or `features`.

        features   features (N, width) of this tower, which must not be cut already
        dims       number of coordinates
        """
        if self.projects:
            return first_dims(features, dims)
        # Only the projector is applied: the encoder, which takes nearly all of the time, has seen the samples.
        self.eval()
        with self._evaluating():
            z: Tensor = self.projector(features.to(self.device))
        return first_dims(z, dims).to(features.device)

    @contextmanager
    def _evaluating(self) -> Iterator[None]:
        """Run networks in the run's precision on a GPU, or in float32 on a CPU. Compute metrics outside: they need float32."""
        precision = self.precision if self.device.type == "cuda" else "fp32"
        with self.evaluation_context(), autocast(self.device, precision):
            yield
