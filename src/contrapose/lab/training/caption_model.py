"""`CaptionModel`: the two towers of a run on images with captions, without its training data.

>>> import contrapose
>>> model = contrapose.load("runs/mine")  # doctest: +SKIP
>>> scores = unit(model.text.embed(["a dog on the beach"])) @ unit(model.images.embed(paths)).T  # doctest: +SKIP
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import torch
from torch import Tensor, nn

from contrapose.lab.evaluation import Measures
from contrapose.lab.evaluation.captions import CaptionIndex, caption_recall
from contrapose.lab.modalities import Reader, Source, Split, ViewMaker, modality
from contrapose.lab.modalities.captions.captions import Captions
from contrapose.lab.modalities.captions.views import CaptionViews
from contrapose.lab.networks.encoder import Encoder
from contrapose.lab.networks.tower import embedding_width
from contrapose.lab.training.embedder import Embedder
from contrapose.lab.training.recording import RecordedMeasure
from contrapose.lab.training.run import Run
from contrapose.metrics import two_tower_measures


class CaptionModel(nn.Module):
    """Two embedders into one space; cosines of their outputs compare images with texts.

    images      embedder of images: encoder and projector
    text        embedder of texts
    run         description of the training
    step        number of training steps behind the weights
    folder      directory of the run, if it has one
    """

    def __init__(
        self,
        run: Run,
        encoder: nn.ModuleDict,
        projector: nn.ModuleDict,
        device: torch.device,
        *,
        step: int = 0,
        folder: Path | None = None,
    ) -> None:
        super().__init__()
        self.run, self.device, self.step, self.folder = run, device, step, folder
        views = run.view_maker(folder)
        assert isinstance(views, CaptionViews)
        self.views = views
        inputs: dict[str, ViewMaker] = {"images": views.images, "text": views.texts}
        self.images, self.text = (
            Embedder(_tower(encoder[name], projector[name]), made, modality(name), device, precision=run.precision)
            for name, made in inputs.items()
        )
        self._training: tuple[Source, Reader] | None = None

    def use_workers(self, workers: int, *, timeout: float) -> None:
        """Let processes decode images that are on disk, and wait for them at most so many seconds."""
        self.images.use_workers(workers, timeout=timeout)

    def evaluate_in(self, context: Callable[[], AbstractContextManager[None]]) -> None:
        """Run the networks inside this context in evaluation."""
        for tower in (self.images, self.text):
            tower.evaluate_in(context)

    def reader(self, source: Source) -> Reader:
        """Return the training data on the device."""
        if self._training is None or self._training[0] is not source:
            made = source.reader(self.views, self.device, workers=self.images.workers, timeout=self.images.timeout)
            self._training = source, made
        return self._training[1]

    def embed_both(self, source: Captions) -> tuple[Tensor, Tensor]:
        """Return the embeddings of images (n, d) and of all their captions (t, d), image by image.

        source   images with captions, such as `prepare(run).test`
        """
        return self.images.features(source.images), self.text.features(source.texts)

    def evaluate(self, split: Split) -> dict[str, float]:
        """Return recall at 1, 5 and 10 of test images and captions in both directions, in per cent; nothing without any.

        split   data sets, such as `prepare(run)`
        """
        if split.test is None:
            return {}
        assert isinstance(split.test, Captions)
        index = CaptionIndex.of(split.test.written)
        return caption_recall(*self.embed_both(split.test), index.image_of_text, ids=index.ids)

    def measure_outputs(self, source: Source, how: Measures) -> dict[str, float]:
        """Return the uniformity of each tower, the alignment of captions with their images, and the modality gap.

        source   images with captions
        how      on how many samples
        """
        sample = how.subset(source)
        assert isinstance(sample, Captions)
        return two_tower_measures(*self.embed_both(sample), CaptionIndex.of(sample.written).image_of_text)

    def take(self, measure: RecordedMeasure, split: Split) -> dict[str, float]:
        """Raise ValueError: measures of `Run.record` are of one tower."""
        raise ValueError(f"record: {measure.text} is for runs on images or on text, and {self.run.data} has captions")


def _tower(encoder: nn.Module, projector: nn.Module) -> Encoder:
    """Return an encoder with its projector as one encoder, whose outputs are the embeddings."""
    assert isinstance(encoder, Encoder)
    return Encoder(nn.Sequential(encoder, projector), embedding_width(encoder, projector))
