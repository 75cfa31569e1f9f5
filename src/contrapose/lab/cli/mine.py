"""`contrapose mine`: the documents most similar to each query that are not its own, as negatives for training."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, ClassVar

import torch
from tyro.conf import Positional, arg

from contrapose.lab.cli.evaluate import refuse_for_elsewhere
from contrapose.lab.cli.run_data import warn_if_unfinished
from contrapose.lab.counts import count_of
from contrapose.lab.devices import DeviceOption, own_device
from contrapose.lab.modalities import DataSettings, trained_elsewhere
from contrapose.lab.modalities.mined_rows import check_rows_file, reading_options, triplets, tuples, write_rows
from contrapose.lab.modalities.mining import MiningTask
from contrapose.lab.modalities.progress import allow_progress_bars, progress_bar
from contrapose.lab.modalities.tars import printable
from contrapose.lab.training.build import other_settings
from contrapose.lab.training.feature_cache import FeatureCache
from contrapose.lab.training.model import load_any
from contrapose.mining import MinedNegatives, mine
from contrapose.pairs import unit
from contrapose.validate import check_count

_WIDTH = 100  # characters of a text that are shown
_STEPS = 100  # steps of the progress bar
_MOST_LEFT_OUT = 0.1  # share of queries without negatives above which a smaller margin is suggested


@dataclass(frozen=True)
class Mine(DeviceOption):
    """Find hard negatives: for each query the most similar documents that are not its own, without likely false negatives.

    From a file of pairs, this writes rows of query, document and negatives, which `train` reads. Each first text is a query, and
    the second texts of all pairs are the documents, with those of --corpus. From images with captions, images are the queries and
    captions the documents; from labelled images, the negatives of an image are the most similar images of other classes.
    For example: contrapose mine minilm pairs.tsv -o mined.tsv
    """

    option_names: ClassVar[Mapping[str, str]] = {"k": "negatives"}  # the argument of `contrapose.mine`
    run: Positional[Path]
    """Directory of the run; or hf:FOLDER for a sentence encoder, as in hf:models/bert, or minilm; or clip:FOLDER for an
    image-text model."""
    data: Positional[str]
    """File of pairs (.tsv, .csv, .jsonl, .parquet), images with captions, or labelled images."""
    out: Annotated[Path, arg(aliases=["-o"])]
    """File to write: .tsv, .jsonl or .parquet. In a .tsv file, tabs and line breaks in texts become spaces."""
    negatives: Annotated[int, arg(aliases=["-k"])] = 3
    """Number of negatives of each query. Queries with fewer are left out, unless --triplets is given."""
    triplets: bool = False
    """Write one row for each negative in place of one row with all negatives of a query."""
    margin: float | None = 0.05
    """How much less similar than the query's own document a negative must be. Documents above this limit are left out, since they
    are probably false negatives; None: no limit."""
    relative: bool = True
    """Whether the margin is a fraction of the own document's similarity (0.05: negatives have at most 95 % of it, as in
    NV-Retriever), or a difference of similarities."""
    rank_from: int = 1
    """First rank to take: 11 leaves out the ten most similar documents of each query, apart from its own."""
    rank_to: int = 0
    """Last rank to take; 0: all."""
    min_similarity: float | None = None
    """Least similarity of a negative to the query."""
    max_similarity: float | None = None
    """Largest similarity of a negative to the query."""
    corpus: str = ""
    """Further documents, for pairs and captions: a file of texts, of which the first column is used."""
    columns: tuple[str, ...] = ()
    """The columns of queries and documents in a file of pairs, by name, or by number from 1 on; or of images and captions."""
    examples: int = 3
    """Number of queries to print with their negatives, evenly spaced in the data."""
    epoch: int = 0
    """Use the weights kept after this epoch (see `train --keep`); 0: the newest."""
    dims: int = 0
    """Compare one of the prefixes of `train --dims`; 0: the encoder's whole features."""
    skip_broken: bool = False
    """Leave out rows and files that cannot be read; the default if the run was trained with --skip-broken."""
    data_root: Path = Path("data")
    """Directory of downloaded data sets."""

    @allow_progress_bars()
    def __call__(self) -> None:
        """Mine the negatives, write them, and print a report."""
        check_rows_file(self.out)
        check_count("negatives", self.negatives, least=1)
        check_count("examples", self.examples, least=0)
        check_count("rank_to", self.rank_to, least=0)
        check_count("dims", self.dims, least=0)
        task, encoder = self._read()
        for note in task.notes:
            _print_note(note)
        mined = self._mine(task)
        found = [row[:count] for row, count in zip(mined.indices.tolist(), mined.counts.tolist(), strict=True)]
        for line in self._describe(task, mined):
            print(line)
        self._print_examples(task, mined, found)
        names = self._write(task, found)
        if task.for_training:
            words = ["contrapose", "train", "--data", str(self.out), *reading_options(self.out, names)]
            words += ["--encoder", encoder]
            print(f"train with them: {shlex.join(words)}")
        else:
            print("train with them in your own loop: docs/mining.md shows how")

    def _read(self) -> tuple[MiningTask, str]:
        """Return the embedded data, and the name of the encoder for `train`."""
        elsewhere = trained_elsewhere(str(self.run))
        if elsewhere is not None:
            refuse_for_elsewhere(epoch=self.epoch, dims=self.dims)
            kind, folder = elsewhere
            settings = DataSettings(data=self.data, columns=self.columns, skip_broken=self.skip_broken)
            return kind.mining_task_elsewhere(folder, settings, corpus=self.corpus), str(self.run)
        model = load_any(self.run, epoch=self.epoch or None, dims=self.dims)
        if not self.epoch:
            warn_if_unfinished(model, self.run)
        for tower in model.towers.values():
            tower.kept_features = FeatureCache(tower, self.run / "features", _print_note)
        run = replace(model.run, skip_broken=model.run.skip_broken or self.skip_broken)
        run = other_settings(run, self.data, hold_out=0, stream=True, columns=self.columns)
        task = run.kind.mining_task(run, self.data_root, model.views, towers=model.towers, corpus=self.corpus)
        return task, run.encoder

    def _mine(self, task: MiningTask) -> MinedNegatives:
        device = own_device()
        with _percentages("mine, per cent") as advance:
            return mine(
                task.query_embeddings.to(device),
                task.document_embeddings.to(device),
                self.negatives,
                margin=self.margin,
                relative=self.relative and self.margin is not None,
                positives=task.positives,
                excluded=task.excluded,
                labels=task.labels,
                # Different texts may have equal embeddings, and equal texts are one document already.
                ids=torch.arange(len(task.documents)),
                rank_from=self.rank_from,
                rank_to=self.rank_to or None,
                min_similarity=self.min_similarity,
                max_similarity=self.max_similarity,
                on_block=advance,
            )

    def _describe(self, task: MiningTask, mined: MinedNegatives) -> Iterator[str]:
        """Yield lines on what was searched, found and left out; raise ValueError if nothing can be written."""
        queries, documents = task.nouns
        full = int((mined.counts == self.negatives).sum())
        none, fewer = int((mined.counts == 0).sum()), len(task.queries) - full
        if not (len(task.queries) - none if self.triplets else full):
            raise ValueError(
                f"negatives: no query has {count_of(1 if self.triplets else self.negatives, 'negative')} among the "
                f"{len(task.documents):,} {documents}; use a smaller --margin, fewer --negatives or more {documents}"
            )
        own = sum(map(len, task.positives))
        sizes = f"{len(task.queries):,} {queries}, {len(task.documents):,} {documents}"
        yield f"searched    {sizes}, of which {own:,} pairs belong together"
        yield (
            f"mined       {int(mined.counts.sum()):,} negatives: {full:,} {queries} have {self.negatives}, {fewer - none:,} have "
            f"fewer, {none:,} none"
        )
        reasons = list(self._reasons(mined))
        if reasons:
            yield f"left out    {documents} of a query, on average: {'; '.join(reasons)}"
        negative = float(mined.similarities[mined.similarities > -torch.inf].mean())
        yield f"similarity  {float(mined.positive.mean()):.3f} to the own {documents}, {negative:.3f} to negatives"
        if fewer > _MOST_LEFT_OUT * len(task.queries):
            advice = "a smaller --margin or fewer --negatives keep more"
            advice += "" if self.triplets else ", as do --triplets, which need one negative"
            share = fewer / len(task.queries)
            yield f"note        {share:.0%} of the {queries} have fewer than {self.negatives} negatives; {advice}"

    def _reasons(self, mined: MinedNegatives) -> Iterator[str]:
        """Yield how many documents of a query are left out on average, for each reason but that they are its own."""
        margin = "no margin" if self.margin is None else f"{self.margin:g}"
        texts = {
            "excluded": "that are the query itself",
            "label": "of the same class",
            "margin": f"too similar (--margin {margin}{' of the own similarity' if self.relative else ''})",
            "max_similarity": f"above --max-similarity {self.max_similarity}",
            "rank": f"before --rank-from {self.rank_from}",
        }
        for reason, text in texts.items():
            average = mined.dropped[reason] / len(mined.counts)
            if average:
                yield f"{average:{',.1f' if average >= 1 else '.2g'}} {text}"

    def _print_examples(self, task: MiningTask, mined: MinedNegatives, found: Sequence[Sequence[int]]) -> None:
        """Print some queries with their negatives."""
        usable = [number for number, rows in enumerate(found) if rows]
        count = min(self.examples, len(usable))
        for number in (usable[len(usable) * i // count] for i in range(count)):
            own = list(task.positives[number])
            # Of several, the one from which the margin counts
            cosine = unit(task.document_embeddings[own].float()) @ unit(task.query_embeddings[number].float())
            print(f"\n{_shown(task.queries[number])}")
            print(f"  own {float(cosine.max()):7.3f}  {_shown(task.documents[own[int(cosine.argmax())]])}")
            for rank, row in enumerate(found[number]):
                print(f"  {rank + 1:3} {float(mined.similarities[number, rank]):7.3f}  {_shown(task.documents[row])}")
        if count:
            print()

    def _write(self, task: MiningTask, found: Sequence[Sequence[int]]) -> list[str]:
        """Write the rows, print how many there are, and return the names of their columns."""
        if self.triplets:
            names = ["anchor", "positive", "negative"]
            rows = triplets(task.queries, task.documents, task.positives, found)
            count = sum(len(own) * len(negatives) for own, negatives in zip(task.positives, found, strict=True))
            if task.for_training and max(map(len, found)) > 1:
                _print_note(
                    "warning: rows of several negatives repeat their first two texts, of which `train` holds out some and trains "
                    "on others, so that its scores will be too high; omit --triplets, or train with --hold-out 0"
                )
        else:
            names = ["anchor", "positive", *(f"negative_{number}" for number in range(1, self.negatives + 1))]
            rows = tuples(task.queries, task.documents, task.positives, found, count=self.negatives)
            full = (len(negatives) == self.negatives for negatives in found)
            count = sum(len(own) for own, is_full in zip(task.positives, full, strict=True) if is_full)
        changed = write_rows(self.out, names, rows)
        if changed:
            _print_note(
                f"{count_of(changed, 'text')} had tabs or line breaks, which are now spaces; a .jsonl file keeps them"
            )
        print(f"{self.out}: {count:,} rows of {', '.join(names)}")
        return names


@contextmanager
def _percentages(description: str) -> Iterator[Callable[[int, int], None]]:
    """Yield a function to call with the numbers of finished and of all items, which advances a progress bar."""
    shown = 0
    with progress_bar(description, _STEPS) as advance:

        def show(done: int, total: int) -> None:
            nonlocal shown
            while shown < _STEPS * done // total:
                shown += 1
                advance()

        yield show


def _shown(text: str) -> str:
    """Return the beginning of a text on one line."""
    line = printable(" ".join(text.split()))
    return line if len(line) <= _WIDTH else f"{line[: _WIDTH - 1]}…"


def _print_note(text: str) -> None:
    print(text, file=sys.stderr)
