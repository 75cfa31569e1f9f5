"""Embeddings as a picture: in two dimensions, or on a sphere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from contrapose.metrics import tolerance, uniformity
from contrapose.report.style import COLOURS, MARKERS, blank, styled

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MANY = 60
METHODS = ("tsne", "umap", "pca", "sphere")


@dataclass(frozen=True)
class Shown:
    """A named embedding: unit vectors (n, d), their classes, and scores to stand under it."""

    name: str
    z: Tensor
    labels: Tensor
    classes: tuple[str, ...] = ()
    scores: Mapping[str, float] = field(default_factory=dict)

    @property
    def caption(self) -> str:
        """Uniformity, tolerance and kNN accuracy in one line."""
        numbers = [f"-U {-uniformity(self.z):.2f}", f"tolerance {tolerance(self.z, self.labels):.2f}"]
        numbers += [f"kNN {self.scores['knn_top1']:.1f} %"] if "knn_top1" in self.scores else []
        return f"{self.name}: {', '.join(numbers)}"


def map_figure(shown: Sequence[Shown], method: str = "tsne", *, seed: int = 0) -> Figure:
    """Embeddings side by side (Wang & Liu, Fig. 2): every point an image, colour and shape its class.

    method   "tsne", "pca" (scikit-learn), "umap" (umap-learn), or "sphere", for embeddings of three dimensions
    """
    if method not in METHODS:
        raise ValueError(f"method: expected one of {', '.join(METHODS)}, got {method!r}")
    with styled():
        more = {"subplot_kw": {"projection": "3d"}} if method == "sphere" else {}
        figure, axes = blank(1, len(shown), (5.0 * len(shown) + 0.7, 5.4), **more)
        for ax, one in zip(axes, shown, strict=True):
            points = _sphere_points(one.z) if method == "sphere" else flat(one.z, method, seed)
            if method == "sphere":
                _globe(ax)
            _scatter(ax, points, one)
            ax.set_title(one.name)
            place = {"x": 0.5, "y": -0.04, "ha": "center", "va": "top", "transform": ax.transAxes}
            text = one.caption.removeprefix(f"{one.name}: ")
            ax.text2D(s=text, **place) if method == "sphere" else ax.text(s=text, **place)
        _legends(figure, axes)
        return figure


def _legends(figure: Figure, axes: Sequence[Any]) -> None:
    """One for all where they show the same classes, else one in each; none for more classes than a page has lines."""
    named = [ax.get_legend_handles_labels() for ax in axes]
    look: dict[str, Any] = {"fontsize": 8, "markerscale": 2}
    if max(len(names) for _, names in named) > _MANY:
        return
    if all(names == named[0][1] for _, names in named):
        figure.legend(*named[0], loc="outside right upper", ncols=1 + len(named[0][1]) // 24, **look)
        return
    for ax, (handles, names) in zip(axes, named, strict=True):
        ax.legend(handles, names, loc="upper left", bbox_to_anchor=(1.0, 1.0), **look)


def flat(z: Tensor, method: str, seed: int) -> Tensor:
    """Two dimensions of unit vectors, by one of the methods."""
    if len(z) < 10:
        raise ValueError(f"z: expected at least 10 embeddings to draw a map of, got {len(z)}")
    rows = z.double().numpy()
    if method == "umap":
        try:
            from umap import UMAP
        except ImportError as error:
            raise ValueError("method: umap needs: pip install umap-learn") from error
        return torch.from_numpy(UMAP(metric="cosine", random_state=seed, n_jobs=1).fit_transform(rows))
    from sklearn.decomposition import PCA
    from sklearn.manifold import TSNE

    if method == "pca":
        return torch.from_numpy(PCA(2, random_state=seed).fit_transform(rows))
    # On unit vectors Euclidean and cosine neighbours are the same.
    perplexity = min(30.0, (len(z) - 1) / 3)
    return torch.from_numpy(TSNE(2, perplexity=perplexity, random_state=seed, init="pca").fit_transform(rows))


def _sphere_points(z: Tensor) -> Tensor:
    if z.shape[1] != 3:
        raise ValueError(
            f"method: a sphere shows embeddings of 3 dimensions, got {z.shape[1]} (train with --width 3, or choose tsne)"
        )
    return z


def _globe(ax: Any) -> None:
    angle, height = torch.linspace(0, 2 * torch.pi, 37), torch.linspace(-1, 1, 13)
    radius = (1 - height.square()).clamp(min=0).sqrt()
    x, y = radius[:, None] * angle.cos(), radius[:, None] * angle.sin()
    ax.plot_wireframe(x.numpy(), y.numpy(), height[:, None].expand_as(x).numpy(), color="0.85", linewidth=0.4)
    ax.set_box_aspect((1, 1, 1), zoom=1.45)
    ax.set_axis_off()


def _scatter(ax: Any, points: Tensor, one: Shown) -> None:
    for place, c in enumerate(one.labels.unique().tolist()):
        chosen = points[one.labels == c]
        name = one.classes[c] if c < len(one.classes) else str(c)
        again = place // len(COLOURS)  # each colour has another shape then
        look = {"color": COLOURS[place % len(COLOURS)], "marker": MARKERS[(place + again) % len(MARKERS)]}
        ax.scatter(*chosen.T.numpy(), s=9, alpha=0.75, linewidths=0, label=name, **look)
    if points.shape[1] == 2:
        ax.set_xticks([])
        ax.set_yticks([])
        ax.set_aspect("equal", "datalim")
        ax.spines[:].set_visible(False)
