"""What all pages share: the site's fonts and colours, and how they look on a screen, on a phone, at night and on paper."""

from __future__ import annotations

import io
import re
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
import torch
from browser import chromium, needs_chromium
from PIL import Image
from promises_page import promises_page

import contrapose
from contrapose.lab.modalities.previews import Preview
from contrapose.lab.report import page as page_module
from contrapose.lab.report.document import Chart, Document, Heat, Number, Section, Series, Table
from contrapose.lab.report.embedding import NamedEmbedding
from contrapose.lab.report.loss import explain
from contrapose.lab.report.map_page import map_page
from contrapose.lab.report.page import page
from contrapose.lab.report.render import as_html
from contrapose.lab.report.search import Match, SearchResult, search_page

SOURCE = Path(contrapose.__file__).parent
STYLE = Path(page_module.__file__).with_name("page.css").read_text()
VARIABLE = re.compile(r"(--[\w-]+):\s*([^;}]+)")
LIGHT, DARK = "rgb(255, 255, 255)", "rgb(19, 20, 22)"


def plain(value: str) -> str:
    return re.sub(r"\s*,\s*", ",", value.strip())


def test_fonts_and_colours_are_those_of_the_site() -> None:
    site = files("furo").joinpath("theme/furo/static/styles/furo.css").read_text()
    known = {(name, plain(value)) for name, value in VARIABLE.findall(site)}
    used = [(name, plain(value)) for name, value in VARIABLE.findall(STYLE)]
    assert len(used) > 15
    assert [pair for pair in used if pair not in known] == []


def test_there_is_one_stylesheet() -> None:
    with_style = [path for path in (*SOURCE.rglob("*.py"), *SOURCE.rglob("*.js")) if "<style" in path.read_text()]
    # The doctor's page reads the same file.
    assert sorted(str(path.relative_to(SOURCE)) for path in with_style) == ["doctor/page.py", "lab/report/page.py"]
    assert [path.name for path in SOURCE.rglob("*.css")] == ["page.css"]


@cache
def report(*, interactive: bool) -> str:
    curves = (Series("a loss", (1.0, 2.0, 3.0), (70.0, 80.0, 75.0)), Series("another", (1.0, 2.0), (60.0, 65.0)))
    charts = tuple(Chart(title, "epoch", "accuracy, %", curves) for title in ("First", "Second"))
    heat = Heat("Grid", "α", "λ", (1.0, 2.0), (1.0, 2.0), ((70.0, None), (80.0, 85.0)), unit="accuracy, %")
    names = tuple(f"column {number}" for number in range(12))
    rows = tuple((f"nt_xent(temperature=0.{row})", (Number(80.5, 0.2, 3),) * 12) for row in range(3))
    verdicts = (("it is so", "holds", "80 against 70"), ("or not", "does not hold", "no"))
    sections = tuple(
        Section(title, "A claim.", verdicts, (*charts, heat, Table("Accuracy", names, rows)))
        for title in ("One", "Two")
    )
    return as_html(Document("A report", "The main finding.", sections, interactive=interactive))


def promise_lines() -> str:
    failed = {"name": "test_values.py::test_a", "cases": 4, "passed": False, "worst": 1e-13, "seconds": 0.5}
    return promises_page([failed])


def a_map() -> str:
    previews = tuple(Preview(texts=(f"text {number}",)) for number in range(40))
    z = torch.nn.functional.normalize(torch.randn(40, 3), dim=1)
    embedding = NamedEmbedding("a run", z, torch.arange(40) % 2, ("yes", "no"), previews=previews)
    return map_page("A map", [embedding, embedding], [z[:, :2], z[:, :2]])


def a_search() -> str:
    matches = (Match(0.5, "a.jpg", texts=("caption",)), Match(0.4, "b/" + "c" * 90 + ".jpg"))
    return search_page([SearchResult("a dog", matches)], run="runs/a", step=1, data="data", samples="2 images")


def an_explanation() -> str:
    explanation = explain("dystress")
    return page("What it does", explanation.sections(explanation.figure()))


PAGES = {
    "report": lambda: report(interactive=True),
    "static": lambda: report(interactive=False),
    "promises": promise_lines,
    "map": a_map,
    "search": a_search,
    "explain": an_explanation,
}
DRAWINGS = {"report": ".plot", "static": "figure > svg", "map": ".maps canvas", "explain": "picture > img"}


def brightness(element: Any) -> tuple[float, float, float]:
    """Return the brightness of a drawing's corner, and its least and greatest brightness, from 0 to 255."""
    with Image.open(io.BytesIO(element.screenshot())) as image:
        grey = image.convert("L")
        return (float(grey.getpixel((3, 3))), *map(float, grey.getextrema()))  # type: ignore[arg-type,return-value]


@pytest.mark.thorough
def test_charts_of_the_same_curves_have_one_legend() -> None:
    text = report(interactive=False)
    assert text.count(">another</text>") == 2  # one in each section, where there are two charts
    shown = re.findall(r'"showlegend":(\w+)', report(interactive=True).partition("<footer>")[0])
    assert shown == ["true", "false", "false"] * 2  # two charts and a grid


def test_the_colours_of_a_grid_have_a_unit() -> None:
    assert report(interactive=False).count(">accuracy, %</text>") == 2 * 3  # two y axes and a scale of colours
    assert '"colorbar":{"title":{"text":"accuracy, %"' in report(interactive=True)


def test_the_first_thing_on_a_page_is_its_finding() -> None:
    text = report(interactive=False)
    assert re.search(r"</h1>\s*<p class=\"lead\">The main finding\.</p>", text)
    assert '<a href="#section-2">Two</a>: <b>✓ 1 holds, ✗ 1 does not hold</b>' in text
    assert re.search(r"</h1>\s*<p class=\"lead\">0 of \d+ promises.*\s*<ul class=\"verdicts\">", promise_lines())


@pytest.mark.thorough
@needs_chromium
def test_pages_on_a_screen_a_phone_and_paper(tmp_path: Path) -> None:
    with chromium() as context:
        for name, make in PAGES.items():
            (tmp_path / f"{name}.html").write_text(make())
            tab, problems = context.new_page(), list[str]()
            tab.on("console", lambda message, to=problems: to.append(message.text))
            tab.on("pageerror", lambda error, to=problems: to.append(str(error)))
            tab.on("request", lambda r, to=problems: None if r.url[:5] in ("file:", "data:") else to.append(r.url))
            tab.goto((tmp_path / f"{name}.html").as_uri())
            for width, scheme, media, background in (
                (1280, "light", "screen", LIGHT), (390, "dark", "screen", DARK), (700, "dark", "print", LIGHT),
            ):  # fmt: skip
                tab.set_viewport_size({"width": width, "height": 900})
                tab.emulate_media(color_scheme=scheme, media=media)
                tab.wait_for_function(f"document.documentElement.scrollWidth <= {width}", timeout=5000)
                assert tab.evaluate("getComputedStyle(document.documentElement).backgroundColor") == background, name
                check_drawings(tab, name, dark=background == DARK)
                check_tables(tab, media)
            if name == "report":  # printing does not redraw charts: those of a wide window must fit
                tab.evaluate(
                    "for (const plot of document.querySelectorAll('.plot')) Plotly.relayout(plot, {width: 1100})"
                )
                assert tab.evaluate("document.documentElement.scrollWidth") <= 700
            assert problems == [], name
            tab.close()


def check_drawings(tab: Any, name: str, *, dark: bool) -> None:
    """Check that drawings have the background of the page, and that something is legible on it."""
    if name in DRAWINGS:
        corner, least, greatest = brightness(tab.locator(DRAWINGS[name]).first)
        assert (corner < 30) if dark else (corner > 235), (name, corner)
        assert greatest - least > 120, name


def check_tables(tab: Any, media: str) -> None:
    """Check that tables scroll in a box of their own on a screen, and are whole on paper."""
    for box in tab.locator(".wide").all():
        inside, width, right = box.evaluate("e => [e.scrollWidth, e.clientWidth, e.getBoundingClientRect().right]")
        assert right <= tab.viewport_size["width"]
        assert media == "screen" or inside <= width + 1
