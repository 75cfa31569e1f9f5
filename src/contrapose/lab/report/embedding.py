"""Pictures of embeddings, in two dimensions or on a sphere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from contrapose.lab.modalities.previews import Preview
from contrapose.lab.report.style import COLOURS, MARKERS, figure_style, hide_axes, literal, new_figure
from contrapose.metrics import tolerance, two_tower_measures, uniformity

if TYPE_CHECKING:
    from matplotlib.figure import Figure

METHODS = ("tsne", "umap", "pca", "sphere")
_MAX_LEGEND_CLASSES = 60


_METHOD_NAMES = {"tsne": "t-SNE", "umap": "UMAP", "pca": "PCA"}
_SCORES = {
    "knn_top1": "encoder kNN",
    "recall@1": "encoder recall@1",
    "text_to_image_recall_1": "text-to-image recall@1",
}


@dataclass(frozen=True)
class NamedEmbedding:
    """A run's outputs as unit vectors (n, d), their labels (n,) and previews if known, and scores for the caption.

    With two towers, all samples of the first tower come first, then the same samples of the second: n is twice the number of
    previews, and labels name the towers.
    """

    name: str
    z: Tensor
    labels: Tensor | None = None
    classes: tuple[str, ...] = ()
    scores: Mapping[str, float] = field(default_factory=dict)
    previews: tuple[Preview, ...] = ()
    noun: str = "samples"
    output: str = "projector output"  # what the vectors are

    @property
    def is_joint(self) -> bool:
        """Whether each sample has one vector per tower."""
        return 0 < len(self.previews) < len(self.z)

    @property
    def caption(self) -> str:
        """One line: name, uniformity and tolerance of the vectors (or the gap between towers) and, if known, a score."""
        return f"{self.name}: {self.metrics}"

    @property
    def metrics(self) -> str:
        """The numbers of the caption."""
        if self.is_joint:
            half = len(self.previews)
            gap = two_tower_measures(self.z[:half], self.z[half:], torch.arange(half))["modality_gap"]
            text = f"modality gap {gap:.2f}"
        else:
            text = f"{self.output.split()[0]} -U {-uniformity(self.z):.2f}"
            if self.labels is not None:
                text += f", tolerance {tolerance(self.z, self.labels):.2f}"
        return text + "".join(
            f"; {words} {self.scores[key]:.1f} %" for key, words in _SCORES.items() if key in self.scores
        )

    def class_name(self, label: int) -> str:
        """Return the name of a class, or its number if it has no name."""
        return self.classes[label] if label < len(self.classes) else str(label)


def map_title(embeddings: Sequence[NamedEmbedding], method: str) -> str:
    """Return what a map shows: t-SNE of the projector output of 2,000 images."""
    outputs = " and ".join(dict.fromkeys(embedding.output for embedding in embeddings))
    samples = " and ".join(dict.fromkeys(f"{len(embedding.z):,} {embedding.noun}" for embedding in embeddings))
    if method == "sphere":
        return f"{outputs[0].upper()}{outputs[1:]} of {samples} on the sphere"
    return f"{_METHOD_NAMES[method]} of the {outputs} of {samples}"


def map_points(embeddings: Sequence[NamedEmbedding], method: str = "tsne", *, seed: int = 0) -> list[Tensor]:
    """Return the points at which embeddings are drawn: (n, 2) in the plane, or (n, 3) on a sphere.

    method   "tsne" or "pca" (scikit-learn), "umap" (umap-learn), or "sphere" for embeddings with three dimensions
    """
    if method not in METHODS:
        raise ValueError(f"method: expected one of {', '.join(METHODS)}, got {method!r}")
    if method == "sphere":
        return [_sphere_points(embedding.z) for embedding in embeddings]
    return [project_to_plane(embedding.z, method, seed) for embedding in embeddings]


def map_figure(title: str, embeddings: Sequence[NamedEmbedding], points: Sequence[Tensor]) -> Figure:
    """Draw embeddings side by side (Wang & Liu, Fig. 2). Each point is a sample; colour and marker show its class.

    title    what is drawn, from `map_title`
    points   where to draw the samples, from `map_points`
    """
    on_sphere = points[0].shape[1] == 3
    with figure_style():
        options = {"subplot_kw": {"projection": "3d"}} if on_sphere else {}
        figure, axes = new_figure(1, len(embeddings), (5.0 * len(embeddings) + 0.7, 5.4), **options)
        for ax, embedding, rows in zip(axes, embeddings, points, strict=True):
            if on_sphere:
                _draw_globe(ax)
            _scatter(ax, rows, embedding)
            ax.set_title(literal(embedding.name))
            # In a 3D plot `text` expects a position in space; `text2D` takes a position on the page.
            text = ax.text2D if on_sphere else ax.text
            text(x=0.5, y=-0.04, s=embedding.metrics, ha="center", va="top", transform=ax.transAxes)
        figure.suptitle(literal(title), x=0.02, ha="left", fontsize=10)
        _add_legends(figure, axes)
        return figure


def _add_legends(figure: Figure, axes: Sequence[Any]) -> None:
    """Add one legend if all axes show the same classes, otherwise one per axes; no legend if there are too many classes."""
    entries = [ax.get_legend_handles_labels() for ax in axes]
    style: dict[str, Any] = {"fontsize": 8, "markerscale": 2}
    most = max(len(names) for _, names in entries)
    if not most or most > _MAX_LEGEND_CLASSES:
        return
    if all(names == entries[0][1] for _, names in entries):
        figure.legend(*entries[0], loc="outside right upper", ncols=1 + len(entries[0][1]) // 24, **style)
        return
    for ax, (handles, names) in zip(axes, entries, strict=True):
        ax.legend(handles, names, loc="upper left", bbox_to_anchor=(1.0, 1.0), **style)


def project_to_plane(z: Tensor, method: str, seed: int) -> Tensor:
    """Project unit vectors (n, d) to (n, 2) by "tsne", "umap" or "pca"."""
    if len(z) < 10:
        raise ValueError(f"z: expected at least 10 embeddings to draw a map, got {len(z)}")
    if bool((z == z[0]).all()):  # collapsed to one point: scikit-learn would divide by a standard deviation of 0
        return torch.zeros(len(z), 2)
    rows = z.double().numpy()
    if method == "umap":
        try:
            from umap import UMAP
        except ImportError as error:
            raise ValueError("method: umap needs umap-learn; install it with: pip install umap-learn") from error
        # UMAP is reproducible only with one thread.
        return torch.from_numpy(UMAP(metric="cosine", random_state=seed, n_jobs=1).fit_transform(rows))
    from sklearn.decomposition import PCA
    from sklearn.manifold import TSNE

    if method == "pca":
        return torch.from_numpy(PCA(2, random_state=seed).fit_transform(rows))
    # The default metric is right: on unit vectors, Euclidean and cosine distance give the same neighbours. scikit-learn requires
    # a perplexity below the number of points, and values above about a third of that number are not useful.
    perplexity = min(30.0, (len(z) - 1) / 3)
    return torch.from_numpy(TSNE(2, perplexity=perplexity, random_state=seed, init="pca").fit_transform(rows))


def _sphere_points(z: Tensor) -> Tensor:
    if z.shape[1] != 3:
        raise ValueError(
            f"method: a sphere shows embeddings of 3 dimensions, got {z.shape[1]} (train with --width 3, or use --method tsne)"
        )
    return z


def _draw_globe(ax: Any) -> None:
    angle, height = torch.linspace(0, 2 * torch.pi, 37), torch.linspace(-1, 1, 13)
    radius = (1 - height.square()).clamp(min=0).sqrt()  # rounding can put 1 - height² just below 0 at the poles
    x, y = radius[:, None] * angle.cos(), radius[:, None] * angle.sin()
    ax.plot_wireframe(x.numpy(), y.numpy(), height[:, None].expand_as(x).numpy(), color="0.85", linewidth=0.4)
    ax.set_box_aspect((1, 1, 1), zoom=1.45)  # 3D axes leave wide margins by default
    ax.set_axis_off()


def _scatter(ax: Any, points: Tensor, embedding: NamedEmbedding) -> None:
    labels = embedding.labels
    if labels is None:
        ax.scatter(*points.T.numpy(), s=9, alpha=0.75, linewidths=0, color=COLOURS[0])
    for index, label in enumerate([] if labels is None else labels.unique().tolist()):
        members = points[labels == label]
        # There are as many colours as markers. Each time the colours repeat, the markers shift by one, so that no combination
        # of colour and marker repeats.
        marker_shift = index // len(COLOURS)
        style = {
            "color": COLOURS[index % len(COLOURS)],
            "marker": MARKERS[(index + marker_shift) % len(MARKERS)],
        }
        ax.scatter(
            *members.T.numpy(), s=9, alpha=0.75, linewidths=0, label=literal(embedding.class_name(label)), **style
        )
    if points.shape[1] == 2:
        hide_axes(ax)  # coordinates of a projection have no meaning, only distances do
