"""The page of a search: its content, and a real browser at the width of a phone."""

from __future__ import annotations

from pathlib import Path

import pytest
from browser import chromium, needs_chromium
from PIL import Image

from contrapose.lab.modalities.images.previews import thumbnail
from contrapose.lab.report.search import Match, SearchResult, search_page

HOSTILE = '"><script>document.title = "hacked"</script><img src=x onerror="document.title = \'hacked\'">'
RIGHT_TO_LEFT = "\u202eشاطئ عليه كلب"


def picture(folder: Path, name: str, size: tuple[int, int], colour: str = "red") -> Path:
    path = folder / name
    Image.new("RGB", size, colour).save(path, "JPEG")
    return path


def test_the_page_has_ranks_scores_classes_names_and_texts(tmp_path: Path) -> None:
    image = thumbnail(picture(tmp_path, "dog.jpg", (64, 48)))
    matches = (
        Match(0.4123, "pets/dog.jpg", image, texts=("a dog", "a <brown> dog")),
        Match(-0.1, "other.jpg", image, label="<cats>"),
        Match(0.2, texts=("only a text",)),
    )
    assert str(matches[0]) == "0.412  pets/dog.jpg"
    assert str(matches[1]) == "-0.100  <cats>  other.jpg"
    assert str(matches[2]) == "0.200  only a text"
    results = [SearchResult("a dog", matches), SearchResult("photo.jpg", matches[:1], image)]
    page = search_page(results, run="runs/mine", step=1200, data="flickr8k", samples="8,000 images")
    assert "8,000 images of <bdi>flickr8k</bdi>" in page
    assert "<bdi>runs/mine</bdi> at step 1,200" in page
    assert "<b>1</b> · 0.412</p>" in page
    assert "<b>2</b> · -0.100 · <bdi>&lt;cats&gt;</bdi>" in page
    assert "a &lt;brown&gt; dog" in page
    assert 'alt="other.jpg"' in page  # without a caption
    assert "Like the image <bdi>photo.jpg</bdi>" in page
    assert page.count('<img src="data:image/jpeg;base64,') == 4
    assert "http" not in page


@pytest.mark.thorough
@needs_chromium
def test_the_page_in_a_browser(tmp_path: Path) -> None:
    sizes = ((400, 300), (300, 400), (900, 20))
    images = [picture(tmp_path, f"{i}.jpg", size) for i, size in enumerate(sizes)]
    names = (f"{'a' * 200}.jpg", HOSTILE, RIGHT_TO_LEFT)
    captions = ((HOSTILE, "second", RIGHT_TO_LEFT), (), (RIGHT_TO_LEFT,))
    matches = tuple(
        Match(0.5, name, thumbnail(i), HOSTILE, own) for i, name, own in zip(images, names, captions, strict=True)
    )
    results = [SearchResult(query, matches) for query in (HOSTILE, RIGHT_TO_LEFT, "w" * 300)]
    results.append(SearchResult(HOSTILE, matches, thumbnail(images[2])))
    text = search_page(results, run=HOSTILE, step=1, data=f"{'b' * 200}{RIGHT_TO_LEFT}", samples="3 images")
    (tmp_path / "search.html").write_text(text, encoding="utf-8")
    problems = list[str]()
    with chromium() as browser:
        page = browser.new_page()
        for event in ("console", "pageerror", "request", "dialog"):
            page.on(event, lambda what: problems.append(str(what)))
        page.goto((tmp_path / "search.html").as_uri())
        # Only the page itself and its own images were asked for, and no script of a caption ran.
        assert [
            problem for problem in problems if "search.html" not in problem and "data:image/jpeg" not in problem
        ] == []
        assert page.title() == "Search"
        assert page.locator("script").count() == 0
        widths = page.eval_on_selector_all("img", "all => all.map(image => image.naturalWidth)")
        assert len(widths) == 4 * 3 + 1
        assert min(widths) > 0
        assert all(page.eval_on_selector_all("img", "all => all.map(image => image.alt)"))
        assert page.locator("ol.pictures li small").nth(1).inner_text() == HOSTILE
        page.locator("summary").first.click()
        assert page.get_by_text("second").first.is_visible()
        for width in (390, 800, 1280):
            page.set_viewport_size({"width": width, "height": 800})
            assert page.evaluate("document.documentElement.scrollWidth") <= width
        # Text from right to left does not change the order of what is beside it.
        isolated = page.eval_on_selector_all("bdi", "all => all.map(element => getComputedStyle(element).unicodeBidi)")
        assert set(isolated) == {"isolate"}
