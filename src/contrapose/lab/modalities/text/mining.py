"""Hard negatives of pairs of texts: the documents are the second texts of all pairs, and those of a corpus."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from torch import Tensor

from contrapose.lab.counts import count_of
from contrapose.lab.modalities.mining import MiningTask, number_texts
from contrapose.lab.modalities.modality import DataSettings
from contrapose.lab.modalities.text.files import open_texts
from contrapose.lab.modalities.text.load import column_notes, open_data

Embed = Callable[[Sequence[str]], Tensor]


def read_corpus(path: str, *, skip_broken: bool) -> tuple[list[str], tuple[str, ...]]:
    """Return the first texts of all rows in a file, and notes; nothing for an empty path."""
    if not path:
        return [], ()
    try:
        texts = open_texts(Path(path), skip_broken=skip_broken)
        found = [row[0] for row in texts.rows()]
    except ValueError as error:
        raise ValueError(f"corpus: {str(error).removeprefix('data: ')}") from error
    several = len(texts.columns) > 1
    return found, (f"corpus: only column {texts.columns[0]!r} of {path} is used",) if several else ()


def mine_pairs(settings: DataSettings, corpus: str, load_encoder: Callable[[], Embed]) -> MiningTask:
    """Return the task of a file of pairs, and of a corpus in another file.

    A query that occurs several times has several documents, and equal documents are one. The encoder is loaded after the files
    are read, so that an unusable file is reported at once.
    """
    texts = open_data(settings)
    if len(texts.columns) < 2:
        raise ValueError(
            f"data: expected pairs, a file with two columns of texts, got {settings.data} with one: {texts.columns[0]}; each "
            "query needs a text of its own (docs/mining.md)"
        )
    notes = list(column_notes(texts, settings))
    if len(texts.columns) > 2:
        notes.append(f"pairs of {settings.data}: {texts.columns[0]}, {texts.columns[1]}; other columns are not used")
    pairs = [(row[0], row[1]) for row in texts.rows()]
    further, corpus_notes = read_corpus(corpus, skip_broken=settings.skip_broken)
    return pair_task(pairs, further, load_encoder(), notes=(*notes, *corpus_notes))


def pair_task(
    pairs: Sequence[tuple[str, str]], corpus: Sequence[str], embed: Embed, *, notes: Sequence[str] = ()
) -> MiningTask:
    """Return the task of pairs of a query and its document."""
    queries = number_texts(query for query, _ in pairs)
    documents = number_texts([*(document for _, document in pairs), *corpus])
    own: list[dict[int, None]] = [{} for _ in queries]  # as sets, in the order of the file
    for query, document in pairs:
        own[queries[query]][documents[document]] = None
    # A document with the query's own text is as similar as can be, and no negative.
    excluded = [[documents[query]] if query in documents else [] for query in queries]
    repeated = len(pairs) - sum(map(len, own))
    if repeated:
        notes = [*notes, f"{count_of(repeated, 'pair')} of {len(pairs):,} repeat an earlier one and are left out"]
    texts = list(documents)
    return MiningTask(
        queries=list(queries),
        documents=texts,
        query_embeddings=embed(list(queries)),
        document_embeddings=embed(texts),
        positives=[list(rows) for rows in own],
        excluded=excluded if any(excluded) else None,
        for_training=True,
        notes=tuple(notes),
    )
