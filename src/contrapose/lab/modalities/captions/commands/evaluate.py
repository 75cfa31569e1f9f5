"""Zero-shot classification and retrieval in `contrapose evaluate`, for image-text models."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from contrapose.lab.counts import count_of
from contrapose.lab.evaluation.feature_scores import no_gain
from contrapose.lab.modalities.captions.commands.sheet import retrieval_rows, retrieval_sheet
from contrapose.lab.modalities.captions.files import CaptionList, open_captions
from contrapose.lab.modalities.captions.load import with_held_out
from contrapose.lab.modalities.captions.pretrained import load_image_text_model
from contrapose.lab.modalities.captions.recall import CaptionIndex, caption_chance, caption_recall
from contrapose.lab.modalities.captions.zero_shot import (
    choose_templates,
    class_embeddings,
    class_name_notes,
    find_class_names,
    zero_shot_chance,
    zero_shot_scores,
)
from contrapose.lab.modalities.images.images import Images
from contrapose.lab.modalities.images.load import check_name, load
from contrapose.lab.modalities.images.stream import Files, without_broken
from contrapose.lab.modalities.images.views import Recipe
from contrapose.lab.modalities.modality import CommonOptions
from contrapose.lab.modalities.source import Source, Split
from contrapose.lab.report.document import Document, Section
from contrapose.lab.report.render import as_html
from contrapose.lab.training import Model
from contrapose.lab.training.prefixes import name_by_prefix
from contrapose.lab.training.sources import find_data
from contrapose.metrics import two_tower_measures
from contrapose.pairs import unit
from contrapose.randomness import permutation
from contrapose.validate import check_directory

_QUERIES = 12  # captions on a sheet
_PARTS = ("test", "val")  # splits to evaluate on, in order of preference; without them, all images are used


@dataclass(frozen=True)
class Towers:
    """A model's functions that embed images and texts, (n, d) each."""

    embed_images: Callable[[Any], Tensor]  # takes a list of files, or uint8 images (n, 3, H, W)
    embed_texts: Callable[[list[str]], Tensor]


@dataclass(frozen=True)
class ImageTextOptions:
    """Options for models of images and texts: clip: and a local folder of CLIP or SigLIP, saved by transformers or open_clip,
    whose weights must be safetensors; no code in the folder is executed."""

    purpose: ClassVar[str] = "models of images and texts, as in clip:FOLDER"
    takes: ClassVar[str] = "a model of images and texts takes --zero-shot, --captions or --sheet"
    shared: ClassVar[tuple[str, ...]] = ("columns", "data_root", "skip_broken")
    for_folders: ClassVar[tuple[str, ...]] = ()
    replaces: ClassVar[bool] = True
    zero_shot: str = ""
    """Data set whose test images are classified by the names of their classes: a name, a folder with one subfolder per class,
    or an .npz file. Without test images, all of its images are classified."""
    class_names: str = ""
    """For --zero-shot: class names in the order of the labels, from a text file with one name per line, or from a data set
    whose class names are built in, such as cifar10; empty: the data set's own class names."""
    templates: tuple[str, ...] = ("photo",)
    """For --zero-shot: prompts with {} for the class name, or photo ("a photo of a {}.") or imagenet-7 (the seven prompts by
    CLIP's authors); embeddings of several prompts are averaged."""
    captions: Path | None = None
    """Images with captions, to measure recall@1, 5 and 10 in both directions: a folder with captions.tsv, or WebDataset tars.
    If the data has splits, its test images are used. A run on captions uses its own test images by default."""
    sheet: Path | None = None
    """Page to write: some captions, each with the five nearest images, and with the correct image, marked, and its rank."""

    @property
    def name_tasks(self) -> bool:
        """Whether there is data to evaluate on."""
        return bool(self.zero_shot) or self.captions is not None

    @property
    def has_columns(self) -> bool:
        """Whether the options name data with columns."""
        return self.captions is not None

    def evaluate_folder(self, folder: Path, common: CommonOptions) -> dict[str, Any]:
        """Return the scores of the model in a local folder."""
        if not self.name_tasks:
            raise ValueError("zero-shot: there is nothing to evaluate; give data with --zero-shot or --captions")
        # Data is listed first, because loading the model takes longer: a wrong name is then reported quickly.
        tasks = self.read(common)
        model = load_image_text_model(folder)
        return {"model": str(folder), **tasks.score(Towers(model.embed_images, model.embed_texts))}

    def score(self, model: Model, run: Path, common: CommonOptions) -> dict[str, float]:
        """Return the scores of a run on images with captions: on its own test images unless other data is given."""
        options = self
        if options.captions is None and (options.sheet is not None or not options.zero_shot):
            path = next(iter(find_data(model.run, run)), model.run.data)
            options = replace(options, captions=Path(path))
        common = replace(
            common,
            columns=common.columns or model.run.columns,
            skip_broken=common.skip_broken or model.run.skip_broken,
        )
        tasks = options.read(common)
        # Other data was not trained on, and is scored as a whole.
        if self.captions is None and tasks.captions is not None:
            own = with_held_out(tasks.captions, model.run.hold_out)
            if not _part(own):
                raise ValueError(
                    f"data: the run was trained on all images of {own.name}, on which its scores would be too high; give "
                    "others with --captions"
                )
            tasks = replace(tasks, captions=own)
        return tasks.score(towers_of(model), prefixes=model.run.dims)

    def read(self, common: CommonOptions) -> ImageTextTasks:
        """List the data for both tasks; images stay on disk."""
        templates = choose_templates(self.templates)
        if self.sheet is not None:
            _check_sheet(self.sheet)
            if self.captions is None:
                raise ValueError(
                    "sheet: it shows captions, and there are none; give images with captions with --captions"
                )
        images: Source | None = None
        names: tuple[str, ...] = ()
        if self.zero_shot:
            images = _labelled_images(self.zero_shot, common)
            names = find_class_names(images, self.class_names)
        elif self.class_names:
            raise ValueError("class-names: they are those of --zero-shot, which is not given")
        captions: CaptionList | None = None
        if self.captions is not None:
            captions = open_captions(self.captions, columns=common.columns, skip_broken=common.skip_broken)
        return ImageTextTasks(images, names, templates, captions, self.sheet, skip_broken=common.skip_broken)


@dataclass(frozen=True)
class ImageTextTasks:
    """Labelled images with their class names, and images with captions; either may be missing."""

    images: Source | None
    class_names: tuple[str, ...]
    templates: tuple[str, ...]
    captions: CaptionList | None
    sheet: Path | None = None
    skip_broken: bool = False  # whether images with captions that cannot be read are left out

    def score(self, towers: Towers, *, prefixes: Sequence[int] = ()) -> dict[str, float]:
        """Return a model's scores, each next to the chance level; and those of `prefixes` of its embeddings, by their widths."""
        scores: dict[str, float] = {}
        if self.images is not None:
            scores |= self._score_zero_shot(self.images, towers, prefixes)
        if self.captions is not None:
            _print_notes(self.captions.notes)
            scores |= score_captions(
                self.captions, towers, sheet=self.sheet, prefixes=prefixes, skip_broken=self.skip_broken
            )
        return scores

    def _score_zero_shot(self, images: Source, towers: Towers, prefixes: Sequence[int]) -> dict[str, float]:
        labels = images.labels
        assert labels is not None
        _print_notes(class_name_notes(self.class_names))
        print(
            f"zero-shot: {len(images):,} images of {images.name}, {len(self.class_names)} classes, "
            f"{count_of(len(self.templates), 'prompt')} for each",
            file=sys.stderr,
        )
        embed = lru_cache(maxsize=1)(lambda prompts: towers.embed_texts(list(prompts)))  # once for all prefixes
        embeddings = towers.embed_images(images.pixels if isinstance(images, Images) else images.paths)

        def score_first(dims: int | None) -> dict[str, float]:
            cut = class_embeddings(
                lambda prompts: embed(tuple(prompts))[:, :dims], self.class_names, self.templates
            ).to(embeddings.device)
            return zero_shot_scores(embeddings[:, :dims], labels, cut)

        chance = zero_shot_chance(len(self.class_names))
        scores = _beside_chance(score_first(None), chance, len(images), "zero_shot_")
        for dims in prefixes:
            scores |= name_by_prefix(dims, {f"zero_shot_{name}": score for name, score in score_first(dims).items()})
        return scores


def towers_of(model: Model) -> Towers:
    """Return the functions with which a run's model embeds images and texts."""

    def embed_images(samples: Any) -> Tensor:
        # Otherwise a tensor of images would be one batch, which is too large for a data set.
        size = model.views.evaluation_batch(model.device)
        parts = [samples[first : first + size] for first in range(0, len(samples), size)]
        return torch.cat([model.towers["images"].embed(part) for part in parts])

    return Towers(embed_images, model.towers["text"].embed)


def score_captions(
    data: CaptionList,
    towers: Towers,
    *,
    sheet: Path | None = None,
    prefixes: Sequence[int] = (),
    skip_broken: bool = False,
) -> dict[str, float]:
    """Return recall in both directions next to the chance level, the modality gap, and the towers' alignment and uniformity.

    data          images with captions, of which the test images are scored if there are splits
    towers        functions that embed images and texts
    sheet         page to write, with some captions and the images that are nearest to each caption
    prefixes      widths of prefixes of the embeddings whose recall is computed too
    skip_broken   whether images that cannot be read are left out, with their captions
    """
    part = _part(data)
    chosen = [i for i in range(len(data.images)) if not part or data.splits[i] == part]
    if skip_broken:
        chosen = _readable(data, chosen)
    index = CaptionIndex.of([data.captions[i] for i in chosen])
    where = f"{data.name} ({part})" if part else data.name
    print(f"captions: {len(chosen):,} images with {len(index.texts):,} captions of {where}", file=sys.stderr)
    images = towers.embed_images([data.images[i] for i in chosen])
    texts = towers.embed_texts(index.texts).to(images.device)
    if sheet is not None:
        _write_sheet(sheet, [data.images[i] for i in chosen], index, images, texts)
    recall = caption_recall(images, texts, index.image_of_text, ids=index.ids)
    chance = caption_chance(index.image_of_text, ids=index.ids)
    scores = _beside_chance(recall, chance, len(chosen)) | two_tower_measures(images, texts, index.image_of_text)
    for dims in prefixes:  # recall compares cosines, so a prefix is normalised on its own there
        cut = caption_recall(images[:, :dims], texts[:, :dims], index.image_of_text, ids=index.ids)
        scores |= name_by_prefix(dims, cut)
    return scores


def _part(data: CaptionList) -> str:
    """Return the split to evaluate on; empty if the data has none."""
    return next((part for part in _PARTS if part in data.splits), "")


def _readable(data: CaptionList, chosen: Sequence[int]) -> list[int]:
    """Return which of the chosen images can be read, and print which cannot."""
    # Labels carry each image's number through the selection.
    images = Files(data.name, [data.images[i] for i in chosen], torch.tensor(chosen))
    # Any size: each file is decoded only to check that it can be read.
    checked = without_broken(Split(images, None, None), Recipe(32))
    _print_notes(checked.notes)
    assert checked.train.labels is not None
    return [int(number) for number in checked.train.labels]


def _check_sheet(path: Path) -> None:
    if path.suffix != ".html":
        raise ValueError(f"sheet: expected a name that ends in .html, got {path}")
    check_directory("sheet", path.parent)


def _write_sheet(path: Path, pictures: Sequence[Any], index: CaptionIndex, images: Tensor, texts: Tensor) -> None:
    """Write a page with a fixed sample of captions and the images that are nearest to each caption."""
    chosen = permutation(len(index.texts), 0)[:_QUERIES]
    scores = (unit(texts[chosen.to(texts.device)]) @ unit(images).T).cpu()
    queries, right = [index.texts[i] for i in chosen.tolist()], index.image_of_text[chosen].tolist()
    block = retrieval_sheet(retrieval_rows(queries, scores, right, pictures), pictures=len(pictures))
    path.parent.mkdir(parents=True, exist_ok=True)
    section = Section("", blocks=(block,))
    text = as_html(
        Document(
            "Retrieval",
            "Some captions of the test set, and the five images that are nearest to each. The right image has a green frame; it "
            "is the last in the row if it is not among the five.",
            (section,),
        )
    )
    path.write_text(text, encoding="utf-8", errors="backslashreplace")
    print(f"sheet {path}", file=sys.stderr)


def _labelled_images(data: str, common: CommonOptions) -> Source:
    """List the labelled test images in a data set or, if there are none, all of its images."""
    check_name(data, "zero-shot")
    split = load(data, root=common.root, hold_out=0)
    if common.skip_broken:
        split = without_broken(split, Recipe(32))  # any size: each file is decoded only to check that it can be read
    _print_notes(split.notes)
    images = split.held_out
    if images.labels is None:
        raise ValueError(f"zero-shot: the images of {data} have no classes; give a folder with one subfolder per class")
    return images


def _beside_chance(
    scores: dict[str, float], chance: dict[str, float], images: int, prefix: str = ""
) -> dict[str, float]:
    """Return scores on a number of images and their chance levels; print to stderr if the first does not exceed chance."""
    nothing = no_gain(scores, {"chance": chance}, count=images, noun="image")
    _print_notes([nothing] if nothing else [])
    named = {f"{prefix}{name}": score for name, score in scores.items()}
    return named | {f"chance_{prefix}{name}": score for name, score in chance.items()}


def _print_notes(notes: Sequence[str]) -> None:
    for note in notes:
        print(note, file=sys.stderr)  # stdout may be read by other programs
