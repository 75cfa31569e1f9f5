"""The site: its code runs, it builds without warnings, links lead somewhere, and pages fit a screen and a phone."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
import tomllib
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
import torch
from browser import CHROMIUM, needs_chromium

import contrapose
from contrapose.losses import CATALOGUE

SITE = Path(__file__).parent.parent / "docs" / "site"
CODE = re.compile(r"```python\n(.*?)```", re.DOTALL)


def load_module(file: str) -> Any:
    """Import a Python file of the site, which is in no package."""
    specification = importlib.util.spec_from_file_location(f"site_{Path(file).stem}", SITE / file)
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


BUILDER = load_module("build.py")


@pytest.mark.parametrize(("data", "code", "page"), BUILDER.CHOICES, ids=[choice[2] for choice in BUILDER.CHOICES])
def test_each_choice_is_a_line_that_runs(data: str, code: str, page: str) -> None:
    z1, z2 = torch.randn(2, 256, 128)
    names = {name: getattr(contrapose, name) for name in contrapose.__all__}
    assert eval(code, names | {"torch": torch, "z1": z1, "z2": z2}).isfinite()
    assert page in CATALOGUE


@pytest.mark.parametrize("page", ["index.md", "temperature.md"])
def test_code_of_the_pages_runs(page: str) -> None:
    blocks = CODE.findall((SITE / page).read_text())
    assert blocks
    for block in blocks:
        exec(block, {})


def test_links_to_other_files_become_pages_or_names(tmp_path: Path) -> None:
    page = tmp_path / "a.md"
    page.write_text("[one](b.md#part) [two](../x.json) [three](https://example.org) ![four](c.png)")
    text = BUILDER._relink(page, {"a": page, "other": tmp_path / "b.md"})
    assert "[one](other.md#part)" in text
    assert "two (`" in text
    assert "[three](https://example.org)" in text


class _Links(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.targets, self.anchors = list[str](), set[str]()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.anchors |= {value for key, value in attrs if key in ("id", "name") and value}
        self.targets += [value for key in ("href", "src") if (value := values.get(key))]


@cache
def links_of(path: Path) -> _Links:
    parser = _Links()
    parser.feed(path.read_text())
    return parser


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("site")
    subprocess.run([sys.executable, str(SITE / "build.py"), str(out)], check=True, timeout=600)
    return out / "html"


@pytest.mark.thorough
@pytest.mark.timeout(900)
@pytest.mark.xdist_group("site")
def test_all_links_lead_somewhere(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > 60
    broken = []
    for page in pages:
        for target in links_of(page).targets:
            if re.match(r"(https?|data|mailto|javascript):", target):
                continue
            name, _, anchor = target.partition("#")
            path = (page.parent / unquote(name.split("?")[0])).resolve() if name else page
            if not path.exists() or (anchor and path.suffix == ".html" and anchor not in links_of(path).anchors):
                broken.append(f"{page.relative_to(site)}: {target}")
    assert not broken
    listed = re.findall(r"\]\(([^)]*)\)", (site / "llms.txt").read_text())
    assert len(listed) == len(list(site.rglob("*.md")))
    assert all((site / name).is_file() for name in listed)


@needs_chromium
@pytest.mark.thorough
@pytest.mark.timeout(900)
@pytest.mark.xdist_group("site")
def test_pages_fit_a_screen_and_a_phone(site: Path) -> None:
    from playwright.sync_api import sync_playwright

    losses = [
        f"losses/{name}" for name in ("dystress", "cacr", "swav", "supcon", "barlow_twins", "clip", "macl", "tau")
    ]
    names = ["index", "temperature", "evidence", "images", "text", "captions", "integrations", "studies", "results", "promises",
             "reference/api", "reference/commands", "losses/index", *losses]  # fmt: skip
    assert len(names) > 20
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        for width, scheme in ((1280, "light"), (390, "dark")):
            check_pages(browser, site, names, width=width, scheme=scheme)
        browser.close()


def check_pages(browser: Any, site: Path, names: list[str], *, width: int, scheme: str) -> None:
    """Check that no page is wider than the window, lacks a picture or reports an error."""
    context = browser.new_context(offline=True, viewport={"width": width, "height": 900}, color_scheme=scheme)
    tab, errors = context.new_page(), list[str]()
    tab.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
    tab.on("pageerror", lambda error: errors.append(str(error)))
    for name in names:
        tab.goto((site / f"{name}.html").as_uri())
        assert not tab.evaluate("document.documentElement.scrollWidth > innerWidth"), (name, width)
        assert tab.evaluate("[...document.images].every(image => image.naturalWidth > 0)"), name
        assert not errors, (name, errors)
    check_curves(tab, site)


def check_curves(tab: Any, site: Path) -> None:
    """Check that the page draws the temperatures that the library computes."""
    tab.goto((site / "temperature.html").as_uri())
    similarities = torch.linspace(-1, 1, 41, dtype=torch.float64)
    for form in ("cosine", "linear", "exponential", "monotonic_cosine"):
        drawn = tab.evaluate(f"{similarities.tolist()}.map(s => FORMS.{form}(s, 0.07, 0.2))")
        expected = getattr(contrapose, form)(0.07, 0.2)(similarities)
        torch.testing.assert_close(torch.tensor(drawn, dtype=torch.float64), expected, rtol=0, atol=1e-9)
    before = tab.evaluate("document.querySelector('.slider path').getAttribute('d')")
    tab.locator("[name=high]").fill("0.4")
    assert tab.evaluate("document.querySelector('.slider path').getAttribute('d')") != before


def test_every_formula_becomes_mathml() -> None:
    configuration = load_module("conf.py")
    texts = tomllib.loads((SITE.parent / "losses.toml").read_text())
    for text in texts["objectives"].values():
        assert configuration.to_mathml(text["formula"], display="block").startswith("<math")
    with pytest.raises(ValueError, match="cannot be converted"):
        configuration.to_mathml(r"a \inB", display="inline")


def test_pages_have_the_recorded_accuracies() -> None:
    text = "\n".join(BUILDER._measured("simclr", "nt_xent"))
    recorded = BUILDER.evidence_page.accuracy(BUILDER.evidence_page.SIMCLR, "NT-Xent, τ = 0.5 (SimCLR)")
    assert f"| SimCLR's framework | NT-Xent, τ = 0.5 (SimCLR) | {recorded:.2f} ±" in text
    assert "| 65,536 |" in text
    assert "## Cost" not in "\n".join(BUILDER._measured("dystress", "nt_xent"))
    assert not "\n".join(BUILDER._measured("swav", "swav"))
