"""Figures show the right numbers, and the same figure gives the same file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from contrapose.explanation import Subject, relative_penalty
from contrapose.lab.report.embedding import NamedEmbedding, map_figure, map_points, map_title, project_to_plane
from contrapose.lab.report.loss import explain_figure
from contrapose.lab.report.page import drawing, page, section
from contrapose.lab.report.style import save


@pytest.mark.thorough
def test_figure_and_page_of_a_loss(tmp_path: Path) -> None:
    subjects = [Subject.of("dystress"), Subject.of("simple")]
    figure = explain_figure(subjects, ode=True)
    titles = [ax.get_title(loc="left") for ax in figure.axes]
    assert len(titles) == 6
    penalty = figure.axes[titles.index("Relative penalty of negatives")]
    s = torch.linspace(-1, 1, 2001, dtype=torch.float64)
    drawn = np.asarray(penalty.lines[0].get_ydata())
    np.testing.assert_allclose(drawn, (2001 * relative_penalty(subjects[0], s)).clamp(min=1e-4).numpy())
    temperature = figure.axes[0]
    assert temperature.get_ylim()[0] == 0
    assert temperature.get_ylim()[1] > 0.2
    save(figure, tmp_path / "a.svg")
    save(explain_figure(subjects, ode=True), tmp_path / "b.svg")
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()
    html = page("What <dystress> does", [drawing(figure, "six panels"), section("dystress", ["It <works>."])])
    assert "&lt;works&gt;" in html
    assert "<svg" in html
    assert 'src="http' not in html


def random_embedding(d: int, n: int = 30) -> NamedEmbedding:
    z = torch.nn.functional.normalize(torch.randn(n, d), dim=1)
    return NamedEmbedding("random", z, torch.arange(n) % 3, ("a", "b", "c"), {"knn_top1": 50.0})


@pytest.mark.parametrize(("method", "d"), [("pca", 5), ("tsne", 5), ("sphere", 3)])
def test_map_figure(method: str, d: int, tmp_path: Path) -> None:
    embedding = random_embedding(d)
    figure = map_figure("a map", [embedding, embedding], map_points([embedding, embedding], method))
    assert len(figure.axes) == 2
    drawn = [c for c in figure.axes[0].collections if c.get_label() in ("a", "b", "c")]
    assert [np.asarray(c.get_offsets()).shape for c in drawn] == [(10, 2)] * 3
    assert "kNN 50.0 %" in embedding.caption
    assert "tolerance" in embedding.caption
    save(figure, tmp_path / "map.png")
    assert (tmp_path / "map.png").stat().st_size > 10_000


@pytest.mark.parametrize("method", ["tsne", "pca"])
def test_the_map_of_a_collapsed_embedding_is_one_point(method: str, tmp_path: Path) -> None:
    z = torch.eye(4)[0].expand(30, -1)
    assert not project_to_plane(z, method, 0).any()
    collapsed = [NamedEmbedding("collapsed", z, torch.arange(30) % 3)]
    save(map_figure("a map", collapsed, map_points(collapsed, method)), tmp_path / "map.png")


def test_no_push_on_a_false_negative_is_not_drawn() -> None:
    """On a log axis, 0 is below the lower end; it must not look like a hundredth of the mean push."""
    axes = explain_figure(["simclr", "byol"]).axes[3]
    curves = [np.asarray(line.get_ydata(), dtype=float) for line in axes.lines]
    pushed, not_pushed = (curve for curve in curves if len(curve) > 2)
    assert axes.get_ylim()[0] == pytest.approx(1e-2)
    assert max(not_pushed) < 1e-2 < min(pushed)
    assert max(pushed) < axes.get_ylim()[1]


def test_titles_say_what_is_drawn() -> None:
    embedding = replace(random_embedding(5), noun="images")
    assert map_title([embedding, embedding], "tsne") == "t-SNE of the projector output of 30 images"
    other = replace(embedding, output="encoder output", noun="sentences")
    assert map_title([other], "pca") == "PCA of the encoder output of 30 sentences"
    assert other.caption.startswith("random: encoder -U ")
    assert map_title([embedding], "sphere") == "Projector output of 30 images on the sphere"
    figure = map_figure("t-SNE of $5", [embedding], map_points([embedding], "pca"))
    assert figure.get_suptitle() == r"t-SNE of \$5"


def test_bad_input_is_rejected() -> None:
    with pytest.raises(ValueError, match="a sphere shows embeddings of 3 dimensions, got 5"):
        map_points([random_embedding(5)], "sphere")
    with pytest.raises(ValueError, match="method: expected one of tsne, umap, pca, sphere"):
        map_points([random_embedding(5)], "mds")
    with pytest.raises(ValueError, match="at least 10 embeddings"):
        map_points([random_embedding(5, 6)], "tsne")


@pytest.mark.parametrize("name", ["demo.png", "explain.png"])
def test_pictures_of_the_documentation_are_in_true_colour(name: str) -> None:
    """A palette of few colours would change the colours of the curves."""
    path = Path(__file__).parents[3] / "docs" / name
    with Image.open(path) as picture:
        assert picture.mode in ("RGB", "RGBA")
    assert path.stat().st_size < 300_000
