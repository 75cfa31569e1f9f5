"""STS and transfer tasks in `contrapose evaluate`, for runs on text and for encoders in local Hugging Face folders."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar

import torch
from torch import Tensor

from contrapose.lab.modalities.modality import CommonOptions
from contrapose.lab.modalities.text.evaluation import (
    SentencePair,
    TransferText,
    embed_once,
    evaluate_sts,
    evaluate_transfer,
    read_sts,
    read_transfer,
    tfidf_sts,
)
from contrapose.lab.modalities.text.pretrained import load_sentence_encoder
from contrapose.lab.training import Model
from contrapose.validate import check_count

_STS = (
    "STS: 100 × Spearman's correlation of cosine similarity, all subsets of a task ranked together (SentEval's \"all\")"
)
_TFIDF = "tf-idf: the same correlation without any training, with word weights from the scored sentences"
_GEOMETRY = "alignment: pairs with a score above 4; uniformity: all sentences, t = 2 (SimCSE)"
_TRANSFER = "Transfer: accuracy in % of logistic regression on frozen embeddings (SentEval's protocol, 10 folds)"


@dataclass(frozen=True)
class SentenceOptions:
    """Options for sentence encoders: a run on text, or hf: and a local Hugging Face folder, whose weights must be safetensors; no
    code in the folder is executed."""

    purpose: ClassVar[str] = "sentence encoders"
    takes: ClassVar[str] = "a sentence encoder takes --sts or --transfer"
    shared: ClassVar[tuple[str, ...]] = ()
    for_folders: ClassVar[tuple[str, ...]] = ("pooling", "length", "batch")
    replaces: ClassVar[bool] = False
    sts: Path | None = None
    """File of scored sentence pairs: .tsv, .tsv.gz or .tsv.xz, with the columns dataset, subset, split, score, sentence1 and
    sentence2. Splits test and dev are scored."""
    transfer: Path | None = None
    """File of classification tasks: .tsv, .tsv.gz or .tsv.xz, with the columns task, split, label, text and text2."""
    pooling: str = ""
    """For hf:FOLDER and minilm: how the tokens' hidden states become one vector, cls or mean; empty: the pooling that a
    sentence-transformers folder specifies."""
    length: int = 0
    """For hf:FOLDER and minilm: number of tokens after which a text is truncated; 0: as the folder specifies, or 128."""
    batch: int = 64
    """For hf:FOLDER and minilm: number of texts to encode at a time."""
    seed: int = 0
    """For --transfer: random seed of the folds and of the order of texts."""

    def evaluate_folder(self, folder: Path, common: CommonOptions) -> dict[str, Any]:
        """Return an encoder's scores, and print them as tables on stderr."""
        if not self.name_tasks:
            raise ValueError("sts: there is nothing to evaluate; give a file with --sts or --transfer")
        check_count("batch", self.batch, least=1)
        # Files are read first, because loading the encoder takes longer: a wrong file is then reported quickly.
        tasks = self.read()
        encoder = load_sentence_encoder(folder, pooling=self.pooling, length=self.length)
        settings = {"encoder": str(folder), "pooling": encoder.pooling, "length": encoder.length}
        return settings | tasks.score(partial(encoder, batch_size=self.batch), encoder.device)

    def score(self, model: Model, run: Path, common: CommonOptions) -> dict[str, float] | None:
        """Return a run's scores, and print them as tables on stderr; None if no file of tasks is given."""
        if not self.name_tasks:
            return None
        return self.read().score(partial(embed_once, model.tower), model.device)

    @property
    def name_tasks(self) -> bool:
        """Whether there is a file of tasks to evaluate."""
        return self.sts is not None or self.transfer is not None

    @property
    def has_columns(self) -> bool:
        """Whether the options name data whose columns the user can choose; the columns of these files are fixed."""
        return False

    def read(self) -> SentenceTasks:
        """Read the files of tasks."""
        pairs = read_sts(self.sts) if self.sts else []
        return SentenceTasks(pairs, read_transfer(self.transfer) if self.transfer else [], self.seed)


@dataclass(frozen=True)
class SentenceTasks:
    """Scored pairs and classification tasks, as read from their files."""

    pairs: list[SentencePair]
    texts: list[TransferText]
    seed: int

    def score(self, encode: Callable[[Sequence[str]], Tensor], device: torch.device) -> dict[str, float]:
        """Return a text encoder's scores, and print them as tables on stderr; classifiers run on `device`."""
        scores: dict[str, float] = {}
        if self.pairs:
            baseline = tfidf_sts(self.pairs)
            scores |= _show(evaluate_sts(encode, self.pairs), _STS, _TFIDF, _GEOMETRY, baseline=baseline) | baseline
        if self.texts:
            empty = sum(not text.text.strip() for text in self.texts)
            if empty:
                print(f'transfer: {empty} empty text{" is" if empty == 1 else "s are"} encoded as "."', file=sys.stderr)
            scores |= _show(evaluate_transfer(encode, self.texts, device=device, seed=self.seed), _TRANSFER)
        return scores


def _show(
    scores: dict[str, float], title: str, *notes: str, baseline: Mapping[str, float] = MappingProxyType({})
) -> dict[str, float]:
    """Print a table of scores to stderr, since stdout may be read by other programs; return the scores.

    baseline   scores of tf-idf, shown beside those whose names follow the prefix `tfidf_`
    """
    from rich.console import Console
    from rich.table import Table

    table = Table("", "score", *(["tf-idf"] if baseline else []), box=None)
    for column in table.columns[1:]:
        column.justify = "right"
    for name, score in scores.items():
        known = baseline.get(f"tfidf_{name}")
        table.add_row(name, _format(score), *([] if known is None else [_format(known)]))
    # Notes are printed separately: as the table's title, they would be wrapped to its width.
    Console(file=sys.stderr, highlight=False).print(title, table, *notes, "", sep="\n")
    return scores


def _format(score: float) -> str:
    return f"{score:.2f}" if abs(score) >= 10 else f"{score:.3f}"
