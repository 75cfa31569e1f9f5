"""`Embedder`: an encoder with the inputs of its evaluation, without a run and its data."""

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


class Embedder(nn.Module):
    """An encoder, and how its inputs are made. `contrapose.load` returns one.

    encoder     network of samples -> features (B, width)
    views       how its inputs are made
    kind        modality of its data
    device      where it computes
    precision   fp32, bf16 or fp16 autocast of the encoder on a GPU
    """

    def __init__(
        self, encoder: Encoder, views: ViewMaker, kind: Modality, device: torch.device, *, precision: str = "fp32"
    ) -> None:
        super().__init__()
        self.encoder, self.views, self.kind, self.device, self.precision = encoder, views, kind, device, precision
        self.workers, self.timeout = 0, TIMEOUT
        # A trainer that has compiled the networks for its own batch size makes evaluation run without the compiler.
        self.evaluation_context: Callable[[], AbstractContextManager[None]] = nullcontext
        self._readers: dict[int, tuple[Source, Reader]] = {}

    def use_workers(self, workers: int, *, timeout: float) -> None:
        """Let processes decode data that is on disk.

        workers   number of processes
        timeout   seconds to wait for them
        """
        self.workers, self.timeout = workers, timeout

    def evaluate_in(self, context: Callable[[], AbstractContextManager[None]]) -> None:
        """Run the networks inside a context in evaluation.

        context   makes the context, such as one that changes settings of the device
        """
        self.evaluation_context = context

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the encoder's features (B, width) of `inputs`, as `views.plain` makes them."""
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
        # A batch of the caller stays whole; files are decoded in batches, since there may be more than fit in memory.
        size = len(samples) if isinstance(samples, Tensor) else self.views.evaluation_batch(self.device)
        parts = (samples[first : first + size] for first in range(0, len(samples), size))
        raw = (self.kind.decode(part, self.views).to(self.device) for part in parts)
        return torch.cat([self._encode(self.views.plain(batch)).float() for batch in raw])

    def embed_once(self, samples: Sequence[str]) -> Tensor:
        """Return the features of texts on the CPU, (B, width): equal texts are encoded once, and similar lengths together.

        samples   texts
        """
        distinct = sorted(dict.fromkeys(samples), key=lambda text: (len(text), text))
        rows, row_of = self.embed(distinct).cpu(), {text: row for row, text in enumerate(distinct)}
        return rows[[row_of[text] for text in samples]]

    def features(self, source: Source) -> Tensor:
        """Return the encoder's features of a whole data set, (N, width), without augmentation.

        source   a data set, such as `prepare(run).test`
        """
        self.eval()
        return features(self._encode, self.reader(source).plain())

    def reader(self, source: Source) -> Reader:
        """Return `source` on the device, where it stays: training and evaluation read it again and again."""
        if id(source) not in self._readers:
            made = source.reader(self.views, self.device, workers=self.workers, timeout=self.timeout)
            self._readers[id(source)] = source, made  # the source too: an id is only unique while its object lives
        return self._readers[id(source)][1]

    def _encode(self, inputs: Tensor) -> Tensor:
        """The encoder's features, in the precision of evaluation."""
        with self._evaluating():
            output: Tensor = self.encoder(inputs)
        return output

    @contextmanager
    def _evaluating(self) -> Iterator[None]:
        """Run networks in the run's precision on a GPU, in float32 on a CPU. Metrics are outside: they need float32."""
        precision = self.precision if self.device.type == "cuda" else "fp32"
        with self.evaluation_context(), autocast(self.device, precision):
            yield
