"""The site: its code runs, it builds without warnings, links lead somewhere, and pages fit a screen and a phone."""

from __future__ import annotations

import importlib.util
import inspect
import json
import re
import subprocess
import sys
import tomllib
from functools import cache, partial
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import evidence_page
import pytest
import torch
from browser import CHROMIUM, needs_chromium

import contrapose
from contrapose.lab.frameworks import FRAMEWORKS
from contrapose.lab.training.options import make_run
from contrapose.losses import CATALOGUE
from contrapose.temperature import learned_number

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


LEAVES = [leaf for kind in ("data", "conditions") for leaf in BUILDER.choose.texts("choose")[kind]]
PAGES = {
    *(f"losses/{name}" for name in BUILDER.losses.loss_names()),
    *(f"{kind.name}/{name}" for kind in BUILDER.parts.KINDS for name in BUILDER.parts.texts(kind.name)),
    *(f"frameworks/{name}" for name in FRAMEWORKS),
    *(path.stem for path in SITE.parent.glob("*.md")),
}


@pytest.mark.parametrize("leaf", LEAVES, ids=[leaf["title"] for leaf in LEAVES])
def test_each_choice_is_a_line_that_runs(leaf: dict[str, str]) -> None:
    assert leaf["page"] in PAGES
    if BUILDER.choose.language(leaf["code"]) == "bash":
        program, command, *options = leaf["code"].split()
        assert (program, command) == ("contrapose", "train")
        given = {key.removeprefix("--"): value for key, value in zip(options[::2], options[1::2], strict=True)}
        assert make_run(given, preset="", config={}, temperature="", log=print).framework == "byol"
        return
    z1, z2, z3, x1, x2, images, texts, g1, g2 = torch.randn(9, 256, 128)
    scope = {name: getattr(contrapose, name) for name in contrapose.__all__} | {"torch": torch}
    scope |= {"z1": z1, "z2": z2, "z3": z3, "x1": x1, "x2": x2, "images": images, "texts": texts, "g1": g1, "g2": g2}
    scope |= {"hard": torch.randn(256, 2, 128), "labels": torch.arange(256) % 10, "ids": torch.arange(256) // 2}
    scope |= {"stored": torch.randn(4096, 128), "encoder": torch.nn.Linear(128, 64)}
    scope |= {"scores": torch.randn(2, 256, 32), "teacher_scores": torch.randn(2, 256, 32)}
    exec(leaf["code"], scope)
    assert scope["loss" if leaf["code"].startswith("loss") else "z1"].isfinite().all()


def test_figures_of_the_entry_page_come_from_the_records() -> None:
    figures = BUILDER.choose.figures()
    used = set(re.findall(r"\{(\w+)\}", "".join(leaf["evidence"] for leaf in LEAVES)))
    assert used == set(figures)
    accuracy = evidence_page.accuracy(evidence_page.SIMCLR, "DySTreSS")
    assert figures["dystress"] == f"{accuracy:.2f} ± 0.30 (2 seeds)"
    assert figures["captions"].startswith("CLIP 48.46 ± 0.35 (3 seeds)")
    text = (SITE.parents[1] / "results/README.md").read_text()
    assert figures["captions"].split(",")[0].removeprefix("CLIP ") in text
    unmeasured = [leaf["title"] for leaf in LEAVES if leaf["evidence"] == "Not measured here."]
    assert unmeasured == ["Pairs with hard negatives", "Labels", "Embeddings of a teacher"]


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


def test_calls_in_code_are_no_links(tmp_path: Path) -> None:
    page = tmp_path / "a.md"
    page.write_text('`CATALOGUE["dystress"]("cifar10")` and [one](b.md)\n\n```python\nx["a"](b)\n```\n')
    assert BUILDER._relink(page, {"b": tmp_path / "b.md"}) == page.read_text()


def test_a_table_shows_bars_of_absolute_values() -> None:
    rows = BUILDER.parts.table("temperatures").splitlines()
    (linear,) = (row for row in rows if row.startswith("| [linear]"))
    assert len(re.split(r"(?<!\\)\|", linear)) == 4, linear


def test_powers_in_sentences_are_formulas() -> None:
    assert BUILDER.losses.prose("share e^{s/τ}, `e^{s}`") == r"share $e^{s/\tau}$, `e^{s}`"


@pytest.mark.parametrize(
    "name", [name for name, text in BUILDER.losses.texts("losses")["catalogue"].items() if "example" in text]
)
def test_a_page_of_a_method_shows_the_method_itself(name: str) -> None:
    """The example of a page gives the loss that the page describes, not that of its objective with other settings."""
    method = CATALOGUE[name]
    scope: dict[str, Any] = {}
    exec(BUILDER.losses.texts("losses")["catalogue"][name]["example"], scope)
    criterion = contrapose.Loss(method())
    criterion.epoch = 1
    arguments = (scope["pairs"],) if "pairs" in scope else (scope["z1"], scope["z2"])
    torch.testing.assert_close(scope["loss"], criterion(*arguments))


@pytest.mark.parametrize("name", [name for name in CATALOGUE if CATALOGUE[name].values])
def test_settings_on_a_page_are_those_that_a_user_can_type(name: str) -> None:
    scope = {own: getattr(contrapose, own) for own in contrapose.__all__} | {"learned_number": learned_number}
    typed = eval(f"dict({BUILDER.losses.settings(CATALOGUE[name])})", scope)
    assert repr(typed) == repr(dict(CATALOGUE[name].values))


class _Links(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.targets, self.anchors = list[str](), set[str]()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.anchors |= {value for key, value in attrs if key in ("id", "name") and value}
        self.targets += [value for key in ("href", "src") if (value := values.get(key))]


def test_figures_beside_the_results_are_shown() -> None:
    page = SITE.parents[1] / "results" / "README.md"
    text = BUILDER._relink(page, {"results": page})
    assert "](behaviour-figure4.png)" in text
    assert "](file:" not in text


@cache
def links_of(path: Path) -> _Links:
    parser = _Links()
    parser.feed(path.read_text())
    return parser


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("site")
    subprocess.run([sys.executable, str(SITE / "build.py"), str(out)], check=True, timeout=850)
    return out / "html"


@pytest.mark.thorough
@pytest.mark.timeout(900)
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


@pytest.mark.thorough
@pytest.mark.timeout(900)
def test_examples_have_their_figures(site: Path) -> None:
    pages = [*(site / "gallery").glob("*.html"), *(site / "notebooks").glob("*.html")]
    assert len(pages) == 13 + 4
    without = {page.name for page in pages if not any("_images/" in target for target in links_of(page).targets)}
    assert without == {"index.html"}  # that of the notebooks; the other one has thumbnails
    assert "Traceback" not in "".join(page.read_text() for page in pages)


@needs_chromium
@pytest.mark.thorough
@pytest.mark.timeout(900)
def test_pages_fit_a_screen_and_a_phone(site: Path) -> None:
    from playwright.sync_api import sync_playwright

    losses = [
        f"losses/{name}" for name in ("dystress", "cacr", "swav", "supcon", "barlow_twins", "clip", "macl", "tau")
    ]
    names = ["index", "temperature", "evidence", "images", "text", "captions", "integrations", "studies", "results", "promises",
             "reference/api", "reference/commands", "reference/conformance", "losses/index", *losses,
             "temperatures/cosine", "temperatures/learned", "negatives/index", "negatives/guided", "negatives/stored_rows",
             "metrics/uniformity", "metrics/recall_at", "frameworks/moco", "frameworks/swav", "frameworks/dino",
             "gallery/index", "gallery/own_temperature", "notebooks/temperature", "notebooks/folder_to_encoder"]  # fmt: skip
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
        drawn = tab.evaluate(f"pushes({similarities.tolist()}, s => FORMS.{form}(s, 0.07, 0.2))")
        pairs = contrapose.from_similarities(torch.tensor([[0.8]], dtype=torch.float64), similarities[None])
        objective = partial(contrapose.nt_xent, temperature=getattr(contrapose, form)(0.07, 0.2))
        push = contrapose.penalties(objective, pairs).relative[0]
        torch.testing.assert_close(torch.tensor(drawn, dtype=torch.float64), push / push.max(), rtol=0, atol=1e-9)
    tab.goto((site / "temperatures/linear.html").as_uri())
    assert tab.locator("[name=form]").input_value() == "linear"
    drawn = "[...document.querySelectorAll('.slider path, .slider p')].map(each => each.getAttribute('d') || each.textContent)"
    before = tab.evaluate(drawn)
    tab.locator("[name=high]").fill("0.4")
    assert len(before) == 3
    assert all(new != old for new, old in zip(tab.evaluate(drawn), before, strict=True))


def test_every_formula_becomes_mathml() -> None:
    configuration = load_module("conf.py")
    texts = tomllib.loads((SITE.parent / "losses.toml").read_text())
    for text in (*texts["objectives"].values(), texts["catalogue"]["dystress"]):
        assert configuration.to_mathml(text["formula"], display="block").startswith("<math")
    with pytest.raises(ValueError, match="cannot be converted"):
        configuration.to_mathml(r"a \inB", display="inline")


def test_pages_have_the_recorded_accuracies() -> None:
    text = "\n".join(BUILDER.losses.measured("simclr"))
    recorded = evidence_page.accuracy(evidence_page.SIMCLR, "NT-Xent, τ = 0.5 (SimCLR)")
    assert f"| SimCLR's framework | NT-Xent, τ = 0.5 (SimCLR) | {recorded:.2f} ±" in text
    assert not list(BUILDER.losses.measured("swav"))


def test_recorded_accuracies_stand_beside_those_of_nt_xent() -> None:
    def rows(name: str) -> list[str]:
        return [line for line in BUILDER.losses.measured(name) if re.match(r"\| [^|]+ \| [^|]+ \| \d", line)]

    assert len(rows("dystress")) == 6
    for protocol in (evidence_page.SIMCLR, evidence_page.EACH, evidence_page.CIFAR100):
        recorded = evidence_page.accuracy(protocol, "NT-Xent, τ = 0.5 (SimCLR)")
        (row,) = (row for row in rows("dystress") if row.startswith(f"| {protocol.title} | NT-Xent"))
        assert f" {recorded:.2f} " in row
    assert rows("hard_simple")[0].startswith("| A memory bank | NT-Xent, τ = 0.2 |")
    assert not [row for row in rows("balanced") if "NT-Xent" in row]  # none was run


@pytest.mark.thorough
def test_a_loss_page_names_the_command_of_its_figure_and_the_paper_first(tmp_path: Path) -> None:
    text = "\n".join(BUILDER.losses.loss_page("dystress", tmp_path))
    assert "](dystress.png)\n\nMade by `contrapose explain dystress --vs simclr`." in text
    assert "## Source\n\nS. Manna et al., Dynamically Scaled Temperature" in text
    assert "Its objective: T. Chen" in text


def test_pages_have_the_costs_of_the_benchmark(tmp_path: Path) -> None:
    rows = [
        {"device": "NVIDIA H200", "torch": "2.11.0"},
        {"loss": "simclr", "n": 8192, "d": 128, "dtype": "bfloat16", "ms": 1.4321, "mib": 24.19},
        {"loss": "simclr", "n": 65536, "d": 128, "dtype": "bfloat16", "note": "does not fit into memory"},
        {"loss": "swav", "n": 8192, "d": 128, "dtype": "bfloat16", "prototypes": 3000, "ms": 2.0, "mib": 1234.5},
    ]
    path = tmp_path / "costs.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    text = "\n".join(BUILDER.losses.cost("simclr", path))
    assert "on one H200" in text
    assert "| 8,192 | 1.43 | 24 |" in text
    assert "| 65,536 | does not fit into memory |" in text
    assert "3,000 prototypes" in "\n".join(BUILDER.losses.cost("swav", path))
    assert not list(BUILDER.losses.cost("dcl", path))
    assert not list(BUILDER.losses.cost("simclr", tmp_path / "missing"))


def test_the_recorded_costs_cover_every_loss() -> None:
    if not BUILDER.losses.COSTS.exists():
        pytest.skip("benchmarks/costs.py has not been run on a GPU")
    assert {name for name in CATALOGUE if not list(BUILDER.losses.cost(name))} == set()


def test_every_public_name_has_an_example_and_parts_have_a_page() -> None:
    names = BUILDER.reference.public_names()
    assert len(names) > 80
    results = {
        "Gap",
        "Histograms",
        "Penalties",
        "RepulsionGap",
        "Separation",
    }  # described by the functions that return them
    for name, value in names.items():
        page, example = BUILDER.reference.page_and_example(name)
        assert not page or page in PAGES
        assert example or ">>>" in (inspect.getdoc(value) or "") or name in results, name
        is_part = value.__module__.split(".")[1] in ("losses", "temperature", "metrics")
        assert page or not is_part or name in ("contrapose.Loss", "contrapose.nested"), name


def test_conformance_and_verdicts_are_those_of_the_records() -> None:
    text = BUILDER.reference.conformance_page()
    in_readme = (SITE.parents[1] / "benchmarks/README.md").read_text()
    rows = [line for line in text.splitlines() if line.startswith("| contrapose")]
    assert len(rows) == 4
    assert BUILDER.reference.conformance_table() in in_readme
    assert "| simclr | 1.0.2 | ok 8e-16 | wrong 1.4 | no ids | – 0.17 |" in text
    # Each cell that is wrong, and each factor, has a line that shows it without the package.
    shown = (SITE.parent / "conformance.md").read_text()
    faulty = [line.split("|")[1].strip() for line in text.splitlines() if re.search(r"\| (wrong|NaN|×|raises)", line)]
    assert len(faulty) > 8
    assert all(f"| `{name}`, " in shown for name in faulty if not name.startswith("pytorch"))
    verdicts = BUILDER.reference.verdicts()
    assert ("dystress/table3, 200-NN accuracy", "holds", "DySTreSS is above SimCLR") in {row[:3] for row in verdicts}
    assert sum(row[0].startswith("dystress/table12,") for row in verdicts) >= 5
    assert {row[1] for row in verdicts} == {"holds", "does not hold", "undecided"}
    page = BUILDER.reference.studies_page((SITE.parent / "studies.md").read_text())
    assert page.count("\n# ") == 0
    assert "| CACR Table 2, `cacr/table2` |" in page
    assert "| DySTreSS Table 3, `dystress/table3`, 200-NN accuracy | holds |" in page
    assert "\n## What each study measures\n" in page


def test_markdown_copies_have_no_directives(tmp_path: Path) -> None:
    source, html = tmp_path / "source", tmp_path / "html"
    source.mkdir()
    html.mkdir()
    card = "````{grid} 1\n:gutter: 2\n\n```{grid-item-card} Pairs\nwords\n```\n````\n"
    drawing = '```{raw} html\n<svg role="img" aria-label="y &amp; z against x">\n</svg>\n```\n\n'
    sidebar, formula = "```{toctree}\n:hidden:\n\nb\n```\n", "```{math}\nx^2\n```\n"
    code = "![Curves](curves.png)\n\n```python\nx = 1\n```\n"
    shown = code.replace("(curves", "(_images/curves")
    (source / "a.md").write_text(
        "---\nno-search: true\n---\n\n# A page\n\n" + drawing + sidebar + formula + card + code
    )
    BUILDER.write_markdown(source, html)
    picture = "*Picture, only on [the HTML page](a.html): y & z against x.*"
    assert (html / "a.md").read_text() == f"# A page\n\n{picture}\n\n$$\nx^2\n$$\n\n**Pairs**\n\nwords\n{shown}"
    assert "- [A page](a.md)" in (html / "llms.txt").read_text()
    inner = BUILDER.markdown.plain_markdown("![Curves](curves.png)", Path("losses/a.md"))
    assert inner == "![Curves](../_images/curves.png)"


def test_the_reference_as_markdown_has_every_name_with_its_arguments() -> None:
    text = BUILDER.reference.api_markdown()
    assert all(f"### `{name}" in text for name in BUILDER.reference.public_names())
    assert "### `contrapose.nt_xent(pairs, *, temperature=0.5" in text
    assert "#### `contrapose.Loss.negatives_per_anchor(" in text
    assert ".. auto" not in text
    assert "forward=call)" in text  # and no address in memory
    assert " at 0x" not in text
