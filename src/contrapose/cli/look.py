"""`contrapose explain`, `map`: pictures of losses and of runs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg


@dataclass(frozen=True)
class Explain:
    """Show what a loss does before anything is trained, beside others: one picture, one page, and what it says in words.

    For example: contrapose explain dystress --vs simclr "nt_xent(temperature=0.07)"
    """

    loss: Positional[str]
    """A method of the catalogue or an objective with settings, as in `train --loss`."""
    vs: tuple[str, ...] = ()
    """Losses to show beside it."""
    data: str = ""
    """Take the catalogue's values for this data set, such as cifar10 or imagenet."""
    epoch: int = 0
    """Where a temperature schedule stands."""
    ode: bool = False
    """Draw the solutions of DySTreSS's differential equation beside the temperatures (its Fig. 2)."""
    out: Annotated[Path, arg(aliases=["-o"])] = Path("explain.png")
    """The picture, .png, .svg or .pdf; a page with the same name, .html, goes beside it."""

    def __call__(self) -> None:
        """Write both, and print the words."""
        from contrapose.losses.catalogue import DATA
        from contrapose.report.loss import explain
        from contrapose.report.page import page
        from contrapose.report.style import save
        from contrapose.validate import check_known

        if self.out.suffix not in (".png", ".svg", ".pdf"):
            raise ValueError(f"out: expected a name that ends in .png, .svg or .pdf, got {self.out}")
        if self.data:
            check_known("data", self.data, DATA)
        explanation = explain(self.loss, *self.vs, data=self.data or None, epoch=self.epoch)
        figure = explanation.figure(ode=self.ode)
        save(figure, self.out)
        beside = self.out.with_suffix(".html")
        *some, last = (subject.name for subject in explanation.subjects)
        title = f"What {', '.join(some)} and {last} do" if some else f"What {last} does"
        beside.write_text(page(title, explanation.sections(figure)))
        print(explanation)
        print(f"picture {self.out}, page {beside}")


@dataclass(frozen=True)
class Map:
    """Draw the embeddings of runs, coloured by class, with uniformity, tolerance and kNN accuracy under each."""

    runs: Positional[tuple[Path, ...]]
    """Directories of runs, drawn side by side."""
    method: str = "tsne"
    """tsne, umap (needs umap-learn), pca, or sphere for embeddings of three dimensions."""
    images: int = 2000
    """How many images to draw."""
    out: Annotated[Path, arg(aliases=["-o"])] = Path("map.png")
    """The picture: .png, .svg or .pdf."""
    data_root: Path = Path("data")
    """Where downloaded data sets are."""

    def __call__(self) -> None:
        """Write the picture and print the numbers under it."""
        from contrapose.report.embedding import LabelledEmbedding, map_figure
        from contrapose.report.style import save
        from contrapose.training import load, prepare

        if not self.runs:
            raise ValueError("runs: expected the directory of at least one run")
        shown = []
        for folder in self.runs:
            model = load(folder)
            split = prepare(model.run, self.data_root)
            z, labels, classes = model.sample_embeddings(split.held_out, self.images)
            if labels is None:
                raise ValueError(f"runs: the data of {folder} has no labels to colour by")
            shown.append(LabelledEmbedding(model.run.loss, z.cpu(), labels, classes, model.evaluate(split)))
        save(map_figure(shown, self.method), self.out)
        for one in shown:
            print(one.caption)
        print(f"picture {self.out}")
