"""`contrapose explain` and `map`: figures of losses and of trained embeddings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from tyro.conf import Positional, arg

from contrapose.lab.devices import DeviceOption
from contrapose.validate import check_count

if TYPE_CHECKING:
    from contrapose.lab.report.embedding import NamedEmbedding

_LEAST_SAMPLES = 10  # of a projection to the plane


@dataclass(frozen=True)
class Explain:
    """Explain what a loss does, without training, and compare it with others: a figure, a page and a summary in words.

    For example: contrapose explain dystress --vs simclr "nt_xent(temperature=0.07)"
    """

    loss: Positional[str]
    """A loss, with settings if needed, as in `train --loss`."""
    vs: tuple[str, ...] = ()
    """Other losses to compare with."""
    temperature: str = ""
    """Temperature of the first loss: a number, or LOW:HIGH for cosine(LOW, HIGH), as in `train --temperature`."""
    data: str = ""
    """Use the paper's hyperparameters for this data set, such as cifar10 or imagenet."""
    epoch: int = 0
    """Epoch at which a temperature schedule is evaluated."""
    ode: bool = False
    """Add the solutions of DySTreSS's differential equation to the temperatures (Fig. 2 of the paper)."""
    out: Annotated[Path, arg(aliases=["-o"])] = Path("explain.png")
    """Figure to write: .png, .svg or .pdf. The page is written to the same name with .html."""

    def __call__(self) -> None:
        """Write the figure and the page, and print the summary."""
        # Imported here, because matplotlib would slow down every other command.
        from contrapose.lab.report.loss import explain
        from contrapose.lab.report.page import page
        from contrapose.lab.report.style import save
        from contrapose.losses.catalogue import DATA
        from contrapose.losses.parse import with_temperature
        from contrapose.validate import check_known

        if self.out.suffix not in (".png", ".svg", ".pdf"):
            raise ValueError(f"out: expected a name that ends in .png, .svg or .pdf, got {self.out}")
        if self.data:
            check_known("data", self.data, DATA)
        loss = with_temperature(self.loss, self.temperature) if self.temperature else self.loss
        explanation = explain(loss, *self.vs, data=self.data or None, epoch=self.epoch)
        figure = explanation.figure(ode=self.ode)
        save(figure, self.out)
        page_path = self.out.with_suffix(".html")
        *others, last = (subject.name for subject in explanation.subjects)
        title = f"What {', '.join(others)} and {last} do" if others else f"What {last} does"
        page_path.write_text(page(title, explanation.sections(figure, ode=self.ode)), encoding="utf-8")
        print(explanation)
        print(f"figure {self.out}, page {page_path}")


@dataclass(frozen=True)
class Map(DeviceOption):
    """Draw the projector outputs of runs side by side, coloured by class, with uniformity, tolerance and kNN accuracy.

    A page is written next to the figure: it zooms, pointing at a sample shows its image or text, and check boxes hide classes.
    For runs on images with captions, images and captions are drawn in one map.
    """

    runs: Positional[tuple[Path, ...]]
    """Directories of the runs."""
    method: str = "tsne"
    """Projection: tsne, umap (needs umap-learn), pca, or sphere for three-dimensional embeddings."""
    images: int = 2000
    """Number of points to draw: images, texts, or images and captions."""
    out: Annotated[Path, arg(aliases=["-o"])] = Path("map.png")
    """Figure to write: .png, .svg or .pdf; the page is written to the same name with .html. With .html, only the page is
    written."""
    data: str = ""
    """Another data set to draw: a name, a folder or an .npz file; images with captions; or a file of texts."""
    data_root: Path = Path("data")
    """Directory of downloaded data sets."""

    def __call__(self) -> None:
        """Write the figure and the page, and print the captions."""
        from contrapose.lab.report.embedding import map_figure, map_points, map_title
        from contrapose.lab.report.map_page import map_page
        from contrapose.lab.report.style import save

        only_page = self.out.suffix == ".html"
        if self.out.suffix not in (".png", ".svg", ".pdf", ".html"):
            raise ValueError(f"out: expected a name that ends in .png, .svg, .pdf or .html, got {self.out}")
        check_count("images", self.images, least=1 if self.method == "sphere" else _LEAST_SAMPLES)
        if not self.runs:
            raise ValueError("runs: expected the directory of at least one run")
        if only_page and self.method == "sphere":
            raise ValueError("out: a page shows points in the plane; use -o map.png for a sphere, or --method tsne")
        embeddings = name_apart([self._embed(folder) for folder in self.runs], self.runs)
        points, title = map_points(embeddings, self.method), map_title(embeddings, self.method)
        print(title)
        for embedding in embeddings:
            print(embedding.caption)
        if not only_page:
            save(map_figure(title, embeddings, points), self.out)
            print(f"figure {self.out}")
        if self.method != "sphere":
            path = self.out.with_suffix(".html")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(map_page(title, embeddings, points), encoding="utf-8", errors="backslashreplace")
            print(f"page {path}")

    def _embed(self, folder: Path) -> NamedEmbedding:
        """Return the embeddings of a random sample from a run's data."""
        from contrapose.lab.cli.run_data import choose_neighbours, load_data, warn_if_unfinished
        from contrapose.lab.evaluation import Measures
        from contrapose.lab.report.embedding import NamedEmbedding
        from contrapose.lab.report.map_page import PREVIEW_SIDE
        from contrapose.lab.training.model import load_any

        model = load_any(folder)
        warn_if_unfinished(model, folder)
        split = load_data(model, folder, self.data, self.data_root)
        sample = Measures(max(1, self.images // len(model.towers))).subset(split.held_out)
        drawn = len(sample) * len(model.towers)
        if self.method != "sphere" and drawn < _LEAST_SAMPLES:
            raise ValueError(f"data: expected at least {_LEAST_SAMPLES} points to draw a map, got {drawn}")
        z, labels, classes = model.sample_embeddings(sample, len(sample))
        return NamedEmbedding(
            name=model.run.loss,
            z=z.cpu(),
            labels=labels,
            classes=classes,
            scores=model.evaluate(split, choose_neighbours(model, split)),
            previews=tuple(model.kind.previews(sample, model.views, side=PREVIEW_SIDE)),
            noun=model.kind.noun if len(model.towers) == 1 else " and ".join(classes),
            output="projector output" if model.run.head != "none" else "encoder output",
        )


def name_apart(embeddings: Sequence[NamedEmbedding], folders: Sequence[Path]) -> list[NamedEmbedding]:
    """Return embeddings whose names have the runs' names added if any two, which are losses, are equal.

    embeddings   embeddings of the runs
    folders      directories of the runs
    """
    from contrapose.lab.cli.runs import short_names

    if len({embedding.name for embedding in embeddings}) == len(embeddings):
        return list(embeddings)
    return [
        replace(embedding, name=f"{embedding.name} ({name})")
        for embedding, name in zip(embeddings, short_names(folders), strict=True)
    ]
