"""STS during training: `--extra-metrics sts:FILE@1`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache, partial
from pathlib import Path

from torch import Tensor

from contrapose.lab.modalities.evaluations import SampleEmbedder
from contrapose.lab.modalities.text.evaluation.sts import SentencePair, evaluate_sts, read_sts
from contrapose.lab.modalities.text.evaluation.tfidf import tfidf_sts


class RecordedSTS:
    """Spearman's correlation on the pairs in a file's dev split."""

    argument = "FILE"
    baseline_name = "tf-idf"

    def check(self, argument: str) -> None:
        """Refuse a file that does not exist, or that has no pairs in the split dev."""
        if not Path(argument).is_file():
            raise ValueError(f"record: {argument} does not exist; expected a file of scored sentence pairs")
        if not self.score(argument):
            raise ValueError(f"record: {argument} has no pairs in the split dev, which are scored during training")

    def score(self, argument: str) -> str:
        """Return the name of the first task, such as stsb_dev; empty if no pairs are in the split dev."""
        return next((pair.task for pair in read_sts(Path(argument)) if pair.split == "dev"), "")

    def __call__(self, embedder: SampleEmbedder, argument: str) -> dict[str, float]:
        """Return the correlation for each task, and alignment and uniformity on STS-B."""
        pairs = _dev_pairs(argument, Path(argument).stat().st_mtime)
        return evaluate_sts(partial(embed_once, embedder), pairs)

    def baseline(self, argument: str) -> dict[str, float]:
        """Return the correlation of tf-idf for each task."""
        return tfidf_sts(_dev_pairs(argument, Path(argument).stat().st_mtime))


@lru_cache(maxsize=1)
def _dev_pairs(path: str, changed: float) -> list[SentencePair]:
    """Return the pairs in the split dev, cached: reading the file would take longer than embedding the pairs on a GPU."""
    return [pair for pair in read_sts(Path(path)) if pair.split == "dev"]


def embed_once(embedder: SampleEmbedder, texts: Sequence[str]) -> Tensor:
    """Return the embeddings of texts on the CPU, (n, d): equal texts are encoded once, and similar lengths together."""
    distinct = sorted(dict.fromkeys(texts), key=lambda text: (len(text), text))
    rows, row_of = embedder.embed(distinct).cpu(), {text: row for row, text in enumerate(distinct)}
    return rows[[row_of[text] for text in texts]]
