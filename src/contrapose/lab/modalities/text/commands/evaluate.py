"""STS and transfer tasks in `contrapose evaluate`, for runs on text and for encoders in local Hugging Face folders."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar

import torch
from torch import Tensor

from contrapose.lab.evaluation.feature_scores import no_gain_sentence
from contrapose.lab.modalities.modality import CommonOptions
from contrapose.lab.modalities.text.evaluation import (
    SentencePair,
    TransferText,
    correlations,
    cosine_of,
    embed_once,
    embed_pairs,
    evaluate_transfer,
    jackknife_margin,
    read_sts,
    read_transfer,
    rows_of_score,
    score_embeddings,
    sentences_of,
    tfidf_cosine,
    unit_pairs,
)
from contrapose.lab.modalities.text.pretrained import load_sentence_encoder
from contrapose.lab.training import Model
from contrapose.lab.training.initial_model import initial_name, start_without_data
from contrapose.lab.training.prefixes import name_by_prefix
from contrapose.lab.training.score_baselines import Baselines, flatten
from contrapose.validate import check_count

Encode = Callable[[Sequence[str]], Tensor]  # returns the embeddings (n, d) of n texts
Cut = Callable[[Tensor], Tensor]  # returns a prefix (n, w) of embeddings (n, d)
_STS = (
    "STS: 100 × Spearman's correlation of cosine similarity, all subsets of a task ranked together (SentEval's \"all\")"
)
_TFIDF = "tf-idf: the same correlation without any training, with word weights from the scored sentences"
_PREFIXES = (
    "first 64: the same correlation, of the first 64 dimensions of the embedding that the run was trained on (--dims)"
)
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
        start = _start(model) if common.baselines and self.sts else {}
        encode = partial(embed_once, model.tower)
        prefixes = {dims: partial(model.tower.prefix, dims=dims) for dims in model.run.dims}
        return self.read().score(encode, model.device, start=start, baselines=common.baselines, prefixes=prefixes)

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

    def score(
        self,
        encode: Encode,
        device: torch.device,
        *,
        start: Mapping[str, Encode] | None = None,
        baselines: bool = True,
        prefixes: Mapping[int, Cut] = MappingProxyType({}),
    ) -> dict[str, float]:
        """Return a text encoder's scores, and print them as tables on stderr.

        device      device on which classifiers run
        start       a run's encoder before training, by its name in tables; empty if its weights are lost; None for encoders
                    that were not trained here, for which no verdict on a gain is printed
        baselines   whether to score tf-idf
        prefixes    functions that cut embeddings to each prefix that a run has trained, by its width
        """
        scores: dict[str, float] = {}
        if self.pairs:
            scores |= self._score_pairs(encode, start, tfidf=baselines, prefixes=prefixes)
        if self.texts:
            empty = sum(not text.text.strip() for text in self.texts)
            if empty:
                print(f'transfer: {empty} empty text{" is" if empty == 1 else "s are"} encoded as "."', file=sys.stderr)
            scores |= _show(evaluate_transfer(encode, self.texts, device=device, seed=self.seed), _TRANSFER)
        return scores

    def _score_pairs(
        self,
        encode: Encode,
        start: Mapping[str, Encode] | None,
        *,
        tfidf: bool,
        prefixes: Mapping[int, Cut],
    ) -> dict[str, float]:
        """Return the scores on the pairs beside their baselines; print to stderr if training has gained nothing."""
        pairs = [pair for pair in self.pairs if pair.task]
        features = encode(sentences_of(pairs))
        embeddings = unit_pairs(features)
        own, cosine = score_embeddings(pairs, *embeddings), cosine_of(*embeddings)
        others: dict[str, Tensor] = {}
        if tfidf:
            with suppress(ValueError):  # texts without words: the encoder's own scores still count
                others["tf-idf"] = tfidf_cosine(pairs)
        for name, encode_before in (start or {}).items():
            others[name] = cosine_of(*embed_pairs(encode_before, pairs))
        baselines: Baselines = {}
        for name, other in others.items():
            with suppress(ValueError):  # all pairs are equally similar
                baselines[name] = correlations(pairs, other)
        of_prefixes = {
            dims: correlations(pairs, cosine_of(*unit_pairs(cut(features)))) for dims, cut in prefixes.items()
        }
        notes = [_TFIDF] if "tf-idf" in baselines else []
        notes += [_PREFIXES] if of_prefixes else []
        columns = {**{f"first {dims}": scores for dims, scores in of_prefixes.items()}, **baselines}
        _show(own, _STS, *notes, _GEOMETRY, columns=columns)
        for name in baselines if start is not None else ():
            for line in _no_gain(pairs, cosine, others[name], name):
                print(line, file=sys.stderr)
        for dims, scores in of_prefixes.items():
            own |= name_by_prefix(dims, scores)
        return own | flatten(baselines)


def _start(model: Model) -> dict[str, Encode]:
    """Return a run's encoder before training, by its name in tables; empty if its weights no longer exist."""
    name = initial_name(model)
    try:
        return {name: partial(embed_once, start_without_data(model).tower)}
    except (ValueError, FileNotFoundError) as error:
        print(f"baselines: {name} is not measured: {error}", file=sys.stderr)
        return {}


def _no_gain(pairs: Sequence[SentencePair], cosine: Tensor, baseline: Tensor, name: str) -> Iterator[str]:
    """Yield a sentence if the mean over tasks, or else the first task, does not exceed a baseline beyond its uncertainty."""
    scores, others = correlations(pairs, cosine), correlations(pairs, baseline)
    score = "sts_mean" if "sts_mean" in scores else next(iter(scores))
    try:
        margin = jackknife_margin(pairs, cosine, baseline, score)
    except ValueError:  # too few pairs for a correlation without some of them
        return
    difference = scores[score] - others[score]
    if difference <= margin:
        values = f"{score} is {scores[score]:.1f}, against {others[score]:.1f}"
        count = len(rows_of_score(pairs, score))
        yield no_gain_sentence(name, values, difference=difference, margin=margin, count=count, noun="pair")


def _show(
    scores: dict[str, float],
    title: str,
    *notes: str,
    columns: Mapping[str, Mapping[str, float]] = MappingProxyType({}),
) -> dict[str, float]:
    """Print a table of scores, each beside other ones, to stderr, since stdout may be read by other programs; return them.

    columns   the other scores, of prefixes and baselines, by the name of the column and the name of the score
    """
    from rich.console import Console
    from rich.table import Table

    table = Table("", "score", *columns, box=None)
    for right in table.columns[1:]:
        right.justify = "right"
    for name, score in scores.items():
        others = (own.get(name) for own in columns.values())
        table.add_row(name, _format(score), *("" if other is None else _format(other) for other in others))
    # Notes are printed separately: as the table's title, they would be wrapped to its width.
    Console(file=sys.stderr, highlight=False).print(title, table, *notes, "", sep="\n")
    return scores


def _format(score: float) -> str:
    return f"{score:.2f}" if abs(score) >= 10 else f"{score:.3f}"
