"""The interactive map: its content, its size, and a real browser at the width of a phone and of a desktop."""

from __future__ import annotations

import io
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from browser import chromium, needs_chromium
from PIL import Image

from contrapose.lab.modalities.previews import Preview
from contrapose.lab.report.embedding import NamedEmbedding
from contrapose.lab.report.map_page import map_page

CLASS_COLOURS = {"a": (0, 114, 178), "b": (213, 94, 0), "c": (0, 158, 115)}  # Okabe and Ito
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


def data_of(page: str) -> dict[str, Any]:
    """Return the data of the page."""
    found = re.search(r'<script type="application/json" id="points">(.*?)</script>', page)
    assert found is not None
    return dict(json.loads(found[1]))


def test_runs_on_the_same_images_share_one_sheet() -> None:
    points = torch.randn(12, 2)
    embeddings = [of_images(12), of_images(12, "dystress")]
    page = map_page("t-SNE of the projector output of 12 images", embeddings, [points, points])
    assert "<h1>t-SNE of the projector output of 12 images</h1>" in page
    assert page.count("data:image/jpeg") == 1
    data = data_of(page)
    assert data["samples"] == [{"columns": 4, "texts": None}]
    assert [item["name"] for item in data["classes"]] == ["c", "b & d", "a"]  # in the order of the labels
    assert "b &amp; d <small>(8)</small>" in page  # four points in each of two maps
    assert [len(part["x"]) for part in data["maps"]] == [12, 12]
    assert "http" not in page
    # The point with the largest y is drawn at the top, and the shorter side is in the middle.
    x, y = (torch.tensor(data["maps"][0][axis]) for axis in "xy")
    assert int(y.argmin()) == int(points[:, 1].argmax())
    assert int(x.argmax()) == int(points[:, 0].argmax())
    assert max(int(x.max() - x.min()), int(y.max() - y.min())) == 10_000
    assert abs(int(x.max() + x.min()) - 10_000) < 2
    assert abs(int(y.max() + y.min()) - 10_000) < 2


def test_texts_are_data_and_not_code() -> None:
    texts = tuple(Preview(texts=(f"{HOSTILE} {number}", "another column")) for number in range(10))
    page = map_page("Texts", [NamedEmbedding(HOSTILE, unit_vectors(10), previews=texts)], [torch.zeros(10, 2)])
    assert HOSTILE not in page
    data = data_of(page)
    assert data["samples"] == [{"columns": 0, "texts": [f"{HOSTILE} {number}" for number in range(10)]}]
    assert data["classes"] == []
    assert "<fieldset" not in page


def test_two_towers_draw_each_sample_twice() -> None:
    previews = tuple(Preview(picture((9, 9, 9)), (f"caption {number}",)) for number in range(10))
    labels = torch.arange(2).repeat_interleave(10)
    embedding = NamedEmbedding(
        "clip", unit_vectors(20), labels, ("images", "captions"), {"text_to_image_recall_1": 12.5}, previews
    )
    assert re.fullmatch(r"clip: modality gap [\d.]+; text-to-image recall@1 12\.5 %", embedding.caption)
    (drawn,) = data_of(map_page("Both", [embedding], [torch.randn(20, 2)]))["maps"]
    assert (drawn["count"], drawn["label"]) == (10, labels.tolist())


def test_an_image_that_is_gone_leaves_its_place_empty() -> None:
    embedding = of_images(10)
    gone = replace(embedding, previews=(Preview(), *embedding.previews[1:]))
    assert data_of(map_page("Nine images", [gone], [torch.randn(10, 2)]))["samples"] == [{"columns": 4, "texts": None}]


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


def at(page: Any, number: int) -> tuple[float, float]:
    """Return where a point of the map in the test below is on the screen, if the map is not enlarged."""
    box, data = page.locator(".maps canvas").bounding_box(), page.evaluate("data.maps[0]")
    side = box["width"] - 24
    x, y = (12 + data[axis][number] / 10_000 * side for axis in "xy")
    return box["x"] + x, box["y"] + (box["height"] - box["width"]) / 2 + y


def pixels(page: Any, selector: str) -> list[int]:
    """Return red, green, blue and opacity of all pixels of a canvas."""
    read = "c => [...c.getContext('2d').getImageData(0, 0, c.width, c.height).data]"
    return list(page.locator(selector).evaluate(read))


def shown_classes(page: Any) -> set[str]:
    """Return the classes whose colours are on the map."""
    values = pixels(page, ".maps canvas")
    rows = {tuple(values[i : i + 3]) for i in range(0, len(values), 4) if values[i + 3] == 191}  # inside of a point
    near = {name: {row for row in rows if max(abs(a - b) for a, b in zip(row, colour, strict=True)) < 3}
            for name, colour in CLASS_COLOURS.items()}  # fmt: skip
    assert set.union(*near.values()) == rows  # there is no other colour
    return {name for name, found in near.items() if found}


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
        page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.goto(path.as_uri())
        tip, count = page.locator("#tip"), page.locator("#count")
        assert not tip.is_visible()
        for width in (1280, 390):
            page.set_viewport_size({"width": width, "height": 1600})
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            page.mouse.move(at(page, 7)[0] + 3, at(page, 7)[1])
            assert tip.locator("span").inner_text() == f"{HOSTILE} 7"
            assert tip.locator("b").inner_text() == "b"
            middle = pixels(page, "#tip canvas")[4 * (64 * 128 + 64) :][:4]
            assert abs(middle[0] - 140) < 4  # the red of sample 7
            assert max(middle[1:3]) < 4
            shown = tip.bounding_box()
            assert shown["x"] + shown["width"] <= width
            page.mouse.move(1, 1)
            assert not tip.is_visible()
        # The check boxes hide classes.
        assert shown_classes(page) == {"a", "b", "c"}
        page.locator(".key input").nth(1).click()
        assert count.inner_text() == "8 of 12 points are shown."
        page.wait_for_function("!maps[0].waiting()")
        assert shown_classes(page) == {"a", "c"}
        page.mouse.move(*at(page, 7))
        assert not tip.is_visible()  # a hidden class shows nothing
        for which, expected in (("none", set()), ("all", {"a", "b", "c"})):
            page.get_by_role("button", name=which, exact=True).click()
            page.wait_for_function("!maps[0].waiting()")
            assert shown_classes(page) == expected
        # The wheel enlarges the map around the pointer, so that the point there stays; dragging moves it; and back.
        page.mouse.move(*at(page, 7))
        page.mouse.wheel(0, -600)
        page.wait_for_function("maps[0].view.scale > 3.9")
        page.mouse.move(at(page, 7)[0] + 1, at(page, 7)[1])
        assert tip.locator("span").inner_text() == f"{HOSTILE} 7"
        x, y = at(page, 7)
        page.mouse.down()
        page.mouse.move(x - 41, y - 10)
        page.mouse.up()
        page.mouse.move(x, y)
        assert not tip.is_visible()
        page.mouse.move(x - 40, y - 10)
        assert tip.locator("span").inner_text() == f"{HOSTILE} 7"
        page.get_by_role("button", name="Show the whole map").click()
        page.mouse.move(*at(page, 2))
        assert tip.locator("span").inner_text() == f"{HOSTILE} 2"
        assert page.title() == "A map"
    assert problems == []


@pytest.mark.thorough
@needs_chromium
def test_ten_thousand_points_are_drawn_and_found_quickly(tmp_path: Path) -> None:
    previews = tuple(Preview(texts=(f"sentence {number}",)) for number in range(10_000))
    embedding = NamedEmbedding("a run", unit_vectors(10_000), torch.arange(10_000) % 12, previews=previews)
    text = map_page("Many", [embedding], [torch.randn(10_000, 2, generator=torch.Generator().manual_seed(0))])
    assert len(text) < 1_000_000
    (tmp_path / "map.html").write_text(text)
    with chromium() as context:
        page = context.new_page()
        page.goto((tmp_path / "map.html").as_uri())
        time = "(f => { const start = performance.now(); f(); return performance.now() - start })"
        # About a tenth of a second on two slow cores without a GPU; the limit leaves room for a busy machine.
        assert min(page.evaluate(f"[1, 2, 3].map(() => {time}(maps[0].drawPoints))")) < 500
        box = page.locator(".maps canvas").bounding_box()
        page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
        assert page.locator("#tip span").inner_text().startswith("sentence ")
