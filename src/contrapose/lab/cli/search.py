"""`contrapose search`: the images or texts that are nearest to an image or a text."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import torch
from torch import Tensor
from tyro.conf import Positional, arg

from contrapose.lab.cached_files import CachedFile, entry
from contrapose.lab.cli.run_data import warn_if_unfinished
from contrapose.lab.devices import DeviceOption
from contrapose.lab.modalities import Source
from contrapose.lab.modalities.file_stamps import stamp_files
from contrapose.lab.modalities.previews import Collection
from contrapose.lab.modalities.progress import allow_progress_bars
from contrapose.lab.modalities.tars import printable
from contrapose.lab.report.search import Match, SearchResult, search_page
from contrapose.lab.training import Embedder, Model
from contrapose.lab.training.feature_cache import feature_key
from contrapose.lab.training.model import load_any
from contrapose.lab.training.records.files import last_evaluation
from contrapose.lab.training.sources import find_data
from contrapose.pairs import unit
from contrapose.validate import check_count, check_directory


@dataclass(frozen=True)
class Search(DeviceOption):
    """Find the images that are nearest to an image or, with a run on captions, to a text; with a run on text, nearest texts.

    For example: contrapose search runs/NAME photo.jpg. The first search computes the embeddings of all samples and keeps them
    in the directory of the run, in search/.
    """

    run: Positional[Path]
    """Directory of the run."""
    queries: Positional[tuple[str, ...]]
    """Image files, or texts in quotation marks."""
    data: Path | None = None
    """What to search: a folder of images, including its subfolders, a data set's name, images with captions, or a file of texts;
    default: the run's own data, with training and test samples."""
    top: Annotated[int, arg(aliases=["-k"])] = 12
    """Number of results per query."""
    out: Annotated[Path, arg(aliases=["-o"])] = Path("search.html")
    """Page to write."""
    dims: int = 0
    """Compare one of the prefixes of `train --dims`; 0: the encoder's whole features."""
    skip_broken: bool = False
    """Leave out files that cannot be read; the default if the run was trained with --skip-broken."""
    data_root: Path = Path("data")
    """Directory of downloaded data sets."""

    @allow_progress_bars()
    def __call__(self) -> None:
        """Write the page and print the results."""
        self._check_options()
        model = load_any(self.run, dims=self.dims)
        warn_if_unfinished(model, self.run)
        self.search(model)

    def search(self, model: Model) -> None:
        """Search with a model's towers, write the page and print the results."""
        queries = [_read_query(model, query, self.run) for query in self.queries]
        collection = self._list(model)
        for note in (*collection.notes, *_truncated(queries)):
            print(note, file=sys.stderr)
        tower = next(iter(model.towers.values()))
        index, embeddings = _embed(
            tower, collection.source, self.run / "search", step=model.step, skip_broken=self._skips(model)
        )
        asked = torch.cat([query.tower.embed([query.sample]) for query in queries]).float().cpu()
        results = [
            self._nearest(query, cosine, index, tower, collection)
            for query, cosine in zip(queries, unit(asked) @ unit(embeddings).T, strict=True)
        ]
        for result in results:
            print(printable(result.query))
            for rank, match in enumerate(result.matches, 1):
                print(f"{rank:4}  {match}")
        samples = f"{len(index):,} {model.kind.searchable}"
        recorded = last_evaluation(self.run, model.step)
        text = search_page(
            results,
            run=str(self.run),
            step=model.step,
            data=collection.source.name,
            samples=samples,
            scores={name: value for name, value in recorded.items() if "recall" in name or name == "knn_top1"},
        )
        self.out.parent.mkdir(parents=True, exist_ok=True)
        # File names and arguments may contain bytes that are not UTF-8.
        self.out.write_text(text, encoding="utf-8", errors="backslashreplace")
        print(f"page {self.out}")

    def _nearest(
        self, query: _Query, cosine: Tensor, index: Sequence[int], tower: Embedder, collection: Collection
    ) -> SearchResult:
        """Return the samples that are nearest to a query, without the query itself if it is one of them.

        cosine   (N,) similarity of the query to each sample
        index    the samples' indices in the collection
        """
        # Texts are not searched for in a collection of images.
        itself = set(tower.kind.find_sample(query.sample, collection.source) if query.tower is tower else ())
        others = torch.tensor([row for row, number in enumerate(index) if number not in itself], dtype=torch.long)
        if len(others) < len(index):
            print(f"left out of the results: {printable(query.text)}, the query itself", file=sys.stderr)
        scores, nearest = cosine[others].topk(min(self.top, len(others)))
        numbers = [index[row] for row in others[nearest].tolist()]
        return SearchResult(query.text, _matches(tower, collection, scores.tolist(), numbers), query.image)

    def _list(self, model: Model) -> Collection:
        """List the samples in `data`, or else all samples of the data that the run was trained on."""
        settings = replace(model.run, skip_broken=self._skips(model))
        if self.data is None:
            settings = replace(settings, data=next(iter(find_data(model.run, self.run)), model.run.data))
        else:
            settings = replace(settings, data=str(self.data), columns=(), limit=0)
        return model.kind.collection(settings, self.data_root, model.views, encoder=model.run.encoder)

    def _skips(self, model: Model) -> bool:
        return self.skip_broken or model.run.skip_broken

    def _check_options(self) -> None:
        """Refuse bad options before the model is loaded."""
        if not self.queries:
            raise ValueError(
                f"queries: expected at least one image or text, as in contrapose search {self.run} photo.jpg"
            )
        for query in self.queries:
            if not query.strip():
                raise ValueError("queries: expected image files or texts, got an empty text; write what to look for")
        check_count("top", self.top, least=1)
        check_count("dims", self.dims, least=0)
        if self.out.suffix != ".html":
            raise ValueError(f"out: expected a name that ends in .html, got {self.out}")
        check_directory("out", self.out.parent)


@dataclass(frozen=True)
class _Query:
    """A query on the command line, the sample that it stands for, and the tower that embeds it."""

    text: str
    sample: Any
    tower: Embedder

    @property
    def image(self) -> bytes:
        """The query as a small image file; empty for a text."""
        return self.tower.kind.preview(self.sample).image


def _read_query(model: Model, query: str, folder: Path) -> _Query:
    """Return the query for the first tower that can embed it."""
    for tower in model.towers.values():
        sample = tower.kind.query(query)
        if sample is not None:
            return _Query(query, sample, tower)
    expected = " or ".join(tower.kind.expected_query for tower in model.towers.values())
    raise ValueError(
        f"queries: expected {expected}, got {query!r}, and {folder} was trained on {model.kind.noun} alone; a run on images with "
        "captions finds images by text (docs/captions.md)"
    )


def _truncated(queries: Sequence[_Query]) -> list[str]:
    """Return a note on each query that is too long for its encoder."""
    return [
        f"queries: only the beginning of {printable(query.text[:40])!r}… is used: it has more tokens than the text encoder takes"
        for query in queries
        if query.tower.kind.is_truncated(query.sample, query.tower.views)
    ]


def _matches(
    tower: Embedder, collection: Collection, scores: Sequence[float], index: Sequence[int]
) -> tuple[Match, ...]:
    """Return the samples at these indices as matches for a query."""
    source = collection.source
    previews = tower.kind.previews(source.subset(index), tower.views)
    return tuple(
        Match(
            score,
            name="" if preview.texts else _name(source, number),
            image=preview.image,
            label=source.classes[source.labels[number]] if source.labels is not None and source.classes else "",
            texts=preview.texts or (collection.texts[number] if collection.texts else ()),
        )
        for score, number, preview in zip(scores, index, previews, strict=True)
    )


def _name(source: Source, number: int) -> str:
    """Return the path of a sample, or else its number in the data set."""
    return printable(str(source.paths[number])) if source.paths else f"{source.name}[{number}]"


def _embed(tower: Embedder, source: Source, folder: Path, *, step: int, skip_broken: bool) -> tuple[list[int], Tensor]:
    """Return the indices of the readable samples and their embeddings (N, d), which are kept in `folder`."""
    own = str(skip_broken), "" if source.paths else source.fingerprint, *([str(tower.dims)] if tower.dims else [])
    path = folder / f"step-{step:08d}-{stamp_files(source.paths, *own)}.safetensors"
    file = CachedFile(path, feature_key(tower, source, *own), lambda line: print(line, file=sys.stderr))
    kept = file.read()
    if kept is not None:
        return kept["index"].tolist(), kept["embeddings"]
    index, embeddings = _compute(tower, source, skip_broken)
    try:
        file.write(entry("index", torch.tensor(index)), entry("embeddings", embeddings))
        for other in set(folder.glob("step-*.safetensors")) - set(folder.glob(f"step-{step:08d}-*")):
            other.unlink(missing_ok=True)  # embeddings of earlier weights
    except OSError as error:  # a read-only run can still be searched
        print(f"the next search computes the embeddings again: {path}: {error.strerror}", file=sys.stderr)
    return index, embeddings


def _compute(tower: Embedder, source: Source, skip_broken: bool) -> tuple[list[int], Tensor]:
    """Return the indices of the readable samples, and their embeddings."""
    index, readable = list(range(len(source))), source
    if skip_broken:
        readable, notes = tower.kind.without_broken(source, tower.views)
        for note in notes:
            print(note, file=sys.stderr)
        numbers = {path: number for number, path in enumerate(source.paths)}
        index = [numbers[path] for path in readable.paths] if source.paths else index
    embeddings = tower.features(readable).float().cpu()
    if not bool(embeddings.isfinite().all()):
        raise ValueError("run: the embeddings of its data are not finite: its training diverged; train it again")
    return index, embeddings
