"""The interactive map: its content, its size, and a real browser at the width of a phone and of a desktop."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path

import pytest
import torch
from browser import chromium, needs_chromium
from PIL import Image

from contrapose.lab.modalities.previews import Preview
from contrapose.lab.report.embedding import NamedEmbedding
from contrapose.lab.report.map_page import map_page

HOSTILE = '</script><script>document.title = "hacked"</script>'


def unit_vectors(count: int) -> torch.Tensor:
    return torch.nn.functional.normalize(torch.randn(count, 5), dim=1)


def picture(colour: tuple[int, int, int]) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (40, 30), colour).save(buffer, "PNG")
    return buffer.getvalue()


def of_images(count: int, name: str = "simclr") -> NamedEmbedding:
    """Return an embedding of pictures, each with its own colour, in three classes."""
    previews = tuple(Preview(picture((5 * number % 256, 80, 80))) for number in range(count))
    return NamedEmbedding(name, unit_vectors(count), torch.arange(count) % 3, ("c", "b & d", "a"), previews=previews)


def samples_of(page: str) -> list[dict[str, object]]:
    """Return the data of the page."""
    found = re.search(r'<script type="application/json" id="samples">(.*?)</script>', page)
    assert found is not None
    return list(json.loads(found[1]))


def test_runs_on_the_same_images_share_one_sheet() -> None:
    first = of_images(12)
    points = torch.randn(12, 2)
    page = map_page("t-SNE of the projector output of 12 images", [first, of_images(12, "dystress")], [points, points])
    assert "<h1>t-SNE of the projector output of 12 images</h1>" in page
    assert page.count("url(data:image/jpeg") == 1
    assert samples_of(page) == [{"columns": 4, "rows": 3, "texts": None}]
    assert re.findall(r'data-name="([^"]*)"><svg', page) == ["c", "b &amp; d", "a"]  # in the order of the labels
    assert page.count("data-n=") == 24
    assert "http:" not in page.replace("http://www.w3.org/2000/svg", "")
    # The point with the largest y is drawn at the top.
    drawn = [(int(n), int(y)) for n, y in re.findall(r'data-n="(\d+)" x="\d+" y="(\d+)"', page)[:12]]
    assert min(drawn, key=lambda point: point[1])[0] == int(points[:, 1].argmax())


def test_texts_are_data_and_not_code() -> None:
    texts = tuple(Preview(texts=(f"{HOSTILE} {number}", "another column")) for number in range(10))
    page = map_page("Texts", [NamedEmbedding(HOSTILE, unit_vectors(10), previews=texts)], [torch.zeros(10, 2)])
    assert HOSTILE not in page
    assert samples_of(page) == [{"texts": [f"{HOSTILE} {number}" for number in range(10)]}]
    assert "<button" not in page  # there are no classes


def test_two_towers_draw_each_sample_twice() -> None:
    previews = tuple(Preview(picture((9, 9, 9)), (f"caption {number}",)) for number in range(10))
    labels = torch.arange(2).repeat_interleave(10)
    embedding = NamedEmbedding(
        "clip", unit_vectors(20), labels, ("images", "captions"), {"text_to_image_recall_1": 12.5}, previews
    )
    assert re.fullmatch(r"clip: modality gap [\d.]+; text-to-image recall@1 12\.5 %", embedding.caption)
    page = map_page("Both", [embedding], [torch.randn(20, 2)])
    assert [page.count(f'data-n="{number}"') for number in (0, 9)] == [2, 2]


def test_a_page_of_2000_photographs_is_below_one_megabyte() -> None:
    def noisy() -> bytes:
        buffer = io.BytesIO()
        smooth = torch.nn.functional.interpolate(torch.rand(1, 3, 9, 9), size=(64, 64), mode="bicubic")[0]
        pixels = ((smooth + 0.05 * torch.randn(3, 64, 64)).clamp(0, 1) * 255).to(torch.uint8)
        Image.fromarray(pixels.permute(1, 2, 0).contiguous().numpy()).save(buffer, "JPEG")
        return buffer.getvalue()

    some = [Preview(noisy()) for _ in range(100)]
    embedding = NamedEmbedding("simclr", unit_vectors(2000), torch.arange(2000) % 10, previews=tuple(some * 20))
    assert len(map_page("Many", [embedding], [torch.randn(2000, 2)])) < 1_000_000


@pytest.mark.thorough
@needs_chromium
def test_the_map_in_a_browser(tmp_path: Path) -> None:
    previews = tuple(Preview(picture((20 * number, 0, 0)), (f"{HOSTILE} {number}",)) for number in range(12))
    embedding = NamedEmbedding("a run", unit_vectors(12), torch.arange(12) % 3, ("a", "b", "c"), previews=previews)
    points = torch.stack([torch.arange(12.0), torch.arange(12.0) % 4], dim=1)
    path, problems = tmp_path / "map.html", list[str]()
    path.write_text(map_page("A map", [embedding], [points]), encoding="utf-8")
    with chromium() as context:
        page = context.new_page()
        page.on("console", lambda message: problems.append(message.text))
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.goto(path.as_uri())
        tip = page.locator("#tip")
        assert not tip.is_visible()
        for width in (390, 1280):
            page.set_viewport_size({"width": width, "height": 800})
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            box = page.locator('use[data-n="7"]').bounding_box()
            page.mouse.move(box["x"] + box["width"] / 2 + 3, box["y"] + box["height"] / 2)
            assert tip.locator("span").inner_text() == f"{HOSTILE} 7"
            assert tip.locator("b").inner_text() == "b"
            shown = tip.bounding_box()
            assert shown["x"] + shown["width"] <= width
            # Sample 7 is in column 3 of row 1 of the sheet.
            assert tip.locator("i").evaluate("e => e.style.backgroundPosition") == "-24rem -8rem"
            page.mouse.move(1, 1)
            assert not tip.is_visible()
        button = page.locator(".legend button").nth(0)
        button.click()
        assert button.get_attribute("aria-pressed") == "true"
        assert page.locator("g.off").evaluate_all("all => all.map(g => g.dataset.name)") == ["b", "c"]
        box = page.locator('use[data-n="7"]').bounding_box()
        page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
        assert not tip.is_visible()  # a hidden class shows nothing
        button.click()
        assert page.locator("g.off").count() == 0
        assert page.title() == "A map"
    assert problems == []
