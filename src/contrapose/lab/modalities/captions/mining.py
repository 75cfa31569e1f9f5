"""Hard negatives of images with captions: the queries are images, and the documents are all captions."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from contrapose.lab.modalities.captions.files import open_captions
from contrapose.lab.modalities.images.stream import Files, without_broken
from contrapose.lab.modalities.images.views import Views
from contrapose.lab.modalities.input_files import as_text
from contrapose.lab.modalities.mining import MiningTask, number_texts
from contrapose.lab.modalities.modality import DataSettings
from contrapose.lab.modalities.source import Split
from contrapose.lab.modalities.text.mining import read_corpus


@dataclass(frozen=True, eq=False)
class CaptionedImages:
    """Images with their captions, and further texts; created by `read_captioned`."""

    images: Files
    captions: tuple[tuple[str, ...], ...]  # of each image
    corpus: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def texts(self) -> list[str]:
        """The distinct captions of all images, and the distinct texts of the corpus."""
        return list(number_texts([*(caption for own in self.captions for caption in own), *self.corpus]))

    def readable(self, views: Views) -> CaptionedImages:
        """Return the images that can be read, with their captions."""
        # Labels carry each image's number through the selection.
        numbered = replace(self.images, labels=torch.arange(len(self.images)))
        checked = without_broken(Split(numbered, None, None), views.recipes[0])
        assert checked.train.labels is not None
        rows = checked.train.labels
        captions = tuple(self.captions[row] for row in rows.tolist())
        return replace(self, images=self.images.subset(rows), captions=captions, notes=(*self.notes, *checked.notes))

    def task(self, images: Tensor, texts: Tensor) -> MiningTask:
        """Return the task. A caption of several images belongs to all of them.

        images   embeddings of the images (n, d)
        texts    embeddings of `texts` (t, d)
        """
        documents = self.texts
        numbers = number_texts(documents)
        return MiningTask(
            queries=[as_text(str(path)) for path in self.images.paths],
            documents=documents,
            query_embeddings=images,
            document_embeddings=texts,
            positives=[list(dict.fromkeys(numbers[caption] for caption in own)) for own in self.captions],
            nouns=("images", "captions"),
            notes=self.notes,
        )


def read_captioned(settings: DataSettings, corpus: str) -> CaptionedImages:
    """List the images and captions of a data set, of all splits, and read the texts of a corpus."""
    listed = open_captions(Path(settings.data), columns=settings.columns, skip_broken=settings.skip_broken)
    further, notes = read_corpus(corpus, skip_broken=settings.skip_broken)
    images = Files(listed.name, listed.images, None, max_megapixels=settings.max_megapixels)
    return CaptionedImages(images, listed.captions, tuple(further), (*listed.notes, *notes))
