"""Load text data as tokens for an encoder: a file of sentences or pairs, or the built-in set."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from contrapose.lab.counts import count_of
from contrapose.lab.modalities.modality import DataSettings
from contrapose.lab.modalities.source import Retrieval, Split
from contrapose.lab.modalities.text.built_in import BUILT_IN, BuiltInTexts
from contrapose.lab.modalities.text.files import TextFile, is_text_file, open_texts
from contrapose.lab.modalities.text.sentences import Sentences, row_noun
from contrapose.lab.modalities.text.tokens import Texts, tokenise
from contrapose.lab.modalities.text.vocabulary import train_vocabulary
from contrapose.randomness import permutation

_MOST_HELD_OUT = 2000  # pairs to evaluate on; more pairs would take time and hardly change the result
_VOCABULARY_TEXTS = 200_000  # texts from which a vocabulary is learned; more texts would hardly change the vocabulary
_IMAGE_SETTINGS = ("classes", "imbalance", "eval_data")


def is_text(name: str) -> bool:
    """Return whether a data set is text: the name of a built-in set, or a file whose name ends like a text file's."""
    return name in BUILT_IN or is_text_file(Path(name))


def check_text_settings(settings: DataSettings) -> None:
    """Refuse settings that are only for images."""
    for name in _IMAGE_SETTINGS:
        if getattr(settings, name):
            raise ValueError(f"{name}: this setting is only for images, and {settings.data} is text; omit it")


def open_data(settings: DataSettings) -> Texts:
    """Open a run's file of texts, or the built-in set."""
    if settings.data in BUILT_IN:
        return BuiltInTexts(settings.data)
    return open_texts(Path(settings.data), columns=settings.columns, skip_broken=settings.skip_broken)


def learn_tokenizer(texts: Texts, *, size: int) -> Any:
    """Return a tokenizer whose vocabulary, of at most `size` tokens, is learned from the texts."""
    return train_vocabulary(_AllColumns(texts), size=size)


class _AllColumns:
    """The texts in all columns, one after the other; they can be read repeatedly."""

    def __init__(self, texts: Texts) -> None:
        self.texts = texts

    def __iter__(self) -> Iterator[str]:
        return islice((text for row in self.texts.rows() for text in row), _VOCABULARY_TEXTS)


def load(settings: DataSettings, tokenizer: Any, *, length: int, neighbours: bool = False) -> Split:
    """Load a run's texts as tokens. Some pairs are held out to measure retrieval; single sentences are not.

    With `neighbours`, each row of the training data is a sentence and the next one.
    """
    check_text_settings(settings)
    texts = open_data(settings)
    notes: list[str] = []
    # The built-in set is small: tokenising its texts is faster than looking for cached tokens.
    cached = not isinstance(texts, BuiltInTexts)
    tokens = tokenise(texts, tokenizer, length=length, cached=cached, log=notes.append)
    rows = Sentences(
        Path(settings.data).name, tokens, tokenizer, stream=settings.stream, content=texts.fingerprint, origin=texts
    )
    split = _hold_out(rows, texts, settings.hold_out)
    if neighbours:  # before some rows are sampled, whose neighbours may be left out
        split = replace(split, train=rows.with_neighbours())
    if isinstance(texts, TextFile) and texts.skipped:
        note = f"left out (--skip-broken): {count_of(texts.skipped, 'row')} of {settings.data} that cannot be used"
        split = replace(split, notes=(note, *split.notes))
    split = replace(split, notes=(*notes, *column_notes(texts, settings), *split.notes))
    if 0 < settings.limit < len(split.train):
        split = replace(split, train=split.train.subset(sample_rows(len(split.train), settings.limit)))
    return split


def column_notes(texts: Texts, settings: DataSettings) -> Iterator[str]:
    """Yield what may surprise a user about the columns that are read, unless the user has chosen them."""
    if settings.columns or not isinstance(texts, TextFile):
        return
    if texts.unused:
        used, unused = ", ".join(texts.columns), ", ".join(texts.unused)
        yield f"columns of {settings.data}: {used}; not read: {unused} (--columns chooses others)"
    if texts.table.format == ".csv" and len(texts.table.names) == 1:
        yield (
            f"{settings.data} has no comma in its first line, so each line is one text; if semicolons or tabs separate columns, "
            "write it again with commas, or rename it to .tsv"
        )
    if texts.table.format == ".tsv" and len(texts.table.names) == 1:
        yield (
            f"{settings.data} has no tab in its first line, so each line is one text; if commas separate columns, rename it to "
            ".csv"
        )


def held_out_rows(texts: Texts, count: int, share: float) -> Tensor:
    """Return which of a file's `count` usable rows are held out to measure retrieval; none of single sentences."""
    if len(texts.columns) == 1 or not share:
        return torch.arange(0)
    if isinstance(texts, BuiltInTexts):  # the last rows, whose sentences do not occur in training rows
        return torch.arange(count - texts.held_out, count)
    return sample_rows(count, max(2, min(_MOST_HELD_OUT, round(share * count))))


def _hold_out(rows: Sentences, texts: Texts, share: float) -> Split:
    held_out = held_out_rows(texts, len(rows), share)
    if not len(held_out):
        return Split(rows, None, None)
    trained = torch.ones(len(rows), dtype=torch.bool)
    trained[held_out] = False
    note = f"{len(held_out):,} of {len(rows):,} pairs are held out, to measure retrieval (--hold-out)"
    test = rows.subset(held_out)
    train = rows.subset(trained.nonzero()[:, 0])
    return Split(train, None, test, retrieval=_retrieval(test), notes=(note, *_leak_notes(train, test)))


def _leak_notes(train: Sentences, test: Sentences) -> Iterator[str]:
    """Yield a note if the first two texts of held-out rows, which are scored, are in training rows too."""
    leaks = int(torch.isin(test.hashes(0, 2), train.hashes(0, 2)).sum())
    if leaks:
        yield (
            f"the first two texts of {leaks:,} of the {len(test):,} held-out {row_noun(test.columns)} are in training rows too, "
            "so that scores will be too high"
        )


def all_pairs(split: Split) -> Split:
    """Use all pairs to measure retrieval if none are held out; return other data unchanged."""
    rows = split.train
    if not isinstance(rows, Sentences) or rows.columns == 1 or split.retrieval is not None:
        return split
    return replace(split, retrieval=_retrieval(rows))


def _retrieval(pairs: Sentences) -> Retrieval:
    """Return the first column as queries and the second as their documents."""
    queries, documents = pairs.column(0), pairs.column(1)
    query_ids, ids = (column.tokens[:, 0].unique(dim=0, return_inverse=True)[1] for column in (queries, documents))
    repeated = int(query_ids.max()) + 1 < len(query_ids)
    return Retrieval(queries, documents, ids, query_ids if repeated else None)


def sample_rows(size: int, count: int) -> Tensor:
    """Return `count` of the numbers below `size`, sorted; every call returns the same numbers."""
    return permutation(size, 0)[:count].sort().values
