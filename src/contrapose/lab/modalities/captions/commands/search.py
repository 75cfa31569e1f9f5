"""`contrapose search`: the pictures that are nearest to a text or to another picture."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any

import torch
from torch import Tensor
from tyro.conf import Positional, arg

from contrapose.lab.devices import DeviceOption
from contrapose.lab.modalities import Split
from contrapose.lab.modalities.captions.commands.pages import Match, SearchResult, search_page
from contrapose.lab.modalities.captions.files import TarMember, is_captions, open_captions
from contrapose.lab.modalities.images.decoding import ENDINGS, ImagePath
from contrapose.lab.modalities.images.folder import all_images
from contrapose.lab.modalities.images.stream import Files, without_broken
from contrapose.lab.modalities.images.views import Views
from contrapose.lab.modalities.progress import allow_progress_bars
from contrapose.lab.modalities.tars import printable
from contrapose.lab.modalities.text.modality import TEXT
from contrapose.lab.modalities.text.views import TextViews
from contrapose.lab.training import Model, Run
from contrapose.lab.training.model import load_any
from contrapose.lab.training.sources import find_data
from contrapose.pairs import unit
from contrapose.validate import check_count, check_directory


@dataclass(frozen=True)
class Search(DeviceOption):
    """Find the pictures that are nearest to a text or to another picture, with a run on images with captions.

    For example: contrapose search runs/NAME "a dog on the beach". The first search computes the embeddings of all pictures and
    keeps them in the directory of the run, in search/.
    """

    run: Positional[Path]
    """Directory of the run."""
    queries: Positional[tuple[str, ...]]
    """Texts in quotation marks, or image files for which to find similar pictures."""
    data: Path | None = None
    """Pictures to search: a folder, including its subfolders, or images with captions; default: all pictures that the run was
    trained and evaluated on."""
    top: int = 12
    """Number of pictures per query."""
    out: Annotated[Path, arg(aliases=["-o"])] = Path("search.html")
    """Page to write."""
    skip_broken: bool = False
    """Leave out files that cannot be read; the default if the run was trained with --skip-broken."""

    @allow_progress_bars()
    def __call__(self) -> None:
        """Write the page and print the pictures."""
        self._check_options()
        model = load_any(self.run)
        if len(model.towers) == 1:
            raise ValueError(
                f"run: {self.run} was trained on {model.run.kind.noun} alone; a search needs a run on images with captions "
                "(docs/captions.md)"
            )
        self.search(model)

    def search(self, model: Model) -> None:
        """Search with a model's towers, write the page and print the pictures."""
        pictures = list_pictures(model.run, self.run, self.data, skip_broken=self.skip_broken)
        for note in pictures.notes:
            print(note, file=sys.stderr)
        for note in _truncated(model, self.queries):
            print(note, file=sys.stderr)
        pictures, embeddings = embed_pictures(model, pictures, self.run / "search")
        scores, index = (unit(_embed_queries(model, self.queries)) @ unit(embeddings).T).topk(
            min(self.top, len(pictures.images))
        )
        results = [
            _result(query, pictures, own_scores, own_index)
            for query, own_scores, own_index in zip(self.queries, scores.tolist(), index.tolist(), strict=True)
        ]
        for result in results:
            print(printable(result.query))
            for rank, match in enumerate(result.matches, 1):
                print(f"{rank:4}  {match.score:.3f}  {printable(str(match.image))}")
        text = search_page(
            results, run=str(self.run), step=model.step, data=pictures.name, pictures=len(pictures.images)
        )
        self.out.parent.mkdir(parents=True, exist_ok=True)
        # File names and arguments may contain bytes that are not UTF-8.
        self.out.write_text(text, encoding="utf-8", errors="backslashreplace")
        print(f"page {self.out}")

    def _check_options(self) -> None:
        """Refuse bad options before the model is loaded."""
        if not self.queries:
            raise ValueError(
                f'queries: expected at least one text or picture, as in contrapose search {self.run} "a dog on the beach"'
            )
        for query in self.queries:
            if not query.strip():
                raise ValueError(
                    "queries: expected texts or image files, got an empty text; write what the picture shows"
                )
            # Searching for the words "photo.jpg" is not what the user meant.
            if _names_image(query) and not os.path.isfile(query):
                raise ValueError(f"queries: {query} is not a file; give the path of a picture, or a text")
        check_count("top", self.top, least=1)
        if self.out.suffix != ".html":
            raise ValueError(f"out: expected a name that ends in .html, got {self.out}")
        check_directory("out", self.out.parent)


@dataclass(frozen=True)
class Pictures:
    """The pictures to search, with their captions if they have any."""

    name: str
    images: tuple[ImagePath, ...]
    captions: tuple[tuple[str, ...], ...] = ()
    notes: tuple[str, ...] = ()
    skip_broken: bool = False  # whether to leave out unreadable pictures

    def subset(self, index: Sequence[int]) -> Pictures:
        """Return the pictures at these indices."""
        captions = tuple(self.captions[i] for i in index) if self.captions else ()
        return Pictures(self.name, tuple(self.images[i] for i in index), captions, self.notes, self.skip_broken)

    def fingerprint(self) -> str:
        """Return a checksum of the files' paths, sizes and modification times, so that edited pictures are embedded again."""
        changed = cache(lambda path: os.stat(path).st_mtime_ns)  # many images may be in one tar
        digest = hashlib.blake2b(f"{self.skip_broken}".encode(), digest_size=8)
        for image in self.images:
            if isinstance(image, TarMember):
                place: Any = image.tar.absolute(), image.offset, image.size, changed(image.tar)
            elif isinstance(image, Path):
                place = image.absolute(), 0, image.stat().st_size, changed(image)
            else:  # a picture in a built-in set, which never changes
                place = image
            digest.update(repr(place).encode())
        return digest.hexdigest()


def list_pictures(run: Run, folder: Path, data: Path | None, *, skip_broken: bool = False) -> Pictures:
    """Return the pictures in `data`, or else all pictures that the run in `folder` was trained and evaluated on."""
    skip_broken = skip_broken or run.skip_broken
    if data is not None and not is_captions(data):
        if not data.is_dir():
            raise ValueError(f"data: expected a folder of pictures, but {data} is not a folder")
        images = tuple(all_images(data))
        if not images:
            raise ValueError(f"data: no pictures under {data} (looked for {', '.join(sorted(ENDINGS))})")
        return Pictures(data.resolve().name, images, skip_broken=skip_broken)
    if data is None:
        path, columns = Path(next(iter(find_data(run, folder)), run.data)), run.columns
    else:
        path, columns = data, ()
    listed = open_captions(path, columns=columns, skip_broken=skip_broken)
    return Pictures(listed.name, listed.images, listed.captions, listed.notes, skip_broken)


def embed_pictures(model: Model, pictures: Pictures, folder: Path) -> tuple[Pictures, Tensor]:
    """Return the readable pictures and their embeddings (N, d), which are saved in `folder` for the next search."""
    path = folder / f"step-{model.step:08d}-{pictures.fingerprint()}.safetensors"
    kept = _read_kept(path, len(pictures.images))
    if kept is None:
        index, embeddings = _compute(model, pictures)
        _keep(path, index, embeddings)
    else:
        index, embeddings = kept
    return pictures.subset(index), embeddings


def _compute(model: Model, pictures: Pictures) -> tuple[list[int], Tensor]:
    """Return the indices of the readable pictures, and their embeddings."""
    source = Files(pictures.name, pictures.images, None)
    if pictures.skip_broken:
        views = model.towers["images"].views
        assert isinstance(views, Views)
        readable = without_broken(Split(source, None, None), views.recipes[0])
        for note in readable.notes:
            print(note, file=sys.stderr)
        assert isinstance(readable.train, Files)
        source = readable.train
    embeddings = model.towers["images"].features(source).float().cpu()
    if not bool(embeddings.isfinite().all()):
        raise ValueError("run: the embeddings of its pictures are not finite: its training diverged; train it again")
    numbers = {image: number for number, image in enumerate(pictures.images)}
    return [numbers[image] for image in source.paths], embeddings


def _read_kept(path: Path, count: int) -> tuple[list[int], Tensor] | None:
    """Return the embeddings that `_keep` wrote; None if there is no readable file."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        kept = load_file(path)
        index, embeddings = kept["index"].tolist(), kept["embeddings"]
    except (OSError, SafetensorError, KeyError):
        return None
    fits = len(index) == len(embeddings) and all(0 <= number < count for number in index)
    return (index, embeddings) if fits else None


def _keep(path: Path, index: list[int], embeddings: Tensor) -> None:
    """Write the embeddings under another name and rename the file, so that it is complete whenever it exists."""
    from safetensors.torch import save

    temporary = path.with_suffix(f".{os.getpid()}")
    try:
        path.parent.mkdir(exist_ok=True)
        temporary.write_bytes(save({"index": torch.tensor(index), "embeddings": embeddings.contiguous()}))
        temporary.rename(path)
        step = path.name.rpartition("-")[0]
        for other in path.parent.glob("step-*.safetensors"):
            if other.name.rpartition("-")[0] != step:  # embeddings of earlier weights
                other.unlink(missing_ok=True)
    except OSError as error:  # a read-only run can still be searched
        print(f"the next search computes the embeddings again: {path}: {error.strerror}", file=sys.stderr)
    finally:
        with suppress(OSError):
            temporary.unlink()


def _names_image(query: str) -> bool:
    return Path(query).suffix.lower() in ENDINGS


def _truncated(model: Model, queries: Sequence[str]) -> list[str]:
    """Return a note on each query that is too long for the text encoder."""
    views = model.towers["text"].views
    if not isinstance(views, TextViews):
        return []
    return [
        f"queries: only the beginning of {printable(query[:40])!r}… is used: the text encoder takes {views.length} tokens"
        for query in queries
        if not _names_image(query) and TEXT.is_truncated(query, views)
    ]


def _embed_queries(model: Model, queries: Sequence[str]) -> Tensor:
    """Return the embeddings of texts and image files, (Q, d)."""
    towers = model.towers
    rows = [
        towers["images"].embed([Path(query)]) if _names_image(query) else towers["text"].embed([query])
        for query in queries
    ]
    return torch.cat(rows).float().cpu()


def _result(query: str, pictures: Pictures, scores: Sequence[float], index: Sequence[int]) -> SearchResult:
    """Return the pictures at these indices as matches for a query."""
    matches = (
        Match(
            pictures.images[number],
            score,
            printable(pictures.images[number].name),
            pictures.captions[number] if pictures.captions else (),
        )
        for score, number in zip(scores, index, strict=True)
    )
    return SearchResult(query, tuple(matches), Path(query) if _names_image(query) else None)
