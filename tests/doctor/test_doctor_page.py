"""The doctor's page."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from browser import chromium, needs_chromium
from PIL import Image
from torch import Tensor

from contrapose import Doctor, Loss, nt_xent
from contrapose.doctor import Finding, Look
from contrapose.doctor.page import page, png


def looked(samples: Any = None) -> Doctor:
    """A doctor with a finding about pairs of rows, and several looks."""
    torch.manual_seed(0)
    doctor = Doctor(Loss(nt_xent, temperature=0.2), every=1)
    for _ in range(4):
        base = torch.randn(32, 16).repeat_interleave(2, 0)
        z1, z2 = (base + 0.2 * torch.randn(64, 16).requires_grad_() for _ in range(2))
        doctor.see(z1, z2, samples=samples)
    assert "false negatives" in [finding.name for finding in doctor.findings]
    return doctor


@pytest.mark.parametrize("shape", [(3, 5, 7), (1, 5, 7), (5, 7)])
def test_an_image_file_has_the_pixels(shape: tuple[int, ...]) -> None:
    image = torch.rand(shape)
    read = torch.from_numpy(np.array(Image.open(io.BytesIO(png(image)))))
    expected = (image * 255).round().to(torch.uint8)
    assert torch.equal(read, expected.permute(1, 2, 0) if shape[0] == 3 else expected.reshape(5, 7))


def test_an_image_of_another_range_is_scaled() -> None:
    image = torch.linspace(-2, 2, 9).view(3, 3)
    assert np.array(Image.open(io.BytesIO(png(image)))).flatten().tolist() == [0, 32, 64, 96, 128, 159, 191, 223, 255]


def test_texts_are_escaped(tmp_path: Path) -> None:
    doctor = looked([f"<b>text & {i}</b>" for i in range(64)])
    text = doctor.report(tmp_path / "a.html").read_text()
    assert "&lt;b&gt;text &amp; 0&lt;/b&gt;" in text
    assert "<b>text" not in text


def test_without_looks() -> None:
    assert "Nothing found in 0 looks." in page([], [], {"all checks": "expected <x>"}, samples={}, title="t")


def test_looks_and_findings_survive_a_file() -> None:
    doctor = looked()
    for look in doctor.looks:
        assert Look.from_json(look.as_json()) == look
    for finding in doctor.findings:
        assert Finding.from_json(finding.as_json()) == finding


@needs_chromium
@pytest.mark.thorough
@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [390, 1280])
def test_in_a_browser(width: int, dark: bool, tmp_path: Path) -> None:
    images: Tensor = torch.rand(64, 3, 16, 16)
    path = looked(images).report(tmp_path / "doctor.html")
    with chromium() as browser:
        tab = browser.new_page()
        tab.set_viewport_size({"width": width, "height": 800})
        tab.emulate_media(color_scheme="dark" if dark else "light")
        requests: list[str] = []
        tab.on("request", lambda request: requests.append(request.url))
        tab.goto(path.as_uri())
        assert tab.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
        assert tab.evaluate("[...document.images].every(image => image.naturalWidth == 16)")
        assert tab.locator("img").count() == 8
        assert tab.locator("svg polyline").count() > 8
        sizes = tab.eval_on_selector_all("svg text", "texts => texts.map(text => text.getBoundingClientRect().height)")
        assert min(sizes) > 8
        assert [url for url in requests if not url.startswith(("file:", "data:"))] == []
        tab.screenshot(path=str(tmp_path / "page.png"), full_page=True)
