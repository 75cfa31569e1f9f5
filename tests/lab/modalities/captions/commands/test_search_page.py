"""The page of a search and the retrieval sheet: their content, and a real browser at the width of a phone."""

from __future__ import annotations

import io
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from contrapose.lab.modalities.captions.commands.pages import (
    Match,
    SearchResult,
    retrieval_rows,
    retrieval_sheet,
    search_page,
    thumbnail,
)
from contrapose.lab.modalities.tars import list_tar
from contrapose.lab.report.document import Document, Section
from contrapose.lab.report.render import as_html, write

CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)
HOSTILE = '"><script>document.title = "hacked"</script><img src=x onerror="document.title = \'hacked\'">'
RIGHT_TO_LEFT = "\u202eشاطئ عليه كلب"


def picture(folder: Path, name: str, size: tuple[int, int], colour: str = "red") -> Path:
    path = folder / name
    Image.new("RGB", size, colour).save(path, "JPEG")
    return path


def size_of(jpeg: bytes) -> tuple[int, int]:
    with Image.open(io.BytesIO(jpeg)) as image:
        assert image.format == "JPEG"
        assert not image.getexif()
        return image.size


def test_a_thumbnail_is_small_upright_and_without_metadata(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # rotated by a quarter
    exif[0x010F] = "a camera"
    Image.new("RGB", (1600, 800), "blue").save(tmp_path / "large.jpg", exif=exif)
    assert size_of(thumbnail(tmp_path / "large.jpg")) == (120, 240)
    assert size_of(thumbnail(picture(tmp_path, "small.jpg", (30, 20)))) == (30, 20)
    assert size_of(thumbnail(Image.new("RGBA", (480, 480)))) == (240, 240)
    with Image.open(tmp_path / "large.jpg") as unread:
        assert size_of(thumbnail(unread)) == (120, 240)
        assert unread.size == (1600, 800)


def test_a_thumbnail_of_a_member_of_a_tar(tmp_path: Path) -> None:
    import tarfile

    with tarfile.open(tmp_path / "shard.tar", "w") as tar:
        tar.add(picture(tmp_path, "a.jpg", (480, 240)), "a.jpg")
    (member,) = list_tar(tmp_path / "shard.tar").members
    assert size_of(thumbnail(member)) == (240, 120)


def test_the_page_has_ranks_scores_names_and_captions(tmp_path: Path) -> None:
    image = picture(tmp_path, "dog.jpg", (64, 48))
    matches = (Match(image, 0.4123, "dog.jpg", ("a dog", "a <brown> dog")), Match(image, -0.1, "other.jpg"))
    results = [SearchResult("a dog", matches), SearchResult("photo.jpg", matches[:1], image)]
    page = search_page(results, run="runs/mine", step=1200, data="flickr8k", pictures=8000)
    assert "8,000 pictures of <bdi>flickr8k</bdi>" in page
    assert "<bdi>runs/mine</bdi> at step 1,200" in page
    assert "<b>1</b> · 0.412" in page
    assert "<b>2</b> · -0.100" in page
    assert "a &lt;brown&gt; dog" in page
    assert 'alt="other.jpg"' in page  # without a caption
    assert "Like the picture <bdi>photo.jpg</bdi>" in page
    assert page.count('<img src="data:image/jpeg;base64,') == 4
    assert "http" not in page


def test_rows_rank_the_right_picture_after_its_equals(tmp_path: Path) -> None:
    images = [picture(tmp_path, f"{i}.jpg", (8, 8)) for i in range(4)]
    scores = torch.tensor([[0.9, 0.5, 0.1, 0.2], [0.3, 0.3, 0.3, 0.3], [0.9, 0.8, 0.7, 0.1]])
    rows = retrieval_rows(["first", "all equal", "last"], scores, [0, 0, 3], images, top=2)
    assert [row.rank for row in rows] == [1, 4, 4]
    assert [match.name for match in rows[0].matches] == ["0.jpg", "1.jpg"]
    assert rows[0].matches[0].score == pytest.approx(0.9)
    with pytest.raises(ValueError, match=r"scores: expected one row per query .* \(2, 4\), got \(3, 4\)"):
        retrieval_rows(["first", "second"], scores, [0, 0], images)
    with pytest.raises(ValueError, match="scores: expected finite cosines"):
        retrieval_rows(["first"], torch.full((1, 4), torch.nan), [0], images)


def test_the_sheet_says_hit_and_miss_in_words_and_frames(tmp_path: Path) -> None:
    images = [picture(tmp_path, f"{i}.jpg", (80, 40 + 20 * i)) for i in range(3)]
    queries = [f"costs $5 and $6 {HOSTILE}", "犬 at the beach"]
    rows = retrieval_rows(queries, torch.tensor([[0.1, 0.9, 0.2], [0.3, 0.2, 0.1]]), [1, 2], images, top=2)
    sheet = retrieval_sheet(rows, pictures=3)
    assert [[image.mark for image in group] for _, group in sheet.groups] == [["hit", "miss"], ["miss", "miss"]]
    document = Document("Report", "", (Section("Part", blocks=(sheet,), name="part"),))
    page = as_html(document)
    assert "<script>document.title" not in page
    assert "1 · hit · 0.900" in page
    assert "the right picture has rank 3 of 3" in page
    assert page.count("<figure class=hit>") == 1
    assert page.count("<figure class=miss>") == 3
    write(document, tmp_path)  # as a figure too: a text may hold "$", and letters that the font lacks
    with Image.open(tmp_path / "part.png") as figure:
        colours = {colour: count for count, colour in figure.convert("RGB").getcolors(maxcolors=2**24) or ()}
    assert colours[0, 158, 115] > 500  # the frame of the hit


@pytest.fixture
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield chromium
        chromium.close()


@pytest.mark.thorough
@pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")
def test_the_page_in_a_browser(browser: Any, tmp_path: Path) -> None:
    sizes = ((400, 300), (300, 400), (900, 20))
    images = [picture(tmp_path, f"{i}.jpg", size) for i, size in enumerate(sizes)]
    names = (f"{'a' * 200}.jpg", HOSTILE, RIGHT_TO_LEFT)
    captions = ((HOSTILE, "second", RIGHT_TO_LEFT), (), (RIGHT_TO_LEFT,))
    matches = tuple(Match(i, 0.5, name, own) for i, name, own in zip(images, names, captions, strict=True))
    results = [SearchResult(query, matches) for query in (HOSTILE, RIGHT_TO_LEFT, "w" * 300)]
    results.append(SearchResult(HOSTILE, matches, images[2]))
    text = search_page(results, run=HOSTILE, step=1, data=f"{'b' * 200}{RIGHT_TO_LEFT}", pictures=3)
    (tmp_path / "search.html").write_text(text, encoding="utf-8")
    context, problems = browser.new_context(offline=True, viewport={"width": 360, "height": 800}), list[str]()
    page = context.new_page()
    for event in ("console", "pageerror", "request", "dialog"):
        page.on(event, lambda what: problems.append(str(what)))
    page.goto((tmp_path / "search.html").as_uri())
    # Only the page itself and its own images were asked for, and no script of a caption ran.
    assert [problem for problem in problems if "search.html" not in problem and "data:image/jpeg" not in problem] == []
    assert page.title() == "Search"
    assert page.locator("script").count() == 0
    widths = page.eval_on_selector_all("img", "all => all.map(image => image.naturalWidth)")
    assert len(widths) == 4 * 3 + 1
    assert min(widths) > 0
    assert all(page.eval_on_selector_all("img", "all => all.map(image => image.alt)"))
    assert page.locator("ol.pictures li small").nth(1).inner_text() == HOSTILE
    page.locator("summary").first.click()
    assert page.get_by_text("second").first.is_visible()
    for width in (360, 800, 1400):
        page.set_viewport_size({"width": width, "height": 800})
        assert page.evaluate("document.documentElement.scrollWidth") <= width
    # Text from right to left does not change the order of what is beside it.
    isolated = page.eval_on_selector_all("bdi", "all => all.map(element => getComputedStyle(element).unicodeBidi)")
    assert set(isolated) == {"isolate"}
    context.close()
