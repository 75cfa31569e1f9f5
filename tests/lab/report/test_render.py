"""Documents as pages: numbers next to the paper's, missing numbers, and sorting and hovering in a real browser."""

from __future__ import annotations

import html
import io
import json
import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from browser import chromium, needs_chromium
from matplotlib.figure import Figure

from contrapose.explanation import Subject
from contrapose.extras import MissingPackage
from contrapose.lab.modalities.images.digits import digits
from contrapose.lab.modalities.images.sheet import contact_sheet
from contrapose.lab.modalities.images.views import Views
from contrapose.lab.report.document import (
    Chart,
    Document,
    Heat,
    Number,
    Picture,
    RunNote,
    Section,
    Series,
    Table,
    Thumbnail,
    Thumbnails,
    words,
)
from contrapose.lab.report.draw import figure
from contrapose.lab.report.embedding import NamedEmbedding, map_figure, map_points
from contrapose.lab.report.interactive import plotly
from contrapose.lab.report.loss import explain, explain_figure
from contrapose.lab.report.page import page as html_page
from contrapose.lab.report.render import as_html, as_markdown, write
from contrapose.lab.report.style import COLOURS, figure_style

TABLE = Table(
    "Accuracy",
    ("CIFAR-10", "note"),
    (
        ("<SimCLR>", (Number(80.5, 0.2, 3, 83.65, ("run-a", "run-b")), "first")),
        ("DCL", (Number(82.0, printed=84.4, runs=("run-c",)), "second")),
        ("BYOL", (Number(printed=90.0, why="BYOL is not built"), "third")),
    ),
)
CHART = Chart("Curve", "temperature", "accuracy", (
    Series("ours", (0.1, 0.2, 0.5), (70.0, 80.0, 75.0), (1.0, 1.0, 1.0), labels=("run-a", "run-b", "run-c")),
    Series("paper", (0.1, 0.5), (72.0, 77.0), printed=True),
), log_x=True)  # fmt: skip
HEAT = Heat("Grid", "α", "λ", (1.0, 2.0), (1.0, 2.0), ((70.0, None), (80.0, 85.0)))
DOCUMENT = Document(
    "A page", "What it is about.",
    (Section("Part", "A claim.", (("it is so", "holds", "80 against 70"), ("or not", "does not hold", "no")),
             (words("Some words."), CHART, HEAT, TABLE), ("A note.",), "part"),),
    (RunNote("run-a", (("settings", "{}"),)),), ("torch 2",),
)  # fmt: skip


def test_html_and_markdown_have_the_same_numbers() -> None:
    page, text = as_html(DOCUMENT), as_markdown(DOCUMENT)
    assert "&lt;SimCLR&gt;" in page
    assert "80.50 ± 0.20 (3)" in page
    assert "paper 83.65 (-3.15)" in page
    assert "BYOL is not built" in page
    assert 'href="#run-a"' in page
    assert 'id="run-a"' in page
    assert 'src="http' not in page
    assert "| DCL | 82.00, paper 84.40 (-2.40) | second |" in text
    assert "- **does not hold**: or not — no" in text
    assert "![Curve](part-1.png)" in text


@pytest.mark.thorough
def test_same_document_gives_the_same_bytes(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write(DOCUMENT, tmp_path / name)
    files = sorted(path.name for path in (tmp_path / "a").iterdir())
    assert files == ["index.html", "index.md", "part-1.png", "part-1.svg", "part-2.png", "part-2.svg"]
    for name in files:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_only_a_page_with_charts_has_and_needs_plotly(monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(as_html(DOCUMENT)) > 1_000_000
    monkeypatch.setitem(sys.modules, "plotly.offline", None)  # as if it were not installed
    without_charts = replace(DOCUMENT, sections=(Section("Part", blocks=(words("Some words."), TABLE)),))
    assert len(as_html(without_charts)) < 20_000
    with pytest.raises(MissingPackage, match=r"a page with charts needs plotly, .*\[figures\]"):
        as_html(DOCUMENT)


def test_a_page_without_interaction_is_small_and_has_the_same_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "plotly.offline", None)
    page = as_html(replace(DOCUMENT, interactive=False))
    assert len(page) < 100_000
    assert page.count("<svg") == 2
    for text in ("<figcaption>Curve</figcaption>", ">temperature</text>", ">accuracy</text>", ">ours</text>", ">85.0<"):
        assert text in page


def test_epochs_are_marked_at_whole_numbers() -> None:
    chart = Chart("Curve", "epoch", "y", (Series("ours", (1.0, 2.0), (3.0, 4.0)),))
    assert all(tick == int(tick) for tick in figure(chart).axes[0].get_xticks())
    assert cast("dict[str, Any]", plotly(chart)["layout"])["xaxis"]["dtick"] == 1


def test_a_method_has_the_same_colour_in_both_drawings_and_beside_printed_numbers() -> None:
    ours, paper = (Series(name, (1.0, 2.0), (3.0, 4.0), printed=name == "paper") for name in ("ours", "paper"))
    for series in ((ours, ours), (paper, ours, ours)):
        chart = Chart("Curve", "x", "y", series)
        traces = cast("list[dict[str, Any]]", plotly(chart)["data"])
        assert [trace["line"]["color"] for trace in traces if trace["name"] == "ours"] == list(COLOURS[:2])
        lines = figure(chart).axes[0].lines
        assert [line.get_color() for line in lines if line.get_label() == "ours"] == list(COLOURS[:2])


def test_a_picture_is_in_the_page_and_beside_it(tmp_path: Path) -> None:
    document = Document("A page", "", (Section("Part", blocks=(Picture("Views <of digits>", b"png"),), name="part"),))
    page = write(document, tmp_path).read_text()
    assert '<img src="data:image/png;base64,cG5n" alt="Views &lt;of digits&gt;">' in page
    assert (tmp_path / "part.png").read_bytes() == b"png"
    assert "![Views &lt;of digits>](part.png)" in (tmp_path / "index.md").read_text()


HOSTILE = r"<!--<script>$\frac{$</script><b>"


def hostile_document() -> Document:
    """A document with a hostile text in every place, and a harmless section at its end."""
    chart = Chart(HOSTILE, HOSTILE, HOSTILE, (
        Series(HOSTILE, (1.0, 2.0), (1.0, 2.0), labels=(HOSTILE, HOSTILE), annotations=(HOSTILE, HOSTILE)),
        Series(HOSTILE, (1.0,), (1.0,), printed=True), Series(HOSTILE, (1.0,), (1.0,), points=True),
    ), alt=HOSTILE)  # fmt: skip
    heat = Heat(HOSTILE, HOSTILE, HOSTILE, (1.0,), (1.0,), ((1.0,),), HOSTILE)
    png = contact_sheet(digits(2), Views.named("digits"))
    thumbnails = Thumbnails(HOSTILE, ((HOSTILE, (Thumbnail(png, HOSTILE, HOSTILE),)),))
    cells = (Number(1.0, runs=(HOSTILE,), note=HOSTILE), Number(why=HOSTILE), HOSTILE)
    table = Table(HOSTILE, (HOSTILE, "b", "c"), ((HOSTILE, cells),))
    blocks = (chart, heat, thumbnails, table, words(HOSTILE))
    section = Section(HOSTILE, HOSTILE, ((HOSTILE, "holds", HOSTILE),), blocks, (HOSTILE,), "part")
    runs = (RunNote(HOSTILE, ((HOSTILE, HOSTILE),)),)
    return Document(HOSTILE, HOSTILE, (section, Section("The end")), runs, (HOSTILE,))


class Elements(HTMLParser):
    """Collects the tags and the texts of a page; a comment or a script that swallows the rest loses some of them."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags, self.texts, self.comments = list[str](), list[str](), list[str]()
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.append(tag)

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    def handle_comment(self, data: str) -> None:
        self.comments.append(data)


def test_a_hostile_name_is_text_everywhere(tmp_path: Path) -> None:
    page = write(hostile_document(), tmp_path).read_text()
    head = page[: page.rindex("<footer>")]  # plotly's own source follows
    elements = Elements(head)
    assert elements.comments == []
    assert elements.tags.count("b") == 1  # that of the verdict
    assert "The end" in elements.texts
    charts = re.findall(r'<script type="application/json">(.*?)</script>', head)
    assert len(charts) == 2
    for chart in charts:
        assert "<" not in chart  # a browser that has seen "<!--<script" ignores the next "</script>"
        assert "<" not in str(json.loads(chart))  # plotly takes tags in its texts for formatting
    markdown = (tmp_path / "index.md").read_text()
    assert not re.search("<[a-zA-Z!/?]", markdown)  # what starts HTML in Markdown
    assert "## The end" in markdown


@pytest.mark.thorough
def test_a_hostile_name_is_text_in_figures() -> None:
    for picture in (hostile_figure(), explain_figure([replace(Subject.of("simclr"), name=HOSTILE)])):
        drawn = io.StringIO()
        with figure_style():  # texts as texts and not as outlines
            picture.savefig(drawn, format="svg")
        assert html.unescape(drawn.getvalue()).count(HOSTILE) >= 1


def hostile_figure() -> Figure:
    z = torch.nn.functional.normalize(torch.randn(12, 3, generator=torch.Generator().manual_seed(0)), dim=1)
    embedding = NamedEmbedding(HOSTILE, z, torch.arange(12) % 2, (HOSTILE, HOSTILE))
    return map_figure(HOSTILE, [embedding], map_points([embedding], "pca"))


@pytest.fixture
def browser() -> Iterator[Any]:
    with chromium() as context:
        yield context


@pytest.mark.thorough
@needs_chromium
def test_interaction_in_a_browser(browser: Any, tmp_path: Path) -> None:
    path = write(DOCUMENT, tmp_path / "page")
    page, errors = browser.new_page(), []
    page.set_viewport_size({"width": 1280, "height": 800})
    page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto(path.as_uri())
    page.wait_for_selector(".js-plotly-plot .main-svg")
    assert errors == []
    # Hovering over a point names its run.
    plot = page.locator(".js-plotly-plot").first
    plot.scroll_into_view_if_needed()
    point = plot.locator(".scatterlayer .points path").nth(1)
    box = point.bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.wait_for_selector(".hoverlayer .hovertext")
    assert "run-b" in (plot.locator(".hoverlayer").text_content() or "")
    # A click on a legend entry hides its series.
    plot.locator(".legendtoggle").first.click()
    page.wait_for_function("document.querySelector('.js-plotly-plot').data[0].visible === 'legendonly'")
    # A click on a heading sorts, a second click reverses the order, and missing numbers stay last.
    names = page.locator("table.sortable tbody th")
    assert names.all_inner_texts() == ["<SimCLR>", "DCL", "BYOL"]
    heading = page.locator("table.sortable thead th").nth(1)
    heading.click()
    assert names.all_inner_texts() == ["DCL", "<SimCLR>", "BYOL"]
    heading.click()
    assert names.all_inner_texts() == ["<SimCLR>", "DCL", "BYOL"]
    # On a phone only elements that scroll on their own are wider than the screen.
    page.set_viewport_size({"width": 390, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth") <= 392


def cut_off(page: Any) -> list[str]:
    """Return texts and images that extend beyond the screen, unless their table scrolls, or beyond the drawing they are in."""
    found: list[str] = page.evaluate("""
        [...document.querySelectorAll('h1, h2, p, li, .wide, figcaption, img, svg text')].filter(e => {
          const box = e.getBoundingClientRect(), svg = e.closest('svg'), frame = svg && svg.getBoundingClientRect();
          return box.left < 0 || box.right > innerWidth || frame && (box.left < frame.left - 1 || box.right > frame.right + 1
            || box.top < frame.top - 1 || box.bottom > frame.bottom + 1);
        }).map(e => e.tagName + ' ' + e.textContent)
    """)
    return found


@pytest.mark.thorough
@needs_chromium
def test_nothing_is_cut_off_on_a_phone(browser: Any, tmp_path: Path) -> None:
    table = Table("Signs of collapse", ("feature deviation, projector", "effective rank, projector") * 2,
                  (("hard contrastive", (Number(0.472, 0.011, 3), Number(24.2, 1.1, 3)) * 2),))  # fmt: skip
    curve = Series("a loss", (1.0, 2.0), (0.986, 0.998))
    long = Chart("Deviation", "epoch", "feature deviation of the embeddings that the loss takes", (curve,))
    document = Document(
        "Losses, such as " + "nt_xent" * 9, "", (Section("Part", blocks=(CROWDED, long, HEAT, table), name="part"),)
    )
    explanation = explain("dystress", "nt_xent(temperature=0.07)")
    (tmp_path / "explain.html").write_text(html_page("What they do", explanation.sections(explanation.figure())))
    pages = [write(replace(document, interactive=False), tmp_path / "static"), tmp_path / "explain.html"]
    for path in pages:
        page = browser.new_page()
        page.set_viewport_size({"width": 390, "height": 844})
        page.goto(path.as_uri())
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        assert cut_off(page) == []
    # An explanation has one column of panels on a phone, and three on a wide screen.
    shape = "(() => { const i = document.querySelector('picture img'); return i.naturalHeight / i.naturalWidth })()"
    assert page.evaluate(shape) > 2
    page.set_viewport_size({"width": 1280, "height": 844})
    page.wait_for_function(f"{shape} < 1")


CROWDED = Chart("Crowded", "-U: images spread evenly →", "T: classes stay together →", (
    Series("NT-Xent", (3.25, 3.22, 3.08, 2.9, 2.7), (0.289, 0.294, 0.333, 0.368, 0.379),
           annotations=("τ = 0.1", "τ = 0.2", "τ = 0.3", "τ = 0.5", "τ = 1")),
    *(Series(f"a loss with a long name {i}", (3.47 + i / 100,), (0.21 + i / 100,)) for i in range(5)),
))  # fmt: skip


@pytest.mark.thorough
@needs_chromium
def test_no_texts_collide_on_a_phone(browser: Any, tmp_path: Path) -> None:
    path = write(Document("A page", "", (Section("Part", blocks=(CROWDED,), name="part"),)), tmp_path)
    page = browser.new_page()
    page.set_viewport_size({"width": 380, "height": 800})
    page.goto(path.as_uri())
    page.wait_for_selector(".js-plotly-plot .legend .legendtext")
    selectors = ".textpoint text, .xtitle, .ytitle, .legend .legendtext, .xtick text, .ytick text, figcaption"
    boxes = page.eval_on_selector_all(
        selectors,
        "all => all.map(e => [e.textContent, e.getBoundingClientRect()]).map(([t, b]) => [t, b.left, b.top, b.right, b.bottom])",
    )
    assert len(boxes) >= 5 + 1 + 6 + 3 + 1
    for i, (name, left, top, right, bottom) in enumerate(boxes):
        assert left >= 0, name
        assert right <= 381, name
        for other, left2, top2, right2, bottom2 in boxes[:i]:
            apart = left >= right2 or left2 >= right or top >= bottom2 - 1 or top2 >= bottom - 1
            assert apart, f"{name!r} covers {other!r}"
